"""The queries that a store in a file answers: each function sees one snapshot of its connection."""
# ruff: noqa: S608 - only constants of this package and counts become part of the SQL

import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import apsw
import attrs

from warren.base.nodes import Node
from warren.calls.creation import FIRST_PROMPT, Created
from warren.conversation import codec
from warren.conversation.records import EventRow, MessageRow, SessionRecord, Span
from warren.storage import queries as ask
from warren.storage.queries import Query
from warren.storage.results import Context, Held, Lost, Replay, Rows, StoredPage, StoredSession
from warren.storage.rows import (
    ARCHIVED,
    COLUMNS,
    COMPACTION,
    DELETED,
    INSTRUCTS,
    MAX_NUMBER,
    OPEN,
    SEQ_STRIDE,
    bytes_in,
    compaction,
    corrupt,
    event_or_empty,
    lost_around,
    message,
    number_in,
    readable_compaction,
    row_to_record,
    shown,
    text_in,
)
from warren.storage.sqlite import (
    agents,
    attachments,
    audit,
    delegating,
    handover,
    inbox,
    ledger,
    open_turns,
    schedules,
    triggers,
    waits,
    webhooks,
)
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.database import snapshot
from warren.storage.sqlite.lease import Holder
from warren.storage.sqlite.reading import Reading
from warren.storage.standins import complete

R = TypeVar("R")
NOBODY: Final = ""
"""An id that no session has."""
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
    WHERE sessions.tenant = ?1
"""
_BYTES_OF_FILES: Final = "SELECT coalesce(sum(octet_length(body)), 0) FROM blobs WHERE tenant = ?1"
_FILES_OF_OWNER: Final = """
    AND key IN (SELECT blob FROM attachments JOIN sessions ON sessions.key = session WHERE tenant = ?1 AND owner = ?2)
"""
_OWNED: Final = f"SELECT session_id FROM sessions WHERE tenant = ? AND owner = ? AND state <> {DELETED}"
_HELD: Final = f"SELECT {raw(COLUMNS)}, {raw('holder')} FROM sessions WHERE session_id = ? AND state <> {DELETED}"
_HELD_BY: Final = f"""
    SELECT session_id, {raw("holder, last_seq, epoch")} FROM sessions
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
_INSTRUCTIONS: Final = f"""
    SELECT position, {raw("created_at, body")} FROM messages
    WHERE session = {_KEY} AND position < ? AND {INSTRUCTS} ORDER BY position DESC LIMIT 1
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
_LOG_OF: Final = f"""
    SELECT key, {raw("last_seq, events_after, holder")}, turn IS NOT NULL FROM sessions WHERE key = {_KEY}
"""
_NEXT_EVENT: Final = """
    SELECT iif(typeof(first_seq) = 'integer', first_seq, seq),
        json_valid(body) AND body ->> '$.type' IN ('run_failed', 'turn_resumed') FROM events
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


_CHOSEN: Final = "chosen CROSS JOIN sessions USING (key)"
_NO_STATE: Final = (f"< {OPEN}", f"> {DELETED}", "IS NULL")
"""Conditions on the state of damaged rows, which pages have to name."""


def _load(at: Reading, query: ask.SessionStart) -> StoredSession | None:
    row = at.db.execute(_HELD, (query.session_id,)).get
    if row is None:
        return None
    *columns, holder = row
    found = row_to_record(tuple(columns))
    return StoredSession(found, found.last_seq + (0 if holder in (None, at.me.key) else SEQ_STRIDE))


def _holder(at: Reading, query: ask.SessionHolder) -> Node | None:
    row: Any = at.db.execute(_HOLDER_OF, (query.session_id,)).fetchone()
    return None if row is None else at.me.node(at.db, row[0])


def _held(at: Reading, query: ask.Holders) -> dict[str, Held]:
    rows: list[Any] = at.db.execute(_HELD_BY, (json.dumps(list(query.session_ids)),)).fetchall()
    return {session_id: Held(*held) for session_id, *held in rows if type(held[1]) is int}


