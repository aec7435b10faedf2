"""The memory's database: how it is created, opened and checked."""

import contextlib
import secrets
from importlib.resources import files
from pathlib import Path
from typing import Final

import apsw
import attrs

from warren.errors import StoreError, WarrenError
from warren.memory import MemoryConfig
from warren.storage.sqlite.faults import precise, translate
from warren.storage.sqlite.file import check_regular, create, use_wal
from warren.storage.sqlite.rows import raw, shown

FILE_NAME: Final = "memory.sqlite3"
_MIGRATIONS: Final = tuple(
    files(__package__).joinpath(name).read_text(encoding="utf-8") for name in ("schema.sql", "schema_2.sql")
)
"""Scripts in order; the file's `user_version` counts those it has had."""
VERSION: Final = len(_MIGRATIONS)
_APPLICATION_ID: Final = 0x5741524D
"""Marks the file as ours: the letters WARM."""


def locate(config: MemoryConfig) -> str:
    """Return the database's URI; create its folder and its file where needed. Raises OSError, StoreError."""
    if config.path is None:
        # Named, so that several connections can open the same; it ends with the last of them.
        return f"file:/{secrets.token_hex(16)}?vfs=memdb"
    return create(config.path.absolute(), FILE_NAME).as_uri()


def open_writer(uri: str, config: MemoryConfig) -> apsw.Connection:
    """Open the connection that writes, to a database that is made where there is none yet.

    Raises StoreError with `cause` "newer_schema" or "not_a_store", and apsw.Error.
    """
    db = _open(uri, config, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
    try:
        _prepare(db, config)
    except apsw.IOError as exc:
        found = precise(exc, db)
        db.close()
        raise found from exc
    except BaseException:
        db.close()
        raise
    return db


def open_reader(uri: str, config: MemoryConfig) -> apsw.Connection:
    """Open a connection that cannot write, beside an open writer. Raises apsw.Error."""
    return _open(uri, config, apsw.SQLITE_OPEN_READONLY)


def known_dimensions(folder: Path, embedder: str) -> int:
    """Return how long the vectors of an embedder are in the memory of a folder, the newest; 0 where it has none."""
    with contextlib.suppress(apsw.Error, OSError, StoreError), contextlib.closing(_for_a_look(folder)) as db:
        for (name,) in db.execute(f"SELECT {raw('name')} FROM spaces ORDER BY key DESC"):  # noqa: S608 - a constant
            of, _, dimensions = shown(name).rpartition("/")
            if of == embedder and dimensions.isdecimal():
                return int(dimensions)
    return 0


def _for_a_look(folder: Path) -> apsw.Connection:
    check_regular(folder / FILE_NAME)
    return apsw.Connection(str(folder / FILE_NAME), flags=apsw.SQLITE_OPEN_READONLY)


def identity(db: apsw.Connection) -> str:
    """Return the text that tells this database from others; a damaged one still does."""
    return shown(db.execute(f"SELECT {raw('store')} FROM identity").get)  # noqa: S608 - a constant


def fault(exc: Exception, *, path: Path | None = None) -> WarrenError:
    """Return the error a caller meets for what a database call raised: a StoreError whose `cause` says why."""
    error = translate(exc, path=path)
    if not isinstance(error, StoreError) or error is exc:
        return error
    message = error.message.replace("session store", "memory store")
    ours = StoreError(message, cause=error.cause, retryable=error.retryable)
    ours.__cause__ = exc
    return ours


def _open(uri: str, config: MemoryConfig, flags: int) -> apsw.Connection:
    db = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_URI | flags)
    db.set_busy_timeout(round(config.busy_timeout * 1000))
    return db


def _prepare(db: apsw.Connection, config: MemoryConfig) -> None:
    # Looked at before anything is changed: it may be another program's file.
    check(db)
    use_wal(db, config.busy_timeout)
    db.pragma("synchronous", "FULL")
    if db.pragma("user_version") < VERSION:
        _migrate(db)


def check(db: apsw.Connection) -> None:
    """Raise StoreError where a file is not for us: its `cause` is "newer_schema" or "not_a_store"."""
    version: int = db.pragma("user_version")
    if version > VERSION:
        message = (
            f"the memory store {db.filename} has version {version}; this Warren knows versions up to {VERSION}: "
            "use a newer one"
        )
        raise StoreError(message, cause="newer_schema", retryable=False)
    tables: int = db.execute("SELECT count(*) FROM sqlite_schema").get
    if db.pragma("application_id") != _APPLICATION_ID and (version or tables):
        message = f"{db.filename} is another program's database, not a memory store"
        raise StoreError(message, cause="not_a_store", retryable=False)


def _migrate(db: apsw.Connection) -> None:
    with transaction(db):
        # Asked again under the lock: two processes may have come for the same file.
        version: int = db.pragma("user_version")
        for script in _MIGRATIONS[version:]:
            db.execute(script)
        if not version:
            db.execute("INSERT INTO identity VALUES (?)", (secrets.token_hex(16),))
        db.pragma("application_id", _APPLICATION_ID)
        db.pragma("user_version", VERSION)


@attrs.define
class transaction:  # noqa: N801 - reads as a statement
    """One write transaction: committed at the end of the block, undone where the block raises."""

    _db: apsw.Connection

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._db.execute("COMMIT")
        finally:
            # SQLite has rolled back by itself after some faults; a refused commit leaves it open.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
