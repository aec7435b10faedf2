"""The log of a command: lines for people, and JSON lines for programs."""

import json
import logging
from typing import Any

import pytest

from warren.log_context import LogContext, working_for
from warren.transport.cli.logs import JsonLines, OneLine


def line_of(message: str, *args: object, error: Exception | None = None) -> dict[str, Any]:
    """Return a record as the formatter of JSON writes it."""
    info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("warren.turn", logging.ERROR, __file__, 1, message, args, info)
    text = JsonLines().format(record)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_record_as_json() -> None:
    """Its time has a zone; a message with line breaks or half a character is one line."""
    found = line_of("a %s\n\ud800", "turn")
    assert found.pop("time").endswith("+00:00")
    assert found == {"level": "error", "logger": "warren.turn", "message": "a turn\n\ud800"}


def test_an_error_as_json() -> None:
    """It has its traceback; as text it has one line."""
    with pytest.raises(ValueError, match="not-a-number") as caught:
        int("not-a-number")
    error = caught.value
    found = line_of("a turn crashed", error=error)
    record = logging.LogRecord("x", logging.ERROR, "", 1, "a turn crashed", (), (ValueError, error, None))
    assert found["error"] == f"ValueError: {error}"
    assert found["traceback"].startswith("Traceback (most recent call last):")
    assert OneLine().format(record) == f"ERROR: a turn crashed: {error}"


@pytest.mark.parametrize("turn", [None, 3])
def test_the_session_of_a_record(turn: int | None) -> None:
    """A record that is made in a turn has its number, too."""
    token = working_for.set(LogContext("s1", "acme", turn))
    try:
        found = line_of("hello")
    finally:
        working_for.reset(token)
    assert (found["session_id"], found["tenant"], found.get("turn")) == ("s1", "acme", turn)
