"""Examines and repairs the memory beside a store, while it is used."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import apsw

from warren.base.values import frozen
from warren.conversation.memory import MemoryConfig
from warren.reports.reports import Finding, MemoryFacts
from warren.storage.maintenance.damage import FILE, keep
from warren.storage.maintenance.doctor import OF_A_ROW
from warren.storage.maintenance.files import GoOn, look_at
from warren.storage.maintenance.unreadable import NAMED, is_tenant
from warren.storage.memory import graph
from warren.storage.memory.file import FILE_NAME, MEMORY_STORE, identity, open_writer
from warren.storage.memory.spaces import PackedSpace
from warren.storage.memory.writer import add_missing_words, count_anew, drop_stray_words, numbers_are_bad
from warren.storage.rows import number_in, shown, text_in, time_in
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.database import transaction, version_of


def examine_memory(
    folder: Path, *, full: bool = False, go_on: GoOn | None = None
) -> tuple[MemoryFacts, tuple[Finding, ...]]:
    """Look at the memory in a folder that has one; nothing is changed. For `go_on` see `files.look_at`.

    Raises StoreError; its `cause` is "not_a_database", "not_a_store", "newer_schema", "permission" and so on.
    """
    path = folder / FILE_NAME
    with MEMORY_STORE.faults(path), closing(look_at(path, MemoryConfig(folder).busy_timeout, go_on=go_on)) as db:
        return _examine(db, path, full=full)


def _examine(db: apsw.Connection, path: Path, *, full: bool) -> tuple[MemoryFacts, tuple[Finding, ...]]:
    version = version_of(db, MEMORY_STORE)
    complaints = [row[0] for row in db.execute(f"PRAGMA {'integrity' if full else 'quick'}_check(20)")]
    facts = MemoryFacts(str(path), version, path.stat().st_size, **_counts(db), **_index(db, path.parent))
    findings = [
        Finding("memory", f"{path} is damaged: {line}")
        for line in complaints
        if line != "ok" and not OF_A_ROW.match(line)
    ]
    return facts, (*findings, *_unreadable(db), *_about(db, facts))


def fix_memory(folder: Path) -> tuple[str, ...]:
    """Set the unreadable rows of a memory aside into a file beside it; return sentences about the repairs.

    Raises StoreError.
    """
    path = folder / FILE_NAME
    config = MemoryConfig(folder)
    with (
        MEMORY_STORE.faults(path),
        closing(open_writer(path.absolute().as_uri(), config)) as db,
        transaction(db),
    ):
        mended = numbers_are_bad(db) or _counted(db) != db.execute("SELECT count(*) FROM entries").get
        if mended:
            count_anew(db)
        bad = list(scan_memory(db))
        for row in bad:
            keep(db, folder, row.table, row.where, row.problem)
            for statement in _REMEDIES[row.remedy]:
                db.execute(statement.format(where=row.where))
        if bad:
            db.execute(_COUNT_SESSIONS)
            count_anew(db)
        words, after = sum(_unfound(db)), None
        drop_stray_words(db)
        while (after := add_missing_words(db, after)) is not None:
            pass
    done = ["counted the memory's texts anew"] if mended else []
    if bad:
        done.append(f"set {len(bad)} rows of the memory aside that cannot be read: they are in {folder / FILE}")
    if words:
        done.append(f"made the words of {words} texts of the memory anew")
    return tuple(done)


def _unfound(db: apsw.Connection) -> tuple[int, int]:
    """Return how many texts have no words by which a search finds them, and how many words have no text."""
    queries = (
        "SELECT count(*) FROM entries WHERE id NOT IN (SELECT rowid FROM words)",
        "SELECT count(*) FROM words WHERE rowid NOT IN (SELECT id FROM entries)",
    )
    without, stray = (int(db.execute(query).get) for query in queries)
    return without, stray


@frozen
class BadMemoryRow:
    """A row of the memory that cannot be read, SQL that finds it, and the name of its remedy."""

    table: str
    where: str
    problem: str
    remedy: str


def scan_memory(db: apsw.Connection) -> Iterator[BadMemoryRow]:
    """Yield the rows that cannot be read; reads all of them. Raises apsw.Error."""
    for table, columns, verify, remedy in _CHECKS:
        if db.table_exists(None, table):
            key = _KEYS.get(table, "rowid")
            for rowid, *row in db.execute(f"SELECT {key}, {columns} FROM {table}"):
                try:
                    verify(row)
                except ValueError as exc:
                    yield BadMemoryRow(table, f"{key} = {rowid}", str(exc), remedy)
    for (key,) in db.execute("SELECT id FROM entries WHERE session NOT IN (SELECT key FROM sessions)"):
        yield BadMemoryRow("entries", f"id = {key}", "it belongs to no session", "entries")
    if db.table_exists(None, "tenants"):
        for key, tenant in db.execute(f"SELECT key, {raw('tenant')} FROM sessions"):
            if not is_tenant(tenant):
                yield BadMemoryRow("sessions", f"key = {key}", "it is of no tenant", "sessions")
    yield from _bad_vectors(db)


def _bad_vectors(db: apsw.Connection) -> Iterator[BadMemoryRow]:
    if db.execute(f"SELECT 1 FROM vectors WHERE {_NO_VECTOR}").get:
        yield BadMemoryRow("vectors", _NO_VECTOR, "a value is of another type", "vectors")
    names: list[Any] = db.execute(f"SELECT key, {raw('name')} FROM spaces").fetchall()
    spaces = {key: PackedSpace(shown(name)) for key, name in names if shown(name).rpartition("/")[2].isdecimal()}
    for space, entry, body in db.execute(f"SELECT space, entry, body FROM vectors WHERE NOT {_NO_VECTOR}"):
        try:
            if space in spaces:
                spaces[space].unpack([body])
        except ValueError:
            where = f"space = {space} AND entry = {entry}"
            yield BadMemoryRow("vectors", where, "body is no vector of its space", "vectors")


def _check_counts(row: list[Any]) -> None:
    number_in(row[0], "entries")
    if row[1] not in (0, 1):
        raise ValueError("forgotten is neither 0 nor 1")


def _check_entry(row: list[Any]) -> None:
    for name, value in zip(("session", "position", "turn"), row, strict=False):
        number_in(value, name)
    time_in(row[3], "created_at")
    text_in(row[4], "content")
    if row[5] is None or row[5] % 4:
        raise ValueError("terms are damaged")


def _check_tombstone(row: list[Any]) -> None:
    for name, value in zip(("session", "position", "turn"), row, strict=True):
        number_in(value, name)


def _check_space(row: list[Any]) -> None:
    if not text_in(row[0], "name").rpartition("/")[2].isdecimal():
        raise ValueError("name is none of an embedder")


def _unreadable(db: apsw.Connection) -> Iterator[Finding]:
    bad = list(scan_memory(db))
    if bad:
        told = "; ".join(f"{row.table}: {row.problem}" for row in bad[:NAMED])
        more = f"; and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
        yield Finding("memory", f"rows of the memory cannot be read: {told}{more}", fixable=True)
    if numbers_are_bad(db):
        yield Finding("memory", "the memory's counts have run out of range", fixable=True)


_BYTES: Final = "iif(typeof(terms) = 'blob', length(terms), NULL)"
_CHECKS: Final[Sequence[tuple[str, str, Callable[[list[Any]], object], str]]] = (
    ("identity", raw("store"), lambda row: text_in(row[0], "store"), "identity"),
    ("sessions", raw("session_id"), lambda row: text_in(row[0], "session_id"), "sessions"),
    ("sessions", raw("entries, forgotten"), _check_counts, "counts"),
    ("entries", f"{raw('session, position, turn, created_at, content')}, {_BYTES}", _check_entry, "entries"),
    ("tombstones", raw("session, position, turn"), _check_tombstone, "tombstones"),
    ("spaces", raw("name"), _check_space, "spaces"),
    ("unsettled", raw("since"), lambda row: time_in(row[0], "since"), "unsettled"),
)
"""Table, columns, a function that raises ValueError for a bad row, and the remedy."""
_NO_VECTOR: Final = "(typeof(space) <> 'integer' OR typeof(entry) <> 'integer' OR typeof(body) <> 'blob')"
_KEYS: Final = {"sessions": "key", "entries": "id", "spaces": "key", "unsettled": "session"}
_OF_ENTRIES: Final = (
    "DELETE FROM words WHERE rowid IN (SELECT id FROM entries WHERE {0})",
    "DELETE FROM vectors WHERE entry IN (SELECT id FROM entries WHERE {0})",
    "DELETE FROM entries WHERE {0}",
)
_REMEDIES: Final[Mapping[str, Sequence[str]]] = {
    "identity": ("UPDATE identity SET store = lower(hex(randomblob(16))) WHERE {where}",),
    "sessions": (
        *(each.format("session IN (SELECT key FROM sessions WHERE {where})") for each in _OF_ENTRIES),
        "DELETE FROM tombstones WHERE session IN (SELECT key FROM sessions WHERE {where})",
        "DELETE FROM sessions WHERE {where}",
    ),
    # A session without any entry is more likely forgotten than empty, and nothing that was forgotten may come back.
    "counts": (
        """
        UPDATE sessions SET entries = 0, forgotten = CASE
            WHEN typeof(forgotten) = 'integer' AND forgotten IN (0, 1) THEN forgotten
            ELSE NOT EXISTS (SELECT 1 FROM entries WHERE session = key) END
        WHERE {where}
        """,
    ),
    "entries": tuple(each.format("{where}") for each in _OF_ENTRIES),
    "spaces": (
        "DELETE FROM vectors WHERE space IN (SELECT key FROM spaces WHERE {where})",
        "DELETE FROM spaces WHERE {where}",
    ),
    "unsettled": ("DELETE FROM unsettled WHERE {where}",),
    "tombstones": ("DELETE FROM tombstones WHERE {where}",),
    "vectors": ("DELETE FROM vectors WHERE {where}",),
}
_COUNT_SESSIONS: Final = """
    UPDATE sessions SET entries = (SELECT count(*) FROM entries WHERE session = key)
    WHERE entries <> (SELECT count(*) FROM entries WHERE session = key)
