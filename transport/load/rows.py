"""The rows of sessions in a store's file, counted on a read-only connection."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import apsw

from warren.transport.load.target import RowCounts

COUNT: Final = """
SELECT s.session_id, s.message_count,
    (SELECT count(*) FROM messages m WHERE m.session = s.key),
    (SELECT coalesce(max(m.position) - min(m.position) + 1, 0) FROM messages m WHERE m.session = s.key),
    (SELECT coalesce(max(e.seq), 0) FROM events e WHERE e.session = s.key),
    (SELECT count(*) FROM events e WHERE e.session = s.key
        AND json_extract(e.body, '$.type') IN ('run_completed', 'run_failed'))
FROM sessions s WHERE s.session_id IN (SELECT value FROM json_each(?))
"""
PATIENCE: Final = 500
"""Milliseconds for which a commit that goes on may hold the lock of the file."""
NOTHING: Final = RowCounts(0, 0, 0, 0, 0)


def count_rows(store: Path, session_ids: Sequence[str]) -> Mapping[str, RowCounts]:
    """Return the counts of rows of each session; an unknown session has none. Blocks."""
    asked = "[" + ",".join(f'"{each}"' for each in session_ids) + "]"
    with closing(apsw.Connection(str(store / "sessions.sqlite3"), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        connection.set_busy_timeout(5_000)
        found = {
            str(session_id): RowCounts(messages, positions, claimed, last_seq, turns)
            for session_id, claimed, messages, positions, last_seq, turns in connection.execute(COUNT, (asked,))
        }
    return {each: found.get(each, NOTHING) for each in session_ids}


def is_locked(store: Path) -> bool:
    """Return whether the lock for writing a store's file stays with a process. Blocks."""
    with closing(apsw.Connection(str(store / "sessions.sqlite3"), flags=apsw.SQLITE_OPEN_READWRITE)) as connection:
        connection.set_busy_timeout(PATIENCE)
        try:
            connection.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            return True
        connection.execute("ROLLBACK")
        return False
