"""Markdown on a terminal, rendered while it comes."""

import os
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import attrs

from warren.transport.cli.streams import Streams, visible

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

FENCES: Final = ("```", "~~~")
LONG: Final = 8_000
"""Characters of one block from which on its end alone is shown while it grows, as it was written: rendering all of it
with each piece would take longer and longer."""


@attrs.define
class MarkdownStream:
    """A text of the model's on its way to a terminal.

    A block that is complete is rendered and stays. The one that still grows (a paragraph, a list, code) is drawn anew
    with each piece, as far as there is room for it; a terminal that cannot move its cursor gets it when it is complete.

    Attributes:
        streams: where the terminal is.
    """

    streams: Streams
    _text: str = ""
    _drawn: list[str] = attrs.field(factory=list)
    _above: bool = False

    def write(self, text: str) -> None:
        """Take a piece."""
        self._text += visible(text)
        complete = self._complete(text)
        lines = self._block(self._text[:complete])
        self._text = self._text[complete:]
        self._draw(lines, self._preview())

    def end(self) -> None:
        """Render what is left: the text is over, or something else is to be shown below it."""
        self._draw(self._block(self._text), [])
        self._text, self._above = "", False

    def _complete(self, piece: str) -> int:
        """Return how much of the text are complete blocks, now that a piece of it has come."""
        in_code = self._text.lstrip("\n").startswith(FENCES)
        if "\n" not in self._text or (in_code and not any(mark in self._text[-len(piece) - 2 :] for mark in FENCES)):
            return 0
        starts = [token.map[0] for token in _parser().parse(self._text) if not token.level and token.map]
        lines = [0, *accumulate(len(line) for line in self._text.split("\n"))]
        return lines[starts[-1]] + starts[-1] if starts else 0

    def _block(self, text: str) -> list[str]:
        """Return the lines of complete blocks, below a blank one if there is a block above them."""
        lines = self._rendered(text)
        above = [""] if self._above and lines else []
        self._above = self._above or bool(lines)
        return above + lines

    def _preview(self) -> list[str]:
        """Return the last lines of the block that still grows."""
        if not self._text.strip() or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
            return []
        columns, rows = self.streams.size
        if len(self._text) < LONG:
            lines = self._rendered(self._text)
        else:
            lines = [line[: columns - 1] for line in self._text[-rows * columns :].split("\n")]
        return [*([""] if self._above else []), *lines][-max(1, rows - 2) :]

    def _draw(self, complete: list[str], growing: list[str]) -> None:
        """Put lines in the place of those that were drawn before and may change; the growing ones may change again."""
        before, lines = self._drawn, [*complete, *growing]
        same = next((at for at, (old, new) in enumerate(zip(before, lines, strict=False)) if old != new), None)
        if same is None:  # of fewer lines than before the last one is written again: the cursor stays behind it
            same = len(before) if len(before) <= len(lines) else max(0, len(lines) - 1)
        text = _moved(before, lines, same) + "\n".join(_rest(before, lines, same))
        self.streams.draw(text if growing or not lines else f"{text}\n")
        self._drawn = growing

    def _rendered(self, text: str) -> list[str]:
        """Return the lines of some blocks, without blank ones around them."""
        from rich.markdown import Markdown  # noqa: PLC0415 - only a terminal needs rich

        lines = [line.rstrip(" ") for line in self.streams.lines_of(Markdown(text))]
        while lines and not lines[0]:
            del lines[0]
        while lines and not lines[-1]:
            del lines[-1]
        return lines


def _moved(before: list[str], lines: list[str], same: int) -> str:
    """Return what brings the cursor from the end of the old lines to where the first line that differs is written."""
    if same == len(before):
        return "\n" if before and same < len(lines) else ""
    if _grows(before, lines, same):
        return ""
    up = len(before) - 1 - same
    return "\r" + (f"\x1b[{up}A" if up else "") + "\x1b[J"


def _rest(before: list[str], lines: list[str], same: int) -> list[str]:
    """Return what is to be written of the new lines."""
    if _grows(before, lines, same):
        return [lines[same][len(before[same]) :], *lines[same + 1 :]]
    return lines[same:]


def _grows(before: list[str], lines: list[str], same: int) -> bool:
    """Tell whether the last of the old lines only goes on."""
    return same == len(before) - 1 and same < len(lines) and lines[same].startswith(before[same])


@cache
def _parser() -> "MarkdownIt":
    """Return a parser like the one that renders."""
    from markdown_it import MarkdownIt  # noqa: PLC0415 - it comes with rich

    return MarkdownIt().enable("strikethrough").enable("table")
