"""Reads of the store. Each function sees one snapshot of its connection."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

import json
import secrets
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from warren import codec
from warren.creation import FIRST_PROMPT, Created
from warren.nodes import Node
from warren.records import CompactionEntry, EventRow, MessageRow, SessionRecord, Span
from warren.storage.membership import SECRET_BYTES, node_of, oldest_first, secret_of, status_of
from warren.storage.postgres.commit import marks_of
from warren.storage.postgres.driver import Connection, Row, array, escaped, unescaped
from warren.storage.postgres.guard import Guarded
from warren.storage.postgres.lease import Holder, alive, rival
from warren.storage.results import Context, Held, Lost, News, Replay, Rows, StoredPage, StoredSession
from warren.storage.rows import (
    ARCHIVED,
    COLUMNS,
    COMPACTION,
    DELETED,
    OPEN,
    SEQ_STRIDE,
    compaction,
    corrupt,
    decoded,
    event_or_empty,
    live_seq,
    message,
    readable_compaction,
    readable_inputs,
    row_to_record,
    shown,
)
from warren.storage.standins import complete

REPLAY_BYTES: Final = 256 * 1024
"""Characters of events after which a part of a log is long enough: its reader holds all of it."""
Readable = Connection | Guarded
_TEXTS: Final = (0, 4, 11, 14)
"""The columns of a record that hold texts of callers: the id, the model, the title, the owner."""
_KEY: Final = f"(SELECT key FROM warren.sessions WHERE session_id = $1 AND state <> {DELETED})"
# Of a tenant if one is given; $2 is NULL for what a process reads for itself.
OF: Final = "($2::text IS NULL OR tenant = $2)"
_KEY_OF: Final = f"(SELECT key FROM warren.sessions WHERE session_id = $1 AND state <> {DELETED} AND {OF})"
_RECORD: Final = f"SELECT {COLUMNS} FROM warren.sessions WHERE session_id = $1 AND state <> {DELETED} AND {OF}"
_HELD: Final = f"SELECT {COLUMNS}, holder FROM warren.sessions WHERE session_id = $1 AND state <> {DELETED}"
_MESSAGES: Final = f"""
    SELECT position, created_at, body FROM warren.messages
    WHERE session = {_KEY_OF} AND position >= $3::int8 AND position < $4::int8 ORDER BY position
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
    SELECT last_seq, events_after, holder, {rival("s.holder", "$3::int")} FROM warren.sessions s WHERE key = {_KEY_OF}
"""
_NEXT_EVENT: Final = f"""
    SELECT first_seq, starts_with(body, '{{"type":"run_failed"') FROM warren.events
    WHERE session = {_KEY_OF} AND seq >= $3::int8 ORDER BY seq LIMIT 1
"""
_LAST_STORED: Final = f"""
    SELECT greatest(events_after, coalesce((
        SELECT least(seq, $2::int8) FROM warren.events WHERE session = s.key AND first_seq <= $2::int8
        ORDER BY seq DESC LIMIT 1), 0))
    FROM warren.sessions s WHERE session_id = $1 AND state <> {DELETED}
"""
_LAST_BEFORE: Final = f"SELECT max(seq) FROM warren.events WHERE session = {_KEY_OF} AND seq < $3::int8"
# The living processes are found once, not for each session: to ask the server for its locks takes long.
_SESSIONS_THAT_WAIT: Final = f"""
    WITH others AS MATERIALIZED (
        SELECT h.key FROM warren.holders h WHERE h.key IS DISTINCT FROM $1::int AND {alive("$1::int")}
    )
    SELECT session_id FROM warren.sessions s
    WHERE state = {OPEN} AND key IN (SELECT session FROM warren.inbox WHERE outcome IS NULL AND starts)
        AND NOT EXISTS (SELECT FROM others WHERE others.key = s.holder)
    ORDER BY row_number() OVER (PARTITION BY tenant ORDER BY key), key
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
    WHERE tenant = $1
