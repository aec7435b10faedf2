"""HTTP/1.1 between a stream and an application: heads, bodies, answers; no gateway, no sessions."""

import contextlib
import itertools
import logging
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from socket import SO_LINGER, SOL_SOCKET

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from tests.support.waiting import AT_ONCE
from tests.transport.clients import HOST
from tests.transport.http.serving import pair, served, served_app
from warren.transport.access.config import GatewayConfig
from warren.transport.access.head import MAX_HEAD, Head
from warren.transport.access.refusals import RefusedError
from warren.transport.http.connection import HttpConnection
from warren.transport.http.shutdown import Shutdown

TAIL = b"\x81\x04tail"
UPGRADE = b"GET /ws?x=1 HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\r\n"


def request(line: str = "GET / HTTP/1.1", *fields: str) -> bytes:
    """Make the head of a request."""
    return "\r\n".join([line, "Host: h", *fields, "", ""]).encode()


@asynccontextmanager
async def read(*pieces: bytes) -> AsyncIterator[tuple[Head | None, HttpConnection]]:
    """Read a head that comes in pieces; yields it and its connection."""
    wire, client = await pair()
    connection = HttpConnection(wire, GatewayConfig(), Shutdown(), None)

    async def send() -> None:
        for piece in pieces:
            await client.send_all(piece)
            await trio.testing.wait_all_tasks_blocked()
        await client.send_eof()

    async with client, wire:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            head = await connection.next_head()
        yield head, connection


async def exchange(stream: trio.SocketStream, *requests: bytes, until: bytes) -> bytes:
    """Send requests and return what comes up to a text."""
    for each in requests:
        await stream.send_all(each)
    answer = b""
    with trio.fail_after(5):
        while until not in answer:
            data = await stream.receive_some()
            assert data, answer
            answer += data
    return answer


