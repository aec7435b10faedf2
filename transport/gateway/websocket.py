"""One WebSocket connection: its frames, its messages, its end, and the JSON-RPC endpoint that speaks in them.

trio-websocket carries the frames of the client, on a stream that bounds what it reads. Our own messages are framed here
and leave together in one write.
"""

import contextlib
import struct
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

import trio
import trio_websocket

from warren.actors.io.streams import EDGE, GONE
from warren.transport.access.config import GatewayConfig
from warren.transport.access.pace import wait_for_all
from warren.transport.gateway.handshake import Opening
from warren.transport.gateway.heartbeat import Heartbeat
from warren.transport.http.wire import Wire
from warren.transport.rpc.dialect import Native
from warren.transport.rpc.endpoint import Endpoint, EndpointBounds, Unreadable
from warren.transport.rpc.methods import Host
from warren.transport.rpc.session_client import serve_client

NORMAL: Final = 1000
TOO_BIG: Final = 1009
SILENT: Final = 1011
"""The client has not answered a ping."""
RESTART: Final = 1012
TRY_LATER: Final = 1013
"""The client has left more replies unread than there is room for."""
UNAUTHORIZED: Final = 4401
"""The client's token has expired or was revoked. It has the digits of HTTP's 401, in the range of applications."""
FAULTS: Final = (1002, 1007)
"""Close codes for frames that break the protocol, and for text that is not UTF-8."""
MAX_REASON: Final = 123
CHUNK: Final = 64 * 1024
QUEUE: Final = 4
"""Messages that are read ahead: while more wait to be handled, pings are not answered."""
FRAGMENT: Final = 512 * 1024
"""Bytes of a fragment: copying a long message in one go would hold up everybody."""
PASSED_OVER: Final = "\0"
"""The message that stands in for one that is too long: no text of JSON begins like this."""

FINAL: Final = 0x80
"""The bit of a frame's first byte that ends a message."""
OPCODE: Final = 0x0F
CONTINUATION: Final = 0
TEXT: Final = 1
CONTROL: Final = 8
"""The least opcode of frames that are no part of a message."""
CLOSE: Final = 8
PING: Final = b"\x89\x00"
"""A whole ping, without a text."""
MASKED: Final = 0x80
LENGTH: Final = 0x7F
LONG: Final = 126
LONGER: Final = 127
"""Lengths in a head that say how many bytes the true length has: two, or eight."""
MAX_SHORT: Final = 0xFFFF
"""The largest length of two bytes."""
KEY: Final = 4
"""Bytes of the key that a frame is masked with."""
LONGEST: Final = 10
"""Bytes of the longest head, without the key."""
AT_ONCE: Final = 256
"""Frames that are passed on in one go: 64 KiB may hold ten thousand empty ones."""
SPARE: Final = 4_096
"""Parts that any message may come in."""
PART: Final = 64
"""Bytes for which a longer message may come in one part more. trio-websocket keeps the parts, also empty ones."""
_HEAD: Final = struct.Struct("!BB").pack
_LONG_HEAD: Final = struct.Struct("!BBH").pack
_LONGER_HEAD: Final = struct.Struct("!BBQ").pack
"""Heads of frames of the server, which are not masked: the first byte, and the length."""
ESCAPED: Final = 6
"""Bytes of an escaped character for each byte that it has in UTF-8: a request that is too long may be so by escapes."""

Headers = list[tuple[bytes, bytes]]


