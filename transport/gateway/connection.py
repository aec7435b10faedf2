"""One WebSocket connection: its frames, its end, and the JSON-RPC endpoint that speaks in its messages."""

import contextlib
import struct
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

import trio
from wsproto.connection import Connection as Protocol
from wsproto.connection import ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage

from warren.actors.streams import GONE
from warren.transport.gateway.reading import FINAL, LONG, LONGER, TEXT, Splitter
from warren.transport.http.config import FAR, GatewayConfig
from warren.transport.http.pace import wait_for_all
from warren.transport.http.wire import Wire
from warren.transport.rpc.dialect import Native
from warren.transport.rpc.endpoint import Endpoint, EndpointBounds, Unreadable
from warren.transport.rpc.methods import Host
from warren.transport.rpc.server import serve_client

NORMAL: Final = 1000
RESTART: Final = 1012
TRY_LATER: Final = 1013
"""The client has left more replies unread than there is room for."""
UNAUTHORIZED: Final = 4401
"""The client's token has expired or was revoked. It has the digits of HTTP's 401, in the range of applications."""
TOO_BIG: Final = 1009
CHUNK: Final = 64 * 1024
PART: Final = 512 * 1024
"""Bytes of a fragment: copying a long message in one go would hold up everybody."""
CONTINUATION: Final = 0
MAX_SHORT: Final = 0xFFFF
"""The largest length of two bytes."""
_short_head: Final = struct.Struct("!BBH").pack


class WebSocketConnection:
    """A client on an open WebSocket.

    Attributes:
        serving: cancel it to end the connection in good order, with close code 1012.
    """

    serving: trio.CancelScope

    def __init__(self, wire: Wire, host: Host, config: GatewayConfig) -> None:
        bounds = EndpointBounds(
            config.max_in_flight,
            max_batch=config.max_in_flight,
            outbox_events=config.outbox_events,
            close_timeout=config.close_timeout,
            needs_reader=False,
        )
        self._host = host
        self._config = config
        self._frames = Frames(wire, config.max_message_bytes)
        self._endpoint = Endpoint(self._frames, bounds, admit=partial(wait_for_each, wire))
        self.serving = self._endpoint.serving
        self._ended_with = RESTART

    def end_login(self) -> None:
        """End the connection as `serving` does, with close code 4401: its client may not stay."""
        self._ended_with = UNAUTHORIZED
        self.serving.cancel()

    async def run(self) -> None:
        """Serve the client until it leaves, breaks a rule, or `serving` is cancelled; then close within a bound.

        Turns that it started go on. Cancelling `run` itself drops the connection.
        """
        await serve_client(self._endpoint, self._host, Native(), self._config.max_subscriptions)
        with trio.move_on_after(self._config.close_timeout):
            code = TRY_LATER if self._endpoint.let_go else self._ended_with
            await self._frames.close(code if self.serving.cancelled_caught else NORMAL)


async def wait_for_each(wire: Wire, requests: int) -> None:
    """Wait until the paces of a client let some more requests through, which have come in one message."""
    await wait_for_all(wire.paces, requests)


