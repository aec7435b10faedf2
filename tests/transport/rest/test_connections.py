"""Connections of HTTP clients: kept, pipelined, half-closed, slow, many; none of them harms another."""

import contextlib
import json
import logging
import re

import pytest
import trio
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from wsproto.events import AcceptConnection, RejectConnection, TextMessage
from wsproto.events import Request as Upgrade

from tests.support.fake_service import FakeService, FakeTurn
from tests.transport.clients import HEALTH, HOST, Frames, connect, gateway, healthy, knock
from tests.transport.http.serving import served_app
from tests.transport.rest.clients import Events, client, create, events, port_of, problem, rest, until_free, unwatched
from warren.transport.http import http_server
from warren.transport.rest.routes import ROUTES

GET = f"GET /health HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()

INITIALIZE = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


async def read_until(stream: trio.SocketStream, text: bytes, times: int = 1) -> bytes:
    """Read until a text has come so many times."""
    read = b""
    while read.count(text) < times:
        data = await stream.receive_some()
        assert data, read
        read += data
    return read


async def ended(stream: trio.SocketStream) -> bytes:
    """Read to the end, in whatever way that comes."""
    read = b""
    with contextlib.suppress(trio.BrokenResourceError):
        async for chunk in stream:
            read += chunk
    return read


