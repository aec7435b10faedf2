"""Standard error as JSON lines, for programs that collect logs: whatever writes a line, it is an object."""

import io
import json
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final, TextIO, cast

OPTION: Final = "--log-format"
VARIABLE: Final = "WARREN_LOG_FORMAT"
LEVELS: Final[Mapping[str, str]] = {"red": "error", "yellow": "warning"}
"""The levels of lines for people, by their styles; other lines are `info`."""


def are_asked_for(argv: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Tell whether the arguments of a command ask for JSON lines, or the environment does and they say nothing.

    The arguments are looked at before they are parsed: their errors are lines, too.
    """
    own = argv[: argv.index("--")] if "--" in argv and argv[:1] != ["record"] else argv
    chosen = [environ.get(VARIABLE, "")]
    chosen += [after for before, after in pairwise(own) if before == OPTION]
    chosen += [arg.partition("=")[2] for arg in own if arg.startswith(f"{OPTION}=")]
    return chosen[-1] == "json"


def begin(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Have every line of stderr be JSON from now on, if a command is asked for that."""
    if are_asked_for(argv, environ) and sys.stderr is not None:
        sys.stderr = cast("TextIO", JsonStderr(sys.stderr))


def json_of(stream: object) -> "JsonStderr | None":
    """Return a stream if it writes JSON lines; else None."""
    return stream if isinstance(stream, JsonStderr) else None


def line_of(level: str, logger: str, message: str, moment: datetime | None = None) -> dict[str, Any]:
    """Return the members that every line has."""
    time = (moment or datetime.now(UTC)).isoformat(timespec="milliseconds")
    return {"time": time, "level": level, "logger": logger, "message": message}


class JsonStderr(io.TextIOBase):
    """Makes an object of each text that is written at once up to the end of a line; objects pass as they are.

    It is no terminal: nothing is drawn on it, and nobody is asked there.
    """

    def __init__(self, sink: TextIO) -> None:
        self.sink = sink
        self._begun = ""
        self._lock = threading.Lock()

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Return False."""
        return False

    def fileno(self) -> int:
        """Return the file descriptor of the sink."""
        return self.sink.fileno()

    def flush(self) -> None:
        """Flush the sink; a line that has not ended waits."""
        self.sink.flush()

    def write(self, text: str, /) -> int:
        """Take a piece of a text, and pass on the object that it completes."""
        with self._lock:
            whole = self._begun + text
            ended = whole.endswith("\n")
            self._begun = "" if ended else whole
        if ended:
            self.put(whole.rstrip("\n"))
        return len(text)

    def put(self, text: str, style: str = "", **members: Any) -> None:
        """Write a text as one object with further members, at the level of its style; an empty one is dropped."""
        if all(map(_is_object, lines := text.split("\n"))):
            self.sink.write("".join(f"{line}\n" for line in lines))
        elif text.strip():
            # A lone surrogate in a text must not cost the line: escapes hold any text.
            self.sink.write(
                json.dumps(line_of(LEVELS.get(style, "info"), "warren", text) | members, default=str) + "\n"
            )
        self.sink.flush()


def _is_object(line: str) -> bool:
    try:
        return line.startswith("{") and isinstance(json.loads(line), dict)
    except ValueError:
        return False
