"""The log of a command on stderr: lines for people, or JSON lines for programs that collect logs."""

import json
import logging
import threading
import time
from datetime import UTC, datetime
from typing import Any, Final

import attrs

from warren.base.log_context import working_for
from warren.base.values import define
from warren.reports.tracing import here
from warren.transport.cli.terminal.json_lines import line_of

LINES: Final = 50
"""Lines of one kind that are written in each window."""
WINDOW: Final = 60.0
"""Seconds of a window."""
LONGEST: Final = 4_000
"""Characters of a message; the rest of a longer one is left out."""
LONGEST_TRACEBACK: Final = 32_000
"""Characters of a traceback."""
UNBOUNDED: Final = frozenset({"warren.audit"})
"""The loggers whose lines are all written: an entry of the audit that no store takes is nowhere else."""
SHOWN: Final = 200
"""Characters of the first line that was left out, in the line that tells of all of them."""
MARK: Final = "…"


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[:longest] + MARK


class WithTracebacks(logging.Formatter):
    """Formats records with their tracebacks, which quote values of any length."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name is logging's
        """Return a traceback, cut at `LONGEST_TRACEBACK` characters."""
        return _cut(super().formatException(ei), LONGEST_TRACEBACK)


class OneLine(logging.Formatter):
    """Formats records without their tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line."""
        cause = record.exc_info[1] if record.exc_info else None
        return f"{record.levelname}: {record.getMessage()}" + (
            f": {_cut(str(cause), LONGEST)}" if cause is not None else ""
        )


class JsonLines(WithTracebacks):
    """Formats each record as one JSON object in one line, with the session, turn and trace that it is about.

    Trap: the formatter reads the context of the running task, so a handler has to format where the record is made.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line."""
        moment = datetime.fromtimestamp(record.created, UTC)
        line = line_of(record.levelname.lower(), record.name, record.getMessage(), moment)
        about = working_for.get()
        if about is not None:
            line |= {name: value for name, value in about._asdict().items() if value is not None}
        if (place := here.get()) is not None:
            line |= {"trace_id": f"{place.trace_id:032x}", "span_id": f"{place.span_id:016x}"}
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line |= {
                "error": _cut(f"{type(error).__name__}: {error}", LONGEST),
                "traceback": self.formatException(record.exc_info),
            }
        # A lone surrogate in a message must not cost the line: escapes hold any text.
        return json.dumps(line)


@define
class _Kind:
    """The lines of one place in the code, within a window.

    Attributes:
        level: their level.
        ends: the end of the window, on the clock of `time.monotonic`.
        lines: the lines that came.
        first: the text of the first line that was left out.
    """

    level: int
    ends: float
    lines: int = 0
    first: str | None = None


@define(eq=False)
class FewOfAKind(logging.Filter):
    """A filter of a handler that writes `LINES` lines of a kind in each `WINDOW`, and then how many it has left out.

    Lines that one statement of the code has made are of one kind, whatever their texts: other libraries put values into
    their texts before they log them. A message is cut at `LONGEST` characters. A line that is not logged costs nothing.

    Attributes:
        handler: writes how many lines were left out.
    """

    handler: logging.Handler
    _kinds: dict[tuple[str, str, int], _Kind] = attrs.field(factory=dict)
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is written."""
        if record.name in UNBOUNDED:
            return True
        place, now = (record.name, record.pathname, record.lineno), time.monotonic()
        with self._lock:
            kind = self._kinds.get(place)
            if kind is None or (now >= kind.ends and kind.first is None):
                kind = self._kinds[place] = _Kind(record.levelno, now + WINDOW)
            kind.lines += 1
            if kind.lines > LINES:
                if kind.first is None:
                    kind.first = _cut(_text_of(record), SHOWN)
                    timer = threading.Timer(max(0.0, kind.ends - now), self._tell, [place])
                    timer.daemon = True
                    timer.start()
                return False
        if len(text := _text_of(record)) > LONGEST:
            record.msg, record.args = _cut(text, LONGEST), None
        return True

    def finish(self) -> None:
        """Write now how many lines were left out of windows that have not ended."""
        for place in tuple(self._kinds):
            self._tell(place)

    def _tell(self, place: tuple[str, str, int]) -> None:
        with self._lock:
            kind = self._kinds.pop(place, None)
        if kind is None or kind.first is None:
            return
        name, file, number = place
        told = "%d more lines of this kind were left out within %g s; the first one: %s"
        values = (kind.lines - LINES, WINDOW, kind.first)
        self.handler.handle(logging.LogRecord(name, kind.level, file, number, told, values, None))


def _text_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - values that do not fit the text: the handler reports them
        return str(record.msg)
