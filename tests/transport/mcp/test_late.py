"""MCP at the gateway: opened for the first who asks, answered whatever comes of that."""

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module

import httpx
import pytest
import trio

from tests.support.runtime import open_runtime
from tests.transport.clients import HOST, gateway
from tests.transport.mcp.clients import ACCEPT, HELLO
from warren.transport.http.shutdown import Shutdown
from warren.transport.mcp import late
from warren.transport.mcp.late import LateMcp


def test_a_gateway_begins_without_it() -> None:
    """A program that serves no MCP client does not wait for its classes."""
    program = "import sys, warren.transport.gateway.gateway, warren.transport.mcp.late; sys.exit('mcp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


async def test_the_first_who_ask_at_once_are_all_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is opened once, and others are served while that takes its time."""
    loads: list[None] = []
    go_on = trio.Event()

    def load() -> object:
        loads.append(trio.from_thread.run(go_on.wait))
        return import_module("warren.transport.mcp.http")

    monkeypatch.setattr(late, "_load", load)
    async with open_runtime() as service, gateway(service) as port, httpx.AsyncClient() as client:
        found: list[int] = []

        async def ask() -> None:
            answer = await client.post(f"http://{HOST}:{port}/mcp", json=HELLO, headers=ACCEPT)
            found.append(answer.status_code)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
            assert (await client.get(f"http://{HOST}:{port}/health")).status_code == 200
            assert found == []
            go_on.set()
        assert found == [200] * 3
        assert len(loads) == 1


async def test_one_that_cannot_be_loaded_ends_no_gateway(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever asks is told, the log says why, and everything else goes on."""

    def load() -> object:
        raise ImportError("no such thing")

    monkeypatch.setattr(late, "_load", load)
    async with open_runtime() as service, gateway(service) as port, httpx.AsyncClient() as client:
        for _ in range(2):
            assert (await client.post(f"http://{HOST}:{port}/mcp", json=HELLO, headers=ACCEPT)).status_code == 500
        assert (await client.get(f"http://{HOST}:{port}/health")).status_code == 200
    assert "no such thing" in caplog.text


@asynccontextmanager
async def held() -> AsyncIterator[tuple[LateMcp, trio.CancelScope]]:
    """Hold an application; its scope ends it."""
    app = LateMcp()
    async with open_runtime() as service, trio.open_nursery() as nursery:
        nursery.start_soon(partial(app.hold, service, Shutdown(), max_body=1000, max_calls=1))
        yield app, nursery.cancel_scope
        nursery.cancel_scope.cancel()


async def test_who_waits_when_it_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that came while it was opened is answered at the end, not left alone."""
    monkeypatch.setattr(late, "_load", partial(trio.from_thread.run, trio.sleep_forever))
    transport = httpx.ASGITransport
    async with trio.open_nursery() as nursery, held() as (app, ends):
        client = httpx.AsyncClient(transport=transport(app), base_url="http://here")
        statuses: list[int] = []

        async def ask() -> None:
            statuses.append((await client.post("/mcp", json=HELLO)).status_code)

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        ends.cancel()
    assert statuses == [503]