def _has(at: Reading, query: ask.HasSession | ask.OfSession[Any]) -> bool:
    return bool(at.db.execute(_IS_OF, (query.session_id, query.tenant)).get == 2)  # noqa: PLR2004 - both are as asked


def _sessions(at: Reading, query: ask.SessionCount) -> int:
    if query.owner is None:
        return int(at.db.execute(_SESSIONS_OF, (query.tenant,)).get)
    return int(at.db.execute(f"{_SESSIONS_OF} AND owner = ?", (query.tenant, query.owner)).get)


def _owned(at: Reading, query: ask.OwnedSessions) -> list[str]:
    return [session_id for (session_id,) in at.db.execute(_OWNED, (query.tenant, query.owner))]


def _stored_bytes(at: Reading, query: ask.StoredBytes) -> int:
    tables = "messages", "events", "inbox", "calls", "waits"
    sums, values = [_BYTES_OF.format(table=table) for table in tables], [query.tenant]
    if query.owner is None:
        sums.append(_BYTES_OF_FILES)
    else:
        sums = [*(f"{each} AND owner = ?2" for each in sums), _BYTES_OF_FILES + _FILES_OF_OWNER]
        values.append(query.owner)
    return sum(int(at.db.execute(each, values).get) for each in sums)


def _record(at: Reading, query: ask.SessionRow) -> SessionRecord | None:
    row = at.db.execute(_RECORD, (query.session_id,)).get
    return None if row is None else row_to_record(row)


def _creation(at: Reading, query: ask.CreatedUnder) -> Created | None:
    row: Any = at.db.execute(_CREATION, (query.tenant, query.key, FIRST_PROMPT)).fetchone()
    if row is None:
        return None
    session_id, params, outcome = row
    try:
        ended = None if outcome is None else bytes_in(outcome, "outcome")
        digests = codec.decode_stored(dict[str, str], bytes_in(params, "params"))
        return Created(text_in(session_id, "session_id"), digests, ended)
    except ValueError as exc:
        raise corrupt(f"the idempotency key of session {shown(session_id)}", exc, shown(session_id)) from exc


def _context(at: Reading, query: ask.ModelContext) -> Context:
    db, session_id, head, count = at.db, query.session_id, query.head, query.count
    with snapshot(db):
        rows = _rows(db, session_id, head, count - head)
        first = _rows(db, session_id, query.system, 1) if head or query.system else None
        newest: Any = db.execute(_NEWEST_COMPACTION, (session_id,)).fetchone() if head else None
    return Context(
        first=None if first is None else complete(first, query.system, query.system + 1)[0],
        compaction=None if newest is None else readable_compaction(newest, head),
        rows=complete(rows, head, count),
    )


def _instructions(at: Reading, query: ask.InstructionsBefore) -> MessageRow | None:
    row: Any = at.db.execute(_INSTRUCTIONS, (query.session_id, query.at)).fetchone()
    return None if row is None else message(row)


def _history(at: Reading, query: ask.StoredHistory) -> StoredPage:
    db, session_id, offset, limit = at.db, query.session_id, query.offset, query.limit
    with snapshot(db):
        total, kept_from = _counts(db, session_id)
        rows = _rows(db, session_id, offset, limit)
        moved: list[Any] = db.execute(_COMPACTIONS, (session_id, offset, offset + limit)).fetchall()
        left_out: Any = db.execute(_LEFT_OUT, (session_id,)).fetchone() or ()
    spans = [span for each in left_out if each is not None for span in codec.decode_stored(tuple[Span, ...], each)]
    moves = Rows(moved, compaction, lambda row: f"compaction to {row[2]}")
    return StoredPage(rows, total, kept_from, moves, tuple(spans))


