"""Retention of a store in a database: one read plans the removal of old rows, many short statements do it."""
# ruff: noqa: S608 - only constants of this module become part of the SQL

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import datetime
from typing import Any, Final

import attrs
import trio

from warren.base.errors import LeasedError, WarrenError
from warren.base.retention import Retention
from warren.conversation.memory import Progress
from warren.settings.config import PostgresConfig
from warren.storage.maintenance import plans
from warren.storage.maintenance.postgres.connecting import be_patient, connected, existing
from warren.storage.operations import Delete
from warren.storage.postgres import PostgresStore, audit
from warren.storage.postgres.driver import Connection, escaped, unescaped
from warren.storage.postgres.lease import rival
from warren.storage.postgres.reading import snapshot
from warren.storage.postgres.schema import prepare
from warren.storage.queries import ANY_TENANT, SessionRow
from warren.storage.rows import ARCHIVED, DELETED, INSTRUCTS

# In both, `edge` is the first row that stays. The process that goes on with an open turn needs its messages and events.
_SUPERSEDED: Final = f"""
    WITH held AS (
        SELECT key, session_id, greatest(1, messages_from) AS low, head FROM warren.sessions
        WHERE state <> {DELETED} AND head > greatest(1, messages_from) {{ended}}
    ), due AS (
        SELECT key, session_id, low, coalesce((
            SELECT position FROM warren.messages
            WHERE session = key AND position >= low AND position < head AND created_at >= $1::int8
            ORDER BY position LIMIT 1
        ), head) AS edge FROM held
    )
    SELECT key, session_id, edge, count(*), sum(octet_length(body))::int8 FROM due
    JOIN warren.messages ON session = key AND position >= low AND position < edge AND NOT {INSTRUCTS}
    GROUP BY 1, 2, 3 ORDER BY 1
"""
_OLD_EVENTS: Final = f"""
    WITH due AS (
        SELECT key, session_id, coalesce((
            SELECT seq FROM warren.events WHERE session = key AND timestamp >= $1::int8 ORDER BY seq LIMIT 1
        ), last_seq + 1) AS edge FROM warren.sessions WHERE state <> {DELETED} {{ended}}
    )
    SELECT key, session_id, edge, count(*), sum(octet_length(body))::int8 FROM due
    JOIN warren.events ON session = key AND seq < edge GROUP BY 1, 2, 3 ORDER BY 1
"""
_OLD_ARCHIVES: Final = f"""
    SELECT key, session_id FROM warren.sessions s
    WHERE state = {ARCHIVED} AND updated_at < $1::int8 AND {rival("s.holder", "NULL::int")} IS NULL ORDER BY key
"""
_WHOLE: Final[dict[plans.Table, str]] = {
    "messages": f"""
        SELECT key, session_id, message_count, count(*), sum(octet_length(body))::int8 FROM warren.sessions
        JOIN warren.messages ON session = key AND position > 0 AND NOT {INSTRUCTS}
        WHERE key = $1::int8 GROUP BY 1, 2, 3
    """,
    "events": """
        SELECT key, session_id, last_seq + 1, count(*), sum(octet_length(body))::int8 FROM warren.sessions
        JOIN warren.events ON session = key WHERE key = $1::int8 GROUP BY 1, 2, 3
    """,
}
# One statement is one transaction: the row of the session is locked, so that no commit moves its head meanwhile.
_DROP: Final[dict[plans.Table, str]] = {
    "messages": f"""
        WITH held AS (
            SELECT key, CASE WHEN state = {ARCHIVED} THEN $2::int8 ELSE least(head, $2::int8) END AS edge
            FROM warren.sessions WHERE session_id = $1 AND state <> {DELETED} FOR NO KEY UPDATE
        ), old AS (
            SELECT session, position FROM warren.messages
            WHERE session = (SELECT key FROM held) AND position > 0 AND position < (SELECT edge FROM held)
                AND NOT {INSTRUCTS}
            ORDER BY position LIMIT $3::int8
        ), gone AS (
            DELETE FROM warren.messages m USING old WHERE m.session = old.session AND m.position = old.position
            RETURNING m.position, m.created_at
        ), counted AS (
            SELECT count(*) AS rows, max(position) + 1 AS edge, max(created_at) AS newest FROM gone
        ), waits AS (
            DELETE FROM warren.waits w USING held, counted
            WHERE w.session = held.key AND w.state = 'settled' AND w.since < counted.newest
        )
        UPDATE warren.sessions s SET messages_from = greatest(messages_from, counted.edge)
        FROM held, counted WHERE s.key = held.key AND counted.rows > 0 RETURNING counted.rows
    """,
    "events": f"""
        WITH held AS (
            SELECT key FROM warren.sessions WHERE session_id = $1 AND state <> {DELETED} FOR NO KEY UPDATE
        ), old AS (
            SELECT session, seq FROM warren.events WHERE session = (SELECT key FROM held) AND seq < $2::int8
            ORDER BY seq LIMIT $3::int8
        ), gone AS (
            DELETE FROM warren.events e USING old WHERE e.session = old.session AND e.seq = old.seq RETURNING e.seq
        ), counted AS (SELECT count(*) AS rows, max(seq) AS edge FROM gone)
        UPDATE warren.sessions s SET events_after = greatest(events_after, counted.edge)
        FROM held, counted WHERE s.key = held.key AND counted.rows > 0 RETURNING counted.rows
    """,
}
_OLD_ENTRIES: Final = "SELECT count(*) FROM warren.audit WHERE at < $1::int8"
_DROP_ENTRIES: Final = """
    DELETE FROM warren.audit WHERE number IN (
        SELECT number FROM warren.audit WHERE at < $1::int8 ORDER BY at LIMIT $2::int8
    ) RETURNING 1
"""
_OLD_USAGE: Final = "SELECT count(*) FROM warren.usage WHERE hour < $1::int8"
_DROP_USAGE: Final = """
    DELETE FROM warren.usage WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM warren.usage WHERE hour < $1::int8 LIMIT $2::int8
    )) RETURNING 1
"""
SIZE: Final = """
    SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::int8 FROM pg_class c
    WHERE c.relnamespace = 'warren'::regnamespace AND c.relkind = 'r'
"""
"""A query for the bytes of all tables with their indexes."""
WITH_TURNS: Final = 23
"""The first version of the tables with open turns."""
Rest = Callable[[float], Awaitable[None]]