async def to_the_end(stream: trio.SocketStream) -> bytes:
    """Return what comes until the connection ends, in whatever way."""
    answer = bytearray()
    with trio.fail_after(5), contextlib.suppress(trio.BrokenResourceError):
        async for data in stream:
            answer += data
    return bytes(answer)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the method, the target, and the body."""
    asked = Request(scope, receive)
    body = await asked.body()
    text = f"{asked.method} {asked.url.path}?{asked.url.query} {len(body)} {body[:20].decode()}!"
    await PlainTextResponse(text)(scope, receive, send)


@given(st.lists(st.integers(1, 40)))
async def test_a_head_may_come_in_pieces(sizes: list[int]) -> None:
    """However TCP cuts it, the head is the same, and the bytes after it are read next."""
    data = UPGRADE + TAIL
    ends = [*itertools.takewhile(lambda end: end < len(data), itertools.accumulate(sizes)), len(data)]
    async with read(*(data[start:end] for start, end in itertools.pairwise([0, *ends]))) as (head, connection):
        assert head is not None
        assert (head.method, head.path, head.values("connection")) == ("GET", "/ws", ["keep-alive", "Upgrade"])
        wire = connection.unread()
        rest = b""
        while len(rest) < len(TAIL):
            rest += await wire.receive_some()
        assert rest == TAIL


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("http://localhost:8420/health", "/health", ""),
        ("HTTPS://host/a/b?c=d", "/a/b", "c=d"),
        ("http://host", "/", ""),
        ("http://host?c=http://d", "/", "c=http://d"),
        ("/a?http://b/c", "/a", "http://b/c"),
    ],
)
async def test_a_target_may_be_a_whole_address(target: str, path: str, query: str) -> None:
    """Clients send whole addresses to proxies, and a server behind one has to take them."""
    async with served_app(echo) as stream:
        answer = await exchange(stream, request(f"GET {target} HTTP/1.1"), until=b"!")
    assert f"GET {path}?{query} 0 !".encode() in answer


async def test_a_client_that_leaves_before_its_request_is_no_error() -> None:
    """A head that is not whole is none."""
    for data in (b"", request()[:-1]):
        async with read(data) as (head, _):
            assert head is None


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (request("GET / HTTP/1.1", "Content-Length: 3", "Transfer-Encoding: chunked"), 400),
        (request("GET / HTTP/1.1", "Content-Length: 3", "Content-Length: 4"), 400),
        (request("GET / HTTP/1.1", "Content-Length: -3"), 400),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * MAX_HEAD, 431),
        (request("GET / HTTP/1.1", "X: " + "x" * MAX_HEAD), 431),
        (request(f"GET /{'x' * MAX_HEAD} HTTP/1.1"), 431),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ],
)
async def test_a_head_that_is_refused(data: bytes, status: int) -> None:
    """TLS, nonsense, another version, an endless head and an ambiguous body get the status that says so."""
    wire, client = await pair()
    async with client, wire:
        await client.send_all(data)
        with pytest.raises(RefusedError) as caught:
            await HttpConnection(wire, GatewayConfig(), Shutdown(), None).next_head()
    assert caught.value.status == status


async def test_requests_are_answered_in_their_order_and_pieces() -> None:
    """Bodies of every kind, pipelined, on one connection."""
    chunked = request("POST /c HTTP/1.1", "Transfer-Encoding: chunked") + b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    sized = request("POST /s?q=1 HTTP/1.1", "Content-Length: 4") + b"four"
    data = chunked + sized + request("GET /%20x HTTP/1.1") + request("GET /last HTTP/1.1")
    for size in (1, 13, 1000):
        async with served_app(echo) as stream:
            pieces = [data[at : at + size] for at in range(0, len(data), size)]
            answer = await exchange(stream, *pieces, until=b"/last? 0 !")
        assert answer.count(b"HTTP/1.1 200 ") == 4
        order = [b"POST /c? 3 abc!", b"POST /s?q=1 4 four!", b"GET / x? 0 !", b"GET /last? 0 !"]
        assert [part for part in order if part in answer] == order
        assert sorted(order, key=answer.index) == order


@asynccontextmanager
async def counted_steps() -> AsyncIterator[Iterator[int]]:
    """Count the turns of the event loop that another task gets in the body; the next number is how many there were."""
    steps = itertools.count()

    async def count() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            next(steps)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        yield steps
        nursery.cancel_scope.cancel()


async def test_many_requests_in_one_piece_let_others_be_served() -> None:
    """A client that sends hundreds of requests at once gets one answer for each turn of the event loop."""
    async with served_app(echo) as stream, counted_steps() as steps:
        await exchange(stream, request() * 500 + request("GET /last HTTP/1.1"), until=b"/last")
    assert next(steps) >= 400


async def test_a_body_in_tiny_parts_lets_others_be_served() -> None:
    """Chunks of one byte are taken with breaks for other tasks, and are the body in the end."""
    async with served_app(echo) as stream, counted_steps() as steps:
        body = b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n"
        head = request("POST / HTTP/1.1", "Transfer-Encoding: chunked")
        await exchange(stream, head + body, until=b" 10000 xxx")
    assert next(steps) > 100


async def test_a_client_that_expects_a_sign_gets_it_when_its_body_is_wanted() -> None:
    """100 comes before the body is sent if the application reads it, and not at all if it does not."""
    async with served_app(echo) as stream:
        head = request("POST / HTTP/1.1", "Content-Length: 2", "Expect: 100-continue")
        assert (await exchange(stream, head, until=b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        assert (await exchange(stream, b"ok", until=b" 2 ok!")).startswith(b"HTTP/1.1 200 ")

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(status_code=403)(scope, receive, send)

    async with served_app(refuse) as stream:
        answer = await exchange(stream, head, until=b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"connection: close" in answer.lower()


async def test_a_body_that_waits_for_us_is_not_late() -> None:
    """The time in which nobody reads it, as its client has to keep to a pace, counts against no client."""

    async def take(scope: Scope, receive: Receive, send: Send) -> None:
        began.set()
        await come.wait()
        await trio.sleep(0.3)
        body = await Request(scope, receive).body()
        await Response(body)(scope, receive, send)

    began, come = trio.Event(), trio.Event()
    async with served_app(take, stall_timeout=0.2) as stream:
        await stream.send_all(request("POST / HTTP/1.1", "Content-Length: 3"))
        await began.wait()
        await stream.send_all(b"abc")
        come.set()
        assert (await exchange(stream, until=b"abc")).startswith(b"HTTP/1.1 200 ")


async def test_the_length_of_a_body_is_bounded_before_it_is_read() -> None:
    """A length over the bound is refused without the body, and without the sign to send it; as are its chunks."""
    refused = list[int]()

    async def take(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await Request(scope, receive).body()
        except RefusedError as exc:
            refused.append(exc.status)
        await Response(status_code=413)(scope, receive, send)

    sized = request("POST / HTTP/1.1", "Content-Length: 101", "Expect: 100-continue")
    chunked = request("POST / HTTP/1.1", "Transfer-Encoding: chunked") + b"33\r\n" + b"x" * 51 + b"\r\n"
    for data in (sized, chunked + b"32\r\n" + b"x" * 50):
        async with served_app(take, max_message_bytes=100) as stream:
            await stream.send_all(data)
            assert (await to_the_end(stream)).startswith(b"HTTP/1.1 413 ")
    assert refused == [413, 413]


@pytest.mark.parametrize("broken", [b"zz\r\n", b"2\r\nabc\r\n", b"-1\r\n"])
async def test_a_body_that_is_not_http_is_refused(broken: bytes) -> None:
    """A broken chunk costs its connection; the application may still say why."""

    async def take(scope: Scope, receive: Receive, send: Send) -> None:
        with pytest.raises(RefusedError) as caught:
            await Request(scope, receive).body()
        await Response(status_code=caught.value.status)(scope, receive, send)

    async with served_app(take) as stream:
        await stream.send_all(request("POST / HTTP/1.1", "Transfer-Encoding: chunked") + broken + request())
        answer = await to_the_end(stream)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


async def test_a_body_that_breaks_off_is_told() -> None:
    """The application learns that the client sends no more."""
    told = trio.Event()

    async def take(scope: Scope, receive: Receive, send: Send) -> None:
        with pytest.raises(ClientDisconnect):
            await Request(scope, receive).body()
        told.set()
        await Response(status_code=400)(scope, receive, send)

    async with served_app(take) as stream:
        await stream.send_all(request("POST / HTTP/1.1", "Content-Length: 3") + b"ab")
        await stream.send_eof()
        assert (await to_the_end(stream)).startswith(b"HTTP/1.1 400 ")
    assert told.is_set()


@pytest.mark.parametrize("status", [200, 204, 304])
async def test_answers_without_a_body(status: int) -> None:
    """HEAD, 204 and 304 bring no body, whatever the application sends, and the connection goes on."""

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        headers = {} if status == 204 else {"Content-Length": "6"}
        await send({"type": "http.response.start", "status": status, "headers": _raw(headers)})
        await send({"type": "http.response.body", "body": b"hidden" if scope["method"] == "HEAD" else b""})

    async with served_app(app) as stream:
        for _ in range(2):
            answer = await exchange(stream, request("HEAD / HTTP/1.1"), until=b"\r\n\r\n")
            assert answer.startswith(f"HTTP/1.1 {status} ".encode())
            assert answer.endswith(b"\r\n\r\n")
            assert b"\r\ndate: " in answer
        await stream.send_all(b"no request\r\n\r\n")  # which is answered whole, also behind a HEAD
        head, _, body = (await to_the_end(stream)).partition(b"\r\n\r\n")
        assert b"\r\nContent-Length: %d\r\n" % len(body) in head


def _raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


async def test_a_stream_is_not_held_back() -> None:
    """The head of an answer without a length leaves before its body, and each part when it is there."""
    go = trio.Event()

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await go.wait()
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await go.wait()
        await send({"type": "http.response.body", "body": b"two"})

    async with served_app(app) as stream:
        assert b"chunked" in await exchange(stream, request(), until=b"\r\n\r\n")
        go.set()
        go = trio.Event()
        assert await exchange(stream, until=b"3\r\none\r\n") == b"3\r\none\r\n"
        go.set()
        assert await exchange(stream, until=b"0\r\n\r\n") == b"3\r\ntwo\r\n0\r\n\r\n"


async def test_a_client_of_http_1_0_is_answered() -> None:
    """It gets no chunks, and the end of the answer is the end of the connection."""

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 2_000_000})

    async with served_app(app) as stream:
        await stream.send_all(b"GET / HTTP/1.0\r\n\r\n")
        head, _, body = (await to_the_end(stream)).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert body == b"x" * 2_000_000


@pytest.mark.parametrize(
    "first",
    [
        request("GET / HTTP/1.1", "Connection: close"),
        request("GET / HTTP/1.0", "Connection: keep-alive"),
        request("POST / HTTP/1.1", "Content-Length: 5"),
        request("POST / HTTP/1.1", "Content-Length: 5") + b"hello",
        request("POST / HTTP/1.1", "Content-Length: 5", "Expect: 100-continue"),
    ],
    ids=["close", "1.0", "body that never comes", "body that is not read", "body that is not asked for"],
)
async def test_the_last_answer_of_a_connection_says_so(first: bytes) -> None:
    """A request behind it is not answered: the client may have ended the connection, or the bytes may be a body."""
    asked: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope["path"])
        await PlainTextResponse("here")(scope, receive, send)

    async with served_app(app) as stream:
        await stream.send_all(first + request("GET /second HTTP/1.1"))
        answer = await to_the_end(stream)
    assert asked == ["/"]
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.lower().count(b"connection: close") == 1
    assert answer.endswith(b"\r\n\r\nhere")


async def test_answers_without_their_body_leave_room_for_the_next() -> None:
    """HEAD is answered with the length that GET has, and the answer behind it is found."""
    async with served_app(echo) as stream:
        asked = request("HEAD /first HTTP/1.1") + request("GET /second HTTP/1.1")
        answer = await exchange(stream, asked, until=b"!")
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert b"content-length: 16" in head.lower()
    assert rest.startswith(b"HTTP/1.1 200 ")
    assert rest.endswith(b"GET /second? 0 !")


@pytest.mark.parametrize("way", ["eof", "reset", "close"])
async def test_an_application_learns_that_its_client_left(way: str) -> None:
    """In every way of leaving, though nothing is sent, and also behind later requests that were read."""
    left = trio.Event()

    async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
        assert await receive() == {"type": "http.request", "body": b"", "more_body": False}
        assert await receive() == {"type": "http.disconnect"}
        assert await receive() == {"type": "http.disconnect"}
        left.set()

    async with served_app(app) as stream:
        await stream.send_all(request() * 3)
        await trio.testing.wait_all_tasks_blocked()
        if way == "eof":
            await stream.send_eof()
        else:
            if way == "reset":
                stream.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            await stream.aclose()
        with trio.fail_after(AT_ONCE):
            await left.wait()


async def test_requests_that_came_during_an_answer_are_answered_next() -> None:
    """Bytes that were read while an application watched its client are not lost."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        with trio.move_on_after(0.05):
            await receive()
        await PlainTextResponse(f"{scope['path']}!")(scope, receive, send)

    async with served_app(app) as stream:
        requests = b"".join(request(f"GET /{number} HTTP/1.1") for number in range(4))
        answer = await exchange(stream, requests, until=b"/3!")
    assert [answer.count(f"/{number}!".encode()) for number in range(4)] == [1, 1, 1, 1]


