"""Connections of the providers' client: which are used again, which never, and when they end."""

import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from itertools import count

import httpx
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.transport.providers.http.servers import (
    HELLO,
    Arrived,
    ask,
    closing,
    has_ipv6,
    hello,
    proxying,
    saying,
    serving,
    silent,
)
from warren.transport.providers.http.client import Client, new_client
from warren.transport.providers.http.connection import unsent

HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LARGE = b"x" * 50_000_000
"""More than the buffers of two sockets."""


def limited(connections: int | None, idle: int | None = None, seconds: float | None = None) -> Client:
    """Return a client with limits of its own."""
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=idle, keepalive_expiry=seconds)
    return Client(limits=limits, trust_env=False)


async def test_requests_one_after_another_share_a_connection() -> None:
    """A connection whose answer was read is used again."""
    async with serving() as server, new_client() as client:
        for _ in range(3):
            assert await ask(client, server.url) == b"hello"
    assert [each.connection for each in server.arrived] == [0, 0, 0]


async def test_many_at_once_keep_their_connections() -> None:
    """Three hundred requests at once have a connection each, and three hundred more use the same ones."""
    waiting, everybody = 0, trio.Event()

    async def together(_: Arrived, stream: trio.abc.Stream) -> None:
        nonlocal waiting, everybody
        waiting += 1
        event = everybody
        if waiting == 300:
            waiting, everybody = 0, trio.Event()
            event.set()
        await event.wait()
        await stream.send_all(HELLO)

    async with serving(together) as server, new_client() as client:
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                for _ in range(300):
                    nursery.start_soon(ask, client, server.url)
        assert server.opened == 300
    assert len(server.arrived) == 600


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_the_newest_idle_connection_is_used_first(order: tuple[int, int]) -> None:
    """The one that was used last is the least likely to have been closed."""
    async with serving() as server, new_client() as client:
        async with client.stream("POST", server.url) as one, client.stream("POST", server.url) as other:
            for place in order:
                await (one, other)[place].aread()
        assert await ask(client, server.url) == b"hello"
    assert [each.connection for each in server.arrived] == [0, 1, order[-1]]


async def test_two_servers_share_no_connection() -> None:
    """A connection goes to one server only."""
    async with serving() as one, serving(saying(HELLO.replace(b"hello", b"other"))) as other, new_client() as client:
        said = [await ask(client, url) for url in (one.url, other.url, one.url, other.url)]
    assert said == [b"hello", b"other"] * 2
    assert (one.opened, other.opened) == (1, 1)


async def test_a_half_read_answer_ends_its_connection() -> None:
    """The rest of an answer must not be read as the next one."""

    async def answering(request: Arrived, stream: trio.abc.Stream) -> None:
        await (hello if request.connection else saying(HALF, then=silent))(request, stream)

    async with serving(answering) as server, new_client() as client:
        async with client.stream("POST", server.url) as response:
            assert response.status_code == 200
        assert await ask(client, server.url) == b"hello"
        await server.ended(0)
    assert [each.connection for each in server.arrived] == [0, 1]


async def test_an_answer_that_nobody_read_is_not_taken_for_the_next_one() -> None:
    """The next request gets its own answer, whether the first one had arrived when it was left or not."""
    numbers = count()

    async def answering(_: Arrived, stream: trio.abc.Stream) -> None:
        await stream.send_all(HELLO.replace(b"hello", b"no. %d" % next(numbers)))

    async with serving(answering) as server, new_client() as client:
        for number in range(4):
            async with client.stream("POST", server.url) as response:
                assert response.status_code == 200
            assert await ask(client, server.url) == b"no. %d" % (2 * number + 1)


