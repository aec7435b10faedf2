"""The memory in a folder as rows, to be copied to another home or to be filled; see `warren.storage.copying`."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import apsw
import trio

from warren.conversation.memory import MemoryConfig
from warren.storage.copying import Page, Position, Row, Table
from warren.storage.memory.file import FILE_NAME, MEMORY_STORE, open_writer
from warren.storage.memory.writer import add_words, count_anew
from warren.storage.sqlite.copying import page_of, run
from warren.storage.sqlite.database import close_writer, create, transaction

R = TypeVar("R")
_READ: Final = {
    "memory_sessions": """
        SELECT key, session_id, entries, forgotten, since, tenant, key
        FROM sessions LEFT JOIN unsettled ON session = key WHERE key > ? ORDER BY key
    """,
    "memory_entries": """
        SELECT id, session, position, turn, created_at, lower(hex(terms)), content, id FROM entries
        WHERE id > ? ORDER BY id
    """,
    "memory_tombstones": """
        SELECT session, position, turn, session, position FROM tombstones
        WHERE (session, position) > (?, ?) ORDER BY session, position
    """,
}
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
                await run(MEMORY_STORE, self._path, partial(close_writer, db))

    @property
    def _is_there(self) -> bool:
        return self._db is not None or self._path.exists()

    async def _run(self, function: Callable[[apsw.Connection], R]) -> R:
        return await run(MEMORY_STORE, self._path, lambda: function(self._opened()))

    def _opened(self) -> apsw.Connection:
        if self._db is None:
            config = MemoryConfig(self._folder)
            self._db = open_writer(create(self._folder.absolute(), FILE_NAME).as_uri(), config)
        return self._db

    def _page(self, table: Table, after: Position | None, db: apsw.Connection) -> Page:
        sql = _READ[table.name]
        return page_of(db, str(self._path), table, sql, after or (0,) * sql.count("?"))


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