def post(body: bytes, path: str = "/sessions", **headers: str) -> bytes:
    """Make a POST."""
    fields = {"Host": HOST, "Content_Type": "application/json", "Content_Length": str(len(body)), **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return "\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]).encode() + body


async def test_a_connection_serves_many_requests_of_many_kinds() -> None:
    """Whatever a connection began with, it goes on with anything but a WebSocket."""
    async with gateway(FakeService()) as port, await trio.open_tcp_stream(HOST, port) as stream:
        for request, status in (
            (GET, b"200"),
            (post(b'{"prompt": "x"}'), b"201"),
            (b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
            (post(b"{"), b"400"),
            (GET, b"200"),
        ):
            await stream.send_all(request)
            answer = await read_until(stream, b"}")
            assert answer.startswith(b"HTTP/1.1 " + status), answer


async def test_requests_may_be_sent_before_their_answers_come() -> None:
    """Pipelined requests, in any pieces, are answered in their order."""
    async with gateway(FakeService()) as port, await trio.open_tcp_stream(HOST, port) as stream:
        requests = b"".join(post(json.dumps({"prompt": f"number{n}"}).encode()) for n in range(5)) + GET
        for start in range(0, len(requests), 70):
            await stream.send_all(requests[start : start + 70])
            await trio.lowlevel.checkpoint()
        answers = await read_until(stream, b"HTTP/1.1", 6)
        places = [answers.index(f"number{n}".encode()) for n in range(5)]
        assert places == sorted(places)


async def test_a_websocket_may_follow_other_requests() -> None:
    """A proxy that keeps connections sends it as a later request; it takes no place among those of HTTP then."""
    async with gateway(FakeService(), max_http=1) as port, await trio.open_tcp_stream(HOST, port) as stream:
        for _ in range(2):
            await stream.send_all(GET)
            await read_until(stream, b"}")
        frames = Frames(stream)
        assert isinstance(await frames.open(), AcceptConnection)
        async with client(port) as http:
            assert (await http.get("/health")).status_code == 200
        await frames.send(TextMessage(HEALTH))
        assert isinstance(await frames.next(), TextMessage)


async def test_a_websocket_is_at_one_path() -> None:
    """Elsewhere the wish for one is passed over or refused, and at its path it opens."""
    async with gateway(FakeService()) as port:
        async with await trio.open_tcp_stream(HOST, port) as stream:
            frames = Frames(stream)
            await frames.send(Upgrade(host=HOST, target="/sessions"))
            elsewhere = await frames.next()
            assert isinstance(elsewhere, RejectConnection)
            assert elsewhere.status_code == 200  # it is answered as what it is without that wish
        assert await knock(port) == 101


async def test_a_client_may_end_its_side_and_wait_for_its_answer() -> None:
    """A half-closed connection still brings the answer to a request that was whole, then ends."""
    go = trio.Event()

    async def wait(turn: FakeTurn) -> None:
        await go.wait()
        turn.say("x")

    async with gateway(FakeService(behaviour=wait)) as port, await trio.open_tcp_stream(HOST, port) as stream:
        await stream.send_all(post(b'{"prompt": "patience"}'))
        await stream.send_eof()
        await trio.sleep(0.1)
        go.set()
        with trio.fail_after(5):
            assert b"patience" in await ended(stream)


async def test_requests_that_break_off_harm_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Clients that leave at every point of a request leave no error in the log, and no connection."""
    request = post(b'{"prompt": "x"}')
    async with rest(FakeService(), max_http=2) as http:
        for cut in range(1, len(request), 7):
            async with await trio.open_tcp_stream(HOST, port_of(http)) as stream:
                await stream.send_all(request[:cut])
                await stream.send_eof()
                with trio.fail_after(5):
                    await ended(stream)
        assert (await http.get("/health")).status_code == 200
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    """A client that says a length and sends less gets 408 in the end; others are served meanwhile."""
    async with rest(FakeService(), stall_timeout=0.2) as http:
        async with await trio.open_tcp_stream(HOST, port_of(http)) as slow:
            await slow.send_all(post(b'{"prompt": "x"}', Content_Length="100"))
            assert (await http.get("/health")).status_code == 200
            with trio.fail_after(5):
                answer = await ended(slow)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b'"path":"$.body"' in answer


async def test_a_head_that_does_not_come_is_not_waited_for() -> None:
    """Neither for the first request of a connection nor for a later one."""
    async with (
        gateway(FakeService(), handshake_timeout=0.2, keep_alive_timeout=0.2) as port,
        await trio.open_tcp_stream(HOST, port) as first,
        await trio.open_tcp_stream(HOST, port) as later,
    ):
        await first.send_all(GET[:20])
        await later.send_all(GET)
        await read_until(later, b"}")
        await later.send_all(GET[:20])
        with trio.fail_after(5):
            assert await ended(first) == b""
            await ended(later)


async def test_a_silent_connection_is_closed() -> None:
    """A client that has nothing more to ask is let go after the time to keep it."""
    async with (
        gateway(FakeService(), keep_alive_timeout=0.1) as port,
        await trio.open_tcp_stream(HOST, port) as stream,
    ):
        await stream.send_all(GET)
        with trio.fail_after(5):
            assert (await ended(stream)).startswith(b"HTTP/1.1 200")


async def test_a_body_that_nobody_wants_is_thrown_away() -> None:
    """Tiny chunks without end, to a path that is not there, are answered; the connection and its memory go."""
    chunk = b"1\r\nx\r\n"
    async with gateway(FakeService(), max_http=1) as port:
        async with await trio.open_tcp_stream(HOST, port) as stream, trio.open_nursery() as nursery:
            head = f"POST /nowhere HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n"
            await stream.send_all(head.encode() + chunk * 2_000)
            nursery.start_soon(pour, stream, chunk * 2_000)
            with trio.fail_after(5):
                assert (await read_until(stream, b"}")).startswith(b"HTTP/1.1 404")
            nursery.cancel_scope.cancel()
        await until_free(port)


async def pour(stream: trio.SocketStream, data: bytes) -> None:
    """Send the same again and again until that fails."""
    try:
        while True:
            await stream.send_all(data)
    except trio.BrokenResourceError:
        await trio.sleep_forever()


async def test_too_many_http_clients_leave_room_for_others() -> None:
    """One more than the limit gets 503 with the one shape of errors; WebSockets have their own room."""
    async with gateway(FakeService(), max_http=2) as port:
        async with events(port, "s1"), events(port, "s2"), client(port) as third, connect(port) as socket:
            full = await third.get("/health")
            assert problem(full)[:2] == (503, "CAPACITY_EXCEEDED")
            assert full.json()["retryable"] is True
            assert await healthy(socket)
        await until_free(port)


async def test_slow_bodies_give_way() -> None:
    """With more slow bodies than places all requests are answered, and only the machine that sends them loses some."""
    body = b'{"prompt": "patience"}'
    async with gateway(FakeService(), max_http=10) as port, contextlib.AsyncExitStack() as stack, client(port) as http:
        other = await stack.enter_async_context(await trio.open_tcp_stream(HOST, port, local_address="127.0.0.2"))
        await other.send_all(post(body)[:-1])
        streams = list[trio.SocketStream]()
        for path in ("/sessions", "/sessions/s1/messages", "/mcp") * 10:
            streams.append(await stack.enter_async_context(await trio.open_tcp_stream(HOST, port)))
            await streams[-1].send_all(post(body, path)[:-1])
            assert (await http.get("/health")).status_code == 200
        assert (await http.post("/sessions", json={"prompt": "at once"})).json()["text"] == "at once"
        refused = await ended(streams[0])
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in refused.lower()
        assert b"CAPACITY_EXCEEDED" in refused
        await other.send_all(body[-1:])
        assert (await read_until(other, b"}")).startswith(b"HTTP/1.1 201")


async def test_clients_that_do_not_read_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many of them as places all requests are answered, and only the machine that does not read loses some."""
    monkeypatch.setattr(http_server, "UNREAD", 0.05)
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 60
    async with gateway(FakeService(), max_http=10) as port, contextlib.AsyncExitStack() as stack:
        for number in range(10):
            place = "127.0.0.2" if number == 0 else HOST
            stream = await trio.open_tcp_stream(HOST, port, local_address=place)
            await stack.enter_async_context(stream)
            await stream.send_all(asked)
            if number == 0:
                other = stream
        await trio.sleep(0.5)
        for _ in range(3):
            async with client(port) as http:
                assert (await http.get("/health")).status_code == 200
        with trio.fail_after(10):
            read = 0
            while read < 5_000_000:
                read += len(await other.receive_some(1_000_000))


@pytest.mark.parametrize("path", ["/sessions", "/sessions/s1/messages", "/mcp", "/nowhere"])
async def test_a_body_of_a_client_that_is_not_let_in_is_not_waited_for(path: str) -> None:
    """The head of its request is enough to refuse it."""
    async with (
        gateway(FakeService(), token="t") as port,  # noqa: S106 - not one of ours
        await trio.open_tcp_stream(HOST, port) as stream,
    ):
        await stream.send_all(post(b"{}" * 500, path)[:-999])
        with trio.fail_after(5):
            refused = await read_until(stream, b"}")
        assert refused.startswith(b"HTTP/1.1 404" if path == "/nowhere" else b"HTTP/1.1 401")


async def test_connections_without_a_request_give_way() -> None:
    """The one that has waited longest for its next request is closed for a new client."""
    async with gateway(FakeService(), max_http=2) as port, contextlib.AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(await trio.open_tcp_stream(HOST, port)) for _ in range(3)]
        for stream in streams:
            await stream.send_all(GET)
            await read_until(stream, b"}")
        assert await ended(streams[0]) == b""
        await streams[1].send_all(GET)
        assert (await read_until(streams[1], b"}")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "br", "deflate", "zstd", "identity, gzip", "x" * 1_000])