@pytest.mark.parametrize("answer", [b"", HALF], ids=["before the head", "in the body"])
async def test_a_cancelled_request_ends_its_connection(answer: bytes) -> None:
    """The server sees the end at once, and nobody else gets the rest of the answer."""
    arrived = trio.Event()

    async def answering(request: Arrived, stream: trio.abc.Stream) -> None:
        if request.connection:
            await hello(request, stream)
            return
        if answer:
            await stream.send_all(answer)
        arrived.set()
        await silent(stream)

    async with serving(answering) as server, new_client() as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, client, server.url)
            await arrived.wait()
            await trio.testing.wait_all_tasks_blocked(0.01)
            nursery.cancel_scope.cancel()
        await server.ended(0)
        assert await ask(client, server.url) == b"hello"
    assert [each.connection for each in server.arrived] == [0, 1]


@pytest.mark.parametrize("last", [b"", b"HTTP/1.1 408 Too late\r\nContent-Length: 0\r\n\r\n"])
async def test_a_connection_that_the_server_has_left_is_not_used(last: bytes) -> None:
    """A server may hang up on an idle connection, also with a word: the next request goes out on another one."""
    hung_up = trio.Event()

    async def leave(stream: trio.abc.Stream) -> None:
        await trio.testing.wait_all_tasks_blocked(0.01)
        if last:
            await stream.send_all(last)
        await stream.aclose()
        hung_up.set()

    async with serving(saying(HELLO, then=leave)) as server, new_client() as client:
        for _ in range(2):
            assert await ask(client, server.url) == b"hello"
            await hung_up.wait()
            hung_up = trio.Event()
    assert [each.connection for each in server.arrived] == [0, 1]


async def test_a_request_that_is_not_answered_goes_out_once() -> None:
    """A server that hangs up instead of answering may have acted: nothing is sent to it again by itself."""
    async with serving() as server, new_client() as client:
        assert await ask(client, server.url) == b"hello"

    async def first_only(request: Arrived, stream: trio.abc.Stream) -> None:
        await (hello(request, stream) if len(server.arrived) == 1 else closing(stream))

    async with serving(first_only) as server, new_client() as client:
        assert await ask(client, server.url) == b"hello"
        with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
            await ask(client, server.url)
        assert len(server.arrived) == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        HELLO + b"HTTP/1.1 200 OK\r\n",
    ],
    ids=["close", "until the end", "too much"],
)
async def test_a_connection_that_cannot_go_on_is_not_kept(answer: bytes) -> None:
    """After `Connection: close`, an answer without a length, or bytes behind an answer, the next one is a new one."""
    async with serving(saying(answer, then=closing)) as server, new_client() as client:
        for _ in range(2):
            assert await ask(client, server.url) == b"hello"
    assert [each.connection for each in server.arrived] == [0, 1]


async def test_an_idle_connection_ends_by_itself() -> None:
    """Nobody has to ask again for it: a connection is closed after its time, and the others after theirs."""
    async with serving() as server, limited(None, seconds=0.05) as client:
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(ask, client, server.url)
            await server.left(0)
        assert await ask(client, server.url) == b"hello"


async def test_no_more_idle_connections_than_the_limit() -> None:
    """The one that is idle longest is closed."""
    async with serving() as server, limited(None, idle=2) as client:
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(ask, client, server.url)
        await server.left(2)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert len(server.open) == 2


async def test_no_more_connections_than_the_limit() -> None:
    """A request waits for one of the others, and idle connections to another server make room."""
    most, now = 0, 0

    async def counting(_: Arrived, stream: trio.abc.Stream) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await trio.testing.wait_all_tasks_blocked(0.005)
        now -= 1
        await stream.send_all(HELLO)

    async with serving() as other, serving(counting) as server, limited(3) as client:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask, client, other.url)
        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(ask, client, server.url)
        assert most == 3
        assert server.opened == 3
        assert not other.open


async def test_closing_the_client_ends_idle_connections() -> None:
    """Afterwards it makes no requests, and what was in use ends with its answer."""
    async with serving() as server:
        async with new_client() as client:
            await ask(client, server.url)
            response = await client.send(client.build_request("POST", server.url), stream=True)
            assert server.open == {0}
        assert b"".join([part async for part in response.aiter_raw()]) == b"hello"
        await server.ended(0)
        with pytest.raises(RuntimeError):
            await ask(client, server.url)


