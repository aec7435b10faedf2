"""Reads of the store. Each function sees one snapshot of its connection."""
# ruff: noqa: S608 - only constants of this package and counts become part of the SQL

import contextlib
import json
import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import apsw

from warren import codec
from warren.creation import FIRST_PROMPT, Created
from warren.nodes import Node
from warren.records import EventRow, MessageRow, SessionRecord, Span
from warren.storage.results import Context, Held, Lost, Replay, Rows, StoredPage, StoredSession
from warren.storage.rows import (
    ARCHIVED,
    COLUMNS,
    COMPACTION,
    DELETED,
    MAX_NUMBER,
    OPEN,
    SEQ_STRIDE,
    bytes_in,
    compaction,
    corrupt,
    event_or_empty,
    message,
    number_in,
    readable_compaction,
    row_to_record,
    shown,
    text_in,
)
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.database import snapshot
from warren.storage.standins import complete

if TYPE_CHECKING:
    from warren.storage.sqlite.lease import Holder

REPLAY_BYTES: Final = 256 * 1024
"""Bytes of events after which a part of a log is long enough: its reader holds all of it."""

logger: Final = logging.getLogger("warren.storage")
_KEY: Final = f"(SELECT key FROM sessions WHERE session_id = ? AND state <> {DELETED})"
_RECORD: Final = f"SELECT {raw(COLUMNS)} FROM sessions WHERE session_id = ? AND state <> {DELETED}"
# The nearest session is read whether it is the one or not, and both of its columns: so a session of another tenant
# takes no other time than an id that nobody has.
_IS_OF: Final = """
    SELECT (session_id = ?1) + (tenant = ?2) FROM sessions WHERE session_id <= ?1 ORDER BY session_id DESC LIMIT 1
"""
_SESSIONS_OF: Final = f"SELECT count(*) FROM sessions WHERE tenant = ? AND state = {OPEN}"
_BYTES_OF: Final = """
    SELECT coalesce(sum(octet_length(body)), 0) FROM sessions CROSS JOIN {table} ON session = sessions.key
    WHERE tenant = ?1
"""
_BYTES_OF_FILES: Final = "SELECT coalesce(sum(octet_length(body)), 0) FROM blobs WHERE tenant = ?1"
_FILES_OF_OWNER: Final = """
    AND key IN (SELECT blob FROM attachments JOIN sessions ON sessions.key = session WHERE tenant = ?1 AND owner = ?2)
"""
_OWNED: Final = f"SELECT session_id FROM sessions WHERE tenant = ? AND owner = ? AND state <> {DELETED}"
_HELD: Final = f"SELECT {raw(COLUMNS)}, {raw('holder')} FROM sessions WHERE session_id = ? AND state <> {DELETED}"
_HELD_BY: Final = f"""
    SELECT session_id, {raw("holder, last_seq")} FROM sessions
    WHERE session_id IN (SELECT value FROM json_each(?)) AND state <> {DELETED}
"""
_HOLDER_OF: Final = f"SELECT {raw('holder')} FROM sessions WHERE session_id = ? AND state <> {DELETED}"
_NEWEST_COMPACTION: Final = f"""
    SELECT {raw(COMPACTION)} FROM compactions WHERE session = {_KEY} ORDER BY rowid DESC LIMIT 1
"""
_COMPACTIONS: Final = f"""
    SELECT {raw(COMPACTION)} FROM compactions
    WHERE session = {_KEY} AND head > ? AND head <= ? ORDER BY rowid
"""
_MESSAGES: Final = f"""
    SELECT position, {raw("created_at, body")} FROM messages
    WHERE session = {_KEY} AND position >= ? AND position < ? ORDER BY position
"""
_COUNTS: Final = f"SELECT {raw('message_count, messages_from')} FROM sessions WHERE key = {_KEY}"
_CREATION: Final = f"""
    SELECT {raw("session_id, params, outcome")} FROM creations JOIN sessions ON sessions.key = creations.session
    LEFT JOIN inbox ON inbox.session = creations.session AND inbox.key = ?3
    WHERE creations.tenant = ?1 AND creations.key = ?2
"""
_LEFT_OUT: Final = f"""
    SELECT iif(json_valid(details), details, '{{}}') -> '$.left_out',
        iif(json_valid(details), details, '{{}}') -> '$.parts_left_out' FROM sessions WHERE key = {_KEY}
"""
_EVENTS_AFTER: Final = f"SELECT {raw('events_after')} FROM sessions WHERE key = {_KEY}"
_LOG_OF: Final = f"SELECT key, {raw('last_seq, events_after, holder')} FROM sessions WHERE key = {_KEY}"
_NEXT_EVENT: Final = """
    SELECT iif(typeof(first_seq) = 'integer', first_seq, seq),
        json_valid(body) AND body ->> '$.type' = 'run_failed' FROM events
    WHERE session = ? AND seq >= ? ORDER BY seq LIMIT 1
"""
_LAST_STORED: Final = f"""
    SELECT events_after, (
        SELECT min(seq, ?2) FROM events WHERE session = sessions.key AND first_seq <= ?2 ORDER BY seq DESC LIMIT 1)
    FROM sessions WHERE session_id = ?1 AND state <> {DELETED}
"""
_LAST_BEFORE: Final = "SELECT max(seq) FROM events WHERE session = ? AND seq < ?"
_EVENTS: Final = f"""
    SELECT seq, {raw("first_seq, timestamp, body, cuts")} FROM events
    WHERE session = {_KEY} AND seq > ? AND seq <= {MAX_NUMBER} ORDER BY seq LIMIT ?
"""


