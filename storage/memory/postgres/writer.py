"""Changes of the memory. Each function is one transaction, of a connection that it has for itself.

The rows of the sessions are locked first, in order: writers of one session wait for each other, those of others do not.
A connection that is lost leaves either all or nothing behind, so that every function can be called again.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from warren.base.errors import SessionNotFoundError
from warren.base.principals import DEFAULT_TENANT
from warren.base.values import frozen
from warren.conversation.memory import CONVERSATION_END, Chosen, MemoryEntry, Tail, Unsettled
from warren.storage.memory.postgres.vectors import Table, literals
from warren.storage.memory.words import Analyzer, release_gil
from warren.storage.postgres.driver import Connection, Row, array, escaped
from warren.storage.rows import microseconds

MOST: Final = 32_767
"""The largest number that a posting holds."""
_POSTINGS: Final = 20_000
"""Postings of one statement."""
_REMOVED: Final = 500
"""Entries that are removed by one statement."""
_STEP: Final = 8
"""Entries handled between two pauses: about a millisecond."""
_KNOWN: Final = """
    SELECT given.n, s.forgotten, coalesce(e.content = given.content, false) OR t.session IS NOT NULL
    FROM unnest($1::text[], $2::int8[], $3::text[]) WITH ORDINALITY AS given(session_id, position, content, n)
    JOIN warren.memory_sessions s USING (session_id)
    LEFT JOIN warren.memory_entries e ON e.session = s.key AND e.position = given.position
    LEFT JOIN warren.memory_tombstones t ON t.session = s.key AND t.position = given.position ORDER BY given.n
"""
# In order, so that two writers do not wait for each other.
_ENTER: Final = """
    INSERT INTO warren.memory_sessions (session_id, tenant)
    SELECT given.id, $2 FROM unnest($1::text[]) AS given(id)
    WHERE NOT EXISTS (SELECT FROM warren.memory_sessions s WHERE s.session_id = given.id)
    ORDER BY given.id COLLATE "C" ON CONFLICT (session_id) DO NOTHING
"""
_LOCK: Final = """
    SELECT session_id, key, forgotten FROM warren.memory_sessions WHERE session_id = ANY ($1::text[])
    ORDER BY session_id FOR UPDATE
"""
_IN_TAIL: Final = """
    SELECT id, terms, position FROM warren.memory_entries
    WHERE session = $1::int8 AND position >= $2::int8 AND position < $3::int8
"""
_OF_SESSION: Final = "SELECT id, terms FROM warren.memory_entries WHERE session = $1::int8 LIMIT $2::int8"
_AT: Final = """
    SELECT given.n, e.id, e.terms, e.content = given.content
    FROM unnest($1::int8[], $2::int8[], $3::text[]) WITH ORDINALITY AS given(session, position, content, n)
    JOIN warren.memory_entries e ON e.session = given.session AND e.position = given.position
"""
_BURIED: Final = """
    SELECT given.n FROM unnest($1::int8[], $2::int8[]) WITH ORDINALITY AS given(session, position, n)
    JOIN warren.memory_tombstones t ON t.session = given.session AND t.position = given.position
"""
_FIND: Final = """
    SELECT key FROM warren.memory_sessions WHERE session_id = $1 AND tenant = $2 AND NOT forgotten FOR UPDATE
"""
_BURY: Final = """
    WITH chosen AS (
        SELECT id, terms, position, turn FROM warren.memory_entries
        WHERE session = $1::int8 AND ($2::int8 IS NULL OR turn = $2::int8) AND ($3::int8 IS NULL OR position = $3::int8)
        LIMIT $4::int8
    ), buried AS (
        INSERT INTO warren.memory_tombstones SELECT $1::int8, position, turn FROM chosen ON CONFLICT DO NOTHING
    ) SELECT id, terms FROM chosen
"""
_DIG_UP: Final = """
    DELETE FROM warren.memory_tombstones
    WHERE session = $1::int8 AND position >= $2::int8 AND position < $3::int8 AND position <> ALL ($4::int8[])
