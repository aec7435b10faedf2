"""The probes of an orchestrator: without a token, beside all limits, and without a question to the store."""

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.support.fake_service import FakeService
from tests.transport.clients import HOST, connect, gateway, http
from warren.actors.observe.metrics import PATIENCE, Writes
from warren.base.errors import StoreError
from warren.transport.access.config import GatewayConfig
from warren.transport.gateway.gateway import serve_gateway

REQUEST = "{} {} HTTP/1.1\nHost: {}\nConnection: close\n\n"


async def probe(port: int, path: str, method: str = "GET", host: str = "10.1.2.3:8420") -> int:
    """Return the status of a probe as an orchestrator sends it, by an address and without a token."""
    status, headers, body = await http(port, REQUEST.format(method, path, host))
    assert (body, headers["content-length"], headers["connection"]) == ("", "0", "close")
    return status


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_probes_need_no_token(method: str, tmp_path: Path) -> None:
    """They are answered under any name of the host, and leave no entry in the audit."""
    (tmp_path / "token").write_text("secret")
    service = FakeService()
    async with gateway(service, token_file=tmp_path / "token") as port:
        assert [await probe(port, path, method) for path in ("/livez", "/readyz", "/readyz?verbose")] == [200] * 3
        assert await probe(port, "/readyz", "POST") == 405
    assert service.entries == []


async def test_a_server_that_drains_lives_and_is_not_ready() -> None:
    """So that no new work is sent there, and it is not killed for it."""
    service = FakeService()
    async with gateway(service) as port:
        await service.drain()
        assert (await probe(port, "/livez"), await probe(port, "/readyz")) == (200, 503)


async def test_probes_are_answered_beside_the_limits() -> None:
    """Clients that hold all places keep no probe out, nor do those that only knock."""
    async with gateway(FakeService(), max_connections=2, handshake_timeout=60) as port, AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(connect(port))
        for _ in range(20):
            await stack.enter_async_context(await trio.open_tcp_stream(HOST, port))
        assert (await probe(port, "/livez"), await probe(port, "/readyz")) == (200, 200)
        assert (await http(port, REQUEST.format("GET", "/health", "localhost")))[0] == 503


async def test_the_port_of_the_metrics_has_the_probes() -> None:
    """A prober can be let in there alone."""
    scraped = await trio.open_tcp_listeners(0, host=HOST)
    async with trio.open_nursery() as nursery:
        serving = partial(serve_gateway, metrics=scraped)
        await nursery.start(serving, FakeService(), GatewayConfig(port=0, close_timeout=0.3))
        port = scraped[0].socket.getsockname()[1]
        assert (await probe(port, "/livez"), await probe(port, "/readyz")) == (200, 200)
        nursery.cancel_scope.cancel()


@pytest.mark.virtual_time
async def test_a_store_that_does_not_answer_is_noticed() -> None:
    """After some seconds of refusals, of one write that hangs, or without a probe that succeeds."""
    every = 4.0
    writes = Writes()
    await trio.sleep(every + PATIENCE - 0.1)
    assert writes.answered_within(every)
    await trio.sleep(0.2)
    assert not writes.answered_within(every)
    writes.probed()
    writes.failed(StoreError("away", cause="unreachable"))
    await trio.sleep(PATIENCE - 0.1)
    assert writes.answered_within(every)
    await trio.sleep(0.2)
    assert not writes.answered_within(every)
    writes.probed()
    writes.began()
    await trio.sleep(PATIENCE + 0.1)
    assert not writes.answered_within(every)
    writes.ended([None])
    assert writes.answered_within(every)