class WebSocketConnection:
    """A client on a WebSocket.

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
        self._messages = Messages(wire, config.max_message_bytes)
        self._endpoint = Endpoint(self._messages, bounds, admit=partial(wait_for_each, wire))
        self.serving = self._endpoint.serving
        self._ended_with = RESTART

    def end(self, code: int) -> None:
        """End the connection as `serving` does, with another close code."""
        self._ended_with = code
        self.serving.cancel()

    async def run(self, opening: Opening, headers: Headers, heartbeat: Heartbeat) -> None:
        """Answer the client's request, and serve it until it leaves, breaks a rule, or `serving` is cancelled.

        The connection is then closed within a bound; turns that the client started go on. Cancelling `run` itself drops
        the connection.

        Args:
            opening: the request.
            headers: headers of the answer besides those of the handshake.
            heartbeat: pings the client when it is silent; one that stays silent is left with close code 1011.
        """
        async with trio.open_nursery() as nursery:
            await self._messages.open(nursery, opening, headers)
            with heartbeat.watches(self._messages, partial(self.end, SILENT)):
                await serve_client(self._endpoint, self._host, Native(), self._config.max_subscriptions)
            with trio.move_on_after(self._config.close_timeout):
                code = TRY_LATER if self._endpoint.let_go else self._ended_with
                await self._messages.close(code if self.serving.cancelled_caught else NORMAL)
            nursery.cancel_scope.cancel()


async def wait_for_each(wire: Wire, requests: int) -> None:
    """Wait until the paces of a client let some more requests through, which have come in one message."""
    await wait_for_all(wire.paces, requests)


class Messages(trio.abc.Stream):
    """The messages of one client, and the stream of its bytes that trio-websocket reads them from.

    trio-websocket gets the head of the request first, once more, and the bytes behind it after the answer: it would not
    look at bytes that come with the head before others follow. A message that is too much ends the input, with close
    code 1009; one that may be too long by its escapes alone is passed over, and keeps its id. A client that breaks the
    WebSocket protocol gets the close code that says so. After our close frame the client is only waited for until it
    has closed, too.

    trio-websocket sends nothing but control frames: it takes a pass of the event loop for each message, and copies it
    five times. So it never waits for a slow client while it holds its lock, and a cancelled send leaves either a whole
    frame or none.
    """

    _socket: trio_websocket.WebSocketConnection
    _head: bytes = b""
    _heard: bool = True

    def __init__(self, wire: Wire, max_bytes: int) -> None:
        self._wire = wire
        self._max_bytes = max_bytes
        self._bounds = Bounds(max_bytes)
        self._cut = b""  # the beginning of a frame's head that has not come whole
        self._passed_over = deque[Unreadable]()  # each has a `PASSED_OVER` in its place
        self._received: str | bytes | None = None
        self._answered = trio.Event()
        self._out = list[bytes]()
        self._closing = False

    async def open(self, nursery: trio.Nursery, opening: Opening, headers: Headers) -> None:
        """Answer the request. A task in the nursery reads frames from then on, until it is cancelled."""
        self._head = opening.head
        request = await trio_websocket.wrap_server_stream(
            nursery,
            self,
            message_queue_size=QUEUE,
            max_message_size=self._max_bytes,
            receive_buffer_size=CHUNK,
        )
        self._socket = await request.accept(subprotocol=opening.subprotocol, extra_headers=headers)
        await self._flush()
        self._answered.set()

    # -- messages

    async def receive(self) -> str | Unreadable | None:
        """Return the next message, None once the connection is closing."""
        if self._received is None:
            try:
                self._received = await self._socket.get_message()
            except trio_websocket.ConnectionClosed:
                return None
        if self._wire.paces:
            await wait_for_all(self._wire.paces, 1)
        message, self._received = self._received, None
        if message == PASSED_OVER and self._passed_over:
            return self._passed_over.popleft()
        return message if isinstance(message, str) else Unreadable("is a binary frame: send text")

    async def send(self, frames: Sequence[bytes]) -> None:
        """Send messages in one write, long ones in fragments. Raises one of `GONE` once the connection is closing.

        Trap: if the kernel takes all of them at once this is no checkpoint.
        """
        for text in frames:
            for start in range(0, len(text), FRAGMENT):
                if self._closing:
                    raise trio.BrokenResourceError("the connection is closed")
                part = text[start : start + FRAGMENT]
                is_last = start + FRAGMENT >= len(text)
                first = (FINAL if is_last else 0) | (CONTINUATION if start else TEXT)
                size = len(part)
                if size < LONG:
                    head = _HEAD(first, size)
                elif size <= MAX_SHORT:
                    head = _LONG_HEAD(first, LONG, size)
                else:
                    head = _LONGER_HEAD(first, LONGER, size)
                self._out += head, part
                if not is_last:
                    await self._flush()
        await self._flush()

    async def close(self, code: int) -> None:
        """Close with a code, if nobody has begun to, and wait until the client has closed too."""
        self._say_goodbye(code)
        with contextlib.suppress(trio_websocket.ConnectionClosed, *GONE):
            await self._flush()
            while True:
                await self._socket.get_message()

    def was_heard(self) -> bool:
        """Return whether the client has shown since the last call that it is there.

        It has if it has sent anything, also bytes that nobody has read yet, since it waits for us then; and if it has
        taken some of the bytes that wait for it: a slow reader comes late to a ping behind them.
        """
        heard, self._heard = self._heard, False
        return self._wire.is_moving() or heard

    def ping(self) -> None:
        """Ask the client for a sign of life: whatever comes next is one. Does nothing once the connection is closing.

        The ping of trio-websocket waits for its pong in a task of its own for each silent client.
        """
        if not self._closing:
            self._wire.send_soon(PING)

    async def _flush(self) -> None:
        """Send what waits. Raises one of `GONE` if the client no longer reads."""
        out = b"".join(self._out)
        self._out.clear()
        await self._wire.send_all(out)

    def _say_goodbye(self, code: int, reason: str = "") -> None:
        """Send a close frame behind the messages that wait, unless one was sent; what is left leaves with a flush.

        It is not left to trio-websocket: that cannot answer a ping any more once it has begun to close, and fails.
        """
        if not self._closing:
            text = reason.encode()[:MAX_REASON].decode(errors="ignore").encode()
            self._end_with(_HEAD(FINAL | CLOSE, 2 + len(text)) + code.to_bytes(2) + text)

    def _end_with(self, close: bytes) -> None:
        self._closing = True
        self._wire.send_nowait(b"".join(self._out))
        self._out.clear()
        self._wire.send_soon(close)

    # -- the bytes below trio-websocket

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return some bytes, b"" at the end. Raises as the wire does."""
        if self._head:
            await trio.lowlevel.checkpoint()
            size = len(self._head) if max_bytes is None else max_bytes
            data, self._head = self._head[:size], self._head[size:]
            return data
        if not self._answered.is_set():
            await self._answered.wait()
        bounds = self._bounds
        while bounds.problem is None:
            if bounds.long:
                return await self._pass_over()
            more = await self._wire.receive_some(max_bytes)
            self._heard = True
            data, self._cut = self._cut + more, b""
            taken = bounds.take(data)
            if not more or (self._closing and bounds.closed):
                return b""
            if taken < len(data) and bounds.problem is None:
                self._keep(data, taken)
            if taken and not self._closing:
                return data[:taken]
        self._say_goodbye(TOO_BIG, bounds.problem)
        return b""

    def _keep(self, data: bytes, taken: int) -> None:
        """Keep what is not passed on now: the beginning of a head until more comes, all else for the next look."""
        if taken or self._bounds.long:
            self._wire.unread(data[taken:])
        else:
            self._cut = data

    async def _pass_over(self) -> bytes:
        """Read a message that is too long; return the frame that stands in for it, b"" if the client ends before."""
        size, self._bounds.long = self._bounds.long, 0
        head, tail, left = b"", b"", size
        while left:
            data = await self._wire.receive_some(min(CHUNK, left))
            if not data:
                return b""
            self._heard = True
            left -= len(data)
            head = (head + data)[: 2 * EDGE]
            tail = (tail + data)[-EDGE:]
        begin = width_of(head) + KEY
        key, length = head[begin - KEY : begin], size - begin
        tail = tail[-length:]
        edges = _unmasked(head[begin : begin + EDGE], key), _unmasked(tail, key, length - len(tail))
        self._passed_over.append(Unreadable.too_long(self._max_bytes, *edges))
        return bytes((FINAL | TEXT, MASKED | len(PASSED_OVER), *bytes(KEY))) + PASSED_OVER.encode()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Keep the answer to the request until it is complete, and send a control frame. Nothing follows a close frame.

        Trap: this is no checkpoint.
        """
        if self._closing:
            return
        if data[0] < FINAL:
            self._out.append(bytes(data))
        elif data[0] == FINAL | CLOSE:
            self._end_with(bytes(data))
        else:
            self._wire.send_soon(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        """Return at once: there is always room."""
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Tell the client which fault trio-websocket has found, if it has: it closes the stream without a word.

        The wire stays open, so that the client can read the last answer.
        """
        reason = self._socket.closed if self._answered.is_set() else None
        if reason is not None and reason.code in FAULTS:
            self._say_goodbye(reason.code, reason.reason or "")
        await trio.lowlevel.checkpoint()