class Frames:
    """A channel of text frames. A client that breaks the WebSocket protocol gets the close code that says so.

    A message over the limit is passed over, whatever its frames are; one of more than `FAR` times the limit ends the
    connection with code 1009.
    """

    def __init__(self, wire: Wire, max_bytes: int) -> None:
        self._wire = wire
        self._max_bytes = max_bytes
        self._protocol = Protocol(ConnectionType.SERVER)
        self._splitter = Splitter(max_bytes)
        self._ready: deque[bytes | Unreadable] = deque()
        self._message = bytearray()
        self._size = 0
        self._over = False

    async def receive(self) -> bytes | Unreadable | None:
        """Return the next message, None once the connection is closing."""
        if self._ready:  # a flood of small messages comes in one piece; the read of a piece is a checkpoint itself
            await trio.lowlevel.checkpoint()
        while not self._ready and not self._over:
            await self._read()
        if self._wire.paces:
            await wait_for_all(self._wire.paces, 1)
        return self._ready.popleft() if self._ready else None

    async def send(self, frames: Sequence[bytes]) -> None:
        """Send messages; all but long ones leave in one piece. Raises one of `GONE` once it is closing."""
        out = list[bytes]()
        for frame in frames:
            size = len(frame)
            if size <= PART:
                out += (_head_of(size), frame)
                continue
            for start in range(0, size, PART):
                part = frame[start : start + PART]
                opcode = CONTINUATION if start else TEXT
                last = FINAL if start + PART >= size else 0
                await self._send([*out, _head(last | opcode, len(part)), part])
                out.clear()
        await self._send(out)

    async def _send(self, parts: Sequence[bytes]) -> None:
        if self._protocol.state is not ConnectionState.OPEN:
            raise trio.BrokenResourceError("the connection is closed")
        await self._wire.send_all(b"".join(parts))

    def send_nowait(self, frames: Sequence[bytes]) -> bool | None:
        """See Channel. A client that has to keep to a pace is waited for, and so is a long message."""
        if self._wire.paces or self._protocol.state is not ConnectionState.OPEN or max(map(len, frames)) > PART:
            return None
        return self._wire.send_nowait(b"".join([part for frame in frames for part in (_head_of(len(frame)), frame)]))

    async def close(self, code: int) -> None:
        """Close with a code, if nobody has begun to, and wait until the client has closed too."""
        with contextlib.suppress(*GONE):
            if self._protocol.state is ConnectionState.OPEN:
                self._answer(CloseConnection(code))
            await self._wire.send_all(b"")
            while not self._over:
                await self._read()
                self._ready.clear()

    async def _read(self) -> None:
        try:
            data = await self._wire.receive_some(CHUNK)
        except GONE:
            data = b""
        if not data:
            self._pass(None)
        for part, is_text in self._splitter.feed(data):
            if self._over:
                break
            if is_text:
                self._ready.append(part)
            else:
                self._pass(part)

    def _pass(self, data: bytes | None) -> None:
        """Have wsproto read a part of a frame; None is the end of the stream."""
        self._protocol.receive_data(data)
        for event in self._protocol.events():
            if self._over:
                break
            self._take(event)

    def _take(self, event: Event) -> None:
        match event:
            case TextMessage() | BytesMessage():
                self._add(event)
            case Ping():
                self._answer(event.response())
            case CloseConnection():
                # The state tells who closes: the client, or the protocol that found a broken frame.
                if self._protocol.state is ConnectionState.REMOTE_CLOSING:
                    self._answer(event.response())
                elif self._protocol.state is ConnectionState.OPEN:
                    self._answer(event)
                self._over = True

    def _add(self, part: TextMessage | BytesMessage) -> None:
        data = part.data.encode() if isinstance(part, TextMessage) else part.data
        self._size += len(data)
        if self._size > self._max_bytes:
            self._message.clear()
        else:
            self._message += data
        if self._size > FAR * self._max_bytes:
            self._answer(CloseConnection(TOO_BIG, f"a message has more than {FAR * self._max_bytes} bytes"))
            self._over = True
        elif part.message_finished:
            self._ready.append(self._whole(part))
            self._message.clear()
            self._size = 0

    def _whole(self, last: TextMessage | BytesMessage) -> bytes | Unreadable:
        if self._size > self._max_bytes:
            return Unreadable(f"has more than {self._max_bytes} bytes")
        return bytes(self._message) if isinstance(last, TextMessage) else Unreadable("is a binary frame: send text")

    def _answer(self, event: Event) -> None:
        self._wire.send_soon(self._protocol.send(event))


def _head_of(size: int) -> bytes:
    """Return the head of a frame that is a whole message."""
    return _short_head(FINAL | TEXT, LONG, size) if LONG <= size <= MAX_SHORT else _head(FINAL | TEXT, size)


def _head(first: int, size: int) -> bytes:
    """Return the head of a frame of the server: such frames are not masked. `first` is its first byte.

    The frames that carry messages are written here and not by wsproto: it would decode and encode each text again.
    """
    if size < LONG:
        return bytes((first, size))
    return _short_head(first, LONG, size) if size <= MAX_SHORT else struct.pack("!BBQ", first, LONGER, size)
