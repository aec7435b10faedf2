"""The one connection that writes the memory; synchronous, one caller at a time."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import apsw

from warren.base.errors import SessionNotFoundError
from warren.base.principals import DEFAULT_TENANT
from warren.base.values import frozen
from warren.conversation import codec
from warren.conversation.memory import CONVERSATION_END, Chosen, MemoryEntry, Tail, Unsettled
from warren.storage.memory.file import MEMORY_STORE, identity
from warren.storage.memory.homes import Bare
from warren.storage.memory.spaces import Space
from warren.storage.memory.words import Analyzer, release_gil
from warren.storage.results import Rows
from warren.storage.rows import MAX_NUMBER, microseconds, text_in
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.database import close_writer, transaction
from warren.storage.sqlite.faults import precise

T = TypeVar("T")
_ADD_ENTRY: Final = "INSERT INTO entries (session, position, turn, created_at, terms, content) VALUES (?,?,?,?,?,?)"
_ADD_WORDS: Final = "INSERT INTO words (rowid, terms) VALUES (?,?)"
# An entry may have been forgotten since it was read: its vector must not outlive it.
_ADD_VECTOR: Final = "INSERT OR REPLACE INTO vectors (space, entry, body) SELECT ?1, id, ?3 FROM entries WHERE id = ?2"
_TERMS: Final = "iif(typeof(terms) = 'blob', length(terms) / 4, 0)"
_IN_TAIL: Final = f"""
    SELECT id, {_TERMS}, position FROM entries
    WHERE session = ? AND position >= ? AND position < ?
"""
_AT: Final = f"SELECT id, {_TERMS}, content = ? FROM entries WHERE session = ? AND position = ?"
_CHOSEN: Final = f"""
    SELECT id, {_TERMS}, position, {raw("turn")} FROM entries
    WHERE session = ?1 AND (?2 IS NULL OR turn = ?2) AND (?3 IS NULL OR position = ?3)
"""
_BURY: Final = "INSERT OR REPLACE INTO tombstones (session, position, turn) VALUES (?,?,?)"
_BURIED: Final = "SELECT 1 FROM tombstones WHERE session = ? AND position = ?"
_DIG_UP: Final = """
    DELETE FROM tombstones WHERE session = ? AND position >= ? AND position < ?
        AND position NOT IN (SELECT value FROM json_each(?))
"""
_SETTLE: Final = """
    DELETE FROM unsettled WHERE since = ? AND session = (SELECT key FROM sessions WHERE session_id = ?)
    RETURNING session
"""
_WITHOUT_WORDS: Final = """
    SELECT id, session, terms FROM entries JOIN sessions ON key = session
    WHERE (?1 IS NULL OR id > ?1) AND typeof(terms) = 'blob' AND id NOT IN (SELECT rowid FROM words)
    ORDER BY id LIMIT ?2
"""
_WORDS_AT_ONCE: Final = 256
"""Entries that get their words in one transaction: some 50 milliseconds."""
_WITHOUT_VECTOR: Final = f"""
    SELECT id, {raw("content")} FROM entries LEFT JOIN vectors ON space = ? AND entry = id
    WHERE id > ? AND body IS NULL ORDER BY id LIMIT ?
"""


_BAD: Final = f"(typeof({{0}}) <> 'integer' OR {{0}} NOT BETWEEN 0 AND {MAX_NUMBER})"
_OUT_OF_RANGE: Final = (
    f"SELECT 1 FROM totals WHERE {_BAD.format('entries')} OR {_BAD.format('terms')}",
    f"SELECT 1 FROM sqlite_sequence WHERE {_BAD.format('seq')}",
    f"SELECT 1 FROM entries WHERE id > {MAX_NUMBER}",
)
_OF_TENANTS: Final = f"SELECT 1 FROM tenants WHERE {_BAD.format('entries')} OR {_BAD.format('terms')}"
_COUNT_ANEW: Final = (
    f"""
    UPDATE entries SET id = (SELECT coalesce(max(id), 0) + 1 FROM entries WHERE id <= {MAX_NUMBER})
    WHERE id > {MAX_NUMBER}
    """,
    f"UPDATE sqlite_sequence SET seq = (SELECT coalesce(max(id), 0) FROM entries) WHERE {_BAD.format('seq')}",
    f"UPDATE totals SET (entries, terms) = (SELECT count(*), coalesce(sum({_TERMS}), 0) FROM entries)",
)
_COUNT_TENANTS: Final = (
    "DELETE FROM tenants",
    f"""
    INSERT INTO tenants SELECT tenant, count(*), coalesce(sum({_TERMS}), 0)
    FROM entries JOIN sessions ON key = session WHERE typeof(tenant) = 'text' GROUP BY tenant
    """,
)
_COUNT: Final = """
    INSERT INTO tenants SELECT tenant, ?2, ?3 FROM sessions WHERE key = ?1
    ON CONFLICT (name) DO UPDATE SET entries = entries + excluded.entries, terms = terms + excluded.terms
