"""The floor under the durable store: raw apsw writing the same rows into the same file layout, on one thread.

No JSON, no objects, no threads, no errors to keep apart: the values are ready before the clock starts. Ratios against
it say what everything above SQLite costs.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import apsw

from warren.settings.config import StoreConfig
from warren.storage.sqlite.file import FILE_NAME, open_writer

Values = tuple[Any, ...]
CHANGE: Final = 9
CHANGES: Final = count(1_000_000_000)
"""Every turn is a change of its session, with a number of its own."""

READ_SESSIONS = """
    SELECT key, session_id, created_at, updated_at, state, model, turns, steps, message_count, last_seq, change,
        labels, details FROM sessions ORDER BY key
"""
READ_MESSAGES = """
    SELECT position, created_at, body, body ->> 'role' = 'user' FROM messages WHERE session = ? ORDER BY position
"""
READ_EVENTS = """
    SELECT seq, first_seq, timestamp, body, cuts, body ->> 'type' IN ('run_completed', 'run_failed') FROM events
    WHERE session = ? ORDER BY seq
"""
SESSION = """
    INSERT INTO sessions (session_id, created_at, updated_at, state, model, turns, steps, message_count, last_seq,
        head, change, labels, details) VALUES (?,?,?,?,?,?,?,?,?,0,?,?,?)
    ON CONFLICT (session_id) DO UPDATE SET updated_at = excluded.updated_at, turns = excluded.turns,
        steps = excluded.steps, message_count = excluded.message_count, last_seq = excluded.last_seq,
        change = excluded.change, details = excluded.details
    RETURNING key
"""
MESSAGE = "INSERT INTO messages (session, position, created_at, body) VALUES (?,?,?,?)"
EVENT = "INSERT INTO events (session, seq, first_seq, timestamp, body, cuts) VALUES (?,?,?,?,?,?)"


class Turn(NamedTuple):
    """The rows that one turn writes: its session's row, and the rows it adds."""

    session: Values
    messages: list[Values]
    events: list[Values]


def rows_of(folder: Path, *, group: int) -> list[list[Turn]]:
    """Return the turns in a store's folder, the first of every session first, in groups of `group`."""
    with closing(apsw.Connection(str(folder / FILE_NAME), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        sessions = [list(_turns(db, key, tuple(row))) for key, *row in db.execute(READ_SESSIONS).fetchall()]
    longest = max(map(len, sessions), default=0)
    turns = [session[n] for n in range(longest) for session in sessions if n < len(session)]
    return [turns[n : n + group] for n in range(0, len(turns), group)]


def turns_per_second(
    path: Path, groups: Sequence[Sequence[Turn]], *, synchronous: Literal["FULL", "NORMAL"] = "FULL"
) -> float:
    """Write each group in one transaction to a new file in the folder `path` and return turns per second."""
    with closing(open_writer(StoreConfig(path, synchronous=synchronous))) as db:
        begun = time.perf_counter()
        for group in groups:
            _write(db, group)
        return sum(map(len, groups)) / (time.perf_counter() - begun)


def _write(db: apsw.Connection, group: Sequence[Turn]) -> None:
    db.execute("BEGIN IMMEDIATE")
    for session, messages, events in group:
        key = db.execute(SESSION, session).get
        db.executemany(MESSAGE, [(key, *row) for row in messages])
        db.executemany(EVENT, [(key, *row) for row in events])
    db.execute("COMMIT")


def _turns(db: apsw.Connection, key: Any, session: Values) -> Iterator[Turn]:
    """Yield a session's turns: their messages begin with the user's, their events end with the terminal one."""
    messages: list[list[Values]] = []
    for *row, opens in db.execute(READ_MESSAGES, (key,)):
        if opens or not messages:
            messages.append([])
        messages[-1].append(tuple(row))
    for added, events in zip(messages, _until_terminal(db.execute(READ_EVENTS, (key,))), strict=False):
        yield Turn((*session[:CHANGE], next(CHANGES), *session[CHANGE + 1 :]), added, events)


def _until_terminal(rows: Iterable[Values]) -> Iterator[list[Values]]:
    events: list[Values] = []
    for *row, terminal in rows:
        events.append(tuple(row))
        if terminal:
            yield events
            events = []
