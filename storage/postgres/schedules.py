"""Schedules and their runs, with SQL."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from warren.conversation.schedules import KEPT_RUNS, Run, Schedule
from warren.storage import operations as ops
from warren.storage.postgres import audit, owned
from warren.storage.postgres.driver import Connection, Row, Value, array, escaped, unescaped
from warren.storage.postgres.lease import Holder, alive
from warren.storage.postgres.reading import Reading
from warren.storage.postgres.waits import NOW
from warren.storage.queries import NextDue, ScheduleList, ScheduleRow
from warren.storage.refusals import no_schedule, too_many_schedules
from warren.storage.results import Rows
from warren.storage.rows import (
    SCHEDULE,
    bytes_in,
    corrupt,
    due_in,
    microseconds,
    run_in,
    run_to_row,
    schedule_in,
    schedule_to_row,
    shown,
)

_SCHEDULE: Final = ", ".join(f"p.{each}" for each in SCHEDULE.split(", "))
_CREATED: Final = f"SELECT {SCHEDULE} FROM warren.schedules WHERE tenant = $1 AND creation = $2"
_COUNT: Final = "SELECT count(*) FROM warren.schedules WHERE tenant = $1"
_ADD: Final = f"""
    INSERT INTO warren.schedules ({SCHEDULE}, session) VALUES ($1, $2, $3, $4::int8, $5, $6, $7::int8)
    ON CONFLICT (tenant, creation) WHERE creation IS NOT NULL DO NOTHING RETURNING key
"""
_CHANGE: Final = """
    UPDATE warren.schedules SET due = $3::int8, problem = $4, body = $5, session = $6::int8, holder = NULL
    WHERE id = $1 AND tenant = $2 RETURNING key
"""
_DROP: Final = """
    WITH gone AS (DELETE FROM warren.schedules WHERE id = $1 AND tenant = $2 RETURNING key),
        runs AS (DELETE FROM warren.schedule_runs WHERE schedule IN (SELECT key FROM gone))
    SELECT key FROM gone
"""
DROP_OF: Final = """
    plans AS (DELETE FROM warren.schedules WHERE session = $1::int8 RETURNING key),
    runs AS (DELETE FROM warren.schedule_runs WHERE schedule IN (SELECT key FROM plans))
"""
"""Parts of a statement that removes the schedules of the session $1."""
# The run before has not ended while its prompt waits, or while the turn runs that has taken it.
_BUSY: Final = """
    EXISTS (SELECT FROM warren.schedule_runs r JOIN warren.inbox i ON i.session = r.session
        AND i.key = 'schedule/' || p.id || '/' || r.due JOIN warren.sessions s ON s.key = r.session
        WHERE r.schedule = p.key AND (i.outcome IS NULL OR i.outcome = '' AND s.turn IS NOT NULL))
"""
_TAKE: Final = f"""
    WITH others AS MATERIALIZED (
        SELECT h.key FROM warren.holders h WHERE h.key IS DISTINCT FROM $1::int AND {alive("$1::int")}
    ), taken AS MATERIALIZED (
        SELECT p.key FROM warren.schedules p WHERE due <= {NOW}
            AND NOT EXISTS (SELECT FROM others WHERE others.key = p.holder) AND id <> ALL ($3::text[])
        ORDER BY due LIMIT $2::int8 FOR UPDATE SKIP LOCKED
    )
    UPDATE warren.schedules p SET holder = $1::int FROM taken WHERE p.key = taken.key
    RETURNING p.key, {_SCHEDULE}, {_BUSY}
"""
_AFTER: Final = f"SELECT min(due) FROM warren.schedules WHERE due > {NOW}"
_SET_ASIDE: Final = "UPDATE warren.schedules SET due = NULL, holder = NULL, problem = $2 WHERE key = $1::int8"
_ADVANCE: Final = f"""
    WITH moved AS (
        UPDATE warren.schedules SET due = $3::int8, problem = $4, holder = NULL WHERE id = $1 AND due = $2::int8
        RETURNING key, tenant
    ), told AS (
        SELECT key, tenant FROM moved UNION SELECT key, tenant FROM warren.schedules WHERE id = $1 AND $7::bool
    ), forgotten AS (
        DELETE FROM warren.schedule_runs r USING told WHERE r.schedule = told.key AND r.due <=
            (SELECT due FROM warren.schedule_runs o WHERE o.schedule = told.key ORDER BY due DESC LIMIT 1
                OFFSET {KEPT_RUNS - 1})
    )
    INSERT INTO warren.schedule_runs (schedule, due, tenant, session, body)
    SELECT key, $2::int8, tenant, (SELECT s.key FROM warren.sessions s WHERE session_id = $5), $6 FROM told
    ON CONFLICT DO NOTHING
"""
_ROW: Final = f"SELECT {SCHEDULE} FROM warren.schedules WHERE id = $1 AND tenant = $2"
_LIST: Final = f"""
    SELECT key, {_SCHEDULE} FROM warren.schedules p WHERE tenant = $1 AND ($2::text IS NULL OR id = $2)
        AND ($3::text IS NULL OR session = (SELECT s.key FROM warren.sessions s WHERE session_id = $3))
    ORDER BY key LIMIT $4::int8 OFFSET $5::int8