def _messages(at: Reading, query: ask.StoredMessages) -> tuple[Rows[MessageRow], int]:
    with snapshot(at.db):
        total, _ = _counts(at.db, query.session_id)
        return _rows(at.db, query.session_id, query.offset, query.limit), total


def _counts(db: apsw.Connection, session_id: str) -> tuple[int, int]:
    total, kept_from = db.execute(_COUNTS, (session_id,)).get or (0, 0)
    try:
        return number_in(total, "message_count"), number_in(kept_from, "messages_from")
    except ValueError as exc:
        raise corrupt(f"session {session_id}", exc, session_id) from exc


def _rows(db: apsw.Connection, session_id: str, offset: int, limit: int) -> Rows[MessageRow]:
    rows: list[Any] = db.execute(_MESSAGES, (session_id, offset, offset + limit)).fetchall()
    return Rows(rows, message, lambda row: str(row[0]))


def _replay(at: Reading, query: ask.StoredEvents) -> Replay:
    with snapshot(at.db):
        rows, size = list[EventRow](), 0
        with contextlib.closing(at.db.execute(_EVENTS, (query.session_id, query.after_seq, query.limit))) as found:
            for each in found:
                rows.append(event_or_empty(each))
                size += len(rows[-1].body)
                if size >= REPLAY_BYTES:
                    break
        found_gone = at.db.execute(_EVENTS_AFTER, (query.session_id,)).fetchone()
    if found_gone is None:
        return Replay(rows, None)
    gone = found_gone[0]
    return Replay(rows, gone if type(gone) is int and gone <= MAX_NUMBER else 0)


def _lost(at: Reading, query: ask.LostEvents) -> Lost | None:
    db, me, seq = at.db, at.me, query.seq
    with snapshot(db):
        found: Any = db.execute(_LOG_OF, (query.session_id,)).fetchone()
        if found is None:
            return None
        key, last_seq, gone, owner, open_ = found
        last_seq, gone = number_in(last_seq, "last_seq"), number_in(gone, "events_after")
        following: Any = db.execute(_NEXT_EVENT, (key, seq)).fetchone()
        before: int | None = db.execute(_LAST_BEFORE, (key, seq)).get
        final = owner in (None, me.key) or me.rival(db, owner) is not None
    return lost_around(seq, last_seq, gone, before, following, final=final, open_=bool(open_))


def _last_stored(at: Reading, query: ask.LastStored) -> int | None:
    found: Any = at.db.execute(_LAST_STORED, (query.session_id, query.up_to)).fetchone()
    return None if found is None else max(number_in(each or 0, "last_seq") for each in found)


def _erasures(at: Reading, _query: ask.DueErasures) -> Rows[str]:
    rows = at.db.execute(f"SELECT {raw('session_id')} FROM erasures")
    return Rows(rows, lambda row: text_in(row[0], "session_id"), lambda row: shown(row[0]))


def _listing(at: Reading, query: ask.SessionList) -> Rows[SessionRecord]:
    states, labels, turn = (OPEN, ARCHIVED) if query.include_archived else (OPEN,), query.labels, query.in_turn
    chosen, given = ("", ()) if turn is None else open_turns.chosen(at, query.tenant, turn)
    values = (query.tenant, *(text for mark in labels.items() for text in mark))
    table = "sessions" if turn is None else _CHOSEN
    if query.delegated_by is not None:
        values = (*values, query.delegated_by)
        table = f"{table} " if turn is not None else "sessions INDEXED BY sessions_delegated"
    if query.agent is not None:
        values = (*values, query.agent)
        table = "sessions INDEXED BY sessions_of_agent" if table == "sessions" else table
    filters = [name for name in ("delegated_by", "agent") if getattr(query, name) is not None]
    # Each arm comes in order from the index and SQLite merges them: no arm is read further than the page needs.
    wanted = (*(f"= {state}" for state in states), *_NO_STATE)
    arms = " UNION ALL ".join(_arm(state, len(labels), table, filters) for state in wanted)
    page = f"SELECT key FROM ({arms} ORDER BY updated_at DESC, session_id LIMIT ? OFFSET ?)"
    sql = f"{chosen}SELECT {raw(COLUMNS)} FROM sessions WHERE key IN ({page}) ORDER BY updated_at DESC, session_id"
    rows: list[Any] = at.db.execute(sql, (*given, *(values * len(wanted)), query.limit, query.offset)).fetchall()
    return Rows(rows, row_to_record, lambda row: shown(row[0]))


