"""Checks of the open turns of a store in a database, and their repairs."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections.abc import AsyncIterator, Iterable
from typing import Final

from warren.base.values import frozen
from warren.reports.reports import Finding
from warren.storage.maintenance.checks import OVER, SETTLED, TENANT_OF_WAITS, UNREADABLE_TURN
from warren.storage.postgres.driver import Connection, Row, array, unescaped
from warren.storage.postgres.lease import rival
from warren.storage.rows import CALL, WAIT, call_in, turn_in, wait_in

PAGE: Final = 500
_TURNS: Final = f"""
    SELECT key, session_id, message_count, turn FROM warren.sessions
    WHERE turn IS NOT NULL AND key > $1::int8 ORDER BY key LIMIT {PAGE}
"""
_CALLS: Final = f"SELECT session, {CALL} FROM warren.calls WHERE session = ANY ($1::int8[])"
_WAITS: Final = f"""
    SELECT session, {WAIT} FROM warren.waits
    WHERE session = ANY ($1::int8[]) AND state <> 'settled' AND reason <> 'background'
"""
# The turn of the text that was examined, unless a process that lives has the session.
_FORGET: Final = f"""
    WITH forgotten AS (
        UPDATE warren.sessions s SET turn = NULL, wakes = NULL
        WHERE key = $1::int8 AND turn = $2 AND {rival("s.holder", "NULL::int")} IS NULL RETURNING key
    ), settled AS (
        DELETE FROM warren.calls c USING forgotten f WHERE c.session = f.key
    ), over AS (
        UPDATE warren.waits w SET state = 'settled' FROM forgotten f
        WHERE w.session = f.key AND w.state <> 'settled' AND w.reason <> 'background'
    ) SELECT key FROM forgotten
"""


@frozen
class _Unreadable:
    """An open turn that nobody can go on with, and the key of its session."""

    key: int
    session_id: str
    turn: str


async def examine_turns(db: Connection) -> AsyncIterator[Finding]:
    """Yield the finding about open turns that cannot be read. Raises as `fetch`."""
    for finding in UNREADABLE_TURN.of_sessions([each.session_id async for each in _unreadable(db)]):
        yield finding


async def _unreadable(db: Connection) -> AsyncIterator[_Unreadable]:
    after = -1
    while rows := await db.fetch(_TURNS, after):
        after = rows[-1][0]
        keys = array([key for key, *_ in rows])
        calls, waits = _by_session(await db.fetch(_CALLS, keys)), _by_session(await db.fetch(_WAITS, keys))
        for key, session_id, count, turn in rows:
            try:
                turn_in(turn, count)
                for each in calls.get(key, ()):
                    call_in(each)
                for each in waits.get(key, ()):
                    wait_in(each)
            except ValueError:
                yield _Unreadable(key, unescaped(session_id), turn)


def _by_session(rows: Iterable[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for session, *row in rows:
        found.setdefault(session, []).append(tuple(row))
    return found


async def fix_turns(db: Connection) -> AsyncIterator[str]:
    """Make the repairs that are safe; yield sentences about them. Raises as `fetch`."""
    settled = await db.script(f"DELETE FROM warren.calls WHERE {SETTLED.format(t='warren.')}")
    if settled:
        yield f"removed {settled} rows of calls without an open turn"
    over = await db.script(f"UPDATE warren.waits SET state = 'settled' WHERE {OVER.format(t='warren.')}")
    if over:
        yield f"settled {over} waits without an open turn"
    given_back = await db.script(TENANT_OF_WAITS.format(t="warren."))
    if given_back:
        yield f"listed {given_back} waits for the tenants of their sessions"
    wrong = [each async for each in _unreadable(db)]
    done = sum([len(await db.fetch(_FORGET, each.key, each.turn)) for each in wrong])
    if done:
        yield f"ended {done} open turns that cannot be read"
    if done < len(wrong):
        left = len(wrong) - done
        yield f"left {left} open turns alone that cannot be read: a process that lives holds their sessions"
