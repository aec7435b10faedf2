"""Limits of tenants and tokens over a socket: the same refusal over REST and WebSocket, and for one tenant alone."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import httpx
import pytest
import trio

from tests.support.models import FunctionModel, stuck
from tests.transport.clients import Client, connect, gateway, knock
from tests.transport.http.tokens import listed
from tests.transport.rest.clients import client, create
from warren.base.errors import InvalidParamsError
from warren.base.tenant_limits import TenantLimits, TokenLimits
from warren.settings.config import Config, StoreConfig
from warren.transport.access.token_list import read_tokens
from warren.transport.embed import open_supervisor

NONE: Final = TokenLimits()
HI: Final = {"prompt": "hi"}
SOON: Final = 5.0
"""Seconds within which the file of tokens is read again."""


@attrs.frozen
class Place:
    """A gateway with two tenants, and clients of both over REST and WebSocket.

    Attributes:
        port: its port.
        http: a client of the tenant with limits.
        socket: the same tenant's.
        other: a client of the other tenant.
    """

    port: int
    http: httpx.AsyncClient
    socket: Client
    other: httpx.AsyncClient

    def head(self, length: int) -> bytes:
        """Return the head of a request of the tenant with limits, with a body of a length in bytes."""
        return (
            f"POST /sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {self.http.headers['authorization']}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        ).encode()

    async def refused(self, path: str, method: str, **params: Any) -> Any:
        """Return the body of the refusal of a request over REST, which is the same over a WebSocket."""
        body = {name: value for name, value in params.items() if name != "session_id"}
        answer = await self.http.post(path, json=body)
        assert answer.status_code == 429, answer.text
        found = answer.json()
        error = await self.socket.error(method, **params)
        assert error["code"] == -32008
        wait, again = (each["details"].pop("retry_after") for each in (found, error["data"]))
        assert error["data"] == found
        assert (wait is None) is (again is None) is not found["retryable"]
        assert answer.headers.get("retry-after") == (None if wait is None else str(math.ceil(wait)))
        return found


@asynccontextmanager
async def place(folder: Path, token: TokenLimits = NONE, **limits: int) -> AsyncIterator[Place]:
    """Open a gateway for a body; its store and its tokens are those of the folder."""
    path = folder / "tokens.toml"
    path.unlink(missing_ok=True)
    bearers = [f"Bearer {listed(path, tenant=name, limits=own)}" for name, own in (("acme", token), ("other", NONE))]
    config = Config(store=StoreConfig(folder / "store"), tenants={"acme": TenantLimits(**limits)})
    async with (
        open_supervisor(config, environ={}, providers={"stuck": FunctionModel(stuck)}) as service,
        gateway(service, token_file=path, runtime=config) as port,
        client(port, Authorization=bearers[0]) as http,
        connect(port, extra_headers=[(b"Authorization", bearers[0].encode())]) as socket,
        client(port, Authorization=bearers[1]) as other,
    ):
        yield Place(port, http, socket, other)


async def test_sessions(tmp_path: Path) -> None:
    """The limit holds after a restart, and a session that was deleted makes room."""
    async with place(tmp_path, sessions=1) as there:
        session_id = await create(there.http)
        found = await there.refused("/sessions", "session/create", prompt=None)
        assert found["details"] == {"cause": "tenant_sessions"}
        await create(there.other)
        await create(there.other)
    async with place(tmp_path, sessions=1) as there:
        await there.refused(f"/sessions/{session_id}/fork", "session/fork", session_id=session_id)
        assert (await there.http.delete(f"/sessions/{session_id}")).is_success
        await create(there.http)


async def test_connections(tmp_path: Path) -> None:
    """All surfaces count together; a connection that ends makes room, and another tenant's are not refused."""
    async with place(tmp_path, connections=3) as there:
        bearer = there.http.headers["Authorization"]
        for _ in range(5):
            assert (await there.http.get("/sessions")).status_code == 200
        async with connect(there.port, extra_headers=[(b"Authorization", bearer.encode())]) as third:
            assert await third.call("session/list")
            async with client(there.port, Authorization=bearer) as late:
                for path in ("/sessions", "/openapi.json", "/mcp"):
                    refused = await late.get(path)
                    assert (refused.status_code, refused.headers["connection"]) == (429, "close")
                    assert (refused.json()["code"], refused.headers["retry-after"]) == ("CAPACITY_EXCEEDED", "1")
                    assert refused.json()["details"] == {"cause": "tenant_connections", "retry_after": 1.0}
                    assert refused.json()["message"].startswith(
                        "the tenant 'acme' has 3 connections, as many as it may"
                    )
            assert await knock(there.port, Authorization=bearer) == 429
            assert (await there.http.get("/sessions")).status_code == 200
            for _ in range(5):
                async with client(there.port, Authorization=there.other.headers["Authorization"]) as other:
                    assert (await other.get("/sessions")).status_code == 200
        with trio.fail_after(SOON):
            while await knock(there.port, Authorization=bearer) != 101:
                pass