def _arm(state: str, labels: int, table: str, filters: Iterable[str]) -> str:
    label = "EXISTS (SELECT 1 FROM labels WHERE name = ? AND value = ? AND session = sessions.key)"
    conditions = ["tenant = ?", f"state {state}", *[label] * labels, *(f"{name} = ?" for name in filters)]
    return f"SELECT key, updated_at, session_id FROM {table} WHERE {' AND '.join(conditions)}"


QUERIES: Final[Mapping[type[Query[Any]], Callable[[Reading, Any], Any]]] = {
    ask.HasSession: _has,
    ask.SessionRow: _record,
    ask.Children: delegating.count,
    ask.SessionHolder: _holder,
    ask.WaitingInputs: lambda at, query: inbox.waiting(at.db, query.session_id),
    ask.WaitingNotices: inbox.notices,
    ask.StoredWait: waits.find,
    ask.OpenWaits: waits.open_waits,
    ask.LostEvents: _lost,
    ask.StoredHistory: _history,
    ask.StoredAttachment: attachments.find,
    ask.AttachmentBytes: attachments.read,
    ask.SessionStart: _load,
    ask.ModelContext: _context,
    ask.InstructionsBefore: _instructions,
    ask.StoredMessages: _messages,
    ask.StoredEvents: _replay,
    ask.LastStored: _last_stored,
    ask.WasTold: inbox.was_told,
    ask.HandoverAnswer: handover.handed_over,
    ask.SessionList: _listing,
    ask.WaitList: waits.page,
    ask.ScheduleRow: schedules.row,
    ask.ScheduleList: schedules.page,
    ask.NextDue: schedules.next_due,
    ask.AgentVersions: agents.versions,
    ask.TriggerRow: triggers.row,
    ask.TriggerList: triggers.page,
    ask.DeliveryOf: triggers.delivery,
    ask.WebhookRow: webhooks.row,
    ask.WebhookList: webhooks.page,
    ask.DeliveryList: webhooks.deliveries,
    ask.NextDelivery: webhooks.next_due,
    ask.PendingDeliveries: webhooks.pending,
    ask.PeerNamed: inbox.named,
    ask.CreatedUnder: _creation,
    ask.SessionCount: _sessions,
    ask.OwnedSessions: _owned,
    ask.StoredBytes: _stored_bytes,
    ask.TokensSince: ledger.tokens_since,
    ask.LedgerSums: ledger.usage,
    ask.AuditEntries: audit.page,
    ask.LivingNodes: lambda at, _: at.me.nodes(at.db),
    ask.Holders: _held,
    ask.WaitingSessions: inbox.sessions_that_wait,
    ask.NextWake: waits.next_wake,
    ask.OpenTurns: open_turns.count,
    ask.SleepingTurns: open_turns.sleeping,
    ask.StoreNews: handover.news,
    ask.KnownTenants: ledger.tenants,
    ask.DueErasures: _erasures,
    ask.UnsureFiles: attachments.unsure,
}


def answer(db: apsw.Connection, me: Holder, query: Query[R]) -> R:
    """Return the answer to a query, from one state of the file. Raises apsw.Error, StoreError, ValueError."""
    at = Reading(db, me)
    if isinstance(query, ask.OfSession) and query.tenant is not None:
        query = attrs.evolve(query, session_id=query.session_id if _has(at, query) else NOBODY)
    found: R = QUERIES[type(query)](at, query)
    return found