async def test_a_compressed_body_is_refused(coding: str) -> None:
    """On each route, with 415 and the name of the header; `identity` is no coding."""
    service = FakeService()
    headers = {"Content-Encoding": coding, "Content-Type": "application/json"}
    async with gateway(service) as port, client(port) as http:
        routes = [*((row.verb, re.sub("[{}]", "", row.path)) for row in ROUTES), ("POST", "/mcp")]
        for verb, path in routes:
            refused = await http.request(verb, path, content=b"\x1f\x8b", headers=headers)
            assert problem(refused) == (415, "INVALID_PARAMS", "$.headers.content-encoding"), path
            assert refused.headers["accept-encoding"] == "identity"
            assert len(refused.content) < 400
        form = {"Content-Type": "multipart/form-data; boundary=b", "Content-Encoding": coding}
        assert (await http.post("/sessions", content=b"\x1f\x8b", headers=form)).status_code == 415
        assert service.calls == []
        assert (await http.get("/health", headers={"Content-Encoding": coding})).status_code == 200
        plain = await http.post("/sessions", json={"prompt": "hi"}, headers={"Content-Encoding": "identity"})
        assert plain.status_code == 201


async def test_a_flood_of_clients_is_served() -> None:
    """A hundred clients at once, each with its own turn, get each its own answer."""
    answers: list[str] = []

    async def one(port: int, number: int) -> None:
        async with client(port) as http:
            answers.append((await http.post("/sessions", json={"prompt": f"n{number}"})).json()["text"])

    async with gateway(FakeService()) as port:
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(one, port, number)
        assert sorted(answers) == sorted(f"n{number}" for number in range(100))


async def test_a_client_that_does_not_read_is_dropped() -> None:
    """A stuck reader of a stream goes after the stall's time, and its place is free."""

    async def long(turn: FakeTurn) -> None:
        for _ in range(300):
            turn.say("x" * 30_000)
            await trio.lowlevel.checkpoint()

    service = FakeService(behaviour=long)
    async with rest(service, stall_timeout=0.3) as http:
        session_id = await create(http)
        async with events(port_of(http), session_id):
            assert (await http.post(f"/sessions/{session_id}/messages", json={"prompt": "go"})).status_code == 200
            with trio.fail_after(5):
                await unwatched(service, session_id)


