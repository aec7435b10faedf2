"""The queries that a store in a database answers: each function sees one snapshot of its connection."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from psycopg import errors

from warren.base.nodes import Node
from warren.calls.creation import FIRST_PROMPT, Created
from warren.conversation import codec
from warren.conversation.records import EventRow, MessageRow, SessionRecord, Span
from warren.conversation.views import TurnState
from warren.storage import queries as ask
from warren.storage.membership import oldest_first
from warren.storage.postgres import (
    agents,
    attachments,
    audit,
    delegating,
    inbox,
    ledger,
    schedules,
    triggers,
    waits,
    webhooks,
)
from warren.storage.postgres.commit import marks_of
from warren.storage.postgres.driver import Connection, LostError, Row, Value, array, escaped, unescaped
from warren.storage.postgres.guard import Guard
from warren.storage.postgres.lease import Holder, alive, rival
from warren.storage.postgres.nodes import NODES, node_in
from warren.storage.postgres.reading import OF, Reading, compaction_of, move_of, record_of, snapshot
from warren.storage.queries import Query
from warren.storage.results import Context, Held, Lost, News, Replay, Rows, StoredPage, StoredSession
from warren.storage.rows import (
    ARCHIVED,
    COLUMNS,
    COMPACTION,
    DELETED,
    INSTRUCTS,
    OPEN,
    SEQ_STRIDE,
    corrupt,
    decoded,
    event_or_empty,
    live_seq,
    lost_around,
    message,
    readable_compaction,
    readable_inputs,
    shown,
)
from warren.storage.standins import complete

R = TypeVar("R")
REPLAY_BYTES: Final = 256 * 1024
"""Characters of events after which a part of a log is long enough: its reader holds all of it."""
_KEY: Final = f"(SELECT key FROM warren.sessions WHERE session_id = $1 AND state <> {DELETED})"
_KEY_OF: Final = f"(SELECT key FROM warren.sessions WHERE session_id = $1 AND state <> {DELETED} AND {OF})"
_RECORD: Final = f"SELECT {COLUMNS} FROM warren.sessions WHERE session_id = $1 AND state <> {DELETED} AND {OF}"
_HELD: Final = f"SELECT {COLUMNS}, holder FROM warren.sessions WHERE session_id = $1 AND state <> {DELETED}"
_MESSAGES: Final = f"""
    SELECT position, created_at, body FROM warren.messages
    WHERE session = {_KEY_OF} AND position >= $3::int8 AND position < $4::int8 ORDER BY position
"""
_INSTRUCTIONS: Final = f"""
    SELECT position, created_at, body FROM warren.messages
    WHERE session = {_KEY_OF} AND position < $3::int8 AND {INSTRUCTS} ORDER BY position DESC LIMIT 1
"""
_NEWEST_COMPACTION: Final = f"""
    SELECT {COMPACTION} FROM warren.compactions WHERE session = {_KEY} ORDER BY key DESC LIMIT 1
"""
_COMPACTIONS: Final = f"""
    SELECT {COMPACTION} FROM warren.compactions
    WHERE session = {_KEY_OF} AND head > $3::int8 AND head <= $4::int8 ORDER BY key
"""
_COUNTS: Final = f"SELECT message_count, messages_from, details FROM warren.sessions WHERE key = {_KEY_OF}"
_CREATION: Final = f"""
    SELECT session_id, params, outcome FROM warren.creations c JOIN warren.sessions s ON s.key = c.session
    LEFT JOIN warren.inbox i ON i.session = c.session AND i.key = '{FIRST_PROMPT}' WHERE c.key = $1 AND c.tenant = $2
"""
# The running sum ends a page by its size inside the server; the first row always comes.
_EVENTS: Final = f"""
    SELECT seq, first_seq, timestamp, body, cuts FROM (
        SELECT *, sum(length(body)) OVER (ORDER BY seq) - length(body) AS before FROM (
            SELECT seq, first_seq, timestamp, body, cuts FROM warren.events
            WHERE session = {_KEY} AND seq > $2::int8 ORDER BY seq LIMIT $3::int8
        ) AS page
    ) AS measured WHERE before < {REPLAY_BYTES} ORDER BY seq
"""
_EVENTS_AFTER: Final = f"SELECT events_after FROM warren.sessions WHERE key = {_KEY}"
_LOG_OF: Final = f"""
    SELECT last_seq, events_after, holder, {rival("s.holder", "$3::int")}, turn IS NOT NULL
    FROM warren.sessions s WHERE key = {_KEY_OF}