async def test_closing_the_client_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is closed as its task is cancelled keeps no connection, neither to a server nor to a proxy."""
    async with serving() as server, proxying() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        client = Client()
        assert [await ask(client, url) for url in (server.url, "http://far.example/")] == [b"hello"] * 2
        with trio.CancelScope() as scope:
            scope.cancel()
            await client.aclose()
        with trio.fail_after(5):
            await server.left(0)
            await proxy.left(0)


@pytest.mark.virtual_time
async def test_a_silent_server_is_given_up() -> None:
    """The time limit for reading holds for the head and for each part of the body."""
    for answer in (b"", HALF):
        async with serving(saying(answer, then=silent)) as server, new_client() as client:
            begun = trio.current_time()
            with pytest.raises(httpx.ReadTimeout):
                await ask(client, server.url, read=7)
            assert 6.9 < trio.current_time() - begun < 8
            await server.ended(0)


@pytest.mark.virtual_time
async def test_a_server_that_takes_nothing_is_given_up() -> None:
    """The time limit for writing holds for each part of the request."""
    async with (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0] as listener, new_client() as client:
        port = listener.socket.getsockname()[1]
        with pytest.raises(httpx.WriteTimeout):
            await ask(client, f"http://127.0.0.1:{port}", LARGE, write=7)


async def test_a_server_that_takes_its_time_is_not_given_up() -> None:
    """The time limit for writing holds from one part that the server takes to the next."""
    size, seconds = 3_000_000, 0.3

    async def slowly(stream: trio.SocketStream) -> None:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        taken = 0
        async with stream:
            while taken < size:
                taken += len(await stream.receive_some(64 * 1024))
                await trio.sleep(0.02)
            await stream.send_all(HELLO)

    async with trio.open_nursery() as nursery, new_client() as client:
        listeners = await nursery.start(partial(trio.serve_tcp, slowly, 0, host="127.0.0.1"))
        port, began = listeners[0].socket.getsockname()[1], trio.current_time()
        assert await ask(client, f"http://127.0.0.1:{port}", b"x" * size, write=seconds) == b"hello"
        assert trio.current_time() - began > 2 * seconds
        nursery.cancel_scope.cancel()


@pytest.mark.virtual_time
async def test_a_server_that_shakes_no_hands_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit for connecting holds for TLS, too."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    async with (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0] as listener, new_client() as client:
        port = listener.socket.getsockname()[1]
        with pytest.raises(httpx.ConnectTimeout):
            await ask(client, f"https://127.0.0.1:{port}", connect=7)


@pytest.mark.virtual_time
async def test_a_full_pool_is_given_up() -> None:
    """The time limit for a connection holds, and who gave up leaves nothing behind."""
    async with serving() as server, limited(1) as client:
        async with client.stream("POST", server.url):
            with pytest.raises(httpx.PoolTimeout):
                await ask(client, server.url, pool=7)
        assert await ask(client, server.url, pool=7) == b"hello"


async def test_a_server_that_is_not_there() -> None:
    """The error is httpx's, and says why."""
    async with (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0] as listener:
        port = listener.socket.getsockname()[1]
    async with limited(1) as client:
        for _ in range(2):
            with pytest.raises(httpx.ConnectError, match=r"127\.0\.0\.1"):
                await ask(client, f"http://127.0.0.1:{port}", pool=1)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", httpx.RemoteProtocolError),
        (b"HTTP/1.1 two hundred\r\n\r\n", httpx.RemoteProtocolError),
        (HALF, httpx.RemoteProtocolError),
        (CHUNKED + b"5\r\nhello\r\n", httpx.RemoteProtocolError),
    ],
)
async def test_a_broken_answer_is_an_error(answer: bytes, error: type[Exception]) -> None:
    """An answer that breaks off or is not HTTP has httpx's error, and its connection ends."""
    async with serving(saying(answer, then=closing)) as server, limited(1) as client:
        for _ in range(2):
            with pytest.raises(error):
                await ask(client, server.url, pool=1)