_NO_STATE: Final = (f"< {OPEN}", f"> {DELETED}", "IS NULL")
"""Conditions on the state of damaged rows, which pages have to name."""


def load(db: apsw.Connection, session_id: str, me: int | None) -> StoredSession | None:
    """Return the record and the event floor for an actor in the process of that key; None for an unknown session."""
    row = db.execute(_HELD, (session_id,)).get
    if row is None:
        return None
    *columns, holder = row
    found = row_to_record(tuple(columns))
    return StoredSession(found, found.last_seq + (0 if holder in (None, me) else SEQ_STRIDE))


def holder(db: apsw.Connection, session_id: str, me: "Holder") -> Node | None:
    """Return the living process that has a session, which may be this one."""
    row: Any = db.execute(_HOLDER_OF, (session_id,)).fetchone()
    return None if row is None else me.node(db, row[0])


def held(db: apsw.Connection, session_ids: Collection[str]) -> dict[str, Held]:
    """Return the holder of each session and the number of its last event."""
    rows: list[Any] = db.execute(_HELD_BY, (json.dumps(list(session_ids)),)).fetchall()
    return {session_id: Held(key, last_seq) for session_id, key, last_seq in rows if type(last_seq) is int}


def is_of(db: apsw.Connection, tenant: str, session_id: str) -> bool:
    """Return whether a session is of a tenant, also if it was deleted since."""
    return bool(db.execute(_IS_OF, (session_id, tenant)).get == 2)  # noqa: PLR2004 - both are as asked


def sessions(db: apsw.Connection, tenant: str, owner: str | None) -> int:
    """Return how many sessions of a tenant are neither archived nor deleted: all, or those of an owner."""
    if owner is None:
        return int(db.execute(_SESSIONS_OF, (tenant,)).get)
    return int(db.execute(f"{_SESSIONS_OF} AND owner = ?", (tenant, owner)).get)


def owned(db: apsw.Connection, tenant: str, owner: str) -> list[str]:
    """Return the ids of the sessions of a tenant that an owner has and that are not deleted."""
    return [session_id for (session_id,) in db.execute(_OWNED, (tenant, owner))]


def stored_bytes(db: apsw.Connection, tenant: str, owner: str | None) -> int:
    """Return the bytes of the messages, inputs, events and files of a tenant, or of the sessions of an owner."""
    queries = [_BYTES_OF.format(table=table) for table in ("messages", "events", "inbox")]
    if owner is None:
        return sum(int(db.execute(query, (tenant,)).get) for query in (*queries, _BYTES_OF_FILES))
    queries = [*(f"{each} AND owner = ?2" for each in queries), _BYTES_OF_FILES + _FILES_OF_OWNER]
    return sum(int(db.execute(query, (tenant, owner)).get) for query in queries)