async def test_a_connection_counts_for_the_tenant_that_uses_it(tmp_path: Path) -> None:
    """A proxy may send the requests of several tenants over one connection."""
    async with place(tmp_path, connections=2) as there, client(there.port) as proxy:
        ours, theirs = ({"Authorization": each.headers["Authorization"]} for each in (there.http, there.other))
        assert (await proxy.get("/sessions", headers=ours)).status_code == 200
        assert (await there.http.get("/sessions")).status_code == 429
        assert (await proxy.get("/sessions", headers=theirs)).status_code == 200
        assert (await there.http.get("/sessions")).status_code == 200
        assert (await proxy.get("/sessions", headers=ours)).status_code == 429


async def test_turns_a_minute(tmp_path: Path) -> None:
    """It is counted over all surfaces together, and for inputs that wait as well."""
    async with place(tmp_path, turns_per_minute=2) as there:
        session_id = await create(there.http)
        turns = f"/sessions/{session_id}/messages"
        assert (await there.http.post(turns, json=HI)).status_code == 200
        await there.socket.call("turn/start", session_id=session_id, **HI)
        for mode in ("busy", "queue"):
            found = await there.refused(turns, "turn/start", session_id=session_id, mode=mode, **HI)
            assert found["details"] == {"cause": "tenant_turns_per_minute"}
            assert found["message"] == "the tenant 'acme' has begun 2 turns within a minute, as many as it may"
        for _ in range(3):
            assert (await there.other.post("/sessions", json=HI)).status_code == 201


async def test_running_turns(tmp_path: Path) -> None:
    """A turn that runs is one; when it was interrupted another one may begin."""
    async with place(tmp_path, running_turns=1) as there:
        busy, free = await create(there.http, model="stuck"), await create(there.http)
        running = await there.socket.send("turn/start", session_id=busy, **HI)
        await there.socket.call("session/subscribe", session_id=busy, after_seq=0)
        await there.socket.until("text_delta")
        found = await there.refused(f"/sessions/{free}/messages", "turn/start", session_id=free, **HI)
        assert found["details"] == {"cause": "tenant_running_turns"}
        assert (await there.other.post("/sessions", json=HI)).status_code == 201
        await there.socket.call("turn/interrupt", session_id=busy)
        await there.socket.reply(running)
        assert (await there.http.post(f"/sessions/{free}/messages", json=HI)).status_code == 200


async def test_stored_bytes(tmp_path: Path) -> None:
    """Bytes that were stored before a restart count after it."""
    async with place(tmp_path) as there:
        session_id = await create(there.http)
        assert (await there.http.post(f"/sessions/{session_id}/messages", json=HI)).status_code == 200
        other = await create(there.other)
    async with place(tmp_path, stored_bytes=100) as there:
        found = await there.refused(f"/sessions/{session_id}/messages", "turn/start", session_id=session_id, **HI)
        assert found["details"] == {"cause": "tenant_stored_bytes"}
        await there.refused(
            f"/sessions/{session_id}/context", "session/inject_context", session_id=session_id, text="more"
        )
        assert (await there.other.post(f"/sessions/{other}/messages", json=HI)).status_code == 200


async def test_tokens_of_a_token(tmp_path: Path) -> None:
    """A client with another token goes on; the store knows after a restart."""
    async with place(tmp_path, TokenLimits(tokens_per_day=1)) as there:
        session_id = await create(there.http)
        turns = f"/sessions/{session_id}/messages"
        assert (await there.http.post(turns, json=HI)).status_code == 200
    async with place(tmp_path, TokenLimits(tokens_per_day=1)) as there:
        found = await there.refused(turns, "turn/start", session_id=session_id, **HI)
        assert found["details"] == {"cause": "token_tokens_per_day"}
        assert (await there.other.post("/sessions", json=HI)).status_code == 201


