"""A store's file as maintenance meets it: never made, never migrated, looked at without being changed."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import apsw

from warren.base.errors import StoreError
from warren.settings.config import StoreConfig
from warren.storage.sqlite.database import check_regular, version_of
from warren.storage.sqlite.faults import on_read_only_disk, precise
from warren.storage.sqlite.file import FILE_NAME, SESSION_STORE
from warren.storage.sqlite.lease import Holder

GoOn = Callable[[], object]
STEPS: Final = 5_000
"""Instructions of SQLite's machine between two questions whether a query goes on: a few milliseconds."""


@contextmanager
def reading(config: StoreConfig, *, whole: bool = False, go_on: GoOn | None = None) -> Iterator[apsw.Connection]:
    """Open a store that is there for one consistent look, beside whatever writes it.

    With `whole` a store is refused if its log cannot be read, as may be on a read-only disk. For `go_on` see `look_at`.

    Trap: until the end of the block the log beside the file can only grow.

    Raises StoreError; its `cause` is "missing" if there is none, else as for `SqliteStore.open`.
    """
    path = config.path / FILE_NAME
    with SESSION_STORE.faults(path):
        if not path.exists():
            raise StoreError(f"there is no store at {config.path}", cause="missing", retryable=False)
        with closing(look_at(path, config.busy_timeout, whole=whole, go_on=go_on)) as db:
            if not version_of(db, SESSION_STORE):
                raise StoreError(f"{path} is empty: it is no session store", cause="not_a_store", retryable=False)
            yield db


def log_size(path: Path) -> int:
    """Return the size of the write-ahead log beside a file. Raises OSError."""
    try:
        return path.with_name(path.name + "-wal").stat().st_size
    except FileNotFoundError:
        return 0


def look_at(
    path: Path, busy_timeout: float = 0.0, *, whole: bool = False, go_on: GoOn | None = None
) -> apsw.Connection:
    """Return a connection to a database, inside a read transaction; its disk may be read-only.

    SQLite needs files beside a database in order to read it, which it cannot make on such a disk. No process can write
    there either, so the file is read as it is: without its log, if there is one, unless it is to be `whole`. So it is
    for a user who may not write into its folder, if there is no log: then nobody writes at this moment.

    `go_on` is called again and again while a query runs; what it raises ends the query, which raises that.

    Raises StoreError, OSError and apsw.Error.
    """
    check_regular(path)
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        db.set_busy_timeout(round(busy_timeout * 1000))
        # SQLite opens the file's log and shared memory now, not before.
        db.execute("BEGIN; SELECT 1 FROM sqlite_schema")
    except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.IOError) as exc:
        found = precise(exc, db)
        db.close()
        if not is_read_only(path) or (whole and log_size(path)):
            raise found from None
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        db = apsw.Connection(f"{path.absolute().as_uri()}?immutable=1", flags=flags)
        db.execute("BEGIN")
    except BaseException:
        db.close()
        raise
    if go_on is not None:
        db.set_progress_handler(partial(_asked, go_on), STEPS)
    return db


def is_read_only(path: Path) -> bool:
    """Tell whether this process can only read a file, as it is, for want of the files that SQLite makes beside it."""
    return on_read_only_disk(path) or not (os.access(path.parent, os.W_OK) or log_size(path))


def _asked(go_on: GoOn) -> bool:
    """Ask whether a query goes on; False lets it."""
    go_on()
    return False


def rivals(db: apsw.Connection, me: Holder) -> dict[int, str]:
    """Return the other processes that live and may write sessions, by their numbers."""
    keys = [row[0] for row in db.execute("SELECT key FROM holders") if row[0] != me.key]
    named = ((key, me.rival(db, key)) for key in keys)
    return {key: name for key, name in named if name is not None}


def sync_folder(folder: Path) -> None:
    """Make the names in a folder outlast a power cut. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