"""
_RUNS: Final = """
    SELECT r.schedule, r.due, r.body, CASE WHEN i.number IS NOT NULL THEN coalesce(i.outcome, '') END
    FROM warren.schedule_runs r
    JOIN warren.schedules p ON p.key = r.schedule
    LEFT JOIN warren.inbox i ON i.session = r.session AND i.key = 'schedule/' || p.id || '/' || r.due
    WHERE r.schedule = ANY ($1::int8[]) ORDER BY r.due DESC
"""
_NEXT: Final = "SELECT min(due) FROM warren.schedules WHERE due IS NOT NULL"


async def put(operation: ops.PutSchedule, db: Connection, _holder: Holder) -> Schedule:
    """Write the row of a schedule."""
    return await owned.put(operation, _TABLE, db)


def _values(schedule: Schedule) -> tuple[Value, ...]:
    schedule_id, tenant, creation, due, problem, body = schedule_to_row(schedule)
    texts = [None if each is None else escaped(each) for each in (creation, problem)]
    return escaped(schedule_id), tenant, texts[0], due, texts[1], body


async def drop(operation: ops.DropSchedule, db: Connection, _holder: Holder) -> bool:
    """Remove the rows of a schedule."""
    if not await db.fetch(_DROP, escaped(operation.schedule_id), operation.tenant):
        return False
    await audit.add(db, (operation.audit,))
    return True


async def take(operation: ops.TakeDue, db: Connection, holder: Holder) -> ops.Taken:
    """Note this process as the one that deals with what is due; a damaged schedule is due no more."""
    found = []
    without = array([escaped(each) for each in operation.without])
    for key, *row, busy in await db.fetch(_TAKE, holder.key, operation.limit, without):
        try:
            found.append(ops.DueSchedule(schedule_in(_plain(tuple(row))), busy))
        except ValueError as exc:
            await db.fetch(_SET_ASIDE, key, escaped(f"it is damaged: {exc}"))
    found.sort(key=lambda each: each.schedule.due or datetime.min.replace(tzinfo=UTC))
    return ops.Taken(found, due_in(await db.value(_AFTER)))


async def advance(operation: ops.Advance, db: Connection, _holder: Holder) -> None:
    """Move the time of a schedule, and add the row of its run."""
    run, following = operation.run, operation.following
    due, body = run_to_row(run)
    after = None if following is None else microseconds(following)
    problem = None if operation.problem is None else escaped(operation.problem)
    session_id = None if run.session_id is None else escaped(run.session_id)
    fired = run.state == "fired"
    await db.fetch(_ADVANCE, escaped(operation.schedule_id), due, after, problem, session_id, body, fired)


async def row(at: Reading, query: ScheduleRow) -> Schedule | None:
    """Return a schedule. Raises StoreError(cause="corrupt")."""
    rows = await at.db.fetch(_ROW, escaped(query.schedule_id), query.tenant)
    try:
        return schedule_in(_plain(rows[0])) if rows else None
    except ValueError as exc:
        raise corrupt(f"schedule {query.schedule_id}", exc) from exc


async def page(at: Reading, query: ScheduleList) -> Rows[tuple[Schedule, Sequence[tuple[Run, bytes | None]]]]:
    """Return schedules of a tenant with their runs."""
    ids = [None if each is None else escaped(each) for each in (query.schedule_id, query.session_id)]
    rows = await at.db.fetch(_LIST, query.tenant, *ids, query.limit, query.offset)
    runs: dict[object, list[Row]] = {}
    for key, *run in await at.db.fetch(_RUNS, array([each[0] for each in rows])) if rows else ():
        runs.setdefault(key, []).append(tuple(run))
    return Rows([(runs.get(key, ()), _plain(tuple(row))) for key, *row in rows], _listed, _name)


async def next_due(at: Reading, _query: NextDue) -> datetime | None:
    """Return the earliest time at which a schedule is due."""
    return due_in(await at.db.value(_NEXT))


def _listed(row: Row) -> tuple[Schedule, Sequence[tuple[Run, bytes | None]]]:
    runs, schedule = row
    return schedule_in(schedule), [
        (run_in(due, body), None if outcome is None else bytes_in(outcome, "outcome")) for due, body, outcome in runs
    ]


def _plain(row: Row) -> Row:
    schedule_id, tenant, creation, due, problem, body = row
    texts = [None if each is None else unescaped(each) for each in (creation, problem)]
    return unescaped(schedule_id), tenant, texts[0], due, texts[1], body


def _name(row: Row) -> str:
    return f"schedule {shown(row[1][0])}"


def _of_row(row: Row) -> Schedule:
    return schedule_in(_plain(row))


_TABLE: Final = owned.Table(_CREATED, _COUNT, _ADD, _CHANGE, _values, _of_row, no_schedule, too_many_schedules)