"""
_NEXT_EVENT: Final = f"""
    SELECT first_seq, starts_with(body, '{{"type":"run_failed"') OR starts_with(body, '{{"type":"turn_resumed"')
    FROM warren.events
    WHERE session = {_KEY_OF} AND seq >= $3::int8 ORDER BY seq LIMIT 1
"""
_LAST_STORED: Final = f"""
    SELECT greatest(events_after, coalesce((
        SELECT least(seq, $2::int8) FROM warren.events WHERE session = s.key AND first_seq <= $2::int8
        ORDER BY seq DESC LIMIT 1), 0))
    FROM warren.sessions s WHERE session_id = $1 AND state <> {DELETED}
"""
_LAST_BEFORE: Final = f"SELECT max(seq) FROM warren.events WHERE session = {_KEY_OF} AND seq < $3::int8"
_STATES: Final[Mapping[TurnState, str]] = {
    "waiting": "wakes IS NOT NULL",
    "running": "wakes IS NULL AND EXISTS (SELECT FROM others WHERE others.key = s.holder)",
    "parked": "wakes IS NULL AND NOT EXISTS (SELECT FROM others WHERE others.key = s.holder)",
}
_IN_TURN: Final = f"""
    WITH others AS MATERIALIZED (
        SELECT h.key FROM warren.holders h WHERE h.key IS DISTINCT FROM $2::int AND {alive("$2::int")}
    )
    SELECT key FROM warren.sessions WHERE tenant = $1 AND session_id = ANY ($3::text[])
    UNION SELECT key FROM warren.sessions s
    WHERE tenant = $1 AND turn IS NOT NULL AND session_id <> ALL ($4::text[]) AND {{state}}
"""
# The living processes are found once, not for each session: to ask the server for its locks takes long.
_SESSIONS_THAT_WAIT: Final = f"""
    WITH others AS MATERIALIZED (
        SELECT h.key FROM warren.holders h WHERE h.key IS DISTINCT FROM $1::int AND {alive("$1::int")}
    )
    SELECT session_id, tenant FROM (
        SELECT key, session_id, tenant, holder FROM warren.sessions
        WHERE state = {OPEN} AND turn IS NOT NULL AND coalesce(wakes, 0) <= {waits.NOW}
        UNION SELECT key, session_id, tenant, holder FROM warren.sessions
        WHERE state = {OPEN} AND NOT (turn IS NOT NULL AND coalesce(wakes, 0) > {waits.NOW})
            AND key IN (
                SELECT session FROM warren.inbox WHERE outcome IS NULL AND starts AND not_before IS NULL
                UNION ALL SELECT session FROM warren.inbox
                WHERE outcome IS NULL AND starts AND not_before <= {waits.NOW})
        UNION SELECT key, session_id, tenant, holder FROM warren.sessions
        WHERE state = {OPEN} AND key IN (
            SELECT session FROM warren.waits w WHERE w.state <> 'settled' AND reason = 'background')
        UNION SELECT key, session_id, tenant, holder FROM warren.sessions
        WHERE state <> {DELETED} AND key IN (SELECT session FROM warren.inbox WHERE notice AND outcome IS NULL)
    ) AS s WHERE NOT EXISTS (SELECT FROM others WHERE others.key = s.holder)
    ORDER BY key
"""
_OPEN_TURNS: Final = f"""
    WITH living AS MATERIALIZED (
        SELECT h.key FROM warren.holders h WHERE h.key = $2::int OR {alive("$2::int")}
    )
    SELECT tenant, count(*) FROM warren.sessions s
    WHERE turn IS NOT NULL AND wakes IS NULL AND state = {OPEN} AND ($1::text IS NULL OR tenant = $1)
        AND NOT EXISTS (SELECT FROM living WHERE living.key = s.holder)
    GROUP BY tenant
"""
_SLEEPING: Final = f"""
    SELECT count(*) FROM warren.sessions WHERE turn IS NOT NULL AND wakes IS NOT NULL AND state = {OPEN}
"""
_FROM: Final = f"SELECT body FROM warren.inbox WHERE session = {_KEY} AND id = $2"
_TOLD: Final = f"""
    SELECT FROM warren.messages WHERE session = {_KEY} AND (starts_with(body, $2) OR starts_with(body, $3))
    ORDER BY position DESC LIMIT 1