"""


def _counts(db: apsw.Connection) -> dict[str, Any]:
    return {
        "entries": db.execute("SELECT count(*) FROM entries").get,
        "sessions": db.execute("SELECT count(DISTINCT session) FROM entries").get,
        "unsettled": db.execute("SELECT count(*) FROM unsettled").get if db.table_exists(None, "unsettled") else 0,
        "embedders": tuple(shown(row[0]) for row in db.execute(f"SELECT {raw('name')} FROM spaces ORDER BY key")),
    }


def _index(db: apsw.Connection, folder: Path) -> dict[str, Any]:
    path = folder / graph.FILE_NAME
    try:
        note, size = graph.read_note(path), path.stat().st_size
    except graph.UnusableGraphError as exc:
        # A memory of few vectors, or of none, never had one.
        state = "none" if str(exc) == "missing" else str(exc)
        return {"index": state, "index_bytes": path.stat().st_size if path.exists() else 0}
    last = db.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'entries'").get
    found = {"index_bytes": size, "index_embedder": note.space}
    if note.store != identity(db) or note.watermark > last:
        return found | {"index": "stale"}
    behind = db.execute("SELECT count(*) FROM entries WHERE id > ?", (note.watermark,)).get
    return found | {"index": "ok", "behind": behind}


def _counted(db: apsw.Connection) -> Any:
    found = db.execute(f"SELECT {raw('entries')} FROM totals").get
    return found if type(found) is int else shown(found)


def _about(db: apsw.Connection, facts: MemoryFacts) -> Iterator[Finding]:
    without, stray = _unfound(db)
    if without:
        yield Finding("memory", f"{without} texts of the memory cannot be found by their words", fixable=True)
    if stray:
        yield Finding("memory", f"words of {stray} texts that are gone are left in the memory", fixable=True)
    counted = _counted(db)
    if counted != facts.entries:
        text = f"the memory counts {counted} texts and has {facts.entries}: the weights of words are slightly wrong"
        yield Finding("memory", text, fixable=True)
    if facts.entries and facts.index in ("damaged", "stale"):
        text = f"the memory's saved index is {facts.index}: it is built anew when the memory is used next"
        yield Finding("memory", text, "notice")