def record(db: apsw.Connection, session_id: str) -> SessionRecord | None:
    """Return a session's record; None for a session that is not here."""
    row = db.execute(_RECORD, (session_id,)).get
    return None if row is None else row_to_record(row)


def creation(db: apsw.Connection, tenant: str, key: str) -> Created | None:
    """Return the session that was created under an idempotency key, also if it was deleted since."""
    row: Any = db.execute(_CREATION, (tenant, key, FIRST_PROMPT)).fetchone()
    if row is None:
        return None
    session_id, params, outcome = row
    try:
        ended = None if outcome is None else bytes_in(outcome, "outcome")
        digests = codec.decode_stored(dict[str, str], bytes_in(params, "params"))
        return Created(text_in(session_id, "session_id"), digests, ended)
    except ValueError as exc:
        raise corrupt(f"the idempotency key of session {shown(session_id)}", exc, shown(session_id)) from exc


def context(db: apsw.Connection, session_id: str, head: int, count: int) -> Context:
    """Return the messages for the model of a session of `count` messages with its head at `head`.

    A message that cannot be read or is missing has a stand-in, so that positions stay and the session can go on.
    """
    with snapshot(db):
        rows = _rows(db, session_id, head, count - head)
        first = _rows(db, session_id, 0, 1) if head else None
        newest: Any = db.execute(_NEWEST_COMPACTION, (session_id,)).fetchone() if head else None
    return Context(
        first=None if first is None else complete(first, 0, 1)[0],
        compaction=None if newest is None else readable_compaction(newest, head),
        rows=complete(rows, head, count),
    )


def history(db: apsw.Connection, session_id: str, offset: int, limit: int) -> StoredPage:
    """Return the messages at the `limit` positions from `offset` on, and the compactions that moved the head there."""
    with snapshot(db):
        total, kept_from = _counts(db, session_id)
        rows = _rows(db, session_id, offset, limit)
        moved: list[Any] = db.execute(_COMPACTIONS, (session_id, offset, offset + limit)).fetchall()
        left_out: Any = db.execute(_LEFT_OUT, (session_id,)).fetchone() or ()
    spans = [span for each in left_out if each is not None for span in codec.decode_stored(tuple[Span, ...], each)]
    moves = Rows(moved, compaction, lambda row: f"compaction to {row[2]}")
    return StoredPage(rows, total, kept_from, moves, tuple(spans))


def messages(db: apsw.Connection, session_id: str, offset: int, limit: int) -> tuple[Rows[MessageRow], int]:
    """Return the messages at the `limit` positions from `offset` on that are there, and how many the session has.

    None and 0 for a session that is not here.
    """
    with snapshot(db):
        total, _ = _counts(db, session_id)
        return _rows(db, session_id, offset, limit), total


def _counts(db: apsw.Connection, session_id: str) -> tuple[int, int]:
    total, kept_from = db.execute(_COUNTS, (session_id,)).get or (0, 0)
    try:
        return number_in(total, "message_count"), number_in(kept_from, "messages_from")
    except ValueError as exc:
        raise corrupt(f"session {session_id}", exc, session_id) from exc


def _rows(db: apsw.Connection, session_id: str, offset: int, limit: int) -> Rows[MessageRow]:
    rows: list[Any] = db.execute(_MESSAGES, (session_id, offset, offset + limit)).fetchall()
    return Rows(rows, message, lambda row: str(row[0]))


def replay(db: apsw.Connection, session_id: str, after_seq: int, limit: int) -> Replay:
    """Return rows of the event log that end above `after_seq`, and the number up to which retention removed events.

    There are at most `limit`, and no more after `REPLAY_BYTES` of them; none only if there are no more.
    """
    with snapshot(db):
        rows, size = list[EventRow](), 0
        with contextlib.closing(db.execute(_EVENTS, (session_id, after_seq, limit))) as found:
            for each in found:
                rows.append(event_or_empty(each))
                size += len(rows[-1].body)
                if size >= REPLAY_BYTES:
                    break
        found_gone = db.execute(_EVENTS_AFTER, (session_id,)).fetchone()
    if found_gone is None:
        return Replay(rows, None)
    gone = found_gone[0]
    return Replay(rows, gone if type(gone) is int and gone <= MAX_NUMBER else 0)


