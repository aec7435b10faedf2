"""Byte streams: the errors of a broken one, and a reader of lines up to a bound."""

from codecs import BOM_UTF8
from collections import deque
from typing import Final

import trio

CHUNK: Final = 64 * 1024
GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)
"""The errors of a stream whose other end is gone, or that was closed here meanwhile."""


EDGE: Final = 4096


class LineTooLongError(Exception):
    """A line was longer than the bound, and was skipped; the first and the last `EDGE` bytes of it are left."""

    def __init__(self, limit: int, head: bytes, tail: bytes) -> None:
        super().__init__(f"the line has more than {limit} bytes")
        self.head = head
        self.tail = tail


class LineReader:
    """The lines of a stream of bytes, without a byte order mark; the bytes after the last newline are a line too.

    A line of more than `limit` bytes is skipped without being kept in memory: `next` raises in its place, and returns
    the following lines as usual.
    """

    def __init__(self, stream: trio.abc.ReceiveStream, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self._ready: deque[bytes | LineTooLongError] = deque()
        self._parts: list[bytes] = []
        self._size = 0
        self._begun = False
        self._edges = b"", b""  # of a line that is too long
        self._ended = False

    async def next(self) -> bytes | None:
        """Return the next line without its newline; None at the end. Raises LineTooLongError for a skipped line."""
        while not self._ready:
            if self._ended:
                return None
            await self._receive()
        line = self._ready.popleft()
        if isinstance(line, LineTooLongError):
            raise line
        return line

    async def _receive(self) -> None:
        try:
            data = bytes(await self._stream.receive_some(CHUNK))
        except trio.BrokenResourceError:  # the terminal is gone
            data = b""
        *ended, rest = data.split(b"\n")
        for part in ended:
            self._add(part)
            self._end_line()
        self._add(rest)
        if not data:
            self._ended = True
            if self._size:
                self._end_line()

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if part:
            self._parts.append(part)
        if self._size > self._limit:
            known = b"".join(self._parts)
            self._edges = self._edges[0] or known[:EDGE], (self._edges[1] + known)[-EDGE:]
            self._parts.clear()

    def _end_line(self) -> None:
        if self._size > self._limit:
            self._ready.append(LineTooLongError(self._limit, *self._edges))
        else:
            line = b"".join(self._parts)
            self._ready.append(line if self._begun else line.removeprefix(BOM_UTF8))
        self._begun = True
        self._parts.clear()
        self._size, self._edges = 0, (b"", b"")
