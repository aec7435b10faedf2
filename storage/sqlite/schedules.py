"""Schedules and their runs, with SQL."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import apsw

from warren.conversation.schedules import KEPT_RUNS, Run, Schedule
from warren.storage.operations import Advance, DropSchedule, DueSchedule, PutSchedule, TakeDue, Taken
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
from warren.storage.sqlite import audit, owned
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.lease import Holder
from warren.storage.sqlite.reading import Reading

_SCHEDULE: Final = raw(SCHEDULE)
_CREATED: Final = f"SELECT {_SCHEDULE} FROM schedules WHERE tenant = ? AND creation = ?"
_COUNT: Final = "SELECT count(*) FROM schedules WHERE tenant = ?"
_ADD: Final = f"INSERT INTO schedules ({SCHEDULE}, session) VALUES (?,?,?,?,?,?,?)"
_CHANGE: Final = """
    UPDATE schedules SET due = ?3, problem = ?4, body = ?5, session = ?6, holder = NULL WHERE id = ?1 AND tenant = ?2
    RETURNING key
"""
_TABLE: Final = owned.Table(
    _CREATED, _COUNT, _ADD, _CHANGE, schedule_to_row, schedule_in, no_schedule, too_many_schedules
)
_DROP: Final = "DELETE FROM schedules WHERE id = ? AND tenant = ? RETURNING key"
_DROP_RUNS: Final = "DELETE FROM schedule_runs WHERE schedule = ?"
_HOLDERS: Final = "SELECT DISTINCT holder FROM schedules WHERE due <= ? AND holder IS NOT NULL"
# The run before has not ended while its prompt waits, or while the turn runs that has taken it.
_BUSY: Final = """
    EXISTS (SELECT 1 FROM schedule_runs r JOIN inbox i ON i.session = r.session
        AND i.key = 'schedule/' || schedules.id || '/' || r.due JOIN sessions s ON s.key = r.session
        WHERE r.schedule = schedules.key AND (i.outcome IS NULL OR i.outcome = '' AND s.turn IS NOT NULL))
"""
_DUE: Final = f"""
    SELECT key, {_SCHEDULE}, {_BUSY} FROM schedules
    WHERE due <= ? AND (holder IS NULL OR holder NOT IN (SELECT value FROM json_each(?)))
        AND id NOT IN (SELECT value FROM json_each(?)) ORDER BY due LIMIT ?
"""
_AFTER: Final = "SELECT due FROM schedules WHERE due > ? ORDER BY due LIMIT 1"
_TAKE: Final = "UPDATE schedules SET holder = ? WHERE key = ?"
_SET_ASIDE: Final = "UPDATE schedules SET due = NULL, holder = NULL, problem = ? WHERE key = ?"
_ADVANCE: Final = """
    UPDATE schedules SET due = ?3, problem = ?4, holder = NULL WHERE id = ?1 AND due = ?2 RETURNING key, tenant
"""
_KNOWN: Final = "SELECT key, tenant FROM schedules WHERE id = ?"
_ADD_RUN: Final = """
    INSERT INTO schedule_runs (schedule, tenant, due, session, body)
    VALUES (?, ?, ?, (SELECT key FROM sessions WHERE session_id = ?), ?) ON CONFLICT DO NOTHING
"""
_FORGET: Final = f"""
    DELETE FROM schedule_runs WHERE schedule = ?1 AND due <=
        (SELECT due FROM schedule_runs WHERE schedule = ?1 ORDER BY due DESC LIMIT 1 OFFSET {KEPT_RUNS})
"""
_ROW: Final = f"SELECT {_SCHEDULE} FROM schedules WHERE id = ? AND tenant = ?"
_LIST: Final = f"""
    SELECT key, {_SCHEDULE} FROM schedules WHERE tenant = ?1 AND (?2 IS NULL OR id = ?2) AND (?3 IS NULL OR session =
        (SELECT key FROM sessions WHERE session_id = ?3)) ORDER BY key LIMIT ?4 OFFSET ?5
"""
_RUNS: Final = f"""
    SELECT r.due, {raw("r.body")}, iif(i.number IS NULL, NULL, CAST(coalesce(i.outcome, '') AS BLOB))
    FROM schedule_runs r JOIN schedules ON schedules.key = r.schedule
    LEFT JOIN inbox i ON i.session = r.session AND i.key = 'schedule/' || schedules.id || '/' || r.due
    WHERE r.schedule = ? ORDER BY r.due DESC
