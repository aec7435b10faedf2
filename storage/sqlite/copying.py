"""A session store in a file as a whole: all of its rows to be copied elsewhere, or a file that is filled with rows."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw
import attrs

from warren.base.errors import StoreError
from warren.settings.config import StoreConfig
from warren.storage.copying import (
    AUDIT,
    MEMORY,
    PAGE_BYTES,
    PAGE_ROWS,
    Mark,
    Memory,
    Page,
    Position,
    Row,
    Table,
    renumbered,
)
from warren.storage.membership import secret_of
from warren.storage.refusals import another_copy, in_use, not_empty, two_copies
from warren.storage.runner import thread_runner
from warren.storage.sqlite import database
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.database import Kind, close_writer, create, lock, transaction
from warren.storage.sqlite.file import FILE_NAME, SESSION_STORE, UNFINISHED, open_writer
from warren.storage.sqlite.inbox import last_number
from warren.storage.sqlite.lease import Holder
from warren.storage.sqlite.writer import ADD_CLUSTER

R = TypeVar("R")
# Rows are read and added in the order of an index, or of the table itself.
_ORDER: Final = {
    "sessions": ("key",),
    "messages": ("session", "position"),
    "compactions": ("rowid",),
    "events": ("session", "seq"),
    "inbox": ("number",),
    "creations": ("tenant", "key"),
    "erasures": ("session_id",),
    "usage": ("rowid",),
    "blobs": ("key",),
    "attachments": ("session", "blob"),
    "audit": ("number",),
    "calls": ("session", "place"),
    "waits": ("key",),
    "schedules": ("key",),
    "schedule_runs": ("schedule", "due"),
    "triggers": ("key",),
    "trigger_deliveries": ("trigger_key", "delivery"),
    "webhooks": ("key",),
    "deliveries": ("key",),
    "agents": ("key",),
}
# Columns that have another name here, as they are read and as they are written.
_READ: Final = {
    ("sessions", "unreleased"): "holder IS NOT NULL",
    ("compactions", "key"): "rowid",
    ("blobs", "body"): "lower(hex(body))",
}
_WRITTEN: Final = {("sessions", "unreleased"): "holder", ("compactions", "key"): "rowid"}
# No process ever has the number 0: a session that was not put back has a dead holder here too.
_VALUE: Final = {("sessions", "unreleased"): "nullif(?{at}, 0) - 1", ("blobs", "body"): "unhex(?{at})"}
_USED: Final = "SELECT " + " OR ".join(f"EXISTS (SELECT 1 FROM {each})" for each in ("sessions", "creations"))
_ENTRIES: Final = "SELECT coalesce(max(number), 0) FROM audit"
_MEMORY: Final = "memory"
"""The folder of the memory, in the folder of a store."""
_UNFINISHED: Final = attrs.evolve(SESSION_STORE, application_id=UNFINISHED, unfinished=None)


class WholeFile:
    """The file of a session store, to be read or filled; see `warren.storage.copying`. Made by `source` and `target`.

    Attributes:
        name: the folder.
        identity: the folder's whole path.
        memory: the memory in the folder, which is copied with the store; None if there are no means to read one.
    """

    memory: Memory | None = None

    def __init__(self, db: apsw.Connection, config: StoreConfig) -> None:
        self._db = db
        self._path = config.path / FILE_NAME
        self.name: str = str(config.path)
        self.identity: str = str(config.path.resolve())
        self._entries = 0  # of its own, which the copied ones of the audit follow

    async def count(self, table: Table) -> int:
        if self.memory is not None and table in MEMORY:
            return await self.memory.count(table)
        count: int = await self._run(lambda: self._db.execute(f"SELECT count(*) FROM {table.name}").get)
        return count

    async def page(self, table: Table, after: Position | None) -> Page:
        if self.memory is not None and table in MEMORY:
            return await self.memory.page(table, after)
        return await self._run(partial(self._page, table, after))

    async def last_input(self) -> int:
        return await self._run(lambda: last_number(self._db))

    async def secret(self) -> bytes | None:
        return secret_of(await self._run(lambda: self._db.execute(f"SELECT {raw('completions')} FROM cluster").get))

    async def remembers(self) -> bool:
        return await self._run(self._remembers)

    async def begin(self, source: str) -> Mark:
        return await self._run(partial(self._begin, source))

    async def add(self, table: Table, rows: Sequence[Row], before: Mark, after: Mark) -> None:
        if self.memory is not None and table in MEMORY:
            await self.memory.put(table, rows)
            rows = ()
        await self._run(partial(self._add, table, rows, before, after))

    async def finish(self, last_input: int, secret: bytes | None) -> None:
        if self.memory is not None:
            await self.memory.finish()
        await self._run(partial(self._finish, last_input, secret))

    async def _run(self, function: Callable[[], R]) -> R:
        return await run(SESSION_STORE, self._path, function)

    def _page(self, table: Table, after: Position | None) -> Page:
        order = _ORDER[table.name]
        if table is AUDIT:
            after = after or (self._entries,)
        names = [_READ.get((table.name, each), each) for each in table.columns]
        where = "" if after is None else f"WHERE ({', '.join(order)}) > ({', '.join('?' for _ in order)})"
        sql = f"SELECT {', '.join(names)}, {', '.join(order)} FROM {table.name} {where} ORDER BY {', '.join(order)}"
        found = page_of(self._db, self.name, table, sql, after or ())
        return Page(renumbered(table, found.rows, -self._entries), found.after)

    def _remembers(self) -> bool:
        return any((self._path.parent / _MEMORY).glob("*.sqlite3"))

    def _begin(self, source: str) -> Mark:
        db = self._db
        with transaction(db):
            if db.pragma("application_id") != _UNFINISHED.application_id:
                if db.execute(_USED).get:
                    raise not_empty(self.name)
                if self._remembers():
                    raise StoreError(f"there is a memory in {self.name}", cause="exists", retryable=False)
                db.pragma("application_id", _UNFINISHED.application_id)
            db.execute("CREATE TABLE IF NOT EXISTS copying (mark TEXT NOT NULL) STRICT")
            found = db.execute("SELECT mark FROM copying").get
            if found is None:
                mark = Mark(source, entries=db.execute(_ENTRIES).get)
                db.execute("INSERT INTO copying VALUES (?)", (mark.encoded(),))
            else:
                mark = Mark.decoded(str(found))
        if mark.source != source:
            raise another_copy(self.name, mark.source)
        self._entries = mark.entries
        return mark

    def _add(self, table: Table, rows: Sequence[Row], before: Mark, after: Mark) -> None:
        names = [_WRITTEN.get((table.name, each), each) for each in table.columns]
        values = [
            _VALUE.get((table.name, each), "?{at}").format(at=at) for at, each in enumerate(table.columns, start=1)
        ]
        if table.name == "sessions":  # followers go by the change; the order of the keys will do
            names, values = [*names, "change"], [*values, "?1"]
        with transaction(self._db):
            self._db.execute("UPDATE copying SET mark = ? WHERE mark = ?", (after.encoded(), before.encoded()))
            if self._db.changes() != 1:
                raise two_copies(self.name)
            sql = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join(values)})"
            self._db.executemany(sql, renumbered(table, rows, after.entries))

    def _finish(self, last_input: int, secret: bytes | None) -> None:
        with transaction(self._db):
            self._db.execute(ADD_CLUSTER)
            self._db.execute("UPDATE cluster SET completions = ?", (secret and secret.hex(),))
            self._db.execute("DELETE FROM sqlite_sequence WHERE name = 'inbox'")
            self._db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('inbox', ?)", (last_input,))
            self._db.execute("DROP TABLE copying")
            self._db.pragma("application_id", SESSION_STORE.application_id)


@asynccontextmanager
async def source(config: StoreConfig) -> AsyncIterator[WholeFile]:
    """Open the store of a folder to be copied. A store of an older version is migrated first; nobody else can open it.

    Raises StoreError with `cause` "missing", "leased" if a process that lives uses it, and as `SqliteStore.open`.
    """
    path = config.path / FILE_NAME
    if not path.exists():
        raise StoreError(f"there is no store at {config.path}", cause="missing", retryable=False)
    with _closing(await run(SESSION_STORE, path, partial(open_writer, config))) as db:
        await thread_runner(partial(_take, db, config))
        yield WholeFile(db, config)


@asynccontextmanager
async def target(config: StoreConfig) -> AsyncIterator[WholeFile]:
    """Open a folder to be filled: one without a store, with an empty one, or with an unfinished copy.

    Raises StoreError with `cause` "leased" if a process that lives uses it, and as `SqliteStore.open`.
    """
    with _closing(await run(SESSION_STORE, config.path / FILE_NAME, partial(_target, config))) as db:
        yield WholeFile(db, config)


async def run(kind: Kind, path: Path, function: Callable[[], R]) -> R:
    """Run a function on a file in a thread, to its end. Raises StoreError."""

    def guarded() -> R:
        with kind.faults(path):
            return function()

    return await thread_runner(guarded)


def page_of(db: apsw.Connection, name: str, table: Table, sql: str, after: Position) -> Page:
    """Return rows of a query, which has the columns of a table and, behind them, those of a position.

    Raises StoreError(cause="corrupt"), in which `name` is that of the file.
    """
    width, rows, size, position = len(table.columns), list[Row](), 0, after
    try:
        for row in db.execute(f"{sql} LIMIT {PAGE_ROWS}", after):
            texts = [each for each in row if not isinstance(each, int | None)]
            size += len("".join(texts))  # a value that is no text raises TypeError
            rows.append(row[:width])
            position = row[width:]
            if size > PAGE_BYTES:
                break
    except (UnicodeDecodeError, TypeError):
        problem = f"{name}: a row of the table {table.name} after {position} cannot be read"
        advice = "`warren doctor --fix` sets such rows aside"
        raise StoreError(f"{problem}; {advice}", cause="corrupt", retryable=False) from None
    return Page(rows, position)


@contextmanager
def _closing(db: apsw.Connection) -> Iterator[apsw.Connection]:
    try:
        yield db
    finally:
        close_writer(db)


def _target(config: StoreConfig) -> apsw.Connection:
    path = create(config.path.absolute(), FILE_NAME)
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    made, number = bool(db.pragma("user_version")), db.pragma("application_id")
    db.close()
    kind = SESSION_STORE if made and number != _UNFINISHED.application_id else _UNFINISHED
    if kind is SESSION_STORE:
        with _closing(open_writer(config)) as db:
            _take(db, config)
    return database.open_writer(kind, path.as_uri(), busy_timeout=config.busy_timeout, synchronous=config.synchronous)


def _take(db: apsw.Connection, config: StoreConfig) -> None:
    """Lock a store for this process alone. Raises StoreError(cause="leased") if another one uses it."""
    with SESSION_STORE.faults(config.path / FILE_NAME):
        me = Holder.of(config)
        keys: list[Any] = db.execute("SELECT key FROM holders").fetchall()
        names = [me.rival(db, key) for (key,) in keys]
        living = [name for name in names if name is not None]
        if living:
            raise in_use(f"{config.path} ({', '.join(living)})")
        try:
            lock(db)
        except (apsw.BusyError, apsw.LockedError):
            raise in_use(str(config.path)) from None
