"""Stores with sessions of many ages."""

from pathlib import Path

from tests.storage.samples import entry, moved, opened, turn, written
from warren.storage.operations import Lease, Release


async def filled(path: Path, turns: int = 10, head: int = 11, session_id: str = "a") -> None:
    """Store a session of so many turns, two messages each, a minute apart, whose model sees it from `head` on."""
    async with opened(path) as store:
        operations = [turn(session_id, number, text="word " * 100) for number in range(turns)]
        operations[-1] = moved(operations[-1], entry(turns, head))
        await written(store, *operations, Release(session_id, Lease(1)))