def lost(db: apsw.Connection, session_id: str, seq: int, me: "Holder") -> Lost | None:
    """Return the lost events around an event that a reader was shown; None if it is stored, or may be some day.

    An event that was shown and that no row covers belongs to a turn whose process died before the commit. A living
    process may still store the events above the last number of the session.
    """
    with snapshot(db):
        found: Any = db.execute(_LOG_OF, (session_id,)).fetchone()
        if found is None:
            return None
        key, last_seq, gone, owner = found
        last_seq, gone = number_in(last_seq, "last_seq"), number_in(gone, "events_after")
        following: Any = db.execute(_NEXT_EVENT, (key, seq)).fetchone()
        before: int = db.execute(_LAST_BEFORE, (key, seq)).get or 0
        if seq <= gone:  # retention has removed the row
            return None
        first = max(before, gone) + 1
        if following is not None:
            first_seq, is_end = following
            # A turn that was stored in part ends with an event of its own.
            return None if first_seq <= seq + 1 else Lost(first, first_seq - 1, bool(is_end))
        final = owner in (None, me.key) or me.rival(db, owner) is not None
    last = last_seq if final else last_seq + SEQ_STRIDE
    return Lost(first, last, final=final) if last > seq else None


def last_stored(db: apsw.Connection, session_id: str, up_to: int) -> int | None:
    """Return the number of the last event up to a number that is stored, or that retention has removed."""
    found: Any = db.execute(_LAST_STORED, (session_id, up_to)).fetchone()
    return None if found is None else max(number_in(each or 0, "last_seq") for each in found)


def events(db: apsw.Connection, session_id: str, after_seq: int, limit: int) -> list[EventRow]:
    """Return the rows of the event log that end above `after_seq`, in order.

    Bodies are returned as they are stored. A row with a damaged column has an empty body, which is no event.
    """
    rows: list[Any] = db.execute(_EVENTS, (session_id, after_seq, limit)).fetchall()
    return [event_or_empty(row) for row in rows]


def erasures(db: apsw.Connection) -> Rows[str]:
    """Return the deleted sessions of which something may be left elsewhere."""
    return Rows(db.execute(f"SELECT {raw('session_id')} FROM erasures"), _id, lambda row: shown(row[0]))


def _id(row: tuple[Any, ...]) -> str:
    return text_in(row[0], "session_id")


def listing(
    db: apsw.Connection, tenant: str, *, offset: int, limit: int, labels: Mapping[str, str], include_archived: bool
) -> Rows[SessionRecord]:
    """Return a page of the sessions that carry all of `labels`: newest `updated_at` first, then by id.

    A damaged row takes a place of the page.
    """
    states = (OPEN, ARCHIVED) if include_archived else (OPEN,)
    values = (tenant, *(text for mark in labels.items() for text in mark))
    # Each arm comes in order from the index and SQLite merges them: no arm is read further than the page needs.
    wanted = (*(f"= {state}" for state in states), *_NO_STATE)
    arms = " UNION ALL ".join(_arm(state, len(labels)) for state in wanted)
    page = f"SELECT key FROM ({arms} ORDER BY updated_at DESC, session_id LIMIT ? OFFSET ?)"
    sql = f"SELECT {raw(COLUMNS)} FROM sessions WHERE key IN ({page}) ORDER BY updated_at DESC, session_id"
    rows: list[Any] = db.execute(sql, (*(values * (len(states) + len(_NO_STATE))), limit, offset)).fetchall()
    return Rows(rows, row_to_record, lambda row: shown(row[0]))


def _arm(state: str, labels: int) -> str:
    label = "EXISTS (SELECT 1 FROM labels WHERE name = ? AND value = ? AND session = sessions.key)"
    conditions = ["tenant = ?", f"state {state}", *[label] * labels]
    return f"SELECT key, updated_at, session_id FROM sessions WHERE {' AND '.join(conditions)}"
