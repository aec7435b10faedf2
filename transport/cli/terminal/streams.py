"""Standard input, output and error, each of which may be missing, broken, a terminal or a pipe."""

import contextlib
import io
import os
import re
import sys
from functools import cached_property
from textwrap import wrap
from threading import Timer
from typing import IO, TYPE_CHECKING, Any, AnyStr, Final, TextIO, cast

import attrs

from warren.base.errors import InvalidParamsError
from warren.base.values import define, frozen
from warren.transport.cli.terminal.json_lines import json_of
from warren.transport.cli.terminal.stderr import settle

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

STANDARD: Final = 3
STDOUT: Final = 1
STDERR: Final = 2
PIPE_PATIENCE: Final = 2.0
"""Seconds after which stderr says that the command waits for the end of a pipe."""
BEHIND_PROMPT: Final = "waiting for the end of stdin, which is part of the prompt; `< /dev/null` brings nothing"
AS_PROMPT: Final = "waiting for the end of stdin, which is the prompt; give the prompt as an argument to do without it"
CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """Return text that cannot steer a terminal: control characters except line feed and tab become U+FFFD."""
    return CONTROLS.sub("\ufffd", text)


def wrapped(text: str, columns: int) -> str:
    """Return text whose lines end between words; a word that is longer than a line stays whole, to be copied."""
    lines = (wrap(line, columns, break_long_words=False, break_on_hyphens=False) for line in text.split("\n"))
    return "\n".join("\n".join(line) for line in lines)


@define(slots=False)
class Streams:
    """The two ways out.

    A closed pipe is no error: later output is dropped. Other errors of stdout (a full disk) are raised as OSError,
    once; errors of stderr are ignored.

    Attributes:
        out: for results.
        err: for everything else.
    """

    out: TextIO = attrs.field(factory=lambda: sys.stdout)
    err: TextIO = attrs.field(factory=lambda: sys.stderr)

    @cached_property
    def out_is_terminal(self) -> bool:
        """Whether a person reads stdout as it is written."""
        return self.out.isatty()

    @property
    def columns(self) -> int:
        """Characters in a line of the terminal on stdout."""
        return self.size[0]

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines of the terminal on stdout."""
        size = self._console(self.out).size
        return size.width, size.height

    def write(self, text: str) -> None:
        """Write text to stdout at once; on a terminal without control characters. Blocks while the reader does."""
        _write(self.out, visible(text) if self.out_is_terminal else text)

    def write_bytes(self, data: bytes) -> None:
        """Write the bytes of a file to stdout as they are. Blocks while the reader does."""
        _write(self.out.buffer, data)

    def note(self, text: str, style: str = "", **members: Any) -> None:
        """Write a line to stderr, in one of rich's styles if it is a terminal; JSON lines have the members, too."""
        with contextlib.suppress(OSError):
            if (lines := json_of(self.err)) is not None:
                lines.put(text, style, **members)
                return
            if not self.err.isatty():
                _write(self.err, f"{text}\n")
                return
            from rich.text import Text  # noqa: PLC0415 - only a terminal needs rich

            console = self._console(self.err)
            console.print(Text(wrapped(visible(text), console.width), style), soft_wrap=True)

    def render(self, *renderables: "RenderableType") -> None:
        """Write rich's own shapes to stdout, each on lines of its own."""
        self._console(self.out).print(*renderables, sep="\n")

    def lines_of(self, renderable: "RenderableType") -> list[str]:
        """Return the lines that one of rich's shapes has on the terminal on stdout, with their colors."""
        console = self._console(self.out)
        with console.capture() as capture:
            console.print(renderable)
        return capture.get().split("\n")

    def draw(self, text: str) -> None:
        """Write rendered text with escapes to the terminal on stdout."""
        if text:
            _write(self.out, text)

    def _console(self, file: TextIO) -> "Console":
        from rich.console import Console  # noqa: PLC0415 - only a terminal needs rich

        pacified = cast("TextIO", _Pacified(file))
        return Console(file=pacified, force_terminal=True, highlight=False, emoji=False, markup=False)


@frozen
class _Pacified:
    """A terminal that may be gone, in the form rich writes to."""

    file: TextIO

    def write(self, text: str) -> int:
        _write(self.file, text)
        return len(text)

    def flush(self) -> None:
        """Nothing is left to flush: each write did."""

    def isatty(self) -> bool:
        return self.file.isatty()

    def fileno(self) -> int:
        return self.file.fileno()


def _write(file: IO[AnyStr], text: AnyStr) -> None:
    if file is not sys.stderr and os.path.sameopenfile(STDOUT, STDERR):
        settle()  # their lines stay in order
    try:
        file.write(text)
        file.flush()
    except OSError as exc:
        # To /dev/null with the rest: that also spares an error in the flush at the interpreter's end.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, file.fileno())
        os.close(nowhere)
        if not isinstance(exc, BrokenPipeError):
            raise


def prepare_streams() -> None:
    """Make the standard streams usable, however the process was started.

    Closed ones are opened as /dev/null, so that no file of the store gets their number; characters that the locale
    cannot show are replaced instead of ending the command.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < STANDARD:
        pass
    os.close(descriptor)
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as we do
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - the same
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - the same
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace" if stream is sys.stderr else "replace")


def decode_prompt(raw: bytes) -> str:
    """Return the text of a pipe or a terminal, without the newline at its end and a byte order mark at its beginning.

    Raises InvalidParamsError (path `prompt`) if it is empty or not UTF-8.
    """
    try:
        prompt = raw.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as exc:
        raise InvalidParamsError.at("$.prompt", f"is not valid UTF-8 at byte {exc.start}") from None
    if not prompt.strip():
        raise InvalidParamsError.at("$.prompt", "must not be empty")
    return prompt


def _piped(problem: str) -> bytes:
    """Return the data of stdin, up to its end. If a pipe stays open for a while, stderr says `problem`."""
    if sys.stdin.isatty():
        return sys.stdin.buffer.read()  # its user knows
    note = Timer(PIPE_PATIENCE, Streams().note, [problem])
    note.daemon = True
    note.start()
    try:
        return sys.stdin.buffer.read()
    finally:
        note.cancel()


def read_prompt(argument: str | None, *, with_pipe: bool = False) -> str:
    """Return the prompt: the argument, or all of stdin if it is `-` or left out.

    `with_pipe` adds the text of a pipe to an argument, below a blank line; it waits for the end of the pipe.

    Raises InvalidParamsError (path `prompt`) if it is empty, or left out while stdin is a terminal.
    """
    if argument is not None and argument != "-":
        prompt = decode_prompt(argument.encode())
        piped = _piped(BEHIND_PROMPT) if with_pipe and not sys.stdin.isatty() else b""
        return f"{prompt}\n\n{decode_prompt(piped)}" if piped.strip() else prompt
    if argument is None and sys.stdin.isatty():
        raise InvalidParamsError.at("$.prompt", "is missing; give it as an argument, or - to type it")
    return decode_prompt(_piped(AS_PROMPT))
