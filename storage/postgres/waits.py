"""The things that tool calls wait for, with SQL."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from warren.conversation.waits import Wait
from warren.storage.postgres.driver import Connection, Row, Value, array, escaped, unescaped
from warren.storage.postgres.reading import OF, Reading
from warren.storage.queries import NextWake, OpenWaits, StoredWait, WaitList
from warren.storage.results import Rows
from warren.storage.rows import DELETED, OPEN, WAIT, corrupt, moment, shown, wait_in, wait_to_row

SOME_OPEN: Final = "EXISTS (SELECT FROM warren.waits w WHERE w.session = sessions.key AND w.state <> 'settled')"
"""SQL that tells whether a session has waits that are not settled."""
NOW: Final = "(extract(epoch FROM statement_timestamp()) * 1000000)::int8"
"""SQL for the server's time as rows have it. It stays the same in a statement, so that an index can be read by it."""
_PUT: Final = f"""
    INSERT INTO warren.waits (session, tenant, {WAIT})
    SELECT sessions.key, tenant, {", ".join(f"given.{each}" for each in WAIT.split(", "))}
    FROM warren.sessions, unnest($2::text[], $3::text[], $4::text[], $5::int8[], $6::int8[], $7::text[])
        WITH ORDINALITY AS given ({WAIT}, place) WHERE sessions.key = $1::int8 ORDER BY place
    ON CONFLICT (session, wait_id, reason) DO UPDATE SET
        state = excluded.state, since = excluded.since, until = excluded.until, body = excluded.body
"""
_DROP: Final = "DELETE FROM warren.waits WHERE key = ANY ($2::int8[]) AND session = $1::int8"
_OPEN_OF: Final = f"SELECT key, {WAIT} FROM warren.waits WHERE session = $1::int8 AND state <> 'settled' ORDER BY key"
_FIND: Final = f"""
    SELECT {WAIT} FROM warren.waits WHERE session =
        (SELECT key FROM warren.sessions WHERE session_id = $1 AND {OF} AND state <> {DELETED})
        AND wait_id = $3 AND reason = ANY ($4::text[]) ORDER BY since DESC, key DESC LIMIT 1
"""
_WAIT: Final = ", ".join(f"w.{each}" for each in WAIT.split(", "))
_OPEN_WAITS: Final = f"""
    SELECT session_id, {_WAIT} FROM warren.sessions s JOIN warren.waits w ON w.session = s.key
    WHERE session_id = ANY ($1::text[]) AND s.state = {OPEN} AND w.state = 'waiting' ORDER BY since, w.key
"""
_LIST: Final = f"""
    SELECT session_id, {_WAIT}, title FROM warren.waits w JOIN warren.sessions s ON s.key = w.session
    WHERE w.tenant = $1 AND w.state = 'waiting' AND reason = ANY ($2::text[]) AND s.state = {OPEN}
        AND until > {NOW}
    ORDER BY since, w.key LIMIT $3::int8 OFFSET $4::int8
"""
_NEXT_WAKE: Final = f"""
    SELECT least(
        (SELECT min(coalesce(wakes, 0)) FROM warren.sessions WHERE turn IS NOT NULL AND coalesce(wakes, 0) > {NOW}),
        (SELECT min(not_before) FROM warren.inbox WHERE outcome IS NULL AND starts AND not_before > {NOW}))
"""


def values_of(wait: Wait) -> tuple[Value, ...]:
    """Return the values of `WAIT`, as this home keeps texts."""
    reason, wait_id, state, since, until, body = wait_to_row(wait)
    return reason, escaped(wait_id), state, since, until, body


async def put(db: Connection, session: int, waits: Iterable[Wait]) -> None:
    """Store waits beside the others of a session, or in their places."""
    rows = [values_of(each) for each in waits]
    if rows:
        await db.fetch(_PUT, session, *map(array, zip(*rows, strict=True)))


async def drop(db: Connection, session: int, keys: Sequence[int]) -> None:
    """Remove damaged waits of a session."""
    await db.fetch(_DROP, session, array(keys))


async def open_of(db: Connection, session: int) -> list[Row]:
    """Return a key and `WAIT` of the waits of a session that are not settled, in order."""
    return [(key, *_plain(row)) for key, *row in await db.fetch(_OPEN_OF, session)]


async def find(at: Reading, query: StoredWait) -> Wait | None:
    """Return the newest wait of an id. Raises StoreError(cause="corrupt")."""
    of = escaped(query.session_id), query.tenant
    rows = await at.db.fetch(_FIND, *of, escaped(query.wait_id), array(list(query.reasons)))
    if not rows:
        return None
    try:
        return wait_in(_plain(rows[0]))
    except ValueError as exc:
        raise corrupt(f"a wait of session {query.session_id}", exc, query.session_id) from exc


async def open_waits(at: Reading, query: OpenWaits) -> Mapping[str, Sequence[Wait]]:
    """Return the waits of sessions that nobody has answered; damaged ones are passed over."""
    found: dict[str, list[Wait]] = {}
    rows = await at.db.fetch(_OPEN_WAITS, array([escaped(each) for each in query.session_ids]))
    for session_id, wait in Rows(rows, _of_session, _name):
        found.setdefault(session_id, []).append(wait)
    return found


async def page(at: Reading, query: WaitList) -> Rows[tuple[str, Wait, str | None]]:
    """Return a page of the waits of a tenant that nobody has answered."""
    rows = await at.db.fetch(_LIST, query.tenant, array(list(query.reasons)), query.limit, query.offset)
    return Rows(rows, _listed, _name)


async def next_wake(at: Reading, _query: NextWake) -> datetime | None:
    """Return the earliest time to come at which a turn goes on whose calls all wait, or an input is due."""
    found = await at.db.value(_NEXT_WAKE)
    return None if found is None else moment(found)


def _of_session(row: Row) -> tuple[str, Wait]:
    session_id, *wait = row
    return unescaped(session_id), wait_in(_plain(wait))


def _listed(row: Row) -> tuple[str, Wait, str | None]:
    *wait, title = row
    return *_of_session(tuple(wait)), None if title is None else unescaped(title)


def _plain(row: Sequence[object]) -> Row:
    reason, wait_id, *rest = row
    return (reason, unescaped(str(wait_id)), *rest)


def _name(row: Row) -> str:
    session_id, _, wait_id, *_ = row
    return f"wait {shown(wait_id)} of session {shown(session_id)}"
