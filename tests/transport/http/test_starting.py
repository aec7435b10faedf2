"""The doors of a server that is only opening its store."""

import resource
import socket

import pytest
import trio

from tests.support.fake_service import FakeService
from tests.transport.clients import HOST, http
from warren.transport.access.config import GatewayConfig
from warren.transport.gateway.gateway import serve_gateway
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


async def test_more_clients_than_may_be_held_do_not_keep_probes_out() -> None:
    """The client that has waited longest makes room, whether it is silent, waits for its answer, or has left."""
    listeners = await trio.open_tcp_listeners(0, host=HOST)
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery, starting(listeners, 2) as doors:

        async def hold(request: str) -> trio.SocketStream:
            before = set(doors.held)
            stream = await trio.open_tcp_stream(HOST, port)
            await stream.send_all(request.encode())
            while not set(doors.held) - before:
                await trio.lowlevel.checkpoint()
            return stream

        with trio.fail_after(10):
            silent = await hold("")
            await (await hold(HEALTH)).aclose()
            assert (await http(port, PROBE.format("GET", "/livez")))[0] == 200
            assert await silent.receive_some() == b""
            late = await hold(HEALTH.replace("\n", "\r\n"))
            for _ in range(3):
                assert (await http(port, PROBE.format("GET", "/livez")))[0] == 200
            early = await doors.take()
            assert len(early) == 1
            nursery.start_soon(lambda: serve_gateway(FakeService(), GatewayConfig(port=0), listeners, early=early))
            assert b" 200 " in await late.receive_some()
        nursery.cancel_scope.cancel()
    await silent.aclose()
    await late.aclose()


async def test_a_lack_of_files_does_not_end_a_start(caplog: pytest.LogCaptureFixture) -> None:
    """A client that cannot be accepted is accepted once there are files again; the log has one line about it."""
    listeners = await trio.open_tcp_listeners(0, host=HOST)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with starting(listeners, 10):
        with socket.create_connection(listeners[0].socket.getsockname()) as early:
            early.sendall(PROBE.format("GET", "/livez").replace("\n", "\r\n").encode())
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
            try:
                await trio.sleep(0.25)  # for several attempts
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert [record.getMessage() for record in caplog.records] == [
                "clients cannot be accepted, which is tried again: Too many open files"
            ]
            early.settimeout(10)
            assert b" 200 " in await trio.to_thread.run_sync(early.recv, 100)
    for listener in listeners:
        listener.socket.close()


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
