"""The memory in a folder as rows, to be copied to another home or to be filled; see `warren.storage.copying`."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import apsw
import trio

from warren.base.errors import StoreError
from warren.conversation.memory import MemoryConfig
from warren.storage.copying import PAGE_BYTES, PAGE_ROWS, Page, Position, Row, Table
from warren.storage.memory.file import FILE_NAME, MEMORY_STORE, open_writer
from warren.storage.memory.writer import add_words, count_anew
from warren.storage.runner import thread_runner
from warren.storage.sqlite.database import close_writer, create, transaction

R = TypeVar("R")
_READ: Final = {
    "memory_sessions": """
        SELECT key, session_id, entries, forgotten, since, tenant FROM sessions LEFT JOIN unsettled ON session = key
        WHERE key > ? ORDER BY key LIMIT ?
    """,
    "memory_entries": """
        SELECT id, session, position, turn, created_at, lower(hex(terms)), content FROM entries
        WHERE id > ? ORDER BY id LIMIT ?
    """,
    "memory_tombstones": """
        SELECT session, position, turn FROM tombstones
        WHERE (session, position) > (?, ?) ORDER BY session, position LIMIT ?
    """,
}
_KEYS: Final = {"memory_sessions": 1, "memory_entries": 1, "memory_tombstones": 2}
"""The first columns of a row that are its key."""
_COUNT: Final = {
    "memory_sessions": "SELECT count(*) FROM sessions",
    "memory_entries": "SELECT count(*) FROM entries",
    "memory_tombstones": "SELECT count(*) FROM tombstones",
}
_ADD_SESSION: Final = """
    INSERT OR IGNORE INTO sessions (key, session_id, entries, forgotten, tenant) VALUES (?,?,?,?,?)
"""
_ADD_ENTRY: Final = """
    INSERT OR IGNORE INTO entries (id, session, position, turn, created_at, terms, content) VALUES (?,?,?,?,?,?,?)
"""
_KINDS: Final = frozenset({int, str, type(None)})


class MemoryFile:
    """The memory in a folder; see Memory. Made by `memory_in`; its file is made by the first row."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / FILE_NAME
        self._db: apsw.Connection | None = None

    async def count(self, table: Table) -> int:
        return await self._run(lambda db: int(db.execute(_COUNT[table.name]).get)) if self._is_there else 0

    async def page(self, table: Table, after: Position | None) -> Page:
        return await self._run(partial(self._page, table, after)) if self._is_there else Page((), ())

    async def put(self, table: Table, rows: Sequence[Row]) -> None:
        await self._run(partial(_put, table, rows))

    async def finish(self) -> None:
        if self._is_there:
            await self._run(_finish)

    async def close(self) -> None:
        """Close the file. Idempotent."""
        db, self._db = self._db, None
        if db is not None:
            # Shielded: a copy that is cancelled has to close its file too.
            with trio.CancelScope(shield=True):
                await thread_runner(partial(close_writer, db))

    @property
    def _is_there(self) -> bool:
        return self._db is not None or self._path.exists()

    async def _run(self, function: Callable[[apsw.Connection], R]) -> R:
        return await thread_runner(partial(self._guarded, function))

    def _guarded(self, function: Callable[[apsw.Connection], R]) -> R:
        with MEMORY_STORE.faults(self._path):
            if self._db is None:
                config = MemoryConfig(self._folder)
                self._db = open_writer(create(self._folder.absolute(), FILE_NAME).as_uri(), config)
            return function(self._db)

    def _page(self, table: Table, after: Position | None, db: apsw.Connection) -> Page:
        width = _KEYS[table.name]
        rows, size, position = list[Row](), 0, after or (0,) * width
        try:
            for row in db.execute(_READ[table.name], (*position, PAGE_ROWS)):
                if not _KINDS.issuperset(map(type, row)):
                    raise self._damaged(table, position)
                rows.append(row)
                position = row[:width]
                size += sum(len(each) for each in row if isinstance(each, str))
                if size > PAGE_BYTES:
                    break
        except (UnicodeDecodeError, TypeError):
            raise self._damaged(table, position) from None
        return Page(rows, position)

    def _damaged(self, table: Table, after: Position) -> StoreError:
        problem = f"{self._path}: a row of {table.name} after {after} cannot be read"
        advice = "`warren doctor --fix` sets such rows aside"
        return StoreError(f"{problem}; {advice}", cause="corrupt", retryable=False)


@asynccontextmanager
async def memory_in(folder: Path) -> AsyncIterator[MemoryFile]:
    """Open the memory in a folder for a block. The lock of the store in the folder above keeps others from it."""
    memory = MemoryFile(folder)
    try:
        yield memory
    finally:
        await memory.close()


def _put(table: Table, rows: Sequence[Row], db: apsw.Connection) -> None:
    with transaction(db):
        if table.name == "memory_sessions":
            db.executemany(_ADD_SESSION, [(*row[:4], row[5]) for row in rows])
            marks = [(row[0], row[4]) for row in rows if row[4] is not None]
            db.executemany("INSERT OR IGNORE INTO unsettled VALUES (?,?)", marks)
            return
        if table.name == "memory_tombstones":
            db.executemany("INSERT OR IGNORE INTO tombstones VALUES (?,?,?)", rows)
            return
        for row in rows:
            key, session, *numbers, terms, content = cast("tuple[Any, ...]", row)
            packed = bytes.fromhex(terms)
            db.execute(_ADD_ENTRY, (key, session, *numbers, packed, content))
            if db.changes():
                add_words(db, key, session, packed)


def _finish(db: apsw.Connection) -> None:
    with transaction(db):
        count_anew(db)
