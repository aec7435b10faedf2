"""The stream under trio-websocket: what it reads is bounded, and what it writes leaves together."""

import struct
from collections import deque
from typing import Final

import trio
from trio_websocket import WebSocketConnection

from warren.actors.streams import EDGE
from warren.transport.gateway.bounds import FINAL, KEY, LONG, LONGER, MASKED, TEXT, Bounds, width_of
from warren.transport.http.wire import Wire
from warren.transport.rpc.endpoint import Unreadable

CLOSE: Final = 0x88
"""The first byte of a close frame, and the least of those of control frames: trio-websocket writes each frame whole."""
PING: Final = b"\x89\x00"
"""A whole ping, without a text."""
TOO_BIG: Final = 1009
FAULTS: Final = (1002, 1007)
"""Close codes for frames that break the protocol, and for text that is not UTF-8."""
MAX_REASON: Final = 123
CONTINUATION: Final = 0
CHUNK: Final = 64 * 1024
PASSED_OVER: Final = "\0"
"""The message that stands in for one that is too long: no text of JSON begins like this."""
MAX_SHORT: Final = 0xFFFF
"""The largest length of two bytes."""
PART: Final = 512 * 1024
"""Bytes of a fragment: copying a long message in one go would hold up everybody."""


class FrameStream(trio.abc.Stream):
    """A client's bytes as trio-websocket gets them.

    The head of the request comes first, once more, and the bytes behind it after the answer: trio-websocket would not
    look at bytes that come with the head before others follow. A message that is too much ends the input, with close
    code 1009; one that may be too long by its escapes alone is passed over, and keeps its id. After our close frame the
    client is only waited for until it has closed, too.

    Messages wait for `flush`: each would cost a system call. So trio-websocket never waits for a slow client while it
    holds its lock, and a cancelled send leaves either a whole frame or none.

    Attributes:
        socket: the WebSocket on this stream, once it is open.
        passed_over: the messages that were too long; each has a `PASSED_OVER` in its place.
    """

    socket: WebSocketConnection | None = None
    passed_over: deque[Unreadable]
    _heard: bool = True

    def __init__(self, wire: Wire, head: bytes, max_bytes: int) -> None:
        self._wire = wire
        self._head = head
        self._bounds = Bounds(max_bytes)
        self._max_bytes = max_bytes
        self._cut = b""  # the beginning of a frame's head that has not come whole
        self.passed_over = deque()
        self._answered = trio.Event()
        self._out = list[bytes]()
        self._closing = False

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
        self.say_goodbye(TOO_BIG, bounds.problem)
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
        self.passed_over.append(Unreadable.too_long(self._max_bytes, *edges))
        return bytes((FINAL | TEXT, MASKED | len(PASSED_OVER), *bytes(KEY))) + PASSED_OVER.encode()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Keep a message for `flush`, and send a control frame. Nothing follows a close frame.

        Trap: this is no checkpoint.
        """
        if self._closing:
            return
        if data[0] < CLOSE:
            self._out.append(bytes(data))
        elif data[0] == CLOSE:
            self._end_with(bytes(data))
        else:
            self._wire.send_soon(bytes(data))

    async def flush(self) -> None:
        """Send what waits, and the answer to the request first. Raises one of `GONE` if the client no longer reads."""
        out = b"".join(self._out)
        self._out.clear()
        await self._wire.send_all(out)
        self._answered.set()

    def add(self, text: bytes) -> None:
        """Keep a message for `flush`, before one that trio-websocket sends. Raises one of `GONE` if it is closing.

        trio-websocket takes a pass of the event loop for each message, which is a fifth of a turn for those of a turn.
        """
        if self._closing:
            raise trio.BrokenResourceError("the connection is closed")
        self._out += _head(FINAL | TEXT, len(text)), text

    async def send_long(self, text: bytes) -> None:
        """Send a message in fragments, behind those that wait. Raises one of `GONE` once the connection is closing.

        trio-websocket sends a message as one frame, and copies it five times in one go.
        """
        for start in range(0, len(text), PART):
            if self._closing:
                raise trio.BrokenResourceError("the connection is closed")
            last, part = FINAL if start + PART >= len(text) else 0, text[start : start + PART]
            self._out += _head(last | (CONTINUATION if start else TEXT), len(part)), part
            await self.flush()

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

    def say_goodbye(self, code: int, reason: str = "") -> None:
        """Send a close frame behind the messages that wait, unless one was sent; what is left leaves with a `flush`.

        It is not left to trio-websocket: that cannot answer a ping any more once it has begun to close, and fails.
        """
        if not self._closing:
            text = reason.encode()[:MAX_REASON].decode(errors="ignore").encode()
            self._end_with(_head(CLOSE, 2 + len(text)) + code.to_bytes(2) + text)

    async def wait_send_all_might_not_block(self) -> None:
        """Return at once: there is always room."""
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Tell the client which fault trio-websocket has found, if it has: it closes the stream without a word.

        The wire stays open, so that the client can read the last answer.
        """
        reason = None if self.socket is None else self.socket.closed
        if reason is not None and reason.code in FAULTS:
            self.say_goodbye(reason.code, reason.reason or "")
        await trio.lowlevel.checkpoint()

    def _end_with(self, close: bytes) -> None:
        self._closing = True
        self._wire.send_nowait(b"".join(self._out))
        self._out.clear()
        self._wire.send_soon(close)


def _unmasked(data: bytes, key: bytes, at: int = 0) -> bytes:
    """Return bytes of a frame without its mask; `at` is the place of the first one among those of the frame."""
    return bytes(byte ^ key[index % KEY] for index, byte in enumerate(data, at))


def _head(first: int, size: int) -> bytes:
    """Return the head of a frame of the server: such frames are not masked. `first` is its first byte."""
    if size < LONG:
        return bytes((first, size))
    return struct.pack("!BBH", first, LONG, size) if size <= MAX_SHORT else struct.pack("!BBQ", first, LONGER, size)