def _unmasked(data: bytes, key: bytes, at: int = 0) -> bytes:
    """Return bytes of a frame without its mask; `at` is the place of the first one among those of the frame."""
    return bytes(byte ^ key[index % KEY] for index, byte in enumerate(data, at))


def parts_of(most: int) -> int:
    """Return how many parts a message of at most so many bytes may come in."""
    return SPARE + most // PART


class Bounds:
    """Follows the frames of one client, and finds the first that is too much.

    trio-websocket counts the characters of a message once it has them, and neither its bytes nor its parts. Frames that
    break the protocol are left to it.

    Args:
        most: bytes that a message may have.

    Attributes:
        problem: why the next frame may not be passed on; None if nothing is wrong.
        closed: whether the client has closed.
        long: bytes of the next frame, with its head: the whole text of a message that is too long, but not very much.
            Its bytes are not to be given again: whoever passes it over sets this to 0.
    """

    def __init__(self, most: int) -> None:
        self.problem: str | None = None
        self.closed: bool = False
        self.long: int = 0
        self._most = most
        self._most_parts = parts_of(most)
        self._size = 0  # announced bytes of the message
        self._parts = 0
        self._left = 0  # bytes of a frame, and of its key, that are still to come
        self._first = 0  # the first byte of that frame

    def take(self, data: bytes) -> int:
        """Follow some bytes, cut anywhere; return how many of them to pass on now.

        The others are to be given again, after a checkpoint; with a `problem` they are too much. If it is none, and
        nothing is wrong or `long`, they are the beginning of a head: more have to come with them.
        """
        at = frames = 0
        while at < len(data):
            if not self._left:
                if frames == AT_ONCE:
                    break
                frames += 1
                head = data[at : at + LONGEST]
                width = width_of(head)
                if width > len(head):
                    break
                self._begin(head, width)
                if self.problem is not None or self.long:
                    break
                at += width
            step = min(self._left, len(data) - at)
            at += step
            self._left -= step
            if self._first & OPCODE < CONTROL:
                self._parts += 1
                if not self._left and self._first & FINAL:
                    self._size = self._parts = 0
                elif self._parts > self._most_parts:
                    self.problem = f"the message comes in more than {self._most_parts} parts"
                    break
        return at

    def _begin(self, head: bytes, width: int) -> None:
        self._first, second = head[0], head[1]
        length = second & LENGTH if width == 2 else int.from_bytes(head[2:width], "big")  # noqa: PLR2004 - as RFC 6455
        self._left = length + (KEY if second & MASKED else 0)
        if self._first & OPCODE >= CONTROL:
            self.closed = self.closed or self._first & OPCODE == CLOSE
            return
        self._size += length
        if self._size <= self._most:
            return
        if head[0] == FINAL | TEXT and second & MASKED and not self._parts and length <= ESCAPED * self._most:
            self.long, self._left, self._size = width + self._left, 0, 0
        else:
            self.problem = f"the message has more than {self._most} bytes"


def width_of(head: bytes) -> int:
    """Return the bytes that a head has before its key; 2 if that cannot be told yet."""
    length = head[1] & LENGTH if len(head) > 1 else 0
    return 2 + (0 if length < LONG else 2 if length == LONG else 8)
