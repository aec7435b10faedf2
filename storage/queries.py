"""What the store can be asked to read: each function is one snapshot of one connection."""
# ruff: noqa: S608 - only constants of this package and counts become part of the SQL

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import apsw
import attrs

from warren.records import CompactionEntry, EventRow, MessageRow, SessionRecord
from warren.storage.rows import ARCHIVED, COLUMNS, DELETED, OPEN, moment, row_to_record

SEQ_STRIDE: Final = 1_000_000
"""How far event numbers jump over those that an opening may have shown and not stored: more than one turn has."""

_KEY: Final = f"(SELECT key FROM sessions WHERE session_id = ? AND state <> {DELETED})"
_RECORD: Final = f"SELECT {COLUMNS} FROM sessions WHERE session_id = ? AND state <> {DELETED}"
_HEAD: Final = f"""
    SELECT {COLUMNS}, sessions.generation, meta.generation FROM sessions, meta
    WHERE session_id = ? AND state <> {DELETED}
"""
_BODIES: Final = f"""
    SELECT CAST(body AS BLOB) FROM messages
    WHERE session = {_KEY} AND position >= ? AND position < ? ORDER BY position
"""
_COMPACTION_COLUMNS: Final = "step, created_at, head, messages_before, messages_after, summary, summary_tokens"
_NEWEST_COMPACTION: Final = f"""
    SELECT {_COMPACTION_COLUMNS} FROM compactions WHERE session = {_KEY} ORDER BY rowid DESC LIMIT 1
"""
_COMPACTIONS: Final = f"""
    SELECT {_COMPACTION_COLUMNS} FROM compactions
    WHERE session = {_KEY} AND head > ? AND head <= ? ORDER BY rowid
"""
_MESSAGES: Final = f"""
    SELECT position, created_at, CAST(body AS BLOB) FROM messages
    WHERE session = {_KEY} AND position >= ? ORDER BY position LIMIT ?
"""
_TOTAL: Final = f"SELECT message_count FROM sessions WHERE key = {_KEY}"
_EVENTS: Final = f"""
    SELECT first_seq, seq, timestamp, CAST(body AS BLOB), CAST(cuts AS BLOB) FROM events
    WHERE session = {_KEY} AND seq > ? ORDER BY seq LIMIT ?
"""


@attrs.frozen
class Head:
    """A session as it is loaded, and what tells which event numbers are still free.

    Attributes:
        record: its record.
        written: the generation that wrote it.
        newest: the newest generation of the file.
    """

    record: SessionRecord
    written: int
    newest: int

    def seq_floor(self, generation: int) -> int:
        """Return the number above which an opening of this generation may number the session's events."""
        return self.record.last_seq + SEQ_STRIDE * (generation - self.written)


@attrs.frozen
class Context:
    """What a model sees of a session, as it is stored.

    Attributes:
        first: the JSON of the conversation's first message, where the head has moved past it.
        compaction: the newest one, where the head has moved.
        rows: the JSON of the messages from the head on.
    """

    first: bytes | None
    compaction: CompactionEntry | None
    rows: list[bytes]


def load(db: apsw.Connection, session_id: str) -> Head | None:
    """Return what a session's actor begins with; None for a session that is not here."""
    row = db.execute(_HEAD, (session_id,)).get
    if row is None:
        return None
    *columns, written, newest = row
    return Head(row_to_record(tuple(columns)), written, newest)


def record(db: apsw.Connection, session_id: str) -> SessionRecord | None:
    """Return a session's record; None for a session that is not here."""
    row = db.execute(_RECORD, (session_id,)).get
    return None if row is None else row_to_record(row)


def context(db: apsw.Connection, session_id: str, head: int, count: int) -> Context:
    """Return what the model sees of a session of `count` messages whose head stands at `head`."""
    with _snapshot(db):
        rows: list[Any] = db.execute(_BODIES, (session_id, head, count)).fetchall()
        first: list[Any] = db.execute(_BODIES, (session_id, 0, 1)).fetchall() if head else []
        newest = db.execute(_NEWEST_COMPACTION, (session_id,)).fetchone() if head else None
    return Context(
        first=first[0][0] if first else None,
        compaction=None if newest is None else _compaction(newest),
        rows=[body for (body,) in rows],
    )


def compactions(db: apsw.Connection, session_id: str, offset: int, limit: int) -> list[CompactionEntry]:
    """Return the compactions whose new head is among the `limit` positions above `offset`."""
    rows: list[Any] = db.execute(_COMPACTIONS, (session_id, offset, offset + limit)).fetchall()
    return [_compaction(row) for row in rows]


def _compaction(row: tuple[Any, ...]) -> CompactionEntry:
    step, created_at, *rest = row
    return CompactionEntry(step, moment(created_at), *rest)


def messages(db: apsw.Connection, session_id: str, offset: int, limit: int) -> tuple[list[MessageRow], int]:
    """Return messages from position `offset` on, and how many there are; none and 0 for a session that is not here."""
    with _snapshot(db):
        rows: list[Any] = db.execute(_MESSAGES, (session_id, offset, limit)).fetchall()
        total = db.execute(_TOTAL, (session_id,)).get
    return [MessageRow(position, moment(added), body) for position, added, body in rows], total or 0


def events(db: apsw.Connection, session_id: str, after_seq: int, limit: int) -> list[EventRow]:
    """Return the rows of the event log that end above `after_seq`, in order."""
    rows: list[Any] = db.execute(_EVENTS, (session_id, after_seq, limit)).fetchall()
    return [EventRow(first, seq, moment(at), body, cuts) for first, seq, at, body, cuts in rows]


def listing(
    db: apsw.Connection, offset: int, limit: int, labels: Mapping[str, str], *, include_archived: bool
) -> list[SessionRecord]:
    """Return a page of the sessions that carry all of `labels`: newest `updated_at` first, then by id."""
    states = (OPEN, ARCHIVED) if include_archived else (OPEN,)
    marks = tuple(text for mark in labels.items() for text in mark)
    # Each arm comes in order from the index and SQLite merges them: no arm is read further than the page needs.
    arms = " UNION ALL ".join(_arm(state, len(labels)) for state in states)
    page = f"SELECT key FROM ({arms} ORDER BY updated_at DESC, session_id LIMIT ? OFFSET ?)"
    sql = f"SELECT {COLUMNS} FROM sessions WHERE key IN ({page}) ORDER BY updated_at DESC, session_id"
    rows = db.execute(sql, (*(marks * len(states)), limit, offset)).fetchall()
    return [row_to_record(row) for row in rows]


def _arm(state: int, labels: int) -> str:
    label = "EXISTS (SELECT 1 FROM labels WHERE name = ? AND value = ? AND session = sessions.key)"
    conditions = [f"state = {state}", *[label] * labels]
    return f"SELECT key, updated_at, session_id FROM sessions WHERE {' AND '.join(conditions)}"


@contextlib.contextmanager
def _snapshot(db: apsw.Connection) -> Iterator[None]:
    """Let all reads inside see the same state of the file."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        # SQLite has ended it by itself after some faults.
        if db.in_transaction:
            db.execute("ROLLBACK")