async def test_what_came_before_the_break_counts() -> None:
    """The good part of an answer is read before the error, also if both came at once."""
    parts: list[bytes] = []

    async def read(response: httpx.Response) -> None:
        async for part in response.aiter_raw():
            parts.append(part)  # noqa: PERF401 - the parts are wanted although it raises

    broken = saying(CHUNKED + b"5\r\nhello\r\nnonsense\r\n")
    async with serving(broken) as server, new_client() as client, client.stream("POST", server.url) as response:
        with pytest.raises(httpx.RemoteProtocolError):
            await read(response)
    assert parts == [b"hello"]


async def test_words_before_the_answer_are_passed_over() -> None:
    """`100 Continue` and hints are no answer."""
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    async with serving(saying(early + HELLO)) as server, new_client() as client:
        assert await ask(client, server.url) == b"hello"


async def test_an_answer_before_the_end_of_the_request() -> None:
    """A server that refuses a large request without reading it is heard."""
    refusal = b"HTTP/1.1 413 Too large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

    async def refuse(stream: trio.SocketStream) -> None:
        await stream.receive_some(1000)
        await stream.send_all(refusal)
        await stream.send_eof()
        await trio.sleep(0.05)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, refuse, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        async with new_client() as client:
            request = client.build_request("POST", f"http://127.0.0.1:{port}", content=LARGE)
            response = await client.send(request, stream=True)
            await response.aclose()
        nursery.cancel_scope.cancel()
    assert response.status_code == 413


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
        ("HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("DELETE", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"),
    ],
)
async def test_an_answer_without_a_body(method: str, answer: bytes) -> None:
    """It ends with its head, and its connection is used again."""
    async with serving(saying(answer)) as server, new_client() as client:
        with trio.fail_after(5):
            for _ in range(2):
                assert (await client.request(method, server.url)).content == b""
    assert [each.connection for each in server.arrived] == [0, 0]


async def test_heads_of_requests() -> None:
    """Each request has its own length and headers, although those of one kind are written once."""
    async with serving() as server, new_client() as client:
        for size in (0, 3, 70_000, 3):
            assert await ask(client, server.url, b"x" * size) == b"hello"
        await client.get(server.url + "/other?a=b", headers={"x-one": "1"})
        await client.get(server.url + "/other?a=b", headers={"x-one": "2"})
    assert [len(each.body) for each in server.arrived] == [0, 3, 70_000, 3, 0, 0]
    assert [each.headers.get("content-length") for each in server.arrived] == ["0", "3", "70000", "3", None, None]
    assert [each.headers.get("x-one") for each in server.arrived[4:]] == ["1", "2"]
    assert server.arrived[5].line == "GET /other?a=b HTTP/1.1"
    assert server.opened == 1


@pytest.mark.parametrize("size", ["2", "4", "x", "-3", "3, 3"])
async def test_a_body_of_another_length(size: str) -> None:
    """A request is refused if its body has not the length that it says; its connection is not used any more."""

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"abc"

    async with serving() as server, limited(1) as client, aclosing(pieces()) as body:
        asked = client.build_request("POST", server.url, content=body, headers={"content-length": size})
        with pytest.raises(httpx.LocalProtocolError):
            await client.send(asked, stream=True)
        assert await ask(client, server.url, pool=1) == b"hello"


async def test_a_body_of_unknown_length() -> None:
    """It goes out in chunks."""

    async def pieces() -> AsyncIterator[bytes]:
        for part in (b"one", b"", b"two"):
            yield part

    arrived = b""

    async def answer(stream: trio.SocketStream) -> None:
        nonlocal arrived
        while not arrived.endswith(b"0\r\n\r\n"):
            arrived += await stream.receive_some()
        await stream.send_all(HELLO)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        async with new_client() as client:
            url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
            assert (await client.post(url, content=pieces())).content == b"hello"
        nursery.cancel_scope.cancel()
    assert arrived.endswith(b"\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")


