"""Entries of the memory."""

from datetime import UTC, datetime

from warren.conversation.memory import MemoryEntry

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def entry(position: int, content: str, session_id: str = "a") -> MemoryEntry:
    """Return something to remember."""
    return MemoryEntry(session_id, position, position, content, NOW)
