"""The doors of a server that is only opening its store."""

import trio

from tests.support.fake_service import FakeService
from tests.transport.clients import HOST, http
from warren.transport.gateway.server import serve_gateway
from warren.transport.http.config import GatewayConfig
from warren.transport.http.starting import starting

PROBE = "{} {} HTTP/1.1\nHost: 10.1.2.3\nUser-Agent: kube-probe\n\n"
HEALTH = "GET /health HTTP/1.1\nHost: localhost\nConnection: close\n\n"


async def test_a_server_that_starts_lives_and_is_not_ready() -> None:
    """Probes have their answers at once; whoever wants more, or has said nothing yet, is served when it has begun."""
    listeners = await trio.open_tcp_listeners(0, host=HOST)
    port = listeners[0].socket.getsockname()[1]
    statuses: list[int] = []

    async def ask(request: str) -> None:
        statuses.append((await http(port, request))[0])

    async with trio.open_nursery() as nursery, starting(listeners, 10) as doors:
        for method in ("GET", "HEAD"):
            assert (await http(port, PROBE.format(method, "/livez")))[0] == 200
            status, headers, body = await http(port, PROBE.format(method, "/readyz?verbose"))
            assert (status, headers["content-length"], body) == (503, "0", "")
        nursery.start_soon(ask, HEALTH)
        silent = await trio.open_tcp_stream(HOST, port)
        while len(doors.held) < 2:
            await trio.lowlevel.checkpoint()
        assert statuses == []
        config = GatewayConfig(port=0, close_timeout=0.3)
        early = await doors.take()
        async with trio.open_nursery() as serving:
            serving.start_soon(lambda: serve_gateway(FakeService(), config, listeners, early=early))
            await silent.send_all(HEALTH.replace("\n", "\r\n").encode())
            assert b" 200 " in await silent.receive_some()
            assert (await http(port, PROBE.format("GET", "/readyz")))[0] == 200
            serving.cancel_scope.cancel()
        await silent.aclose()
    assert statuses == [200]


async def test_who_was_held_is_let_go_with_a_server_that_cannot_start() -> None:
    """Nobody waits for a server that does not come."""
    listeners = await trio.open_tcp_listeners(0, host=HOST)
    async with starting(listeners, 10) as doors:
        early = await trio.open_tcp_stream(HOST, listeners[0].socket.getsockname()[1])
        while not doors.held:
            await trio.lowlevel.checkpoint()
    assert await early.receive_some() == b""
    await early.aclose()
    for listener in listeners:
        listener.socket.close()
