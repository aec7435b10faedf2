"""A terminal in memory, and events of one session."""

import io
import re
from datetime import UTC, datetime
from typing import Final

from warren.conversation.events import Envelope, Event

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
ID = "0198a000-0000-7000-8000-00000000beef"


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    @property
    def screen(self) -> str:
        """The lines that are on the screen in the end."""
        return screen_of(self.getvalue())


STEERING: Final = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


def screen_of(written: str) -> str:
    """Return the lines that are on a terminal after a text that draws, erases and colors was written to it."""
    lines, row, column = [""], 0, 0
    for number, command, move, text in STEERING.findall(written):
        if move == "\r":
            column = 0
        elif move == "\n":
            row, column = row + 1, 0
            lines += [""] * (row == len(lines))
        elif command == "A":
            row = max(0, row - int(number or 1))
        elif command == "J":
            lines[row:] = [lines[row][:column]]
        elif text:
            lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
            column += len(text)
    return "\n".join(lines)


def envelope(event: Event, seq: int = 1) -> Envelope:
    """Return an event as the service hands it over."""
    return Envelope(ID, seq, NOW, event)