"""
_NEXT: Final = "SELECT due FROM schedules WHERE due IS NOT NULL ORDER BY due LIMIT 1"


def put(operation: PutSchedule, db: apsw.Connection, _holder: Holder) -> Schedule:
    """Write the row of a schedule."""
    return owned.put(operation, _TABLE, db)


def drop(operation: DropSchedule, db: apsw.Connection, _holder: Holder) -> bool:
    """Remove the rows of a schedule."""
    key = db.execute(_DROP, (operation.schedule_id, operation.tenant)).get
    if key is None:
        return False
    db.execute(_DROP_RUNS, (key,))
    audit.add(db, (operation.audit,))
    return True


def drop_of(db: apsw.Connection, session: int) -> None:
    """Remove the schedules of a session."""
    for (key,) in db.execute("DELETE FROM schedules WHERE session = ? RETURNING key", (session,)).fetchall():
        db.execute(_DROP_RUNS, (key,))


def take(operation: TakeDue, db: apsw.Connection, holder: Holder) -> Taken:
    """Note this process as the one that deals with what is due; a damaged schedule is due no more."""
    now = int(holder.clock() * 1e6)
    owners: list[Any] = [owner for (owner,) in db.execute(_HOLDERS, (now,)).fetchall() if owner != holder.key]
    alive = [owner for owner in owners if holder.rival(db, owner) is not None]
    values = now, json.dumps(alive), json.dumps(operation.without), operation.limit
    rows: list[Any] = db.execute(_DUE, values).fetchall()
    found = []
    for key, *row, busy in rows:
        try:
            schedule = schedule_in(tuple(row))
        except ValueError as exc:
            db.execute(_SET_ASIDE, (f"it is damaged: {exc}", key))
            continue
        db.execute(_TAKE, (holder.key, key))
        found.append(DueSchedule(schedule, bool(busy)))
    return Taken(found, due_in(db.execute(_AFTER, (now,)).get))


def advance(operation: Advance, db: apsw.Connection, _holder: Holder) -> None:
    """Move the time of a schedule, and add the row of its run."""
    run, following = operation.run, operation.following
    due, body = run_to_row(run)
    after = None if following is None else microseconds(following)
    schedule = db.execute(_ADVANCE, (operation.schedule_id, due, after, operation.problem)).get
    if schedule is None and run.state == "fired":
        schedule = db.execute(_KNOWN, (operation.schedule_id,)).get
    if schedule is not None:
        db.execute(_ADD_RUN, (*schedule, due, run.session_id, body))
        db.execute(_FORGET, (schedule[0],))


def row(at: Reading, query: ScheduleRow) -> Schedule | None:
    """Return a schedule. Raises StoreError(cause="corrupt")."""
    found: Any = at.db.execute(_ROW, (query.schedule_id, query.tenant)).fetchone()
    try:
        return None if found is None else schedule_in(found)
    except ValueError as exc:
        raise corrupt(f"schedule {query.schedule_id}", exc) from exc


def page(at: Reading, query: ScheduleList) -> Rows[tuple[Schedule, Sequence[tuple[Run, bytes | None]]]]:
    """Return schedules of a tenant with their runs."""
    values = query.tenant, query.schedule_id, query.session_id, query.limit, query.offset
    rows: list[Any] = at.db.execute(_LIST, values).fetchall()
    return Rows([(key, tuple(row), at.db.execute(_RUNS, (key,)).fetchall()) for key, *row in rows], _listed, _name)


def next_due(at: Reading, _query: NextDue) -> datetime | None:
    """Return the earliest time at which a schedule is due."""
    return due_in(at.db.execute(_NEXT).get)


def _listed(row: tuple[Any, ...]) -> tuple[Schedule, Sequence[tuple[Run, bytes | None]]]:
    _, schedule, runs = row
    return schedule_in(schedule), [
        (run_in(due, body), None if outcome is None else bytes_in(outcome, "outcome")) for due, body, outcome in runs
    ]


def _name(row: tuple[Any, ...]) -> str:
    return f"schedule {shown(row[1][0])}"
