"""Envelopes that a test makes by hand."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from warren.conversation.events import Envelope, Event, TextDelta

NOW: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def envelope(seq: int, event: Event, session_id: str = "s1") -> Envelope:
    """Make an envelope."""
    return Envelope(session_id, seq, NOW, event)


def delta(seq: int, text: str = "x", session_id: str = "s1", first_seq: int | None = None) -> Envelope:
    """Make an envelope with text."""
    return Envelope(session_id, seq, NOW, TextDelta(text), first_seq)


def texts(envelopes: Iterable[Envelope]) -> str:
    """Join the text of envelopes."""
    return "".join(item.event.delta for item in envelopes if isinstance(item.event, TextDelta))