async def test_a_client_that_does_not_read_does_not_hold_up_the_shutdown() -> None:
    """The gateway ends within its bound, with a stream that nobody takes and a body that is on its way."""

    async def endless(turn: FakeTurn) -> None:
        while True:
            turn.say("x" * 20_000)
            await trio.sleep(0.0001)

    with trio.fail_after(5):
        async with gateway(FakeService(behaviour=endless), stall_timeout=60) as port:
            async with client(port) as http:
                session_id = await create(http)
            stuck, asking, slow = [await trio.open_tcp_stream(HOST, port) for _ in range(3)]
            await Events(stuck).open(f"/sessions/{session_id}/events")
            await asking.send_all(post(b'{"prompt": "x"}', f"/sessions/{session_id}/messages"))
            await slow.send_all(post(b'{"prompt":', Content_Length="100"))
            await trio.sleep(0.3)
    async with stuck, asking, slow:
        assert await ended(slow) == b""


async def test_mcp_is_at_its_place() -> None:
    """Its clients find it on the same port, with the other routes' bounds."""
    ping = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
    headers = {"Accept": "application/json, text/event-stream"}
    async with rest(FakeService(), max_message_bytes=10_000) as http:
        hello = await http.post("/mcp", json=ping, headers=headers)
        assert hello.status_code == 200
        assert '"serverInfo"' in hello.text
        assert (await http.post("/mcp", json={"x": "y" * 10_000}, headers=headers)).status_code == 413
        assert (await http.get("/health")).status_code == 200


async def test_the_clients_address_is_its_own() -> None:
    """The application sees the address of the connection, whatever headers say, on every request."""

    async def app(scope: object, receive: object, send: object) -> None:
        request = Request(scope, receive)  # type: ignore[arg-type]
        assert request.client is not None
        await PlainTextResponse(f"{request.client.host}:{request.client.port}")(scope, receive, send)  # type: ignore[arg-type]

    forged = b"X-Forwarded-For: 10.0.0.1\r\nForwarded: for=10.0.0.1\r\n"
    async with served_app(app) as stream:
        host, port = stream.socket.getsockname()
        for _ in range(2):
            await stream.send_all(GET.replace(b"\r\n\r\n", b"\r\n" + forged + b"\r\n"))
            await read_until(stream, f"{host}:{port}".encode())


async def test_a_wish_for_another_protocol_is_passed_over() -> None:
    """HTTP/2 is not spoken, but a client that only offers it is answered in HTTP/1.1, request after request."""
    wish = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
    async with gateway(FakeService()) as port, await trio.open_tcp_stream(HOST, port) as stream:
        for _ in range(3):
            await stream.send_all(GET.replace(b"\r\n\r\n", b"\r\n" + wish))
            answer = await read_until(stream, b"}")
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"connection: close" not in answer.lower()


@pytest.mark.parametrize("before", [b"", GET])
async def test_another_version_of_http_ends_the_connection(before: bytes) -> None:
    """Frames of HTTP/2 are refused in words, on a new connection and on one that was kept; nothing is done."""
    service = FakeService()
    async with gateway(service, max_http=1) as port, await trio.open_tcp_stream(HOST, port) as stream:
        if before:
            await stream.send_all(before)
            await read_until(stream, b"}")
        await stream.send_all(PREFACE + b"\0\0\0\4" + b"\0" * 5)
        with trio.fail_after(5):
            assert (await ended(stream)).startswith(b"HTTP/1.1 505")
        await until_free(port)
    assert service.calls == []


async def test_a_body_with_two_lengths_ends_the_connection() -> None:
    """Content-Length beside Transfer-Encoding is refused, on a new connection and on one that was kept."""
    chunked = post(b"2\r\n{}\r\n0\r\n\r\n", Transfer_Encoding="chunked", Content_Length="2")
    async with gateway(FakeService()) as port:
        for before in (b"", GET):
            async with await trio.open_tcp_stream(HOST, port) as stream:
                if before:
                    await stream.send_all(before)
                    await read_until(stream, b'"status"')
                await stream.send_all(chunked)
                answer = await ended(stream)
                assert answer.count(b"HTTP/1.1 ") == 1, answer
                assert answer.startswith(b"HTTP/1.1 400"), answer
                assert b"connection: close" in answer.lower()