@pytest.mark.parametrize("begun", [False, True])
async def test_an_application_that_fails_costs_its_connection(
    begun: bool,  # noqa: FBT001
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Half an answer, or none, ends the connection; the log says why, and others are served."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/good":
            await PlainTextResponse("good!")(scope, receive, send)
            return
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ZeroDivisionError("boom")

    async with served(app) as port:
        async with await trio.open_tcp_stream(HOST, port) as stream:
            await stream.send_all(request("GET /bad HTTP/1.1"))
            assert not (await to_the_end(stream)).endswith(b"0\r\n\r\n")
        async with await trio.open_tcp_stream(HOST, port) as stream:
            await exchange(stream, request("GET /good HTTP/1.1"), until=b"good!")
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "GET /bad failed" in record.message


async def test_a_client_that_resets_in_mid_answer_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """The application is told by an exception; nothing is logged as wrong."""
    ended = trio.Event()

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
                await trio.lowlevel.checkpoint()
        finally:
            ended.set()

    async with served(app) as port:
        async with await trio.open_tcp_stream(HOST, port) as stream:
            await exchange(stream, request(), until=b"xxx")
            stream.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        with trio.fail_after(AT_ONCE):
            await ended.wait()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_the_end_of_the_server_closes_a_connection_with_its_answer() -> None:
    """A request that runs is answered, with the word that the connection closes."""
    started, go = trio.Event(), trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        started.set()
        await go.wait()
        await PlainTextResponse("late")(scope, receive, send)

    answers = list[bytes]()

    async def ask(port: int) -> None:
        async with await trio.open_tcp_stream(HOST, port) as stream:
            await stream.send_all(request())
            answers.append(await to_the_end(stream))

    async with trio.open_nursery() as nursery, served(app, close_timeout=2) as port:
        nursery.start_soon(ask, port)
        await started.wait()
        nursery.start_soon(_set_later, go)
    assert answers[0].endswith(b"late")
    assert b"connection: close" in answers[0].lower()


@pytest.mark.parametrize("asked", [b"", request()[:10]])
async def test_the_end_of_the_server_closes_a_connection_that_waits_for_its_next_request(asked: bytes) -> None:
    """Also if it has sent the beginning of one. Else the server would wait for it for two minutes."""
    answered, ends = trio.Event(), list[bytes]()

    async def ask(port: int) -> None:
        async with await trio.open_tcp_stream(HOST, port) as stream:
            await exchange(stream, request(), until=b"hello")
            await stream.send_all(asked)
            answered.set()
            ends.append(await to_the_end(stream))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery, served(PlainTextResponse("hello"), close_timeout=60) as port:
            nursery.start_soon(ask, port)
            await answered.wait()
    assert ends == [b""]


async def _set_later(event: trio.Event) -> None:
    await trio.sleep(0.2)
    event.set()
