"""The log of a command on stderr: lines for people, or JSON lines for programs that collect logs."""

import json
import logging
from datetime import UTC, datetime
from typing import Any

from warren.log_context import working_for
from warren.tracing import here


class OneLine(logging.Formatter):
    """Formats records without their tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line."""
        cause = record.exc_info[1] if record.exc_info else None
        return f"{record.levelname}: {record.getMessage()}" + (f": {cause}" if cause is not None else "")


class JsonLines(logging.Formatter):
    """Formats each record as one JSON object in one line, with the session, turn and trace that it is about.

    Trap: the formatter reads the context of the running task, so a handler has to format where the record is made.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        about = working_for.get()
        if about is not None:
            line |= {name: value for name, value in about._asdict().items() if value is not None}
        if (place := here.get()) is not None:
            line |= {"trace_id": f"{place.trace_id:032x}", "span_id": f"{place.span_id:016x}"}
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line |= {"error": f"{type(error).__name__}: {error}", "traceback": self.formatException(record.exc_info)}
        # A lone surrogate in a message must not cost the line: escapes hold any text.
        return json.dumps(line)