@pytest.mark.parametrize(("count", "size"), [(50, 4_000), (50, 160_000), (5_000, 4), (9_000, 400)])
async def test_a_body_in_pieces(count: int, size: int) -> None:
    """The pieces of a request arrive in their order: small ones together, and those that the kernel takes in parts."""

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(count):
            await trio.lowlevel.checkpoint()
            yield b"%04d" % number * (size // 4)

    async with serving() as server, new_client() as client:
        headers = {"content-length": str(count * size)}
        async with client.stream("POST", server.url, content=pieces(), headers=headers) as response:
            await response.aread()
    assert server.arrived[0].body == b"".join(b"%04d" % number * (size // 4) for number in range(count))


async def test_a_body_that_the_kernel_takes_in_many_parts() -> None:
    """The kernel has room for a part of a large piece, again and again: nothing of the piece is lost or sent twice."""
    body = b"".join(b"%07d" % number for number in range(1_500_000))
    async with serving() as server, new_client() as client:
        assert await ask(client, server.url, body) == b"hello"
    assert server.arrived[0].body == body


@given(st.lists(st.binary(max_size=5)))
def test_what_is_unsent(parts: list[bytes]) -> None:
    """Whatever was sent, the rest follows: the rest of a part as a view of it, and the parts behind as they are."""
    whole = b"".join(parts)
    for sent in range(len(whole) + 1):
        rest = unsent(parts, sent)
        assert b"".join(rest) == whole[sent:]
        assert all(isinstance(part, memoryview) for part in rest[:1])
        assert all(part is given for part, given in zip(rest[:0:-1], parts[::-1], strict=False))


async def test_a_body_that_fails() -> None:
    """The error of a body is raised as it is; the connection ends, and so does the body's generator."""
    closed: list[bool] = []

    async def pieces() -> AsyncIterator[bytes]:
        try:
            yield b"x" * 1000
            raise LookupError("no more")
        finally:
            closed.append(True)

    async with serving() as server, limited(1) as client:
        asked = client.build_request("POST", server.url, content=pieces(), headers={"content-length": "2000"})
        with pytest.raises(LookupError, match="no more"):
            await client.send(asked, stream=True)
        assert closed == [True]
        assert await ask(client, server.url, pool=1) == b"hello"


async def test_a_name_and_a_password_in_the_address() -> None:
    """They become the header of basic authentication, as in httpx."""
    async with serving() as server, new_client() as client:
        assert await ask(client, server.url.replace("//", "//me:secret@")) == b"hello"
    assert server.arrived[0].headers["authorization"] == "Basic bWU6c2VjcmV0"


async def test_a_protocol_that_is_not_http() -> None:
    """Such an address is refused as httpx refuses it."""
    async with new_client() as client:
        with pytest.raises(httpx.UnsupportedProtocol):
            await ask(client, "ftp://127.0.0.1/")


async def test_a_header_that_is_not_http() -> None:
    """A request that is not valid is refused as httpx refuses it."""
    async with serving() as server, limited(1) as client:
        with pytest.raises(httpx.LocalProtocolError):
            await client.send(client.build_request("POST", server.url, headers={"bad name": "x"}), stream=True)
        assert await ask(client, server.url, pool=1) == b"hello"


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_an_address_of_ipv6() -> None:
    """Servers are reached by addresses of IPv6, too."""
    async with serving(host="::1") as server, new_client() as client:
        assert await ask(client, server.url) == b"hello"
    assert server.arrived[0].headers["host"].startswith("[::1]:")


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_a_name_with_an_address_that_does_not_answer() -> None:
    """All addresses of a name are tried."""
    async with serving() as server, new_client() as client:
        assert await ask(client, server.url.replace("127.0.0.1", "localhost")) == b"hello"
