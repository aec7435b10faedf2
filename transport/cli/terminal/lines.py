"""The sources of a chat's lines: a line editor on a terminal, or a pipe."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import trio

from warren.base.values import define
from warren.transport.cli.terminal.stderr import settle

PROMPT: Final = "> "
CHUNK: Final = 65536


class LineSource(Protocol):
    """A source of lines."""

    async def next(self) -> bytes | None:
        """Return the next line without its end; None at the end of the input.

        Trap: a cancelled call makes the source unusable, because its thread stays and reads the next line.
        """


@define
class PipedLines:
    """The lines of a file descriptor that is no terminal."""

    descriptor: int = 0
    _buffer: bytes = b""
    _ended: bool = False

    async def next(self) -> bytes | None:
        while b"\n" not in self._buffer and not self._ended:
            # The bare system call: an abandoned thread inside sys.stdin would hold its lock when the process ends.
            chunk = await trio.to_thread.run_sync(os.read, self.descriptor, CHUNK, abandon_on_cancel=True)
            self._buffer += chunk
            self._ended = not chunk
        if not self._buffer:
            return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


@define
class EditedLines:
    """The lines typed at a terminal, with the editing and the history of readline if Python has it.

    Attributes:
        open: whether a line is being typed.
    """

    open: bool = False

    async def next(self) -> bytes | None:
        self.open = True
        line = await trio.to_thread.run_sync(_edit_line, abandon_on_cancel=True)
        self.open = False
        return line


def _edit_line() -> bytes | None:
    settle()  # the prompt comes behind what was said before it
    try:
        return input(PROMPT).encode(errors="surrogateescape")
    except EOFError:
        print()  # noqa: T201 - the cursor is behind the prompt
        return None
    except UnicodeDecodeError as exc:
        return bytes(exc.object)


@contextmanager
def open_lines() -> Iterator[LineSource]:
    """Yield the lines of stdin; a terminal gets its settings back afterwards."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield PipedLines()
        return
    _load_readline()
    lines = EditedLines()
    with _kept_terminal():
        yield lines
    if lines.open:
        print()  # noqa: T201 - Ctrl-C left the cursor behind what was typed


def _load_readline() -> None:
    """Load the editor of `input` by its import. Some builds of Python have none."""
    try:
        import readline  # noqa: PLC0415
    except ImportError:
        return
    readline.set_auto_history(True)


@contextmanager
def _kept_terminal() -> Iterator[None]:
    """Restore the settings of the terminal: an editor that Ctrl-C has ended cannot do it."""
    try:
        import termios  # noqa: PLC0415 - not everywhere
    except ImportError:
        yield
        return
    before = termios.tcgetattr(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSANOW, before)
