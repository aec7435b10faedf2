"""The things that tool calls wait for, with SQL."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import apsw

from warren.conversation.waits import Wait
from warren.storage.queries import NextWake, OpenWaits, StoredWait, WaitList
from warren.storage.results import Rows
from warren.storage.rows import OPEN, WAIT, corrupt, moment, shown, text_in, wait_in, wait_to_row
from warren.storage.sqlite.bulk import execute_rows
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.reading import Reading

SOME_OPEN: Final = "EXISTS (SELECT 1 FROM waits WHERE session = sessions.key AND waits.state <> 'settled')"
"""SQL that tells whether a session has waits that are not settled."""
# The tenant is that of the session, which never changes.
_PUT: Final = f"""
    INSERT INTO waits (session, tenant, {WAIT})
    SELECT column1, tenant, column2, column3, column4, column5, column6, column7 FROM (VALUES {{rows}})
    JOIN sessions ON sessions.key = column1 WHERE true
    ON CONFLICT (session, wait_id, reason) DO UPDATE SET
        state = excluded.state, since = excluded.since, until = excluded.until, body = excluded.body
"""
_SETTLE: Final = """
    UPDATE waits SET state = 'settled'
    WHERE state <> 'settled' AND reason <> 'background' AND session IN (VALUES {rows})
"""
_SETTLE_ALL: Final = "UPDATE waits SET state = 'settled' WHERE state <> 'settled' AND session = ?"
_OPEN_OF: Final = f"SELECT key, {raw(WAIT)} FROM waits WHERE session = ? AND state <> 'settled' ORDER BY key"
_FIND: Final = f"""
    SELECT {raw(WAIT)} FROM waits WHERE session = (SELECT key FROM sessions WHERE session_id = ?) AND wait_id = ?
        AND reason IN (SELECT value FROM json_each(?)) ORDER BY since DESC, key DESC LIMIT 1
"""
_WAIT: Final = raw(", ".join(f"waits.{each}" for each in WAIT.split(", ")))
_OPEN_WAITS: Final = f"""
    SELECT session_id, {_WAIT} FROM waits JOIN sessions ON sessions.key = session
    WHERE waits.state = 'waiting' AND waits.state <> 'settled' AND session IN  -- the second term is that of the index
        (SELECT key FROM sessions WHERE state = {OPEN} AND session_id IN (SELECT value FROM json_each(?)))
    ORDER BY since, waits.key
"""
_LIST: Final = f"""
    SELECT {raw("session_id")}, {_WAIT}, {raw("title")} FROM waits CROSS JOIN sessions ON sessions.key = session
    WHERE waits.tenant = ? AND waits.state = 'waiting' AND reason IN (SELECT value FROM json_each(?))
        AND sessions.state = {OPEN} AND until > ?
    ORDER BY since, waits.key LIMIT ? OFFSET ?
"""
_NEXT_WAKE: Final = """
    SELECT min(due) FROM (
        SELECT (SELECT wakes FROM sessions WHERE turn IS NOT NULL AND wakes > ?1 ORDER BY wakes LIMIT 1) AS due
        UNION ALL SELECT (
            SELECT not_before FROM inbox WHERE outcome IS NULL AND starts AND not_before > ?1
            ORDER BY not_before LIMIT 1))
"""


def put(db: apsw.Connection, found: Iterable[tuple[int, Wait]]) -> None:
    """Store waits, each with the key of its session, beside the others or in their place."""
    execute_rows(db, _PUT, 7, [value for session, wait in found for value in (session, *wait_to_row(wait))])


def settle(db: apsw.Connection, sessions: Sequence[int]) -> None:
    """End the waits of the turns of sessions."""
    execute_rows(db, _SETTLE, 1, sessions)


def settle_all(db: apsw.Connection, session: int) -> None:
    """End all waits of a session."""
    db.execute(_SETTLE_ALL, (session,))


def drop(db: apsw.Connection, keys: Iterable[int]) -> None:
    """Remove damaged waits."""
    for key in keys:
        db.execute("DELETE FROM waits WHERE key = ?", (key,))


def open_of(db: apsw.Connection, session: int) -> list[Any]:
    """Return a key and `WAIT` of the waits of a session that are not settled, in order."""
    return db.execute(_OPEN_OF, (session,)).fetchall()


def find(at: Reading, query: StoredWait) -> Wait | None:
    """Return the newest wait of an id. Raises StoreError(cause="corrupt")."""
    row: Any = at.db.execute(_FIND, (query.session_id, query.wait_id, json.dumps(list(query.reasons)))).fetchone()
    if row is None:
        return None
    try:
        return wait_in(row)
    except ValueError as exc:
        raise corrupt(f"a wait of session {query.session_id}", exc, query.session_id) from exc


def open_waits(at: Reading, query: OpenWaits) -> Mapping[str, Sequence[Wait]]:
    """Return the waits of sessions that nobody has answered; damaged ones are passed over."""
    found: dict[str, list[Wait]] = {}
    rows: list[Any] = at.db.execute(_OPEN_WAITS, (json.dumps(list(query.session_ids)),)).fetchall()
    for session_id, wait in Rows(rows, _of_session, _name):
        found.setdefault(session_id, []).append(wait)
    return found


def page(at: Reading, query: WaitList) -> Rows[tuple[str, Wait, str | None]]:
    """Return a page of the waits of a tenant that nobody has answered."""
    values = query.tenant, json.dumps(list(query.reasons)), int(at.me.clock() * 1e6), query.limit, query.offset
    rows: list[Any] = at.db.execute(_LIST, values).fetchall()
    return Rows(rows, _listed, _name)


def next_wake(at: Reading, _query: NextWake) -> datetime | None:
    """Return the earliest time to come at which a turn goes on whose calls all wait, or an input is due."""
    found = at.db.execute(_NEXT_WAKE, (int(at.me.clock() * 1e6),)).get
    return moment(found) if type(found) is int else None


def _of_session(row: tuple[Any, ...]) -> tuple[str, Wait]:
    session_id, *wait = row
    return text_in(session_id, "session_id"), wait_in(tuple(wait))


def _listed(row: tuple[Any, ...]) -> tuple[str, Wait, str | None]:
    *wait, title = row
    return *_of_session(tuple(wait)), None if title is None else text_in(title, "title")


def _name(row: tuple[Any, ...]) -> str:
    session_id, _, wait_id, *_ = row
    return f"wait {shown(wait_id)} of session {shown(session_id)}"
