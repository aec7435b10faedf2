"""Standard error that never makes its writers wait: a thread writes, and drops lines that nobody reads in time."""

import io
import os
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from warren.transport.cli.terminal.json_lines import json_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MOST: Final = 1024 * 1024
"""Bytes that wait for the reader; later ones are dropped."""
PATIENCE: Final = 1.0
"""Seconds that the end of a command waits for a reader that reads nothing."""
PIECE: Final = 4096
"""Bytes that are written at once: after each piece a reader counts as one that reads."""
IN_ORDER: Final = 0.1
"""Seconds that stdout waits for stderr if both are one terminal or file, so that lines stay in their order."""


class _Queue(io.RawIOBase):
    """A file that takes everything at once: a thread writes it to a file descriptor, in order."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number
        self._changed = threading.Condition()
        self._waiting = deque[bytes]()
        self._size = 0
        self._dropped = 0  # lines
        self._thread: threading.Thread | None = None
        self._in_vain = 0.0  # seconds that somebody has waited in vain since the last piece was written
        self._broken = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, data: "ReadableBuffer", /) -> int:
        lines = bytes(data)
        with self._changed:
            if self._waiting and self._size + len(lines) > MOST:
                self._dropped += lines.count(b"\n")
            elif not self._broken:
                self._waiting.extend(lines[start : start + PIECE] for start in range(0, len(lines), PIECE))
                self._size += len(lines)
                if self._thread is None or not self._thread.is_alive():  # none survives a fork
                    self._thread = threading.Thread(target=self._write_all, daemon=True, name="stderr")
                    self._thread.start()
                self._changed.notify_all()
        return len(lines)

    def settle(self, patience: float) -> bool:
        """Wait until everything is written, while the reader reads some of it at least each `patience` seconds."""
        with self._changed:
            while self._waiting and self._in_vain < patience:
                if not self._changed.wait(patience):
                    self._in_vain = patience
            return not self._waiting

    def _write_all(self) -> None:
        # A signal that this thread took would not wake the main thread, which may wait for the user's input.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                piece = self._waiting[0]
            try:
                self._write(piece)
            except OSError:  # its reader is gone, or its disk is full: nobody can be told
                self._broken = True
            dropped = 0
            with self._changed:
                if self._broken:
                    self._waiting.clear()
                    self._size = 0
                else:
                    self._waiting.popleft()
                    self._size -= len(piece)
                    if self._size <= MOST // 2:
                        dropped, self._dropped = self._dropped, 0
                self._in_vain = 0.0
                self._changed.notify_all()
            if dropped:
                import logging  # noqa: PLC0415 - no command waits for it when it starts

                # Critical, as that is the least that every command shows.
                logging.getLogger(__name__).critical("%d lines of stderr were dropped, as nobody has read it", dropped)

    def _write(self, piece: bytes) -> None:
        while piece:
            try:
                piece = piece[os.write(self._number, piece) :]
            except BlockingIOError:  # another process, or the protocol on a stdout that is the same pipe, has set that
                select.select([], [self._number], [])


class BackgroundText(io.TextIOWrapper):
    """The text side of a queue in front of a file descriptor. Its `flush` does not wait either; `settle` does."""

    def __init__(self, number: int, encoding: str) -> None:
        """Write to a file descriptor, which stays open at the end."""
        self._queue = _Queue(number)
        super().__init__(
            io.BufferedWriter(self._queue), encoding=encoding, errors="backslashreplace", line_buffering=True
        )

    def settle(self, patience: float) -> bool:
        """Wait until everything is written, at most `patience` seconds for a reader that reads nothing.

        Once it has waited in vain it does not wait again before the reader has read something. Return whether
        everything is written.
        """
        self.flush()
        return self._queue.settle(patience)


@contextmanager
def in_background() -> Iterator[None]:
    """Have stderr written by a thread during a body; at its end wait for a reader that reads."""
    before = sys.stderr
    sys.stderr = own = BackgroundText(before.fileno(), before.encoding)
    try:
        yield
    finally:
        if own.settle(PATIENCE):
            sys.stderr = before  # else later words of the interpreter go to the queue, and not to a full pipe


def settle(patience: float = IN_ORDER) -> None:
    """Wait until stderr is written, at most `patience` seconds for a reader that reads nothing."""
    lines = json_of(sys.stderr)
    own = sys.stderr if lines is None else lines.sink
    if isinstance(own, BackgroundText):
        own.settle(patience)