async def test_two_tokens_of_a_name(tmp_path: Path) -> None:
    """After the requests of one with a higher limit the other one is refused as before, on each surface."""
    async with place(tmp_path, TokenLimits(tokens_per_day=1)) as there:
        session_id = await create(there.http)
        turns, wide = f"/sessions/{session_id}/messages", TokenLimits(tokens_per_day=1_000_000)
        bearer = f"Bearer {listed(tmp_path / 'tokens.toml', tenant='acme', limits=wide)}"
        async with client(there.port, Authorization=bearer) as http:
            with trio.fail_after(SOON):
                while (await http.post(turns, json=HI)).status_code != 200:  # noqa: ASYNC110 - the server reads a file
                    await trio.sleep(0.05)
            for _ in range(2):
                found = await there.refused(turns, "turn/start", session_id=session_id, **HI)
                assert found["details"] == {"cause": "token_tokens_per_day"}
                assert (await http.post(turns, json=HI)).status_code == 200


async def test_requests_a_second(tmp_path: Path) -> None:
    """Requests over REST and a WebSocket wait behind each other and are all answered; another tenant's are at once."""
    async with place(tmp_path, requests_per_second=20) as there, trio.open_nursery() as nursery:
        for _ in range(12):
            last = await there.socket.send("capabilities/get")
        ended: list[str] = []

        async def note() -> None:
            await there.socket.reply(last)
            ended.append("acme")

        nursery.start_soon(note)
        assert (await there.other.get("/sessions")).status_code == 200
        assert ended == []
        assert (await there.http.get("/sessions")).status_code == 200
    assert ended == ["acme"]


async def test_a_body_that_is_announced_alone(tmp_path: Path) -> None:
    """It holds nobody up: one that is too long is refused, and that of a client that leaves has not come."""
    async with place(tmp_path, requests_per_second=20) as there:
        for length, answer in ((1_000_000_000_000, b"HTTP/1.1 413 "), (1_000_000, b"")):
            with trio.fail_after(SOON):
                async with await trio.open_tcp_stream("127.0.0.1", there.port) as stream:
                    await stream.send_all(there.head(length))
                    if answer:
                        assert (await stream.receive_some()).startswith(answer)
                    else:
                        await stream.send_eof()
                        async for _ in stream:
                            pass
                assert (await there.http.get("/sessions")).status_code == 200
                await there.socket.call("capabilities/get")


async def test_limits_of_a_token_that_change(tmp_path: Path) -> None:
    """The new ones hold when the file is read again; an open connection ends, so that it cannot keep the old ones."""
    async with place(tmp_path, TokenLimits(turns_per_minute=1)) as there:
        session_id = await create(there.http)
        turns = f"/sessions/{session_id}/messages"
        assert (await there.http.post(turns, json=HI)).status_code == 200
        found = await there.refused(turns, "turn/start", session_id=session_id, **HI)
        assert found["details"] == {"cause": "token_turns_per_minute"}
        path = tmp_path / "tokens.toml"
        text = path.read_text()
        assert "limits.turns_per_minute = 1\n" in text
        changed = path.with_suffix(".new")
        changed.write_text(text.replace("turns_per_minute = 1\n", "turns_per_minute = 600\n"))
        changed.replace(path)
        with trio.fail_after(SOON):
            assert await there.socket.closed() == 4401
            while (await there.http.post(turns, json=HI)).status_code != 200:
                pass


def test_a_file_of_tokens_with_bad_limits() -> None:
    """The error names the field."""
    table = '[[token]]\nhash = "sha256:{}"\ntenant = "a"\nname = "n"\nscopes = []\n'.format("0" * 64)
    assert read_tokens(f"{table}limits.sessions = 5\n".encode())[0].limits == TokenLimits(sessions=5)
    for line, path in (
        ("limits.sessions = 0", "limits.sessions"),
        ("limits.running_turns = 'x'", "limits.running_turns"),
        ("limits.connections = 5", "limits.connections"),
        ("limits = 5", "limits"),
    ):
        with pytest.raises(InvalidParamsError) as caught:
            read_tokens(f"{table}{line}\n".encode())
        assert caught.value.path in (f"$.token_file.token[0].{path}", "$.token_file.token[0].limits")
        assert path.rpartition(".")[2] in caught.value.message
