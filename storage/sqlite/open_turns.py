"""Open turns with SQL: the states of their tool calls, and how many of them no process has."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import apsw

from warren.conversation.views import TurnState
from warren.storage.operations import Commit
from warren.storage.queries import InTurn, OpenTurns, SleepingTurns
from warren.storage.rows import CALL, OPEN, call_to_row, shown
from warren.storage.sqlite import waits
from warren.storage.sqlite.bulk import execute_rows
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.reading import Reading

_SETTLE: Final = "DELETE FROM calls WHERE session IN (VALUES {rows})"
_SET: Final = f"""
    INSERT INTO calls (session, {CALL}) VALUES {{rows}}
    ON CONFLICT (session, place) DO UPDATE SET call_id = excluded.call_id, state = excluded.state, body = excluded.body
"""
_CALLS: Final = f"SELECT {raw(CALL)} FROM calls WHERE session = ? ORDER BY place"
_HELD: Final = "coalesce(holder IN (SELECT value FROM json_each(?)), 0)"
_STATES: Final[Mapping[TurnState, str]] = {
    "waiting": "wakes IS NOT NULL",
    "running": f"wakes IS NULL AND {_HELD}",
    "parked": f"wakes IS NULL AND NOT {_HELD}",
}
_CHOSEN: Final = """
    WITH chosen AS MATERIALIZED (
        SELECT key FROM sessions WHERE session_id IN (SELECT value FROM json_each(?))
        UNION SELECT key FROM sessions INDEXED BY sessions_wakes
        WHERE turn IS NOT NULL AND tenant = ? AND session_id NOT IN (SELECT value FROM json_each(?)) AND {state}
    )
"""
_FORGET: Final = "UPDATE sessions SET turn = NULL, wakes = NULL WHERE key = ?"
_OPEN: Final = f"""
    SELECT {raw("tenant, holder")}, count(*) FROM sessions INDEXED BY sessions_wakes
    WHERE turn IS NOT NULL AND wakes IS NULL AND state = {OPEN} AND (?1 IS NULL OR tenant = ?1)
    GROUP BY tenant, holder
"""
_SLEEPING: Final = f"""
    SELECT count(*) FROM sessions INDEXED BY sessions_wakes
    WHERE turn IS NOT NULL AND wakes IS NOT NULL AND state = {OPEN}
"""


def set_calls(db: apsw.Connection, steps: Sequence[tuple[int, Commit]]) -> None:
    """Store the states of tool calls and what they wait for, beside the others of their sessions or in their place.

    Args:
        db: the connection.
        steps: the commits that change such states, each with the key of its session.
    """
    settled = [session for session, commit in steps if commit.settles]
    execute_rows(db, _SETTLE, 1, settled)
    waits.settle(db, settled)
    calls = [(session, *call_to_row(call)) for session, commit in steps for call in commit.calls]
    execute_rows(db, _SET, 5, [value for row in calls for value in row])
    waits.put(db, [(session, wait) for session, commit in steps for wait in commit.waits])


def settle(db: apsw.Connection, session: int) -> None:
    """Remove the states of all tool calls of a session."""
    execute_rows(db, _SETTLE, 1, (session,))


def forget(db: apsw.Connection, session: int) -> None:
    """Remove an open turn that nobody can go on with."""
    db.execute(_FORGET, (session,))
    settle(db, session)
    waits.settle(db, (session,))


def calls_of(db: apsw.Connection, session: int) -> list[Any]:
    """Return the rows of `CALL` of a session, in the order of the answer."""
    return db.execute(_CALLS, (session,)).fetchall()


def chosen(at: Reading, tenant: str, turn: InTurn) -> tuple[str, Sequence[Any]]:
    """Return the table `chosen` of a filter, for the beginning of a query, and the values in it."""
    held = () if turn.state == "waiting" else [each.key for each in at.me.nodes(at.db) if each.key != at.me.key]
    here = json.dumps(list(turn.here)), tenant, json.dumps([*turn.here, *turn.others])
    sql = _CHOSEN.format(state=_STATES[turn.state])
    return sql, here if turn.state == "waiting" else (*here, json.dumps(held))


def sleeping(at: Reading, _query: SleepingTurns) -> int:
    """Return how many turns sleep whose calls all wait."""
    number: int = at.db.execute(_SLEEPING).get
    return number


def count(at: Reading, query: OpenTurns) -> Mapping[str, int]:
    """Return how many open turns no living process has, by tenant."""
    rows: list[Any] = at.db.execute(_OPEN, (query.tenant,)).fetchall()
    owners = {owner for _, owner, _ in rows}
    held = {each for each in owners if each == at.me.key or (each is not None and at.me.rival(at.db, each) is not None)}
    found = Counter[str]()
    for tenant, owner, number in rows:
        if owner is None or owner not in held:
            found[shown(tenant)] += number
    return found
