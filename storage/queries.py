"""What the store can be asked to read: each function is one snapshot of one connection."""
# ruff: noqa: S608 - only constants of this package and counts become part of the SQL

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import apsw
import attrs

from warren import codec
from warren.creation import FIRST_PROMPT, Created
from warren.errors import StoreError
from warren.records import CompactionEntry, EventRow, MessageRow, SessionRecord, Span
from warren.storage.lease import Holder
from warren.storage.rows import ARCHIVED, COLUMNS, DELETED, OPEN, SEQ_STRIDE, moment, row_to_record

_KEY: Final = f"(SELECT key FROM sessions WHERE session_id = ? AND state <> {DELETED})"
_RECORD: Final = f"SELECT {COLUMNS} FROM sessions WHERE session_id = ? AND state <> {DELETED}"
_HELD: Final = f"SELECT {COLUMNS}, holder FROM sessions WHERE session_id = ? AND state <> {DELETED}"
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
    WHERE session = {_KEY} AND position >= ? AND position < ? ORDER BY position
"""
_COUNTS: Final = f"SELECT message_count, messages_from FROM sessions WHERE key = {_KEY}"
_CREATION: Final = """
    SELECT session_id, params, CAST(outcome AS BLOB) FROM creations JOIN sessions ON sessions.key = creations.session
    LEFT JOIN inbox ON inbox.session = creations.session AND inbox.key = ?2 WHERE creations.key = ?1
"""
_LEFT_OUT: Final = f"SELECT details -> '$.left_out' FROM sessions WHERE key = {_KEY}"
_EVENTS_AFTER: Final = f"SELECT events_after FROM sessions WHERE key = {_KEY}"
_LOG_OF: Final = f"SELECT key, last_seq, events_after, holder FROM sessions WHERE key = {_KEY}"
_NEXT_EVENT: Final = """
    SELECT first_seq, iif(json_valid(body), body, '{}') ->> '$.type' FROM events
    WHERE session = ? AND seq >= ? ORDER BY seq LIMIT 1
"""
_EVENTS: Final = f"""
    SELECT first_seq, seq, timestamp, CAST(body AS BLOB), CAST(cuts AS BLOB) FROM events
    WHERE session = {_KEY} AND seq > ? ORDER BY seq LIMIT ?
"""


@attrs.frozen
class StoredSession:
    """What a session's actor begins with.

    Attributes:
        record: its record.
        seq_floor: events up to it may have been shown. It is the record's `last_seq`, or further up where another
            process has the session, or died with it.
    """

    record: SessionRecord
    seq_floor: int


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


@attrs.frozen
class StoredPage:
    """A part of a session's history, all of it from one state of the file.

    Attributes:
        rows: the messages that are there, oldest first.
        total: messages of the whole conversation; 0 for a session that is not here.
        kept_from: messages before this position are gone, but the first one, at position 0.
        compactions: those whose new head is among the positions of the page.
        left_out: messages that the model no longer sees.
    """

    rows: list[MessageRow]
    total: int
    kept_from: int
    compactions: list[CompactionEntry]
    left_out: tuple[Span, ...]


@attrs.frozen
class Replay:
    """A part of a session's event log, from one state of the file.

    Attributes:
        rows: those that end above where the reader stood, in order.
        gone: events up to this number are no longer kept; 0 where all are.
    """

    rows: list[EventRow]
    gone: int


def load(db: apsw.Connection, session_id: str, me: int | None) -> StoredSession | None:
    """Return what a session's actor begins with in the process of that key; None for a session that is not here."""
    row = db.execute(_HELD, (session_id,)).get
    if row is None:
        return None
    *columns, holder = row
    found = row_to_record(tuple(columns))
    return StoredSession(found, found.last_seq + (0 if holder in (None, me) else SEQ_STRIDE))


def record(db: apsw.Connection, session_id: str) -> SessionRecord | None:
    """Return a session's record; None for a session that is not here."""
    row = db.execute(_RECORD, (session_id,)).get
    return None if row is None else row_to_record(row)