"""
_BYTES_OF_FILES: Final = "SELECT coalesce(sum(octet_length(body)), 0)::int8 FROM warren.blobs WHERE tenant = $1"
_FILES_OF_OWNER: Final = """ AND key IN (
    SELECT blob FROM warren.attachments JOIN warren.sessions s ON s.key = session WHERE s.tenant = $1 AND owner = $2
)"""
_OWNED: Final = f"SELECT session_id FROM warren.sessions WHERE tenant = $1 AND owner = $2 AND state <> {DELETED}"
_ERASURES: Final = "SELECT session_id FROM warren.erasures ORDER BY session_id"
# With the number of processes so far: of one that came, wrote and left between two looks no row tells.
_WROTE: Final = """
    SELECT hashtextextended((SELECT last_value FROM warren.holders_key_seq) || ' '
        || coalesce(string_agg(wrote, ',' ORDER BY wrote), ''), 0) FROM (
        SELECT holder || ' ' || generation || ' ' || groups AS wrote
        FROM warren.writers WHERE holder IS DISTINCT FROM $1::int
    ) AS others
"""
# This process counts as alive for itself, as late as it may be.
_NODES: Final = f"""
    SELECT h.key, h.name, h.status FROM warren.holders h WHERE h.key = $1::int OR {alive("$1::int")}
"""
_HOLDER_OF: Final = f"""
    SELECT h.key, h.name, h.status FROM warren.sessions s JOIN warren.holders h ON h.key = s.holder
    WHERE s.session_id = $1 AND {OF} AND state <> {DELETED} AND (h.key = $3::int OR {alive("$3::int")})
"""
_HELD_BY: Final = f"""
    SELECT session_id, holder, last_seq FROM warren.sessions WHERE session_id = ANY ($1::text[]) AND state <> {DELETED}
"""
_ASK_TO_LEAVE: Final = "UPDATE warren.holders SET leaves = true WHERE key = ANY ($1::int[])"
_CLUSTER_KEY: Final = "SELECT secret FROM warren.meta"
# The condition makes the first of several callers win.
_ADD_CLUSTER_KEY: Final = "UPDATE warren.meta SET secret = $1 WHERE secret IS NOT DISTINCT FROM $2"
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


@asynccontextmanager
async def snapshot(db: Connection) -> AsyncIterator[None]:
    """Let all statements of the block see one state. Raises as `Connection.fetch`."""
    await db.script("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        yield
        await db.script("COMMIT")
    finally:
        await db.roll_back()


def record_of(row: Row) -> SessionRecord:
    """Return the record of a row of `COLUMNS`. Raises StoreError(cause="corrupt")."""
    values = list(row)
    for at in _TEXTS:
        values[at] = None if values[at] is None else unescaped(values[at])
    return row_to_record(tuple(values))


async def load(db: Connection, session_id: str, me: int | None) -> StoredSession | None:
    """Return the record and the event floor for an actor in the process of that key; None for an unknown session."""
    rows = await db.fetch(_HELD, escaped(session_id))
    if not rows:
        return None
    *columns, holder = rows[0]
    found = record_of(tuple(columns))
    return StoredSession(found, found.last_seq + (0 if holder in (None, me) else SEQ_STRIDE))


async def is_of(db: Readable, tenant: str, session_id: str) -> bool:
    """Return whether a session is of a tenant, also if it was deleted since."""
    return bool(await db.fetch(_IS_OF, escaped(session_id), tenant))


async def sessions(db: Readable, tenant: str, owner: str | None) -> int:
    """Return how many sessions of a tenant are neither archived nor deleted: all, or those of an owner."""
    ((count,),) = await db.fetch(_SESSIONS_OF, tenant, None if owner is None else escaped(owner))
    return int(count)


async def owned(db: Readable, tenant: str, owner: str) -> list[str]:
    """Return the ids of the sessions of a tenant that an owner has and that are not deleted."""
    return [unescaped(session_id) for (session_id,) in await db.fetch(_OWNED, tenant, escaped(owner))]


async def stored_bytes(db: Readable, tenant: str, owner: str | None) -> int:
    """Return the bytes of the messages, inputs, events and files of a tenant, or of the sessions of an owner."""
    queries = [_BYTES_OF.format(table=table) for table in ("messages", "events", "inbox")]
    if owner is None:
        found = [await db.fetch(query, tenant) for query in (*queries, _BYTES_OF_FILES)]
    else:
        queries = [*(f"{each} AND owner = $2" for each in queries), _BYTES_OF_FILES + _FILES_OF_OWNER]
        found = [await db.fetch(query, tenant, escaped(owner)) for query in queries]
    return sum(int(count) for ((count,),) in found)


async def record(db: Readable, session_id: str, tenant: str | None = None) -> SessionRecord | None:
    """Return a session's record; None for a session that is not here."""
    rows = await db.fetch(_RECORD, escaped(session_id), tenant)
    return record_of(rows[0]) if rows else None


