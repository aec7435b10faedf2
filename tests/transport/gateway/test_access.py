"""Access to the gateway, and the answers of those that are refused."""

import json
import logging

import pytest
import trio

from tests.support.fake_service import FakeService
from tests.transport.clients import HOST, connect, gateway, http, knock
from warren.base.errors import InvalidParamsError
from warren.transport.access.config import GatewayConfig
from warren.transport.gateway.gateway import serve_gateway

TOKEN = "s3cret-t0ken"  # noqa: S105 - not one of ours
GET = "GET {} HTTP/1.1\nHost: localhost\nConnection: close\n\n"


def bearer(token: str) -> list[tuple[bytes, bytes]]:
    """Return the header that shows a token."""
    return [(b"Authorization", f"Bearer {token}".encode())]


async def test_without_the_token_nobody_gets_in() -> None:
    """No token, a wrong one, and one in the wrong place all get 401."""
    async with gateway(FakeService(), token=TOKEN) as port:
        assert await knock(port) == 401
        assert await knock(port, Authorization=f"Bearer {TOKEN}x") == 401
        assert await knock(port, Cookie=TOKEN) == 401
        assert await knock(port, "warren", "bearer.wrong") == 401
        assert await knock(port, "warren", TOKEN) == 401
        assert await knock(port, "warren", f"bearer.{TOKEN}") == 101
        assert await knock(port, Authorization=f"Bearer {TOKEN}") == 101


async def test_with_the_token_a_program_gets_in() -> None:
    """The header opens the door."""
    async with gateway(FakeService(), token=TOKEN) as port, connect(port, extra_headers=bearer(TOKEN)) as client:
        assert (await client.call("health"))["status"] != "failed"
        assert client.socket.subprotocol is None


async def test_with_the_token_a_page_gets_in() -> None:
    """A browser sends it as a subprotocol, alone or beside ours, and fails unless one that it offered is answered."""
    page = [(b"Origin", b"http://localhost:3000")]
    async with gateway(FakeService(), token=TOKEN) as port:
        for offered in (["warren", f"bearer.{TOKEN}"], [f"bearer.{TOKEN}"]):
            async with connect(port, subprotocols=offered, extra_headers=page) as client:
                assert (await client.call("health"))["status"] != "failed"
                assert client.socket.subprotocol == offered[0]


async def test_a_host_of_another_name_is_refused() -> None:
    """Without a token a WebSocket has the same rule as REST: a page's own name may lead to this machine."""
    upgrade = (
        "Upgrade: websocket\nConnection: Upgrade\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: " + "A" * 22 + "=="
    )
    async with gateway(FakeService()) as port:
        for host in ("evil.example", "evil@localhost", f"evil.example:{port}"):
            assert (await http(port, f"GET /ws HTTP/1.1\nHost: {host}\n{upgrade}\n\n"))[0] == 403


async def test_without_a_token_to_know_everybody_gets_in() -> None:
    """On this machine's own address a token is optional, and one that is shown does no harm."""
    async with gateway(FakeService()) as port:
        async with connect(port) as client:
            assert (await client.call("health"))["status"] != "failed"
        async with connect(port, extra_headers=bearer("any"), subprotocols=["warren"]) as client:
            assert client.socket.subprotocol == "warren"


@pytest.mark.parametrize("token", [None, TOKEN])
async def test_pages_of_others_are_kept_out(token: str | None) -> None:
    """A page that is not on the list gets 403, even where it knows the token."""
    async with gateway(FakeService(), token=token, origins=("https://good.example",)) as port:
        for origin in ("http://evil.example", "null", "http://localhost.evil.example"):
            assert await knock(port, Origin=origin, Authorization=f"Bearer {TOKEN}") == 403
        for origin in ("https://good.example", "http://127.0.0.1:8420", "http://localhost"):
            assert await knock(port, Origin=origin, Authorization=f"Bearer {TOKEN}") == 101


