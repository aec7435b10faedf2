"""A TCP stream that drops a client that does not read, and sends without a checkpoint if the kernel has room."""

import contextlib
import fcntl
import math
import os
import select
import socket
import struct
import sys
import termios
from typing import Final

import trio

from warren.actors.io.streams import GONE
from warren.transport.access.pace import NO_PACE, REQUEST_BYTES, Paced, wait_for_all

CHUNK: Final = 64 * 1024
SEND_BUFFER: Final = 256 * 1024
FAREWELL: Final = 1.0
CONTROL: Final = 16
"""Bytes that a kernel may take by itself while its program stands still: those of our pings."""
_WANTED: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
KEEPALIVE: Final = [(name, value) for name, value in _WANTED if hasattr(socket, name)]


class Wire(trio.abc.Stream):
    """One client's bytes.

    A send that makes no progress for `stall_timeout` seconds, or is cancelled halfway, aborts the connection: the
    client has then received half a frame, and nothing may follow it.

    Attributes:
        paces: the paces that the client has to keep to, in both directions.
        interrupted: whether to receive raises trio.ClosedResourceError.
    """

    paces: Paced = NO_PACE
    interrupted: bool = False

    def __init__(self, stream: trio.SocketStream, stall_timeout: float) -> None:
        self._stream = stream
        self._stall_timeout = stall_timeout
        self._unread = b""
        self._out = bytearray()
        self._soon = 0
        self._sending = trio.Lock()
        self._left = 0
        self._sending_since = math.inf  # of the part that waits for the client
        _tune(stream.socket)

    def unread(self, data: bytes) -> None:
        """Put bytes back: they are received next."""
        self._unread = data + self._unread

    def is_moving(self) -> bool:
        """Return whether the client has sent bytes that nobody has read, or has taken some since the last call.

        While a send waits for it, `stall_timeout` alone judges the client.
        """
        fd = self._stream.socket.fileno()
        if fd < 0:
            return False
        left, self._left = self._left, _left_to_send(fd)
        if self._unread or self._sending.locked() or left - self._left > CONTROL:
            return True
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(0))

    @property
    def unread_for(self) -> float:
        """The seconds for which the client has not taken the next 64 KiB; 0 if nothing waits for it."""
        return max(0.0, trio.current_time() - self._sending_since)

    def interrupt(self) -> None:
        """Raise trio.ClosedResourceError in the task that waits for bytes, or is about to, as if this were closed."""
        self.interrupted = True
        trio.lowlevel.notify_closing(self._stream.socket)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return some bytes, b"" at the end.

        It waits for bytes before it looks for them: after an answer, a client has seldom sent the next request yet. The
        stream itself looks first, which for `GET /health` would be a twentieth more.
        """
        if self.paces:
            await wait_for_all(self.paces)
        if self._unread:
            await trio.lowlevel.checkpoint()
            size = len(self._unread) if max_bytes is None else max_bytes
            data, self._unread = self._unread[:size], self._unread[size:]
            return data
        sock = self._stream.socket
        while True:
            fd = sock.fileno()
            if fd < 0 or self.interrupted:
                raise trio.ClosedResourceError("the connection is closed")
            await trio.lowlevel.wait_readable(fd)
            if sock.fileno() != fd:  # closed after the bytes came: the number may already be that of another client
                raise trio.ClosedResourceError("the connection is closed")
            try:
                data = os.read(fd, CHUNK if max_bytes is None else max_bytes)
            except BlockingIOError:  # the kernel has thrown away what it had announced
                continue
            except OSError as exc:
                raise trio.BrokenResourceError(f"the connection is broken: {exc.strerror}") from exc
            for pace in self.paces:
                pace.charge(len(data))
            return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes.

        Trap: if the kernel takes all of them at once this is no checkpoint; it costs a fraction of one.

        Raises:
            trio.BrokenResourceError: the client is gone, or has not read for `stall_timeout` seconds.
            trio.ClosedResourceError: the connection was closed before.
        """
        if self.paces:
            await wait_for_all(self.paces, len(data) / REQUEST_BYTES)
        if not self.send_nowait(data):
            await self._send_out()

    def send_nowait(self, data: bytes | bytearray | memoryview) -> bool:
        """Send as much as the kernel takes now, and return whether that is all; the rest leaves with the next send.

        Trap: it knows no pace.
        """
        self._out += data
        if self._out and not self._sending.locked():
            # Errors are left to the next send that waits.
            with contextlib.suppress(OSError):
                del self._out[: os.write(self._stream.socket.fileno(), self._out)]
        return not self._out

    def send_soon(self, data: bytes) -> None:
        """Send as much as the kernel takes now; the rest leaves with the next send.

        Bytes are dropped if 64 KiB came this way since nothing waited: answers to the pings of a client that does not
        read must not fill the memory. Those of one that reads slowly wait behind its messages.
        """
        if not self._out:
            self._soon = 0
        if self._soon < CHUNK:
            self._soon += len(data)
            self.send_nowait(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until a send is likely not to wait."""
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Close at once; the kernel goes on to send the bytes that it holds."""
        self.close()
        await trio.lowlevel.checkpoint()

    async def linger(self) -> None:
        """End our side and read on for a moment: closing on unread bytes would destroy the last answer."""
        with trio.move_on_after(FAREWELL), contextlib.suppress(*GONE):
            await self._stream.send_eof()
            while await self._stream.receive_some(CHUNK):
                pass

    def close(self) -> None:
        """Close at once; the kernel goes on to send the bytes that it holds."""
        self._out.clear()
        self._stream.socket.close()

    def abort(self) -> None:
        """Close at once and throw away the bytes that the kernel holds: the client gets a reset."""
        with contextlib.suppress(OSError):
            self._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    async def _send_out(self) -> None:
        async with self._sending:
            while self._out:
                chunk = bytes(self._out[:CHUNK])
                del self._out[:CHUNK]
                await self._send(chunk)

    async def _send(self, data: bytes) -> None:
        sent, self._sending_since = False, trio.current_time()
        try:
            with trio.move_on_after(self._stall_timeout):
                await self._stream.send_all(data)
                sent = True
        finally:
            self._sending_since = math.inf
            if not sent:
                self.abort()
        if not sent:
            raise trio.BrokenResourceError(f"the client read nothing for {self._stall_timeout:g} s")


def _left_to_send(fd: int) -> int:
    """Return the bytes that the kernel has, and the client has not taken yet; 0 if the system does not tell."""
    with contextlib.suppress(OSError):
        return int.from_bytes(fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    return 0


def _tune(sock: trio.socket.SocketType) -> None:
    """Bound the bytes that the kernel keeps for a client, and probe whether a silent client is still there.

    Some systems refuse on a connection that is gone already; the first read says so then.
    """
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