def creation(db: apsw.Connection, key: str) -> Created | None:
    """Return the session that was created under an idempotency key, also if it was deleted since."""
    row: Any = db.execute(_CREATION, (key, FIRST_PROMPT)).fetchone()
    if row is None:
        return None
    session_id, params, outcome = row
    try:
        return Created(session_id, codec.decode_stored(dict[str, str], params), outcome)
    except ValueError as exc:
        problem = f"the idempotency key of session {session_id} is damaged in the store: {exc}"
        raise StoreError(problem, session_id=session_id, cause="corrupt", retryable=False) from exc


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


def history(db: apsw.Connection, session_id: str, offset: int, limit: int) -> StoredPage:
    """Return the messages at the `limit` positions from `offset` on, and the compactions that moved the head there."""
    with _snapshot(db):
        total, kept_from = db.execute(_COUNTS, (session_id,)).get or (0, 0)
        rows = _rows(db, session_id, offset, limit)
        moved: list[Any] = db.execute(_COMPACTIONS, (session_id, offset, offset + limit)).fetchall()
        left_out = db.execute(_LEFT_OUT, (session_id,)).get
    spans = () if left_out is None else codec.decode_stored(tuple[Span, ...], left_out)
    return StoredPage(rows, total, kept_from, [_compaction(row) for row in moved], spans)


def messages(db: apsw.Connection, session_id: str, offset: int, limit: int) -> tuple[list[MessageRow], int]:
    """Return the messages at the `limit` positions from `offset` on that are there, and how many the session has.

    None and 0 for a session that is not here.
    """
    with _snapshot(db):
        total, _ = db.execute(_COUNTS, (session_id,)).get or (0, 0)
        return _rows(db, session_id, offset, limit), total


def _rows(db: apsw.Connection, session_id: str, offset: int, limit: int) -> list[MessageRow]:
    rows: list[Any] = db.execute(_MESSAGES, (session_id, offset, offset + limit)).fetchall()
    return [MessageRow(position, moment(added), body) for position, added, body in rows]


def _compaction(row: tuple[Any, ...]) -> CompactionEntry:
    step, created_at, *rest = row
    return CompactionEntry(step, moment(created_at), *rest)


def replay(db: apsw.Connection, session_id: str, after_seq: int, limit: int) -> Replay:
    """Return the rows of the event log that end above `after_seq`, and up to where it is no longer kept."""
    with _snapshot(db):
        rows = events(db, session_id, after_seq, limit)
        return Replay(rows, db.execute(_EVENTS_AFTER, (session_id,)).get or 0)


def lost(db: apsw.Connection, session_id: str, seq: int, me: Holder) -> int | None:
    """Return up to which number events are lost that follow an event of a reader's, None if none are.

    An event that somebody has seen and that no row covers is one of a turn whose process died before it was stored. A
    process that lives may still store it.
    """
    with _snapshot(db):
        found: Any = db.execute(_LOG_OF, (session_id,)).fetchone()
        if found is None:
            return None
        key, last_seq, gone, owner = found
        following: Any = db.execute(_NEXT_EVENT, (key, seq)).fetchone()
        if seq <= gone:  # retention has removed the row
            return None
        if following is not None:
            first_seq, kind = following
            # A turn that was stored in part ends with an event of its own.
            return None if first_seq <= seq + 1 or kind == "run_failed" else first_seq - 1
        if owner not in (None, me.key):
            if me.rival(db, owner) is not None:
                return None
            last_seq += SEQ_STRIDE
    return last_seq if last_seq > seq else None


def events(db: apsw.Connection, session_id: str, after_seq: int, limit: int) -> list[EventRow]:
    """Return the rows of the event log that end above `after_seq`, in order."""
    rows: list[Any] = db.execute(_EVENTS, (session_id, after_seq, limit)).fetchall()
    return [EventRow(first, seq, moment(at), body, cuts) for first, seq, at, body, cuts in rows]


def erasures(db: apsw.Connection) -> list[str]:
    """Return the deleted sessions of which something may be left elsewhere."""
    return [row[0] for row in db.execute("SELECT session_id FROM erasures")]


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
