"""Envelopes that a test makes by hand."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from warren.conversation.events import (
    Envelope,
    Event,
    ReasoningDelta,
    RunCompleted,
    RunStarted,
    TextComplete,
    TextDelta,
    ToolCallRequested,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolResultReceived,
    TurnCompleted,
    TurnResumed,
    TurnStarted,
)
from warren.conversation.usage import Usage

NOW: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KEPT: Final[list[Event]] = [
    RunStarted("s1", "go"),
    TurnStarted(0),
    TextComplete("let me see"),
    ToolCallRequested("c1", "look", {}),
]
"""The events of a turn up to the commit of its first step."""
LOST: Final[list[Event]] = [
    ToolExecutionStarted("c1", "look"),
    ToolExecutionCompleted("c1", "look", "seen", is_error=False, duration_ms=3),
    ToolResultReceived("c1", "look", is_error=False),
    TurnCompleted("tool_use", Usage()),
    TurnStarted(1),
    ReasoningDelta("half"),
    TextDelta("half"),
    ToolCallRequested("c2", "look", {}),
]
"""The events that a process has shown after that commit, and has not kept."""
REST: Final[list[Event]] = [
    TurnResumed(1, len(KEPT)),
    ToolResultReceived("c1", "look", is_error=True, result="it may have run"),
    TurnCompleted("tool_use", Usage()),
    TurnStarted(1),
    TextDelta("whole"),
    TextComplete("whole"),
    TurnCompleted("end_turn", Usage()),
    RunCompleted("s1", "whole", Usage()),
]
"""The events of the process that goes on with the turn."""
LATER: Final = 1_000_000
"""The number of the first of them: the numbers rise over a crash, and not by one."""


def envelope(seq: int, event: Event, session_id: str = "s1") -> Envelope:
    """Make an envelope."""
    return Envelope(session_id, seq, NOW, event)


def delta(seq: int, text: str = "x", session_id: str = "s1", first_seq: int | None = None) -> Envelope:
    """Make an envelope with text."""
    return Envelope(session_id, seq, NOW, TextDelta(text), first_seq)


def texts(envelopes: Iterable[Envelope]) -> str:
    """Join the text of envelopes."""
    return "".join(item.event.delta for item in envelopes if isinstance(item.event, TextDelta))


def resumed_turn() -> list[Envelope]:
    """Return a turn that one process has begun and another has ended, as one reader gets it from both."""
    rest = [envelope(seq, event) for seq, event in enumerate(REST, LATER)]
    return [*(envelope(seq, event) for seq, event in enumerate((*KEPT, *LOST), 1)), *rest]