async def plan(config: PostgresConfig, retention: Retention, now: datetime) -> plans.Plan:
    """Return the plan for the time `now`; nothing is changed. Raises StoreError."""
    async with connected(config) as db:
        # Tables of an older release have no open turns.
        ended = "AND turn IS NULL" if (await existing(db)).version >= WITH_TURNS else ""
        await be_patient(db)
        async with snapshot(db):
            archived = await _due(db, _OLD_ARCHIVES, retention.archived, now)
            parts: list[tuple[plans.Table, Any]] = [
                (table, row) for key, _ in archived for table, sql in _WHOLE.items() for row in await db.fetch(sql, key)
            ]
            gone = {key for key, _ in archived}
            old = await _due(db, _SUPERSEDED.format(ended=ended), retention.superseded, now)
            parts += [("messages", row) for row in old if row[0] not in gone]
            old = await _due(db, _OLD_EVENTS.format(ended=ended), retention.events, now)
            parts += [("events", row) for row in old if row[0] not in gone]
            before = plans.EARLIEST if retention.audit is None else plans.stored_cut(retention.audit, now)
            # Tables of an older release may have neither: the removal expands them.
            entries = await _count(db, "audit", _OLD_ENTRIES, before)
            hour = plans.stored_hour(retention.usage, now)
            usage = await _count(db, "usage", _OLD_USAGE, hour)
    shares = (plans.Share(unescaped(name), table, edge, rows, size) for table, (_, name, edge, rows, size) in parts)
    sessions = tuple(unescaped(name) for _, name in archived)
    found = plans.Plan(tuple(shares), sessions, entries=entries, entries_before=before)
    return attrs.evolve(found, usage=usage, usage_before=hour)


