"""One HTTP/1.1 connection of a client: a request goes out, its answer comes in."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, NamedTuple, Self

import attrs
import h11
import httpx
import trio

from warren.base.values import define
from warren.transport.providers.http.reader import ResponseReader
from warren.transport.providers.http.writer import RequestHeads, RequestWriter

CHUNK: Final = 64 * 1024
"""Bytes that are sent or received at once, about."""
PASS: Final = 1024 * 1024
"""Bytes of a request that go out between two checkpoints; the kernel copies them in a tenth of a millisecond."""
MOST_PARTS: Final = 1024
"""Parts that the kernel takes in one call."""
NEVER: Final = float("inf")
Bytes = bytes | memoryview


class Patience(NamedTuple):
    """The seconds for each part of a request; see `httpx.Timeout`."""

    connect: float
    read: float
    write: float
    pool: float

    @classmethod
    def of(cls, request: httpx.Request) -> Self:
        """Return those of a request; without a bound they are infinite."""
        bounds: Mapping[str, float | None] = request.extensions.get("timeout", {})
        return cls(*[NEVER if (bound := bounds.get(part)) is None else bound for part in cls._fields])


@define(eq=False)
class SilenceWatch:
    """Wakes the requests whose servers are silent for too long.

    A request that waits leaves its deadline, and one task sleeps until the first of all: by then most waits are over. A
    cancel scope around each wait would take as long as the rest of the wait.
    """

    _deadlines: "dict[ClientConnection, float]" = attrs.field(factory=dict)
    _sleep: trio.CancelScope | None = None  # of the task; it ends with the first deadline, or before

    def begin(self, connection: "ClientConnection", seconds: float) -> None:
        """Let a connection expire after some seconds, unless its wait has ended by then."""
        if seconds == NEVER:
            return
        self._deadlines[connection] = deadline = trio.current_time() + seconds
        if self._sleep is None:
            self._sleep = trio.CancelScope()
            trio.lowlevel.spawn_system_task(self._run)
        elif deadline < self._sleep.deadline:
            self._sleep.deadline = deadline

    def end(self, connection: "ClientConnection") -> None:
        """Note the end of a wait."""
        self._deadlines.pop(connection, None)

    async def _run(self) -> None:
        while self._deadlines:
            self._sleep = trio.CancelScope(deadline=min(self._deadlines.values()))
            with self._sleep:
                await trio.sleep_forever()
            now = trio.current_time()
            for connection, deadline in [*self._deadlines.items()]:
                if deadline <= now:
                    connection.expire()
        self._sleep = None  # no checkpoint since the loop has seen that nothing waits


@define(eq=False)
class Sender(trio.abc.Stream):
    """A stream below TLS whose failed sends are noted, and fail nothing.

    TLS of trio reads nothing behind a failed send. A server that refuses a large request before its end, and hangs up,
    has answered: the answer is read.
    """

    _stream: trio.abc.Stream
    failure: trio.BrokenResourceError | None = None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, unless an earlier send has failed."""
        try:
            if self.failure is None:
                await self._stream.send_all(data)
        except trio.BrokenResourceError as exc:
            self.failure = exc

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until a send is likely not to wait."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Return some bytes, b"" at the end."""
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()


