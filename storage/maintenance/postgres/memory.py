"""Examines and repairs the memory in the database of a store, while it is used."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from typing import Final

from warren.storage.maintenance.checks import Check, RowCheck
from warren.storage.maintenance.postgres.connecting import findings_of
from warren.storage.postgres.copying import COUNT_ANEW, POST
from warren.storage.postgres.driver import Connection, array
from warren.storage.rows import DELETED

_LOST: Final = "session NOT IN (SELECT key FROM warren.memory_sessions)"
_STRAY: Final = "NOT EXISTS (SELECT FROM warren.memory_entries e WHERE e.id = p.entry)"
# A search finds an entry by any of its terms: the distinct ones are counted, as each has one row.
_UNFOUND: Final = """
    SELECT e.id FROM warren.memory_entries e
    LEFT JOIN (SELECT entry, count(*) AS found FROM warren.memory_postings GROUP BY entry) AS p ON p.entry = e.id
    WHERE coalesce(found, 0) <> (
        SELECT count(DISTINCT substr(terms, at + 1, 4)) FROM generate_series(0, length(terms) - 4, 4) AS at
    ) ORDER BY e.id
"""
# Those that are due for deletion are no error: the next start forgets them.
_GONE: Final = f"""
    SELECT m.key, m.session_id FROM warren.memory_sessions m JOIN warren.sessions s USING (session_id)
    WHERE s.state = {DELETED} AND NOT forgotten
        AND EXISTS (SELECT FROM warren.memory_entries e WHERE e.session = m.key)
        AND NOT EXISTS (SELECT FROM warren.erasures d WHERE d.session_id = m.session_id)
    ORDER BY m.session_id
"""
_OF_ANOTHER_TENANT: Final = """
    SELECT m.session_id FROM warren.memory_sessions m JOIN warren.sessions s USING (session_id)
    WHERE m.tenant <> s.tenant ORDER BY m.session_id LIMIT 100
"""
_WRONG_COUNT: Final = """
    entries <> (SELECT count(*) FROM warren.memory_entries e WHERE e.session = memory_sessions.key)
"""
_TOTALS_ARE_WRONG: Final = """
    SELECT (SELECT (sum(entries), sum(terms)) FROM warren.memory_totals) IS DISTINCT FROM
        (SELECT (count(*)::numeric, coalesce(sum(length(terms) / 4), 0)::numeric) FROM warren.memory_entries)
"""
_WRONG_COUNTS: Final = f"""
    SELECT ({_TOTALS_ARE_WRONG}) OR EXISTS (SELECT FROM warren.memory_sessions WHERE {_WRONG_COUNT})
"""
_FORGET: Final = """
    WITH gone AS (DELETE FROM warren.memory_entries WHERE session = ANY ($1::int8[])),
        places AS (DELETE FROM warren.memory_tombstones WHERE session = ANY ($1::int8[]))
    UPDATE warren.memory_sessions SET forgotten = true, entries = 0, unsettled_since = NULL WHERE key = ANY ($1::int8[])
"""
# Writers of the memory lock the row of a session first: none of them is in the middle of something then.
_ALONE: Final = "BEGIN; LOCK TABLE warren.memory_sessions, warren.memory_entries IN SHARE ROW EXCLUSIVE MODE"


MEMORY: Final = (
    RowCheck(
        "memory",
        "{} texts of the memory belong to no session",
        {"postgres": f"SELECT count(*) FROM warren.memory_entries WHERE {_LOST}"},
        fixable=True,
    ),
    RowCheck(
        "memory",
        "words of {} texts that are gone are left in the memory",
        {"postgres": f"SELECT count(DISTINCT entry) FROM warren.memory_postings p WHERE {_STRAY}"},
        fixable=True,
    ),
    RowCheck(
        "memory",
        "{} texts of the memory cannot be found by all of their words",
        {"postgres": f"SELECT count(*) FROM ({_UNFOUND}) AS x"},
        fixable=True,
    ),
    Check(
        "tenants",
        "{}: the texts of the memory are of another tenant than the session, which does not find them",
        {"postgres": _OF_ANOTHER_TENANT},
    ),
    Check(
        "memory",
        "texts of {} are still remembered",
        {"postgres": _GONE},
        fixable=True,
        noun="deleted session",
    ),
    RowCheck(
        "memory",
        "the memory's counts of its texts are wrong, and so, slightly, are the weights of words",
        {"postgres": _WRONG_COUNTS},
        fixable=True,
    ),
)
"""The checks of a memory in a database; all of its rows are read."""


async def fix_memory(db: Connection) -> list[str]:
    """Repair the rows of a memory in one transaction; return sentences about it. Raises as `Connection.fetch`."""
    if not [finding async for finding in findings_of(db, MEMORY)]:
        return []
    done = list[str]()
    async with db.transaction(_ALONE):
        gone = await db.fetch(_GONE)
        if gone:
            await db.fetch(_FORGET, array([key for key, _ in gone]))
            done.append(f"forgot the texts of {len(gone)} deleted sessions")
        lost = await db.script(f"DELETE FROM warren.memory_entries WHERE {_LOST}")
        if lost:
            done.append(f"removed {lost} texts of the memory that belonged to no session")
        await db.script(f"DELETE FROM warren.memory_postings p WHERE {_STRAY}")
        unfound = [key for (key,) in await db.fetch(_UNFOUND)]
        if unfound:
            await db.fetch("DELETE FROM warren.memory_postings WHERE entry = ANY ($1::int8[])", array(unfound))
            await db.fetch(POST, array(unfound))
        counted = "(SELECT count(*) FROM warren.memory_entries e WHERE e.session = memory_sessions.key)"
        await db.script(f"UPDATE warren.memory_sessions SET entries = {counted} WHERE {_WRONG_COUNT}")
        await db.fetch(COUNT_ANEW)
    return [*done, "made the words and the counts of the memory anew from its texts"]