async def creation(db: Readable, tenant: str, key: str) -> Created | None:
    """Return the session that was created under an idempotency key, also if it was deleted since."""
    rows = await db.fetch(_CREATION, escaped(key), tenant)
    if not rows:
        return None
    ((stored_id, params, outcome),) = rows
    session_id = unescaped(stored_id)
    try:
        digests = codec.decode_stored(dict[str, str], params.encode())
    except ValueError as exc:
        raise corrupt(f"the idempotency key of session {shown(session_id)}", exc, shown(session_id)) from exc
    return Created(session_id, digests, None if outcome is None else outcome.encode())


async def context(db: Connection, session_id: str, head: int, count: int) -> Context:
    """Return the messages for the model of a session of `count` messages with its head at `head`.

    A message that cannot be read or is missing has a stand-in, so that positions stay and the session can go on.
    """
    if not head:
        return Context(None, None, complete(await _rows(db, session_id, 0, count), 0, count))
    async with snapshot(db):
        rows = await _rows(db, session_id, head, count - head)
        first = await _rows(db, session_id, 0, 1)
        newest = await db.fetch(_NEWEST_COMPACTION, escaped(session_id))
    return Context(
        first=complete(first, 0, 1)[0],
        compaction=readable_compaction(_move(newest[0]), head) if newest else None,
        rows=complete(rows, head, count),
    )


async def history(db: Readable, session_id: str, tenant: str, offset: int, limit: int) -> StoredPage:
    """Return the messages at the `limit` positions from `offset` on, and the compactions that moved the head there."""
    of, to = (escaped(session_id), tenant), offset + limit
    counts, rows, moved = await db.fetch_each(
        (_COUNTS, *of), (_MESSAGES, *of, offset, to), (_COMPACTIONS, *of, offset, to)
    )
    total, kept_from, details = counts[0] if counts else (0, 0, "{}")
    moves = Rows(moved, compaction_of, lambda row: f"compaction to {row[2]}")
    return StoredPage(_messages(rows), total, kept_from, moves, _left_out(details))


def compaction_of(row: Row) -> CompactionEntry:
    """Return the compaction of a row of `COMPACTION`. Raises ValueError."""
    return compaction(_move(row))


def _move(row: Row) -> Row:
    *others, summary, tokens = row
    return (*others, unescaped(summary), tokens)


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


async def messages(db: Connection, session_id: str, offset: int, limit: int) -> tuple[Rows[MessageRow], int]:
    """Return the messages at the `limit` positions from `offset` on that are there, and how many the session has."""
    of = (escaped(session_id), None)
    counts, rows = await db.fetch_each((_COUNTS, *of), (_MESSAGES, *of, offset, offset + limit))
    return _messages(rows), counts[0][0] if counts else 0