"""
_ADD: Final = """
    INSERT INTO warren.memory_entries (session, position, turn, created_at, terms, content)
    SELECT session, position, turn, created_at, decode(terms, 'hex'), content
    FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::int8[], $5::text[], $6::text[]) WITH ORDINALITY
        AS given(session, position, turn, created_at, terms, content, n) ORDER BY n
    RETURNING session, position, id
"""
_ADD_POSTINGS: Final = """
    INSERT INTO warren.memory_postings (entry, term, times, length)
    SELECT e.id, given.term, given.times, e.length
    FROM unnest($1::int4[], $2::int4[], $3::int2[]) AS given(n, term, times)
    JOIN unnest($4::int8[], $5::int2[]) WITH ORDINALITY AS e(id, length, n) ON e.n = given.n
    WHERE e.id IS NOT NULL
"""
_DROP_POSTINGS: Final = """
    DELETE FROM warren.memory_postings p USING unnest($1::int8[], $2::int4[]) AS given(entry, term)
    WHERE p.term = given.term AND p.entry = given.entry
"""
_DROP: Final = "DELETE FROM warren.memory_entries WHERE id = ANY ($1::int8[])"
_COUNT: Final = "UPDATE warren.memory_sessions SET entries = entries + $2::int8 WHERE key = $1::int8"
_TOTAL: Final = """
    UPDATE warren.memory_totals SET entries = entries + $1::int8, terms = terms + $2::int8
    WHERE slot = pg_backend_pid() % (SELECT count(*) FROM warren.memory_totals)
"""
_MARK: Final = """
    UPDATE warren.memory_sessions SET unsettled_since = (extract(epoch FROM clock_timestamp()) * 1000000)::int8
    WHERE key = $1::int8
"""
_SETTLE: Final = """
    UPDATE warren.memory_sessions SET unsettled_since = NULL WHERE session_id = $1 AND unsettled_since = $2::int8
    RETURNING key
"""
_FORGET: Final = """
    WITH gone AS (DELETE FROM warren.memory_tombstones WHERE session = $1::int8)
    UPDATE warren.memory_sessions SET forgotten = true, entries = 0, unsettled_since = NULL WHERE key = $1::int8