"""
_NAMED: Final = f"SELECT session_id FROM warren.sessions WHERE peer = $1 AND tenant = $2 AND state = {OPEN}"
_IS_OF: Final = "SELECT FROM warren.sessions WHERE session_id = $1 AND tenant = $2"
_SESSIONS_OF: Final = f"""
    SELECT count(*) FROM warren.sessions WHERE tenant = $1 AND state = {OPEN} AND ($2::text IS NULL OR owner = $2)
"""
_BYTES_OF: Final = """
    SELECT coalesce(sum(octet_length(body)), 0)::int8 FROM warren.sessions s JOIN warren.{table} ON session = s.key
    WHERE s.tenant = $1
"""
_BYTES_OF_FILES: Final = "SELECT coalesce(sum(octet_length(body)), 0)::int8 FROM warren.blobs WHERE tenant = $1"
_FILES_OF_OWNER: Final = """ AND key IN (
    SELECT blob FROM warren.attachments JOIN warren.sessions s ON s.key = session WHERE s.tenant = $1 AND owner = $2
)"""
_OWNED: Final = f"SELECT session_id FROM warren.sessions WHERE tenant = $1 AND owner = $2 AND state <> {DELETED}"
_ERASURES: Final = "SELECT session_id FROM warren.erasures ORDER BY session_id"
_HOLDER_OF: Final = f"""
    SELECT h.key, h.name, h.status FROM warren.sessions s JOIN warren.holders h ON h.key = s.holder
    WHERE s.session_id = $1 AND {OF} AND state <> {DELETED} AND (h.key = $3::int OR {alive("$3::int")})
"""
_HELD_BY: Final = f"""
    SELECT session_id, holder, last_seq, epoch FROM warren.sessions
    WHERE session_id = ANY ($1::text[]) AND state <> {DELETED}
"""
_ANSWER: Final = """
    SELECT s.holder, r.holder FROM warren.sessions s LEFT JOIN warren.requests r ON r.session = s.key
    WHERE session_id = $1
"""
_WANTED: Final = """
    SELECT session_id FROM warren.requests r JOIN warren.sessions s ON s.key = r.session
    WHERE r.holder = $1::int AND s.holder = $1::int
"""
# Of transactions that still run nothing is seen, and they may have lower numbers than those that are seen: the next
# look begins at the oldest one of them. What is found twice is known by its number.
_SNAPSHOT: Final = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8"
_ARRIVED: Final = """
    SELECT i.number, i.body, session_id FROM warren.inbox i JOIN warren.sessions s ON s.key = i.session
    WHERE i.added >= $2::text::xid8 AND i.outcome IS NULL AND s.holder = $1::int ORDER BY i.number
