"""Servers on real sockets that notice each connection, each request and each end; and a proxy."""

import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import attrs
import httpx
import trio

HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
Answering = Callable[["Arrived", trio.abc.Stream], Awaitable[None]]


@attrs.frozen
class Arrived:
    """A request as it arrived.

    Attributes:
        connection: the number of its connection.
        line: its first line.
        headers: its headers, names in lower case.
        body: its body.
    """

    connection: int
    line: str
    headers: dict[str, str]
    body: bytes


@attrs.define
class Server:
    """A running server.

    Attributes:
        url: its address.
        opened: number of connections that were opened.
        open: numbers of those that have not ended.
        arrived: the requests.
        reused: for each TLS connection whether it resumed a session.
    """

    url: str = ""
    opened: int = 0
    open: set[int] = attrs.field(factory=set)
    arrived: list[Arrived] = attrs.field(factory=list)
    reused: list[bool] = attrs.field(factory=list)
    _end: trio.Event = attrs.field(factory=trio.Event)

    async def ended(self, number: int) -> None:
        """Wait until a connection has ended."""
        while number in self.open:
            await self._end.wait()

    async def left(self, most: int) -> None:
        """Wait until no more than so many connections are open."""
        while len(self.open) > most:
            await self._end.wait()

    def end(self, number: int) -> None:
        """Note the end of a connection."""
        self.open.discard(number)
        self._end.set()
        self._end = trio.Event()


async def hello(_: Arrived, stream: trio.abc.Stream) -> None:
    """Answer with five bytes."""
    await stream.send_all(HELLO)


def saying(answer: bytes, *, then: Callable[[trio.abc.Stream], Awaitable[None]] | None = None) -> Answering:
    """Return a way to answer with these bytes, and to do something afterwards."""

    async def answering(_: Arrived, stream: trio.abc.Stream) -> None:
        await stream.send_all(answer)
        if then is not None:
            await then(stream)

    return answering


async def closing(stream: trio.abc.Stream) -> None:
    """Hang up."""
    await stream.aclose()


async def silent(stream: trio.abc.Stream) -> None:
    """Say nothing until the client hangs up."""
    while await stream.receive_some():
        pass


@asynccontextmanager
async def serving(
    answering: Answering = hello,
    *,
    tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
) -> AsyncIterator[Server]:
    """Serve for a body."""
    server = Server()

    async def connection(plain: trio.SocketStream) -> None:
        number, server.opened = server.opened, server.opened + 1
        server.open.add(number)
        stream: trio.abc.Stream = plain
        try:
            if tls is not None:
                secured = trio.SSLStream(plain, tls, server_side=True, https_compatible=True)
                await secured.do_handshake()
                server.reused.append(secured.session_reused)
                stream = secured
            while (request := await _read(stream, number)) is not None:
                server.arrived.append(request)
                await answering(request, stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        finally:
            server.end(number)
            plain.socket.close()

    async with _listening(connection, host) as port:
        name = f"[{host}]" if ":" in host else host
        server.url = f"https://localhost:{port}" if tls is not None else f"http://{name}:{port}"
        yield server


@asynccontextmanager
async def proxying(*, refuse: bool = False, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """Run a proxy for a body: it connects to servers on this machine, and answers requests to forward by itself."""

    async def answering(request: Arrived, stream: trio.abc.Stream) -> None:
        method, target, _ = request.line.split(" ")
        if refuse:
            await stream.send_all(b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n")
        elif method == "CONNECT":
            await _joined(stream, int(target.rpartition(":")[2]))
        else:
            await stream.send_all(HELLO)

    async with serving(answering, tls=tls) as server:
        yield server


async def _joined(stream: trio.abc.Stream, port: int) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", port) as far, trio.open_nursery() as nursery:
        await stream.send_all(b"HTTP/1.1 200 Connection established\r\n\r\n")

        async def pump(source: trio.abc.Stream, sink: trio.abc.Stream) -> None:
            while data := await source.receive_some():
                await sink.send_all(data)
            nursery.cancel_scope.cancel()

        nursery.start_soon(pump, stream, far)
        nursery.start_soon(pump, far, stream)


@asynccontextmanager
async def _listening(handler: Callable[[trio.SocketStream], Awaitable[None]], host: str) -> AsyncIterator[int]:
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, handler, 0, host=host, backlog=1_000))
        try:
            yield listeners[0].socket.getsockname()[1]
        except Exception as exc:  # noqa: BLE001 - raised again below, where no nursery wraps it into a group
            failure = exc
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _read(stream: trio.abc.Stream, number: int) -> Arrived | None:
    data = b""
    while b"\r\n\r\n" not in data:
        more = await stream.receive_some()
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    line, *rest = head.decode("ascii").split("\r\n")
    headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in rest)}
    while len(body) < int(headers.get("content-length", "0")):
        body += await stream.receive_some()
    return Arrived(number, line, headers, bytes(body))


async def ask(client: httpx.AsyncClient, url: str, body: bytes = b"{}", **timeouts: float | None) -> bytes:
    """Post a body and return that of the answer."""
    timeout = httpx.Timeout(None, **timeouts)
    async with client.stream("POST", url, content=body, timeout=timeout) as response:
        return b"".join([part async for part in response.aiter_raw()])


def has_ipv6() -> bool:
    """Return whether this machine has an address of IPv6 for itself."""
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return False
    return True