@define(eq=False)
class ClientConnection:
    """A connection, used by one request at a time.

    Attributes:
        stream: the bytes, within TLS if there is any.
        socket: the socket below.
        heads: the heads of requests that were written before, on any connection.
        forward: the headers that a proxy gets with each request if it is one that forwards; None without such a proxy.
        silence: bounds the time for which the server may be silent; shared by the connections of a pool.
        sender: takes the bytes of TLS; None without it.
        silent: whether the server was silent for too long.
        idle_since: the time of trio's clock at which its last request ended; 0 if none has.
        reader: the answer of the request that has it now, or had it last.
    """

    stream: trio.abc.Stream
    socket: trio.SocketStream
    heads: RequestHeads = attrs.field(factory=RequestHeads)
    forward: list[tuple[bytes, bytes]] | None = None
    silence: SilenceWatch = attrs.field(factory=SilenceWatch)
    sender: Sender | None = None
    silent: bool = False
    idle_since: float = 0.0
    reader: ResponseReader = attrs.field(init=False)
    _sent: bool = False

    @property
    def alive(self) -> bool:
        """Whether the server has neither hung up nor sent anything while the connection was idle."""
        return not self.socket.socket.is_readable()

    @property
    def reusable(self) -> bool:
        """Whether another request may follow: this one and its answer are whole, and the server has no objection."""
        return self._sent and self.reader.reusable

    def drop(self) -> None:
        """Close the connection at once, without a word to the server. No cancellation can come between."""
        self.socket.socket.close()

    async def ask(self, request: httpx.Request, patience: Patience) -> ResponseReader:
        """Send a request and return its answer, whose head has arrived.

        Raises:
            httpx.TransportError: as httpx's own transport does; the connection is of no use any more.
        """
        self.reader, self._sent = ResponseReader(bodiless=request.method == "HEAD"), False
        broken: httpx.WriteError | None = None
        try:
            await self._send(request, patience.write)
        except httpx.WriteError as exc:
            broken = exc  # a server may answer a request that it does not want to read to its end
        while not self.reader.begun:
            try:
                await self.receive(patience.read)
                if self.reader.failure is not None and not self.reader.begun:
                    raise httpx.RemoteProtocolError(self.reader.failure)
            except httpx.TransportError as exc:
                raise broken or exc from None
        return self.reader

    async def receive(self, seconds: float) -> None:
        """Wait for more of the answer and give it to the reader."""
        self.silence.begin(self, seconds)
        try:
            data = await self._received()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            if self.silent:
                raise httpx.ReadTimeout(f"nothing came for {seconds:g} s") from exc
            raise httpx.ReadError(reason(exc)) from exc
        finally:
            self.silence.end(self)
        self.reader.feed(data)

    async def _received(self) -> bytes:
        if self.stream is not self.socket:
            return bytes(await self.stream.receive_some(CHUNK))
        # Not by trio's stream, which first tries to read, in vain: the answer of a model takes its time.
        socket = self.socket.socket
        while True:
            await trio.lowlevel.wait_readable(socket)
            try:
                return os.read(socket.fileno(), CHUNK)
            except BlockingIOError:
                continue

    def expire(self) -> None:
        """Wake the request that waits for a silent server; it fails."""
        self.silent = True
        self.drop()

    async def _send(self, request: httpx.Request, seconds: float) -> None:
        """Send a request, unless it is not valid."""
        writer = RequestWriter(self.heads)
        try:
            batch = [self._head(request, writer)]
            if isinstance(request.stream, httpx.ByteStream):
                batch += [writer.piece(piece) for piece in request.stream]
            else:
                assert isinstance(request.stream, httpx.AsyncByteStream)  # noqa: S101 - for the type checker
                batch = await self._send_pieces(aiter(request.stream), writer, batch, seconds)
            if end := writer.end():
                batch.append(end)
        except h11.LocalProtocolError as exc:
            raise httpx.LocalProtocolError(str(exc)) from exc
        # No checkpoint for most requests, which are small: their answers are waited for next. A checkpoint under a
        # deadline takes a twentieth of a turn.
        if rest := self._left_by_kernel(batch):
            await self._write(rest, seconds)
        self._sent = True

    async def _send_pieces(
        self, pieces: AsyncIterator[bytes], writer: RequestWriter, batch: list[bytes], seconds: float
    ) -> list[bytes]:
        """Send the pieces of a body, many small ones at once; return those that are left to be sent."""
        size, most = 0, PASS if self.stream is self.socket else CHUNK  # TLS encrypts what it gets in one step
        try:
            async for piece in pieces:
                batch.append(writer.piece(piece))
                size += len(piece)
                if size >= most and not writer.whole:  # the end of the body is left to the caller
                    if rest := self._left_by_kernel(batch):
                        await self._write(rest, seconds)
                    else:
                        await trio.lowlevel.checkpoint()
                    batch, size = [], 0
        finally:
            if (close := getattr(pieces, "aclose", None)) is not None:  # a generator that failed half way
                await close()
        return batch

    def _head(self, request: httpx.Request, writer: RequestWriter) -> bytes:
        headers, target = request.headers.raw, request.url.raw_path
        if self.forward is not None:
            url = request.url
            headers, target = [*headers, *self.forward], url.raw_scheme + b"://" + url.netloc + url.raw_path
        return writer.head(request.method.encode("ascii"), target, headers)

    async def _write(self, parts: Sequence[Bytes], seconds: float) -> None:
        """Send parts that the kernel has no room for now."""
        with trio.CancelScope(deadline=trio.current_time() + seconds) as scope:
            try:
                if self.stream is self.socket:
                    while parts:
                        await trio.lowlevel.wait_writable(self.socket.socket)
                        parts = self._left_by_kernel(parts)
                        scope.deadline = trio.current_time() + seconds
                else:
                    await self.stream.send_all(b"".join(parts))
                    if self.sender is not None and self.sender.failure is not None:
                        raise self.sender.failure
            except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
                raise httpx.WriteError(reason(exc)) from exc
        if scope.cancelled_caught:
            raise httpx.WriteTimeout(f"nothing was taken for {seconds:g} s")

    def _left_by_kernel(self, parts: Sequence[Bytes]) -> Sequence[Bytes]:
        """Send as much as the kernel takes now, and return the rest. Raises httpx.WriteError."""
        if self.stream is not self.socket:  # TLS has to see the bytes first
            return parts
        try:
            return unsent(parts, os.writev(self.socket.socket.fileno(), parts[:MOST_PARTS]))
        except BlockingIOError:
            return parts
        except OSError as exc:
            raise httpx.WriteError(reason(exc)) from exc


def unsent(parts: Sequence[Bytes], sent: int) -> Sequence[Bytes]:
    """Return the parts behind their first `sent` bytes. No byte is copied: a large request would wait for that."""
    for place, part in enumerate(parts):
        if sent < len(part):
            return [memoryview(part)[sent:], *parts[place + 1 :]]
        sent -= len(part)
    return ()


def reason(exc: BaseException) -> str:
    """Return the first text among an error and its causes: trio's own errors have none."""
    cause: BaseException | None = exc
    while cause is not None and not str(cause):
        cause = cause.__cause__ or cause.__context__
    return str(cause) if cause is not None else type(exc).__name__