async def _count(db: Connection, table: str, sql: str, before: int) -> int:
    there = await db.value("SELECT to_regclass('warren.' || $1) IS NOT NULL", table)
    return int(await db.value(sql, before)) if there else 0


async def prune(
    config: PostgresConfig, planned: plans.Plan, progress: Progress | None = None, rest: Rest = trio.sleep
) -> plans.Pruned:
    """Remove the planned rows and sessions; `progress` follows each statement.

    It works beside running processes: each statement is short and locks one session, and `rest` (seconds) leaves room
    for others between two. If it is interrupted, the finished statements stay, and the next call does the rest. The
    room is for new rows as soon as the server's autovacuum has seen it; the size of the tables does not shrink.

    Raises StoreError.
    """
    gone: dict[plans.Table, int] = {"messages": 0, "events": 0}
    total, batch = sum(share.rows for share in planned.shares), plans.BatchSize(200)
    async with connected(config) as db:
        await existing(db)
        await prepare(db)
        before = await db.value(SIZE)
        for share in planned.shares:
            left = share.rows
            while left > 0:
                began, amount = trio.current_time(), min(left, batch.amount)
                count = await db.value(_DROP[share.table], escaped(share.session_id), share.edge, amount) or 0
                gone[share.table] += count
                left = left - amount if count else 0
                if progress is not None:
                    progress(sum(gone.values()), total)
                await rest(batch.took(trio.current_time() - began))
        deleted = await _deleted(config, planned.sessions)
        if planned.entries:
            await audit.add(db, (planned.prune_entry(),))
        entries = await _drop_old(db, _DROP_ENTRIES, planned.entries, planned.entries_before, rest)
        usage = await _drop_old(db, _DROP_USAGE, planned.usage, planned.usage_before, rest)
        after = await db.value(SIZE)
    return plans.Pruned(gone["messages"], gone["events"], deleted, before, after, entries=entries, usage=usage)


async def _drop_old(db: Connection, sql: str, planned: int, before: int, rest: Rest) -> int:
    """Remove rows that are planned, from before a stored time; return how many."""
    removed, batch = 0, plans.BatchSize(200)
    while removed < planned:
        began = trio.current_time()
        async with db.transaction("BEGIN; SET LOCAL warren.retention = 'audit'"):  # else no entry can be removed
            rows = await db.fetch(sql, before, batch.amount)
        if not rows:
            break
        removed += len(rows)
        await rest(batch.took(trio.current_time() - began))
    return removed


async def _deleted(config: PostgresConfig, sessions: tuple[str, ...]) -> tuple[str, ...]:
    """Delete archived sessions, but those that a process has taken meanwhile; return the ids of those that are gone."""
    if not sessions:
        return ()
    deleted = []
    # One of them may have very many rows.
    async with aclosing(await PostgresStore.open(attrs.evolve(config, timeout=max(config.timeout, LONG)))) as store:
        for session_id in sessions:
            found = await store.read(SessionRow(session_id, ANY_TENANT))
            entry = None if found is None else plans.deletion(session_id, found.tenant)
            (outcome,) = await store.write([Delete(session_id, entry)])
            if isinstance(outcome, WarrenError) and not isinstance(outcome, LeasedError):
                raise outcome
            if not isinstance(outcome, LeasedError):
                deleted.append(session_id)
    return tuple(deleted)


LONG: Final = 600.0
"""Seconds that the deletion of one session may take."""


async def _due(db: Connection, sql: str, age: float | None, now: datetime) -> list[Any]:
    return [] if age is None else await db.fetch(sql, plans.stored_cut(age, now))