async def _rows(db: Connection, session_id: str, offset: int, limit: int) -> Rows[MessageRow]:
    return _messages(await db.fetch(_MESSAGES, escaped(session_id), None, offset, offset + limit))


def _messages(rows: list[Row]) -> Rows[MessageRow]:
    return Rows(rows, message, lambda row: str(row[0]))


async def replay(db: Connection, session_id: str, after_seq: int, limit: int) -> Replay:
    """Return rows of the event log that end above `after_seq`, and the number up to which retention removed events."""
    of = escaped(session_id)
    rows, gone = await db.fetch_each((_EVENTS, of, after_seq, limit), (_EVENTS_AFTER, of))
    found: list[EventRow] = [event_or_empty(row) for row in rows]
    return Replay(found, gone[0][0] if gone else None)


async def lost(db: Readable, session_id: str, tenant: str, seq: int, me: Holder) -> Lost | None:
    """Return the lost events around an event that a reader was shown; None if it is stored, or may be some day.

    An event that was shown and that no row covers belongs to a turn whose process died before the commit. A living
    process may still store the events above the last number of the session.
    """
    of = (escaped(session_id), tenant)
    found, following, ((before,),) = await db.fetch_each(
        (_LOG_OF, *of, me.key), (_NEXT_EVENT, *of, seq), (_LAST_BEFORE, *of, seq)
    )
    if not found:
        return None
    ((last_seq, gone, owner, alive),) = found
    if seq <= gone:  # retention has removed the row
        return None
    first = max(before or 0, gone) + 1
    if following:
        ((first_seq, is_end),) = following
        # A turn that was stored in part ends with an event of its own.
        return None if first_seq <= seq + 1 else Lost(first, first_seq - 1, bool(is_end))
    final = owner in (None, me.key) or alive is not None
    last = last_seq if final else last_seq + SEQ_STRIDE
    return Lost(first, last, final=final) if last > seq else None


async def last_stored(db: Connection, session_id: str, up_to: int) -> int | None:
    """Return the number of the last event up to a number that is stored, or that retention has removed."""
    rows = await db.fetch(_LAST_STORED, escaped(session_id), up_to)
    return rows[0][0] if rows else None


async def sessions_that_wait(db: Connection, me: int | None) -> list[str]:
    """Return the sessions with a waiting input that begins a turn and without another living process as holder."""
    return [unescaped(session_id) for (session_id,) in await db.fetch(_SESSIONS_THAT_WAIT, me)]


async def was_told(db: Connection, session_id: str, input_id: str, source: str, beginning: str) -> bool:
    """Tell whether a peer's input waits for a session, or is in its conversation as a text that begins so.

    The search begins at the newest message, because the input has mostly just come.
    """
    waits = await db.fetch(_FROM, escaped(session_id), escaped(input_id))
    if waits:
        return decoded(waits[0][0], session_id).source == source
    text = codec.encode_whole(beginning).decode()[1:-1]
    bodies = (f'{{"role":"{role}","content":"{text}' for role in ("user", "context"))
    return bool(await db.fetch(_TOLD, escaped(session_id), *bodies))


async def named(db: Readable, tenant: str, peer: str) -> str | None:
    """Return the session that has a name among its peers."""
    rows = await db.fetch(_NAMED, escaped(peer), tenant)
    return unescaped(rows[0][0]) if rows else None


async def erasures(db: Connection) -> Rows[str]:
    """Return the deleted sessions of which something may be left elsewhere."""
    return Rows(await db.fetch(_ERASURES), lambda row: unescaped(row[0]), lambda row: shown(row[0]))


async def marked(
    db: Connection, tenant: str, *, offset: int, limit: int, labels: Mapping[str, str], include_archived: bool
) -> list[int]:
    """Return the keys of the sessions on a page of `listing`, for labels of which there is at least one.

    Trap: it is read by the login role. Behind row-level security the index of the labels is not used, as the server
    cannot know that the comparison of arrays shows nothing of a row.
    """
    condition = "AND marks @> $4::text[] AND marks <> '{}'"
    sql = _page("key, updated_at, session_id", "key", condition, include_archived=include_archived)
    return [key for (key,) in await db.fetch(sql, limit, offset, tenant, array(marks_of(labels)))]


