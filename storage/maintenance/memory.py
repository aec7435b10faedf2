"""Looking at the memory beside a store, while it is used."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from warren.memory import MemoryConfig
from warren.storage.maintenance.files import look_at
from warren.storage.maintenance.report import Finding, MemoryFacts
from warren.storage.memory import graph
from warren.storage.memory.file import FILE_NAME, check, fault


def examine_memory(folder: Path, *, full: bool = False) -> tuple[MemoryFacts, tuple[Finding, ...]]:
    """Look at the memory in a folder that has one; nothing is changed.

    Raises StoreError; its `cause` is "not_a_database", "not_a_store", "newer_schema", "permission" and so on.
    """
    path = folder / FILE_NAME
    try:
        db = look_at(path, MemoryConfig(folder).busy_timeout)
        try:
            return _examine(db, path, full=full)
        finally:
            db.close()
    except (apsw.Error, OSError) as exc:
        raise fault(exc, path=path) from exc


def _examine(db: apsw.Connection, path: Path, *, full: bool) -> tuple[MemoryFacts, tuple[Finding, ...]]:
    check(db)
    complaints = [row[0] for row in db.execute(f"PRAGMA {'integrity' if full else 'quick'}_check(20)")]
    facts = MemoryFacts(
        str(path), db.pragma("user_version"), path.stat().st_size, **_counts(db), **_index(db, path.parent)
    )
    findings = [Finding("memory", f"{path} is damaged: {line}") for line in complaints if line != "ok"]
    return facts, (*findings, *_about(db, facts))


def _counts(db: apsw.Connection) -> dict[str, Any]:
    return {
        "entries": db.execute("SELECT count(*) FROM entries").get,
        "sessions": db.execute("SELECT count(DISTINCT session) FROM entries").get,
        "unsettled": db.execute("SELECT count(*) FROM unsettled").get if db.table_exists(None, "unsettled") else 0,
        "embedders": tuple(row[0] for row in db.execute("SELECT name FROM spaces ORDER BY key")),
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
    if note.store != db.execute("SELECT store FROM identity").get or note.watermark > last:
        return found | {"index": "stale"}
    behind = db.execute("SELECT count(*) FROM entries WHERE id > ?", (note.watermark,)).get
    return found | {"index": "ok", "behind": behind}


def _about(db: apsw.Connection, facts: MemoryFacts) -> Iterator[Finding]:
    counted = db.execute("SELECT entries FROM totals").get
    if counted != facts.entries:
        text = f"the memory counts {counted} texts and has {facts.entries}: its searches weigh words a little wrong"
        yield Finding("memory", text)
    if facts.entries and facts.index in ("damaged", "stale"):
        text = f"the memory's saved index is {facts.index}: it is built anew when the memory is used next"
        yield Finding("memory", text, "notice")
