"""The store's file: how it is created, opened, checked and brought up to this version."""

import os
import stat
import time
from importlib.resources import files
from pathlib import Path
from typing import Final

import apsw

from warren.config import StoreConfig
from warren.errors import StoreError
from warren.storage.sqlite.faults import precise

FILE_NAME: Final = "sessions.sqlite3"
_APPLICATION_ID: Final = 0x57415252
"""Marks the file as ours: the letters WARR."""
_MIGRATIONS: Final = tuple(
    files(__package__).joinpath(f"schema_{version}.sql").read_text(encoding="utf-8") for version in (1, 2, 3, 4, 5)
)
"""Scripts in order; the file's `user_version` counts those it has had."""
VERSION: Final = len(_MIGRATIONS)
"""Of the files that this program writes."""


def open_writer(config: StoreConfig) -> apsw.Connection:
    """Open the one connection that writes; create the folder and the file, or migrate it.

    Raises StoreError with `cause` "newer_schema" or "not_a_store", OSError and apsw.Error.
    """
    path = create(config.path, FILE_NAME)
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
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


def open_reader(config: StoreConfig) -> apsw.Connection:
    """Open a connection that cannot write, beside an open writer. Raises StoreError, OSError and apsw.Error."""
    path = config.path / FILE_NAME
    check_regular(path)
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    db.set_busy_timeout(_milliseconds(config.busy_timeout))
    return db


def create(folder: Path, name: str) -> Path:
    """Return the path of a database; it and its folder are for their owner alone if they are made here.

    Raises StoreError if something other than a regular file is in its place, and OSError.
    """
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / name
    check_regular(path)
    # SQLite would create it readable for all; its side files take over the mode of this one.
    os.close(os.open(path, os.O_CREAT | os.O_RDONLY, 0o600))
    return path


def check_regular(path: Path) -> None:
    """Refuse a path that leads to a FIFO, a folder or a device; one that leads nowhere passes.

    Opening a FIFO waits until somebody writes into it, and no signal ends that wait inside SQLite.

    Raises StoreError(cause="cannot_open") and OSError.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "a device")
        problem = f"{path} is {kind}, not a regular file: move it away, or name another folder"
        raise StoreError(problem, cause="cannot_open", retryable=False)


_KINDS: Final = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"))


def _prepare(db: apsw.Connection, config: StoreConfig) -> None:
    db.set_busy_timeout(_milliseconds(config.busy_timeout))
    # Looked at before anything is changed: it may be another program's file.
    version = version_of(db)
    if not version:
        # Only before the first table: so that the file can give room back piece by piece.
        db.pragma("auto_vacuum", "INCREMENTAL")
    use_wal(db, config.busy_timeout)
    db.pragma("synchronous", config.synchronous)
    if version < VERSION:
        _migrate(db)


def use_wal(db: apsw.Connection, patience: float) -> None:
    """Turn the write-ahead log on. Waits `patience` seconds for a lock: two processes may come for a new file at once.

    SQLite does not wait here by itself, whatever its busy timeout. Raises apsw.BusyError.
    """
    end = time.monotonic() + patience
    while True:
        try:
            db.pragma("journal_mode", "WAL")
        except apsw.BusyError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.01)
        else:
            return


def version_of(db: apsw.Connection) -> int:
    """Return the file's version, 0 for an empty one. Raises StoreError where it is not for us."""
    version: int = db.pragma("user_version")
    if version > VERSION:
        message = (
            f"the session store {db.filename} has version {version}; this Warren knows versions up to "
            f"{VERSION}: use a newer one"
        )
        raise StoreError(message, cause="newer_schema", retryable=False)
    tables: int = db.execute("SELECT count(*) FROM sqlite_schema").get
    if db.pragma("application_id") != _APPLICATION_ID and (version or tables):
        message = f"{db.filename} is another program's database, not a session store"
        raise StoreError(message, cause="not_a_store", retryable=False)
    return version


def _migrate(db: apsw.Connection) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        # Asked again under the lock: two processes may have come for the same file.
        for script in _MIGRATIONS[version_of(db) :]:
            db.execute(script)
        db.pragma("application_id", _APPLICATION_ID)
        db.pragma("user_version", VERSION)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