async def listing(
    db: Readable,
    tenant: str,
    *,
    offset: int,
    limit: int,
    include_archived: bool,
    keys: Sequence[int] | None = None,
) -> Rows[SessionRecord]:
    """Return a page of the sessions of a tenant, or of those with `keys`: newest `updated_at` first, then by id.

    A damaged row takes a place of the page.
    """
    condition = "" if keys is None else "AND key = ANY ($4::int8[])"
    values = () if keys is None else (array(keys),)
    sql = _page(COLUMNS, COLUMNS, condition, include_archived=include_archived)
    return Rows(await db.fetch(sql, limit, offset, tenant, *values), record_of, lambda row: shown(row[0]))


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


async def version_of_others(db: Connection, me: int | None) -> int:
    """Return a number that changes with each group that another process commits."""
    version: int = (await db.fetch(_WROTE, me))[0][0]
    return version


async def nodes(db: Connection, me: int | None) -> list[Node]:
    """Return the living processes, this one among them."""
    return oldest_first(_node(row) for row in await db.fetch(_NODES, me))


async def holder(db: Readable, session_id: str, me: int | None, tenant: str | None = None) -> Node | None:
    """Return the living process that has a session, which may be this one."""
    rows = await db.fetch(_HOLDER_OF, escaped(session_id), tenant, me)
    return _node(rows[0]) if rows else None


async def held(db: Connection, session_ids: Collection[str]) -> dict[str, Held]:
    """Return the holder of each session and the number of its last event."""
    rows = await db.fetch(_HELD_BY, array([escaped(each) for each in session_ids]))
    return {unescaped(session_id): Held(key, last_seq) for session_id, key, last_seq in rows}


def _node(row: Row) -> Node:
    key, name, status = row
    return node_of(key, unescaped(name), status)


async def ask_to_drain(db: Connection, name: str) -> bool:
    """Ask the living nodes of a name to drain; return whether there is one."""
    rows = await db.fetch(_NODES, None)
    named = [key for key, _, status in rows if status_of(status).node == name]
    if named:
        await db.fetch(_ASK_TO_LEAVE, array(named))
    return bool(named)


async def secret(db: Connection) -> bytes:
    """Return the cluster's secret, which is made if it is missing or damaged."""
    while True:
        ((stored,),) = await db.fetch(_CLUSTER_KEY)
        found = secret_of(stored)
        if found is not None:
            return found
        await db.fetch(_ADD_CLUSTER_KEY, secrets.token_hex(SECRET_BYTES), stored)


async def handed_over(db: Connection, session_id: str, me: int | None) -> bool | None:
    """Return whether a session that was asked for is free now; None as long as there is no answer."""
    rows = await db.fetch(_ANSWER, escaped(session_id))
    owner, asked = rows[0] if rows else (None, None)
    if owner in (None, me):
        return True
    return None if asked == owner else False


async def news(db: Connection, me: int | None, watched: Sequence[str], inbox_after: int) -> News:
    """Return the news for the process of that key: inputs from a snapshot on, and the state of `watched` sessions."""
    async with snapshot(db):
        ((inbox_to,),) = await db.fetch(_SNAPSHOT)
        wanted = await db.fetch(_WANTED, me)
        arrived = await db.fetch(_ARRIVED, me, str(inbox_after))
        rows = await db.fetch(_WATCHED, array([escaped(each) for each in watched])) if watched else []
    return News(
        [unescaped(session_id) for (session_id,) in wanted],
        readable_inputs([(number, body, unescaped(session_id)) for number, body, session_id in arrived]),
        inbox_to,
        {unescaped(each): live_seq(last_seq, state) for each, last_seq, state in rows if state != DELETED},
    )
