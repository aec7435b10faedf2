"""Markdown on a terminal, rendered while it arrives."""

import os
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import attrs

from warren.base.values import define
from warren.transport.cli.terminal.streams import Streams, visible

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

FENCES: Final = ("```", "~~~")
LONG: Final = 8_000
"""Characters of a growing block from which on only its end is shown, unrendered: rendering the whole block with each
piece would take longer and longer."""


@define
class MarkdownStream:
    """The model's text on its way to a terminal.

    A complete block is rendered and stays. A growing block (a paragraph, a list, code) is drawn anew with each piece,
    as far as there is room for it; a terminal that cannot move its cursor gets it when it is complete.

    Attributes:
        streams: the streams of the terminal.
    """

    streams: Streams
    _text: str = ""
    _drawn: list[str] = attrs.field(factory=list)
    _above: bool = False

    def write(self, text: str) -> None:
        """Add a piece."""
        self._text += visible(text)
        complete = self._complete(text)
        lines = self._block(self._text[:complete])
        self._text = self._text[complete:]
        self._draw(lines, self._preview())

    def end(self) -> None:
        """Render the rest, at the end of the text or before other output below it."""
        self._draw(self._block(self._text), [])
        self._text, self._above = "", False

    def _complete(self, piece: str) -> int:
        """Return the length of the complete blocks at the beginning of the text."""
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
        """Replace the lines that may change by new ones, of which the growing ones may change again."""
        before, lines = self._drawn, [*complete, *growing]
        same = next((at for at, (old, new) in enumerate(zip(before, lines, strict=False)) if old != new), None)
        if (
            same is None
        ):  # if there are fewer lines than before, the last one is written again: the cursor has to end behind it
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
    """Return the escapes that move the cursor from the end of the old lines to the first line that differs."""
    if same == len(before):
        return "\n" if before and same < len(lines) else ""
    if _grows(before, lines, same):
        return ""
    up = len(before) - 1 - same
    return "\r" + (f"\x1b[{up}A" if up else "") + "\x1b[J"


def _rest(before: list[str], lines: list[str], same: int) -> list[str]:
    """Return the part of the new lines that has to be written."""
    if _grows(before, lines, same):
        return [lines[same][len(before[same]) :], *lines[same + 1 :]]
    return lines[same:]


def _grows(before: list[str], lines: list[str], same: int) -> bool:
    """Return whether the last of the old lines only gets longer."""
    return same == len(before) - 1 and same < len(lines) and lines[same].startswith(before[same])


@cache
def _parser() -> "MarkdownIt":
    """Return a parser with the settings of rich's own."""
    from markdown_it import MarkdownIt  # noqa: PLC0415 - it comes with rich

    return MarkdownIt().enable("strikethrough").enable("table")
