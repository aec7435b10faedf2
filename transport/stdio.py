"""Newline-delimited messages over the standard streams: reads lines within a bound, keeps stdout for protocol alone."""

import os
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

CHUNK: Final = 64 * 1024
STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2


class LineTooLongError(Exception):
    """A line has more bytes than it may; it was passed over."""


class LineReader:
    """The lines of a stream of bytes; what comes after the last newline is one too.

    Of a line with more than `limit` bytes nothing is kept: it is told of in its place, and the ones after it are read
    as ever.
    """

    def __init__(self, stream: trio.abc.ReceiveStream, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self._ready: deque[bytes | None] = deque()
        self._parts: list[bytes] = []
        self._size = 0
        self._ended = False

    async def next(self) -> bytes | None:
        """Return the next line without its newline, None at the end. Raises LineTooLongError for one passed over."""
        while not self._ready:
            if self._ended:
                return None
            await self._receive()
        line = self._ready.popleft()
        if line is None:
            raise LineTooLongError(f"the line has more than {self._limit} bytes")
        return line

    async def _receive(self) -> None:
        try:
            data = bytes(await self._stream.receive_some(CHUNK))
        except trio.BrokenResourceError:  # a terminal that is gone
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
        if self._size > self._limit:
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def _end_line(self) -> None:
        self._ready.append(None if self._size > self._limit else b"".join(self._parts))
        self._parts.clear()
        self._size = 0


@asynccontextmanager
async def open_stdio() -> AsyncIterator[tuple[trio.abc.ReceiveStream, trio.abc.SendStream]]:
    """Take stdin and stdout of this process as streams, for protocol alone.

    Meanwhile, and after it, stdin is empty to everybody else and what others print to stdout goes to stderr: neither a
    tool's `print` nor a child process can break into the protocol.

    Trap: whoever shares the terminal or pipe finds it non-blocking until the body has ended.
    """
    source, sink = os.dup(STDIN), os.dup(STDOUT)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, STDIN)
    os.close(nowhere)
    os.dup2(STDERR, STDOUT)
    async with trio.lowlevel.FdStream(source) as incoming, trio.lowlevel.FdStream(sink) as outgoing:
        yield incoming, outgoing
