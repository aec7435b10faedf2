"""Does a large file slow down what is asked of one session? 10 million events and a million messages against a few."""

import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import trio

from benchmarks.models import FixedModel
from benchmarks.report import Goal, report
from warren import Config, StoreConfig, open_supervisor
from warren.calls.facade import SessionService
from warren.storage.sqlite.file import open_writer

SESSIONS: Final = 10_000
MESSAGES: Final = 100
EVENTS: Final = 1_000
ROUNDS: Final = 60
# The store's own rows, made by SQLite itself: a hundred thousand turns through the runtime would take an hour.
SESSION_ROWS: Final = """
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
    INSERT INTO sessions (session_id, created_at, updated_at, state, model, turns, steps, message_count, last_seq, head,
        labels, details, change)
    SELECT printf('0190a000-0000-7000-8000-%012x', i), 1.7e15 + i, 1.7e15 + i, 0, 'fixed', ?2 / 2, ?2 / 2, ?2, ?3, 0,
        '{}', '{"provider":"fixed"}', i
    FROM n
"""
MESSAGE_ROWS: Final = """
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ?1 - 1)
    INSERT INTO messages (session, position, created_at, body)
    SELECT key, i, created_at, iif(i % 2, '{"role":"assistant","blocks":[{"type":"text","text":"It is a burrow with'
        || ' many rooms, dug by rabbits over many years, and it is larger than it looks."}]}',
        '{"role":"user","content":"What is room ' || i || ' of the warren like?"}')
    FROM sessions, n ORDER BY i, key
"""
EVENT_ROWS: Final = """
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
    INSERT INTO events (session, seq, first_seq, timestamp, body)
    SELECT key, i, i, created_at, '{"type":"turn_started","turn_number":' || i || '}' FROM sessions, n ORDER BY i, key
"""
Ask = Callable[[SessionService, str], Awaitable[object]]


def fill(folder: Path, sessions: int, *, messages: int = MESSAGES, events: int = EVENTS) -> None:
    """Make a store with so many sessions, their rows as mixed as turns that ran side by side leave them."""
    with closing(open_writer(StoreConfig(folder, synchronous="NORMAL"))) as db:
        db.pragma("synchronous", "OFF")
        with db:
            db.execute(SESSION_ROWS, (sessions, messages, events))
            db.execute(MESSAGE_ROWS, (messages,))
            db.execute(EVENT_ROWS, (events,))
        db.pragma("wal_checkpoint(TRUNCATE)")


async def _list(service: SessionService, _session_id: str) -> object:
    return await service.list(limit=50)


async def _read(service: SessionService, session_id: str) -> object:
    return await service.read(session_id)


async def _history(service: SessionService, session_id: str) -> object:
    return await service.history(session_id, offset=MESSAGES - 50, limit=50)


async def _resume(service: SessionService, session_id: str) -> object:
    return await service.resume(session_id)


async def _turn(service: SessionService, session_id: str) -> object:
    return await service.start_turn(session_id, "Go on, please.")


ASKED: Final[dict[str, Ask]] = {
    "list": _list,
    "read": _read,
    "history": _history,
    "resume": _resume,
    "first_turn": _turn,
}


async def measure(folder: Path, sessions: int) -> dict[str, float]:
    """Return the median milliseconds of each question, each time of another session."""
    config = Config(store=StoreConfig(folder), model="fixed", provider="fixed")
    ids = [f"0190a000-0000-7000-8000-{1 + n * sessions // ROUNDS:012x}" for n in range(ROUNDS)]
    figures = {}
    async with open_supervisor(config, providers={"fixed": FixedModel()}) as service:
        for name, ask in ASKED.items():
            times = []
            for session_id in ids:
                begun = time.perf_counter()
                await ask(service, session_id)
                times.append(time.perf_counter() - begun)
            figures[name] = 1000 * statistics.median(times)
    return figures


def main() -> None:
    """Print the large file's times over the small one's."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for label, sessions in (("small", 100), ("large", SESSIONS)):
            folder = Path(name) / label
            fill(folder, sessions)
            figures[f"{label}_mb"] = round((folder / "sessions.sqlite3").stat().st_size / 1e6)
            figures[label] = trio.run(measure, folder, sessions)
    goals = [
        Goal(f"{what}, large file over small", figures["large"][what] / figures["small"][what], "<=", 2)
        for what in ASKED
    ]
    rounded = {
        key: {what: round(ms, 3) for what, ms in value.items()} if isinstance(value, dict) else value
        for key, value in figures.items()
    }
    report(f"Does a file of {SESSIONS * EVENTS:,} events slow one session down?", rounded, goals)


if __name__ == "__main__":
    main()