async def test_plain_http_gets_an_answer_at_once() -> None:
    """A browser or a health check that knocks is told where it is, and does not hold a place."""
    async with gateway(FakeService(), max_connections=1) as port:
        with trio.fail_after(5):
            for _ in range(3):
                assert (await http(port, GET.format("/")))[0] == 404
            status, headers, body = await http(port, GET.format("/ws"))
            assert (status, headers["upgrade"], headers["connection"]) == (426, "websocket", "close")
            assert json.loads(body)["code"] == "INVALID_PARAMS"
            assert len(body) == int(headers["content-length"])
            assert (await http(port, "POST /ws HTTP/1.1\nHost: x\nContent-Length: 3\n\nabc"))[0] == 426
            assert (await http(port, "nonsense\n\n"))[0] == 400
            upload = f"POST /ws HTTP/1.1\nHost: x\nContent-Length: 300000\n\n{'x' * 300_000}"
            assert (await http(port, upload))[0] == 426


async def test_no_token_is_needed_to_learn_that_there_is_nothing() -> None:
    """Other paths tell nobody whether there is a token."""
    async with gateway(FakeService(), token=TOKEN) as port:
        assert (await http(port, GET.format("/")))[0] == 404
        assert (await http(port, GET.format("/ws")))[0] == 426


async def test_who_says_nothing_is_let_go() -> None:
    """A client that opens a connection and waits is closed after the handshake's time."""
    async with (
        gateway(FakeService(), handshake_timeout=0.1) as port,
        await trio.open_tcp_stream(HOST, port) as stream,
    ):
        await stream.send_all(b"GET /ws HTTP/1.1\r\n")
        with trio.fail_after(5):
            assert await stream.receive_some() == b""


async def test_an_address_that_others_reach_needs_a_token() -> None:
    """Without one, nothing is bound; the error says what to do."""
    with pytest.raises(InvalidParamsError, match=r"token: is required to bind 0\.0\.0\.0") as caught:
        await serve_gateway(FakeService(), GatewayConfig(host="0.0.0.0", port=0))  # noqa: S104 - it is refused
    assert caught.value.path == "$.token"


async def test_a_port_that_is_taken_is_an_os_error() -> None:
    """The plain error comes out, not a group of them."""
    async with gateway(FakeService()) as port:
        with pytest.raises(OSError, match="in use"):
            await serve_gateway(FakeService(), GatewayConfig(port=port))


async def test_a_name_with_two_addresses_has_one_port() -> None:
    """`localhost` with port 0 is served where it says."""
    async with gateway(FakeService(), host="localhost") as port, connect(port) as client:
        assert (await client.call("health"))["status"] != "failed"


async def test_the_token_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """However much is logged, the token is not."""
    caplog.set_level(logging.DEBUG)
    async with (
        gateway(FakeService(), token=TOKEN) as port,
        connect(port, subprotocols=["warren", f"bearer.{TOKEN}"]) as client,
    ):
        await client.call("config/get")
        assert TOKEN not in repr(client.seen)
    assert caplog.records
    assert TOKEN not in caplog.text


async def test_a_shutdown_says_goodbye() -> None:
    """Clients are closed with 1012, within a bound even where one of them does not answer; then the port is free."""
    async with trio.open_nursery() as nursery:
        serving = trio.CancelScope()

        async def serve(*, task_status: trio.TaskStatus[int]) -> None:
            with serving:
                await serve_gateway(FakeService(), GatewayConfig(port=0, close_timeout=0.3), task_status=task_status)

        port = await nursery.start(serve)
        async with connect(port) as polite, connect(port) as busy, await trio.open_tcp_stream(HOST, port) as silent:
            await polite.call("health")
            await busy.send("session/subscribe", session_id="s1")
            await silent.send_all(b"GET /ws HTTP/1.1\r\n")
            serving.cancel()
            with trio.fail_after(5):
                for client in (polite, busy):
                    assert await client.closed() == 1012
                assert await silent.receive_some() == b""
        with pytest.raises(OSError, match=f"{port}"):
            await trio.open_tcp_stream(HOST, port)