"""
OTHER: Final = "other"
"""The word of the full-text table that every entry has which is not of the default tenant; no hash is spelt like it."""
_STEP: Final = 8
"""Entries handled between two pauses: about a millisecond."""


@frozen(eq=False)
class _Prepared:
    """An entry with all that is computed before the transaction."""

    entry: MemoryEntry
    terms: bytes
    vector: bytes | None


def session_mark(session: int) -> str:
    """Return the word of the full-text table that every entry of a session has; no hash is spelt like it."""
    return f"s{session}"


def tenant_marks(tenant: str) -> str:
    """Return the words of the full-text table that every entry of a tenant has; none for the default tenant."""
    return "" if tenant == DEFAULT_TENANT else f"{OTHER} t{tenant.encode().hex()}"


def numbers_are_bad(db: apsw.Connection) -> bool:
    """Tell whether a counter is damaged, or so large that no further number could be given."""
    queries = (*_OUT_OF_RANGE, _OF_TENANTS) if db.table_exists(None, "tenants") else _OUT_OF_RANGE
    return any(db.execute(query).get for query in queries)


def count_anew(db: apsw.Connection) -> None:
    """Count all again that can be counted from the entries; inside a transaction."""
    for statement in (*_COUNT_ANEW, *_COUNT_TENANTS):
        db.execute(statement)


class Writer:
    """Adds and removes entries. Every method is one transaction, and raises apsw.Error.

    It raises StoreError(cause="newer_schema") if a newer program has migrated the file since it was opened.
    """

    def __init__(self, db: apsw.Connection, space: Space) -> None:
        self._db = db
        self._space = space
        self._analyzer = Analyzer()
        if numbers_are_bad(db):
            with transaction(db):
                count_anew(db)
        self._space_key = self._number_of_space()

    def run(self, function: "Callable[[Writer], T]") -> T:
        """Run a function on this writer; an I/O error is raised as the error of the system's number."""
        try:
            return function(self)
        except apsw.IOError as exc:
            raise precise(exc, self._db) from exc

    def identity(self) -> str:
        """Return the text by which a saved graph names this database."""
        return identity(self._db)

    def last_id(self) -> int:
        """Return the last id ever given out, 0 before the first."""
        return int(self._db.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'entries'").get)

    def unknown(self, entries: Sequence[MemoryEntry]) -> list[MemoryEntry]:
        """Return the entries that are not stored as they are, blank or removed, each once; the first of a place counts.

        Raises SessionNotFoundError if the session of one was forgotten.
        """
        first = {(entry.session_id, entry.position): entry for entry in reversed(entries)}
        sessions = {entry.session_id: self._session(entry.session_id) for entry in entries}
        return [
            entry
            for entry in reversed(first.values())
            if entry.content.strip() and not self._has(sessions[entry.session_id], entry)
        ]

    def add(
        self,
        entries: Sequence[MemoryEntry],
        vectors: Sequence[bytes | None],
        kept: Sequence[int],
        tail: Tail | None,
        tenant: str,
    ) -> list[int]:
        """Store entries with their words and packed vectors, all or none, and return the ids of the new ones.

        An entry whose vector is None has none yet.

        New sessions are of the tenant.

        A different text in the place of an entry is removed. With a tail all texts in it are removed, except at the
        positions `kept`, and its session is unsettled from now on.

        Raises SessionNotFoundError.
        """
        prepared = self._prepare(entries, vectors)
        with transaction(self._db, MEMORY_STORE):
            if tail is not None:
                self._cut(tail, set(kept), tenant)
            added = [self._add(row, tenant) for row in _unhurried(prepared)]
        return [key for key in added if key is not None]

    def forget(self, session_id: str) -> list[int]:
        """Remove the entries of a session, and refuse further ones; return the ids that were removed."""
        with transaction(self._db, MEMORY_STORE):
            key = self._db.execute(
                "INSERT INTO sessions (session_id, forgotten) VALUES (?, 1)"
                " ON CONFLICT (session_id) DO UPDATE SET forgotten = 1, entries = 0 RETURNING key",
                (session_id,),
            ).get
            rows = list(self._db.execute(f"SELECT id, {_TERMS} FROM entries WHERE session = ?", (key,)))
            for table in ("unsettled", "tombstones"):
                self._db.execute(f"DELETE FROM {table} WHERE session = ?", (key,))
            return self._remove(key, rows)

    def forget_texts(self, chosen: Chosen) -> list[int] | None:
        """Remove some entries for good; return their ids, None if the tenant has no such session."""
        with transaction(self._db, MEMORY_STORE):
            find = "SELECT key FROM sessions WHERE session_id = ? AND tenant = ? AND forgotten = 0"
            key = self._db.execute(find, (chosen.session_id, chosen.tenant)).get
            if key is None:
                return None
            rows: list[Any] = list(self._db.execute(_CHOSEN, (key, chosen.turn, chosen.position)))
            # A damaged turn is none of a message.
            turns = [row[3] if type(row[3]) is int else 0 for row in rows]
            self._db.executemany(_BURY, [(key, row[2], turn) for row, turn in zip(rows, turns, strict=True)])
            self._db.execute("UPDATE sessions SET entries = entries - ? WHERE key = ?", (len(rows), key))
            return self._remove(key, rows)

    def settle(self, mark: Unsettled, count: int | None) -> list[int]:
        """Remove the entries of messages from position `count` on, but no text added by hand; return the ids.

        With None nothing is removed. If a newer tail came since the mark was read, its mark stays and nothing happens.
        """
        with transaction(self._db, MEMORY_STORE):
            key = self._db.execute(_SETTLE, (microseconds(mark.since), mark.session_id)).get
            if key is None or count is None:
                return []
            rows = list(self._db.execute(_IN_TAIL, (key, count, CONVERSATION_END)))
            self._dig_up(key, count, ())
            self._db.execute("UPDATE sessions SET entries = entries - ? WHERE key = ?", (len(rows), key))
            return self._remove(key, rows)

    def without_vector(self, after: int, count: int) -> list[Bare]:
        """Return the next entries after an id that have no vector in this space."""
        rows = self._db.execute(_WITHOUT_VECTOR, (self._space_key, after, count))
        return Rows(rows, lambda row: Bare(row[0], text_in(row[1], "content")), lambda row: str(row[0]))

    def add_vectors(self, vectors: Mapping[int, bytes]) -> None:
        """Store packed vectors of this space by the ids of their entries."""
        rows = [(self._space_key, entry, body) for entry, body in vectors.items()]
        with transaction(self._db, MEMORY_STORE):
            self._db.executemany(_ADD_VECTOR, rows)

    def add_missing_words(self, after: int | None) -> int | None:
        """Give the next entries after an id the words that they lack; return the last one's id, None for none."""
        with transaction(self._db, MEMORY_STORE):
            return add_missing_words(self._db, after)

    def drop_stray_words(self) -> int:
        """Remove the words of entries that are gone; return how many entries these were."""
        with transaction(self._db, MEMORY_STORE):
            return drop_stray_words(self._db)

    def drop_other_spaces(self) -> None:
        """Remove the vectors that other embedders made."""
        with transaction(self._db, MEMORY_STORE):
            self._db.execute("DELETE FROM vectors WHERE space <> ?", (self._space_key,))
            self._db.execute("DELETE FROM spaces WHERE key <> ?", (self._space_key,))

    def close(self) -> None:
        """Move the log into the file and close. Idempotent, and no fault of the file is raised."""
        close_writer(self._db)

    def _number_of_space(self) -> int:
        find = "SELECT key FROM spaces WHERE name = ?"
        key = self._db.execute(find, (self._space.name,)).get
        if key is None:
            with transaction(self._db, MEMORY_STORE):
                self._db.execute("INSERT OR IGNORE INTO spaces (name) VALUES (?)", (self._space.name,))
            key = self._db.execute(find, (self._space.name,)).get
        return int(key)

    def _session(self, session_id: str) -> int | None:
        query = f"SELECT key, {raw('forgotten')} FROM sessions WHERE session_id = ?"
        row: Any = self._db.execute(query, (session_id,)).fetchone()
        if row is not None and row[1]:
            message = f"session {session_id} was deleted: nothing of it is remembered any more"
            raise SessionNotFoundError(message, session_id=session_id)
        return None if row is None else int(row[0])

    def _has(self, session: int | None, entry: MemoryEntry) -> bool:
        if self._is_buried(session, entry):
            return True
        found = self._db.execute(_AT, (entry.content, session, entry.position)).get
        return found is not None and bool(found[2])

    def _is_buried(self, session: int | None, entry: MemoryEntry) -> bool:
        return self._db.execute(_BURIED, (session, entry.position)).get is not None

    def _cut(self, tail: Tail, kept: set[int], tenant: str) -> None:
        session = self._session(tail.session_id)
        if session is None:
            session = self._new_session(tail.session_id, tenant)
        rows = [
            row for row in self._db.execute(_IN_TAIL, (session, tail.first, CONVERSATION_END)) if row[2] not in kept
        ]
        self._db.execute("UPDATE sessions SET entries = entries - ? WHERE key = ?", (len(rows), session))
        self._remove(session, rows)
        self._dig_up(session, tail.first, kept)
        self._db.execute("INSERT OR REPLACE INTO unsettled VALUES (?, ?)", (session, microseconds(datetime.now(UTC))))

    def _dig_up(self, session: int, first: int, kept: Iterable[int]) -> None:
        """Give places free whose messages were never committed: other messages may come to them."""
        self._db.execute(_DIG_UP, (session, first, CONVERSATION_END, codec.encode(sorted(kept)).decode()))

    def _remove(self, session: int, rows: Sequence[tuple[int, ...]]) -> list[int]:
        """Remove entries of a session, of each its id and the number of its terms, with all of them; return the ids."""
        ids = [(row[0],) for row in rows]
        for table, column in (("entries", "id"), ("words", "rowid")):
            self._db.executemany(f"DELETE FROM {table} WHERE {column} = ?", ids)
        for space in [row[0] for row in self._db.execute("SELECT key FROM spaces")]:
            self._db.executemany("DELETE FROM vectors WHERE space = ? AND entry = ?", [(space, *row) for row in ids])
        self._count(session, -len(rows), -sum(row[1] for row in rows))
        return [row[0] for row in rows]

    def _prepare(self, entries: Sequence[MemoryEntry], vectors: Sequence[bytes | None]) -> list[_Prepared]:
        return [
            _Prepared(entry, self._analyzer.terms(entry.content).astype("<u4").tobytes(), vector)
            for entry, vector in _unhurried(list(zip(entries, vectors, strict=True)))
        ]

    def _new_session(self, session_id: str, tenant: str) -> int:
        self._db.execute("INSERT INTO sessions (session_id, tenant) VALUES (?,?)", (session_id, tenant))
        return self._db.last_insert_rowid()

    def _add(self, row: _Prepared, tenant: str) -> int | None:
        """Store an entry and return its id; None if its text is there already, or was removed meanwhile."""
        entry = row.entry
        session = self._session(entry.session_id)
        if session is None:
            session = self._new_session(entry.session_id, tenant)
        there = self._db.execute(_AT, (entry.content, session, entry.position)).get
        if (there is not None and there[2]) or self._is_buried(session, entry):
            return None
        if there is not None:
            self._remove(session, [there])
        key = self._insert(row, session)
        self._db.execute("UPDATE sessions SET entries = entries + ? WHERE key = ?", (there is None, session))
        return key

    def _insert(self, row: _Prepared, session: int) -> int:
        entry = row.entry
        values = (session, entry.position, entry.turn, microseconds(entry.created_at), row.terms, entry.content)
        self._db.execute(_ADD_ENTRY, values)
        key = self._db.last_insert_rowid()
        add_words(self._db, key, session, row.terms)
        if self._space.dimensions and row.vector is not None:
            self._db.execute(_ADD_VECTOR, (self._space_key, key, row.vector))
        self._count(session, 1, len(row.terms) // 4)
        return key

    def _count(self, session: int, entries: int, terms: int) -> None:
        self._db.execute(_COUNT, (session, entries, terms))
        self._db.execute("UPDATE totals SET entries = entries + ?, terms = terms + ?", (entries, terms))


def _unhurried(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, and let other threads run now and then."""
    for number, item in enumerate(items, 1):
        yield item
        if number % _STEP == 0:
            release_gil()


def add_words(db: apsw.Connection, entry: int, session: int, terms: bytes) -> None:
    """Add the terms of an entry to the full-text table, with the marks of its session; inside a transaction."""
    tenant = str(db.execute("SELECT tenant FROM sessions WHERE key = ?", (session,)).get)
    db.execute(_ADD_WORDS, (entry, f"{tenant_marks(tenant)} {session_mark(session)} {terms.hex(' ', 4)}"))


def add_missing_words(db: apsw.Connection, after: int | None) -> int | None:
    """Give the next entries after an id the words that they lack; return the last one's id, None if there is none.

    Inside a transaction.
    """
    rows: list[Any] = db.execute(_WITHOUT_WORDS, (after, _WORDS_AT_ONCE)).fetchall()
    for entry, session, terms in rows:
        add_words(db, entry, session, terms)
    return rows[-1][0] if rows else None


def drop_stray_words(db: apsw.Connection) -> int:
    """Remove the words of entries that are gone; return how many entries these were. Inside a transaction."""
    stray = db.execute("SELECT rowid FROM words WHERE rowid NOT IN (SELECT id FROM entries)").fetchall()
    db.executemany("DELETE FROM words WHERE rowid = ?", stray)
    return len(stray)