"""


@frozen(eq=False)
class Prepared:
    """Entries with all that is computed before the transaction.

    Attributes:
        entries: the entries.
        terms: of each entry, its terms as hexadecimal.
        lengths: of each entry, how many terms it has.
        postings: for each statement, the literals of the numbers of the entries from 1, of the terms and of how often
            each occurs.
        vectors: of each entry, its vector as the server takes it, None if it has none yet; none if words alone decide.
    """

    entries: Sequence[MemoryEntry]
    terms: list[str]
    lengths: list[int]
    postings: list[tuple[str, str, str]]
    vectors: list[str | None]

    @classmethod
    def of(cls, entries: Sequence[MemoryEntry], packed: Sequence[bytes | None], analyzer: Analyzer) -> "Prepared":
        """Analyse texts; `packed` are their vectors. To be run beside the event loop: long texts take a while."""
        found = []
        for number, entry in enumerate(entries, 1):
            found.append(analyzer.terms(entry.content))
            if number % _STEP == 0:
                release_gil()
        counted = [np.unique(terms, return_counts=True) for terms in found]
        numbers = np.repeat(np.arange(1, len(found) + 1), [len(terms) for terms, _ in counted])
        nothing = np.zeros(0, dtype=np.uint32)
        terms = np.concatenate([nothing, *[terms for terms, _ in counted]]).view(np.int32)
        times = np.minimum(np.concatenate([nothing, *[times for _, times in counted]]), MOST)
        postings = []
        for at in range(0, len(terms), _POSTINGS):
            some = slice(at, at + _POSTINGS)
            postings.append((_numbers(numbers[some]), _numbers(terms[some]), _numbers(times[some])))
            release_gil()
        return cls(
            entries,
            [each.astype("<u4").tobytes().hex() for each in found],
            [len(each) for each in found],
            postings,
            [None if body is None else literals([body])[0] for body in packed],
        )


def _numbers(values: Any) -> str:
    return array(values.tolist())


async def unknown(db: Connection, entries: Sequence[MemoryEntry]) -> list[MemoryEntry]:
    """Return the entries that are not stored as they are, blank or removed, each once; the first of a place counts.

    Raises SessionNotFoundError if the session of one was forgotten, and as `Connection.fetch`.
    """
    first = {(entry.session_id, entry.position): entry for entry in reversed(entries)}
    asked = list(reversed(first.values()))
    if not asked:
        return []
    rows = await db.fetch(
        _KNOWN,
        array([escaped(entry.session_id) for entry in asked]),
        array([entry.position for entry in asked]),
        array([escaped(entry.content) for entry in asked]),
    )
    for number, forgotten, _ in rows:
        if forgotten:
            raise _forgotten(asked[number - 1].session_id)
    there = {number - 1 for number, _, same in rows if same}
    return [entry for at, entry in enumerate(asked) if at not in there and entry.content.strip()]


async def add(
    db: Connection, given: Prepared, kept: Sequence[int], tail: Tail | None, *, table: Table | None, tenant: str
) -> int:
    """Store entries with their words and vectors, all or none; return how many are new.

    A different text in the place of an entry is removed. With a tail all texts in it are removed, except at the
    positions `kept`, and its session is unsettled from now on. New sessions are of the tenant.

    Raises SessionNotFoundError, and as `Connection.fetch`.
    """
    async with db.transaction():
        names = {entry.session_id for entry in given.entries} | ({tail.session_id} if tail is not None else set())
        keys = await _locked(db, names, tenant)
        if tail is not None:
            await _cut(db, keys[tail.session_id], tail.first, set(kept))
        return await _add(db, given, keys, table)


async def forget(db: Connection, session_id: str) -> int:
    """Remove the entries of a session, and refuse further ones; return how many. Raises as `Connection.fetch`."""
    removed = 0
    async with db.transaction():
        ((_, key, _),) = await _rows_of(db, [session_id])
        await db.fetch(_FORGET, key)
        while rows := await db.fetch(_OF_SESSION, key, _REMOVED):
            await _remove(db, rows)
            removed += len(rows)
    return removed


async def forget_texts(db: Connection, chosen: Chosen) -> int | None:
    """Remove some entries of a session, and refuse the same ones; return how many, None if it has no such session.

    Raises as `Connection.fetch`.
    """
    removed = 0
    async with db.transaction():
        key = await db.value(_FIND, escaped(chosen.session_id), chosen.tenant)
        if key is None:
            return None
        while rows := await db.fetch(_BURY, key, chosen.turn, chosen.position, _REMOVED):
            await _remove(db, rows)
            removed += len(rows)
        await db.fetch(_COUNT, key, -removed)
    return removed


async def settle(db: Connection, mark: Unsettled, count: int | None) -> int:
    """Remove the entries of messages from position `count` on, but no text added by hand; return how many.

    With None nothing is removed. If a newer tail came since the mark was read, its mark stays and nothing happens.
    Raises as `Connection.fetch`.
    """
    async with db.transaction():
        key = await db.value(_SETTLE, escaped(mark.session_id), microseconds(mark.since))
        return 0 if key is None or count is None else await _cut_rows(db, key, count, set())


async def _rows_of(db: Connection, session_ids: Sequence[str], tenant: str = DEFAULT_TENANT) -> list[Row]:
    """Lock the rows of sessions, made if they are missing; return the id, the key and whether it was forgotten."""
    names = array(sorted(escaped(each) for each in session_ids))
    await db.fetch(_ENTER, names, tenant)
    return await db.fetch(_LOCK, names)


async def _locked(db: Connection, session_ids: set[str], tenant: str) -> dict[str, int]:
    names = {escaped(each): each for each in session_ids}
    rows = await _rows_of(db, list(session_ids), tenant) if session_ids else []
    for name, _, forgotten in rows:
        if forgotten:
            raise _forgotten(names[name])
    return {names[name]: key for name, key, _ in rows}


async def _cut(db: Connection, session: int, first: int, kept: set[int]) -> None:
    await _cut_rows(db, session, first, kept)
    await db.fetch(_MARK, session)


async def _cut_rows(db: Connection, session: int, first: int, kept: set[int]) -> int:
    rows = await db.fetch(_IN_TAIL, session, first, CONVERSATION_END)
    gone = [row for row in rows if row[2] not in kept]
    for at in range(0, len(gone), _REMOVED):
        await _remove(db, gone[at : at + _REMOVED])
    if gone:
        await db.fetch(_COUNT, session, -len(gone))
    # Other messages may come to places whose messages were never committed.
    await db.fetch(_DIG_UP, session, first, CONVERSATION_END, array(sorted(kept)))
    return len(gone)


async def _add(db: Connection, given: Prepared, keys: dict[str, int], table: Table | None) -> int:
    places = [(keys[entry.session_id], entry.position) for entry in given.entries]
    if not places:
        return 0
    contents = [escaped(entry.content) for entry in given.entries]
    sessions, positions = (array(column) for column in zip(*places, strict=True))
    there = await db.fetch(_AT, sessions, positions, array(contents))
    await _remove(db, [(key, terms) for _, key, terms, same in there if not same])
    same = {number - 1 for number, _, _, same in there if same}
    # Removed meanwhile.
    same |= {number - 1 for (number,) in await db.fetch(_BURIED, sessions, positions)}
    replaced = {number - 1 for number, *_ in there}
    fresh = [at for at in range(len(places)) if at not in same]
    ids = await _inserted(db, given, places, contents, fresh)
    lengths = array([min(length, MOST) for length in given.lengths])
    # Of texts that another process has stored meanwhile nothing is added: they have no id here.
    of_all = array([ids.get(at) for at in range(len(places))])
    for numbers, terms, times in given.postings:
        await db.fetch(_ADD_POSTINGS, numbers, terms, times, of_all, lengths)
    if table is not None and fresh:
        vectors = {ids[at]: vector for at in fresh if (vector := given.vectors[at]) is not None}
        await table.add(db, list(vectors), list(vectors.values()))
    for session in sorted({places[at][0] for at in fresh}):
        await db.fetch(_COUNT, session, sum(places[at][0] == session and at not in replaced for at in fresh))
    await db.fetch(_TOTAL, len(fresh), sum(given.lengths[at] for at in fresh))
    return len(fresh)


async def _inserted(
    db: Connection, given: Prepared, places: list[tuple[int, int]], contents: list[str], fresh: list[int]
) -> dict[int, int]:
    """Store entries without their words; return the id of each by its place."""
    if not fresh:
        return {}
    rows = [
        (*places[at], given.entries[at].turn, microseconds(given.entries[at].created_at), given.terms[at], contents[at])
        for at in fresh
    ]
    found = await db.fetch(_ADD, *(array(column) for column in zip(*rows, strict=True)))
    ids = {(session, position): key for session, position, key in found}
    return {at: ids[places[at]] for at in fresh}


async def _remove(db: Connection, rows: Sequence[Row]) -> None:
    """Remove entries, of each its id and its terms, with their words; their vectors go with them."""
    if not rows:
        return
    terms = [np.frombuffer(row[1], dtype="<i4") for row in rows]
    distinct = [np.unique(each) for each in terms]
    entries = np.repeat([row[0] for row in rows], [len(each) for each in distinct])
    await db.fetch(_DROP_POSTINGS, _numbers(entries), _numbers(np.concatenate(distinct)))
    await db.fetch(_DROP, array([row[0] for row in rows]))
    await db.fetch(_TOTAL, -len(rows), -sum(len(each) for each in terms))


def _forgotten(session_id: str) -> SessionNotFoundError:
    message = f"session {session_id} was deleted: nothing of it is remembered any more"
    return SessionNotFoundError(message, session_id=session_id)