"""
_WATCHED: Final = "SELECT session_id, last_seq, state FROM warren.sessions WHERE session_id = ANY ($1::text[])"


async def _load(at: Reading, query: ask.SessionStart) -> StoredSession | None:
    rows = await at.db.fetch(_HELD, escaped(query.session_id))
    if not rows:
        return None
    *columns, holder = rows[0]
    found = record_of(tuple(columns))
    return StoredSession(found, found.last_seq + (0 if holder in (None, at.me.key) else SEQ_STRIDE))


async def _has(at: Reading, query: ask.HasSession) -> bool:
    return bool(await at.db.fetch(_IS_OF, escaped(query.session_id), query.tenant))


async def _sessions(at: Reading, query: ask.SessionCount) -> int:
    owner = None if query.owner is None else escaped(query.owner)
    return int(await at.db.value(_SESSIONS_OF, query.tenant, owner))


async def _owned(at: Reading, query: ask.OwnedSessions) -> list[str]:
    return [unescaped(session_id) for (session_id,) in await at.db.fetch(_OWNED, query.tenant, escaped(query.owner))]


async def _stored_bytes(at: Reading, query: ask.StoredBytes) -> int:
    # Without row-level security, whose conditions would be asked for each row.
    tables = "messages", "events", "inbox", "calls", "waits"
    sums, values = [_BYTES_OF.format(table=table) for table in tables], [query.tenant]
    if query.owner is None:
        sums.append(_BYTES_OF_FILES)
    else:
        sums = [*(f"{each} AND owner = $2" for each in sums), _BYTES_OF_FILES + _FILES_OF_OWNER]
        values.append(escaped(query.owner))
    found = [await at.login.fetch(each, *values) for each in sums]
    return sum(int(count) for ((count,),) in found)


async def _record(at: Reading, query: ask.SessionRow) -> SessionRecord | None:
    rows = await at.db.fetch(_RECORD, escaped(query.session_id), query.tenant)
    return record_of(rows[0]) if rows else None


async def _creation(at: Reading, query: ask.CreatedUnder) -> Created | None:
    rows = await at.db.fetch(_CREATION, escaped(query.key), query.tenant)
    if not rows:
        return None
    ((stored_id, params, outcome),) = rows
    session_id = unescaped(stored_id)
    try:
        digests = codec.decode_stored(dict[str, str], params.encode())
    except ValueError as exc:
        raise corrupt(f"the idempotency key of session {shown(session_id)}", exc, shown(session_id)) from exc
    return Created(session_id, digests, None if outcome is None else outcome.encode())


async def _context(at: Reading, query: ask.ModelContext) -> Context:
    db, session_id, head, count = at.login, query.session_id, query.head, query.count
    system = query.system
    if not (head or system):
        return Context(None, None, complete(await _rows(db, session_id, 0, count), 0, count))
    async with snapshot(db):
        rows = await _rows(db, session_id, head, count - head)
        first = await _rows(db, session_id, system, 1)
        newest = await db.fetch(_NEWEST_COMPACTION, escaped(session_id)) if head else None
    return Context(
        first=complete(first, system, system + 1)[0],
        compaction=readable_compaction(move_of(newest[0]), head) if newest else None,
        rows=complete(rows, head, count),
    )


async def _instructions(at: Reading, query: ask.InstructionsBefore) -> MessageRow | None:
    rows = _messages(await at.db.fetch(_INSTRUCTIONS, escaped(query.session_id), None, query.at))
    return next(iter(rows), None)


async def _history(at: Reading, query: ask.StoredHistory) -> StoredPage:
    of, offset, to = (escaped(query.session_id), query.tenant), query.offset, query.offset + query.limit
    counts, rows, moved = await at.db.fetch_each(
        (_COUNTS, *of), (_MESSAGES, *of, offset, to), (_COMPACTIONS, *of, offset, to)
    )
    total, kept_from, details = counts[0] if counts else (0, 0, "{}")
    moves = Rows(moved, compaction_of, lambda row: f"compaction to {row[2]}")
    return StoredPage(_messages(rows), total, kept_from, moves, _left_out(details))


def _left_out(details: str) -> tuple[Span, ...]:
    """Return the spans among the details of a record; none of details that are damaged."""
    if 'left_out"' not in details:
        return ()
    try:
        members = json.loads(details)
        found = [*members.get("left_out", ()), *members.get("parts_left_out", ())]
        spans: tuple[Span, ...] = codec.decode_stored(tuple[Span, ...], json.dumps(found).encode())
    except ValueError:
        return ()
    return spans


async def _messages_of(at: Reading, query: ask.StoredMessages) -> tuple[Rows[MessageRow], int]:
    of = (escaped(query.session_id), None)
    page = (_MESSAGES, *of, query.offset, query.offset + query.limit)
    counts, rows = await at.db.fetch_each((_COUNTS, *of), page)
    return _messages(rows), counts[0][0] if counts else 0


async def _rows(db: Connection, session_id: str, offset: int, limit: int) -> Rows[MessageRow]:
    return _messages(await db.fetch(_MESSAGES, escaped(session_id), None, offset, offset + limit))


def _messages(rows: list[Row]) -> Rows[MessageRow]:
    return Rows(rows, message, lambda row: str(row[0]))


async def _replay(at: Reading, query: ask.StoredEvents) -> Replay:
    of = escaped(query.session_id)
    rows, gone = await at.db.fetch_each((_EVENTS, of, query.after_seq, query.limit), (_EVENTS_AFTER, of))
    found: list[EventRow] = [event_or_empty(row) for row in rows]
    return Replay(found, gone[0][0] if gone else None)


async def _lost(at: Reading, query: ask.LostEvents) -> Lost | None:
    of, seq, me = (escaped(query.session_id), query.tenant), query.seq, at.me.key
    found, following, ((before,),) = await at.db.fetch_each(
        (_LOG_OF, *of, me), (_NEXT_EVENT, *of, seq), (_LAST_BEFORE, *of, seq)
    )
    if not found:
        return None
    ((last_seq, gone, owner, alive, open_),) = found
    final = owner in (None, me) or alive is not None
    next_row = following[0] if following else None
    return lost_around(seq, last_seq, gone, before, next_row, final=final, open_=open_)


async def _last_stored(at: Reading, query: ask.LastStored) -> int | None:
    found: int | None = await at.db.value(_LAST_STORED, escaped(query.session_id), query.up_to)
    return found


async def _sessions_that_wait(at: Reading, _query: ask.WaitingSessions) -> dict[str, str]:
    rows = await at.db.fetch(_SESSIONS_THAT_WAIT, at.me.key)
    return {unescaped(session_id): tenant for session_id, tenant in rows}


async def _open_turns(at: Reading, query: ask.OpenTurns) -> dict[str, int]:
    return dict(await at.db.fetch(_OPEN_TURNS, query.tenant, at.me.key))


async def _sleeping(at: Reading, _query: ask.SleepingTurns) -> int:
    number: int = await at.db.value(_SLEEPING)
    return number


async def _was_told(at: Reading, query: ask.WasTold) -> bool:
    # The search begins at the newest message, because the input has mostly just come.
    session_id = escaped(query.session_id)
    waits = await at.db.fetch(_FROM, session_id, escaped(query.input_id))
    if waits:
        found = decoded(waits[0][0], query.session_id)
        return found.source == query.source and found.text.startswith(query.beginning)
    text = codec.encode_whole(query.beginning).decode()[1:-1]
    bodies = (f'{{"role":"{role}","content":"{text}' for role in ("user", "context"))
    return bool(await at.db.fetch(_TOLD, session_id, *bodies))


async def _named(at: Reading, query: ask.PeerNamed) -> str | None:
    found = await at.db.value(_NAMED, escaped(query.name), query.tenant)
    return None if found is None else unescaped(found)


async def _erasures(at: Reading, _query: ask.DueErasures) -> Rows[str]:
    return Rows(await at.db.fetch(_ERASURES), lambda row: unescaped(row[0]), lambda row: shown(row[0]))


async def _listing(at: Reading, query: ask.SessionList) -> Rows[SessionRecord]:
    archived, values = query.include_archived, (query.limit, query.offset, query.tenant)
    if not query.labels and query.in_turn is None and query.delegated_by is None and query.agent is None:
        rows = await at.db.fetch(_page(COLUMNS, COLUMNS, "", include_archived=archived), *values)
    else:
        # By the login role. Behind row-level security the index of the labels is not used, as the server cannot know
        # that the comparison of arrays shows nothing of a row.
        conditions, more = list[str](), list[Value]()
        if query.labels:
            conditions.append("AND marks @> $4::text[] AND marks <> '{}'")
            more.append(array(marks_of(query.labels)))
        if query.delegated_by is not None:
            conditions.append(f"AND delegated_by = ${len(values) + len(more) + 1}")
            more.append(escaped(query.delegated_by))
        if query.agent is not None:
            conditions.append(f"AND agent = ${len(values) + len(more) + 1}")
            more.append(query.agent)
        if query.in_turn is not None:
            conditions.append(f"AND key = ANY (${len(values) + len(more) + 1}::int8[])")
            more.append(array(await _in_turn(at, query.tenant, query.in_turn)))
        sql = _page("key, updated_at, session_id", "key", " ".join(conditions), include_archived=archived)
        keys = array([key for (key,) in await at.login.fetch(sql, *values, *more)])
        sql = _page(COLUMNS, COLUMNS, "AND key = ANY ($4::int8[])", include_archived=archived)
        rows = await at.db.fetch(sql, query.limit, 0, query.tenant, keys)
    return Rows(rows, record_of, lambda row: shown(row[0]))


async def _in_turn(at: Reading, tenant: str, turn: ask.InTurn) -> list[int]:
    """Return the keys of the sessions that a filter lets through."""
    here = [escaped(each) for each in turn.here]
    known = array([*here, *(escaped(each) for each in turn.others)])
    rows = await at.login.fetch(_IN_TURN.format(state=_STATES[turn.state]), tenant, at.me.key, array(here), known)
    return [key for (key,) in rows]


def _page(inner: str, columns: str, condition: str, *, include_archived: bool) -> str:
    """Return SQL for columns of a page of sessions: of $1 rows from $2 on, of the tenant $3."""
    states = (OPEN, ARCHIVED) if include_archived else (OPEN,)
    # Each arm comes in order from the index: no arm is read further than the page needs.
    order = "ORDER BY updated_at DESC, session_id"
    arms = " UNION ALL ".join(
        f"(SELECT {inner} FROM warren.sessions WHERE tenant = $3 AND state = {state} {condition} {order}"
        " LIMIT $1::int8 + $2::int8)"
        for state in states
    )
    return f"SELECT {columns} FROM ({arms}) AS every {order} LIMIT $1::int8 OFFSET $2::int8"


async def _nodes(at: Reading, _query: ask.LivingNodes) -> list[Node]:
    return oldest_first(node_in(row) for row in await at.db.fetch(NODES, at.me.key))


async def _holder(at: Reading, query: ask.SessionHolder) -> Node | None:
    rows = await at.db.fetch(_HOLDER_OF, escaped(query.session_id), query.tenant, at.me.key)
    return node_in(rows[0]) if rows else None


async def _held(at: Reading, query: ask.Holders) -> dict[str, Held]:
    rows = await at.db.fetch(_HELD_BY, array([escaped(each) for each in query.session_ids]))
    return {unescaped(session_id): Held(*held) for session_id, *held in rows}


async def _handed_over(at: Reading, query: ask.HandoverAnswer) -> bool | None:
    rows = await at.db.fetch(_ANSWER, escaped(query.session_id))
    owner, asked = rows[0] if rows else (None, None)
    if owner in (None, at.me.key):
        return True
    return None if asked == owner else False


async def _news(at: Reading, query: ask.StoreNews) -> News:
    db, me, watched = at.login, at.me.key, array([escaped(each) for each in query.watched])
    async with snapshot(db):
        inbox_to = await db.value(_SNAPSHOT)
        wanted = await db.fetch(_WANTED, me)
        arrived = await db.fetch(_ARRIVED, me, str(query.inbox_after))
        rows = await db.fetch(_WATCHED, watched) if query.watched else []
    return News(
        [unescaped(session_id) for (session_id,) in wanted],
        readable_inputs([(number, body, unescaped(session_id)) for number, body, session_id in arrived]),
        inbox_to,
        {unescaped(each): live_seq(last_seq, state) for each, last_seq, state in rows if state != DELETED},
    )


QUERIES: Final[Mapping[type[Query[Any]], Callable[[Reading, Any], Awaitable[Any]]]] = {
    ask.HasSession: _has,
    ask.SessionRow: _record,
    ask.Children: delegating.count,
    ask.SessionHolder: _holder,
    ask.WaitingInputs: lambda at, query: inbox.waiting(at.db, query.session_id, query.tenant),
    ask.WaitingNotices: lambda at, query: inbox.notices(at.db, query.session_ids),
    ask.StoredWait: waits.find,
    ask.OpenWaits: waits.open_waits,
    ask.LostEvents: _lost,
    ask.StoredHistory: _history,
    ask.StoredAttachment: attachments.find,
    ask.AttachmentBytes: attachments.read,
    ask.SessionStart: _load,
    ask.ModelContext: _context,
    ask.InstructionsBefore: _instructions,
    ask.StoredMessages: _messages_of,
    ask.StoredEvents: _replay,
    ask.LastStored: _last_stored,
    ask.WasTold: _was_told,
    ask.HandoverAnswer: _handed_over,
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
    ask.PeerNamed: _named,
    ask.CreatedUnder: _creation,
    ask.SessionCount: _sessions,
    ask.OwnedSessions: _owned,
    ask.StoredBytes: _stored_bytes,
    ask.TokensSince: ledger.tokens_since,
    ask.LedgerSums: ledger.usage,
    ask.AuditEntries: audit.page,
    ask.LivingNodes: _nodes,
    ask.Holders: _held,
    ask.WaitingSessions: _sessions_that_wait,
    ask.NextWake: waits.next_wake,
    ask.OpenTurns: _open_turns,
    ask.SleepingTurns: _sleeping,
    ask.StoreNews: _news,
    ask.KnownTenants: ledger.tenants,
    ask.DueErasures: _erasures,
    ask.UnsureFiles: attachments.unsure,
}


async def answer(db: Connection, me: Holder, guard: Guard | None, query: Query[R]) -> R:
    """Return the answer to a query, behind row-level security if it is asked for a tenant. Raises as the connection."""
    tenant: str | None = getattr(query, "tenant", None)
    if tenant is None:
        return await _answered(Reading(db, db, me), query)
    if guard is None:  # the store has gone back while this call waited for a connection
        raise LostError("the database is being looked at anew")
    try:
        return await _answered(Reading(guard.on(db, tenant), db, me), query)
    except errors.InsufficientPrivilege as exc:  # a restore gives the rights last of all
        raise LostError(str(exc).strip()) from exc


async def _answered(at: Reading, query: Query[R]) -> R:
    found: R = await QUERIES[type(query)](at, query)
    return found
