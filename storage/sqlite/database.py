"""SQLite files, for the session store and the memory: creation, checks, migration, transactions.

A file has one connection that writes and any number that read. It is in WAL mode: a reader sees the state of its
`BEGIN` and waits for no writer; a commit is one flush of the log. Two processes may open the same file at the same
moment: the migration therefore asks for the version again under the write lock.
"""

import contextlib
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, TypeVar

import apsw

from warren.base.errors import StoreError, WarrenError
from warren.base.values import frozen
from warren.conversation.memory import Progress
from warren.storage.refusals import half_restored, unfinished
from warren.storage.sqlite.faults import precise, translate

R = TypeVar("R")
logger: Final = logging.getLogger("warren.storage")


@frozen
class Kind:
    """A kind of file.

    Attributes:
        noun: its name in messages, such as "session store".
        file_name: the name of the file in its folder.
        application_id: the number in the header of each file of this kind.
        package: the package that the scripts lie in.
        migrations: the names of scripts of SQL, in order; `user_version` of a file counts the scripts that it has had.
        can_shrink: whether a new file can return free pages to the disk piece by piece.
        unfinished: the number in the header of a file that is to become one of this kind, and is not whole yet.
        replaced: the number in the header of a file that another one of this kind is about to replace.
    """

    noun: str
    file_name: str
    application_id: int
    package: str
    migrations: Sequence[str]
    can_shrink: bool = False
    unfinished: int | None = None
    replaced: int | None = None

    @property
    def version(self) -> int:
        """The version of a file that has had all scripts."""
        return len(self.migrations)

    def fault(self, exc: Exception, *, session_id: str | None = None, path: Path | None = None) -> WarrenError:
        """Return the error that callers get for an exception of a database call; see `translate`."""
        return translate(exc, self.noun, session_id=session_id, path=path)

    @contextlib.contextmanager
    def faults(self, path: Path) -> Iterator[None]:
        """Raise errors of the database and of the system inside the block as StoreErrors that name the file."""
        try:
            yield
        except (apsw.Error, OSError, UnicodeDecodeError) as exc:
            raise self.fault(exc, path=path) from exc


# -- opening


def create(folder: Path, name: str) -> Path:
    """Return the path of a file. The file and its folder are made if they are missing, for their owner alone.

    Raises StoreError if something other than a regular file is in its place, and OSError.
    """
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / name
    check_regular(path)
    # SQLite would make it readable for all users. Its log and its shared memory get the mode of this file.
    os.close(os.open(path, os.O_CREAT | os.O_RDONLY, 0o600))
    return path


def check_regular(path: Path) -> None:
    """Refuse a path that leads to a FIFO, a folder or a device; a path that leads nowhere passes.

    The open of a FIFO waits for a process that writes into it, and no signal ends that wait inside SQLite.

    Raises StoreError(cause="cannot_open") and OSError.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _FILE_TYPES if is_kind(mode)), "a device")
        problem = f"{path} is {kind}, not a regular file: move it away, or name another folder"
        raise StoreError(problem, cause="cannot_open", retryable=False)


MOMENT: Final = 500
"""Milliseconds for which an `impatient` block waits for the lock of another process."""
UNORDERED: Final = contextlib.nullcontext()
"""The order in which processes get the lock of a file that mostly one writes: none."""
_FILE_TYPES: Final = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"))


def open_writer(
    kind: Kind,
    uri: str,
    *,
    busy_timeout: float,
    synchronous: Literal["FULL", "NORMAL"] = "FULL",
    progress: Progress | None = None,
    opening: contextlib.AbstractContextManager[None] = UNORDERED,
) -> apsw.Connection:
    """Open the connection that writes, and bring the file up to the version of this program.

    Args:
        kind: the kind of the file.
        uri: the URI of a file that is there (see `create`), or of a database in memory.
        busy_timeout: seconds to wait for the lock of another process.
        synchronous: SQLite's setting; "FULL" flushes the log in each commit.
        progress: is called before and after each script of a migration, with those that are done and their number.
        opening: is held during the first read, which opens the log.

    Raises StoreError with `cause` "newer_schema" or "not_a_store", and apsw.Error.
    """
    db = _open(uri, apsw.SQLITE_OPEN_READWRITE, busy_timeout)
    try:
        with opening:
            version = version_of(db, kind)  # before anything is changed: it may be the file of another program
        _prepare(db, kind, version, busy_timeout=busy_timeout, synchronous=synchronous, progress=progress)
    except apsw.IOError as exc:
        found = precise(exc, db)
        db.close()
        raise found from exc
    except BaseException:
        db.close()
        raise
    return db


def open_reader(uri: str, *, busy_timeout: float) -> apsw.Connection:
    """Open a connection that cannot write, to a file that a writer has prepared. Raises apsw.Error."""
    return _open(uri, apsw.SQLITE_OPEN_READONLY, busy_timeout)


def close_writer(db: apsw.Connection) -> None:
    """Move the log into the file, then close. Idempotent; raises no fault of the file: the log keeps the rows."""
    with contextlib.suppress(apsw.Error):
        db.set_busy_timeout(0)  # rows that another process still reads stay in the log
        db.pragma("wal_checkpoint(TRUNCATE)")
    with contextlib.suppress(apsw.Error):
        db.close()


def _open(uri: str, flags: int, busy_timeout: float) -> apsw.Connection:
    db = apsw.Connection(uri, flags=flags | apsw.SQLITE_OPEN_URI)
    db.set_busy_timeout(round(busy_timeout * 1000))
    return db


def _prepare(
    db: apsw.Connection,
    kind: Kind,
    version: int,
    *,
    busy_timeout: float,
    synchronous: str,
    progress: Progress | None,
) -> None:
    if not version and kind.can_shrink:
        # SQLite takes this setting only before the first table.
        db.pragma("auto_vacuum", "INCREMENTAL")
    _use_wal(db, busy_timeout)
    db.pragma("synchronous", synchronous)
    if version < kind.version:
        _migrate(db, kind, progress)


def _use_wal(db: apsw.Connection, busy_timeout: float) -> None:
    """Turn the write-ahead log on; wait for a lock here, because SQLite ignores its busy timeout in this statement."""
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            db.pragma("journal_mode", "WAL")
            db.pragma("user_version")  # opens the log, whose file is then known: the change of the mode does not
        except apsw.BusyError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.01)
        else:
            return


def version_of(db: apsw.Connection, kind: Kind) -> int:
    """Return the version of a file, 0 for an empty one.

    Raises StoreError with `cause` "newer_schema" or "not_a_store" for a file that this program may not change.
    """
    version = known_version(db, kind)
    tables: int = db.execute("SELECT count(*) FROM sqlite_schema").get
    found = db.pragma("application_id")
    if found == kind.unfinished:
        raise unfinished(db.filename)
    if found == kind.replaced:
        raise half_restored(db.filename)
    if found != kind.application_id and (version or tables):
        message = f"{db.filename} is another program's database, not a {kind.noun}"
        raise StoreError(message, cause="not_a_store", retryable=False)
    return version


def known_version(db: apsw.Connection, kind: Kind) -> int:
    """Return the version of a file. Raises StoreError(cause="newer_schema") if this program does not know it."""
    version: int = db.pragma("user_version")
    if version > kind.version:
        message = (
            f"the {kind.noun} {db.filename} has version {version}; this Warren knows versions up to "
            f"{kind.version}: use a newer one"
        )
        raise StoreError(message, cause="newer_schema", retryable=False)
    return version


def answer(kind: Kind, query: Callable[[apsw.Connection], R], db: apsw.Connection) -> R:
    """Return the answer of a query.

    Raises apsw.Error, or StoreError(cause="newer_schema") for a query that fails in a file of a newer version.
    """
    try:
        return query(db)
    except apsw.SQLError:
        known_version(db, kind)
        raise


def _migrate(db: apsw.Connection, kind: Kind, progress: Progress | None) -> None:
    from importlib.resources import files  # noqa: PLC0415 - most files are up to date

    with transaction(db):
        # Asked again under the lock: another process may have migrated the file meanwhile.
        version = version_of(db, kind)
        names = kind.migrations[version:]
        for done, name in enumerate(names):
            if progress is not None:
                progress(done, len(names))
            # The first contents of a new file are no migration.
            if version:
                logger.info("the %s gets what %s brings, %d of %d", kind.noun, name, done + 1, len(names))
            db.execute(files(kind.package).joinpath(name).read_text(encoding="utf-8"))
        if progress is not None:
            progress(len(names), len(names))
        db.pragma("application_id", kind.application_id)
        db.pragma("user_version", kind.version)


# -- transactions


@contextlib.contextmanager
def transaction(
    db: apsw.Connection, kind: Kind | None = None, ahead: contextlib.AbstractContextManager[None] = UNORDERED
) -> Iterator[None]:
    """Hold the write lock for the block; commit at its end, or roll back if the block or the commit raises.

    With a kind nothing is written into a file that a newer program has migrated since it was opened: it raises
    StoreError(cause="newer_schema").

    `IMMEDIATE` takes the lock at once: a transaction that first reads and then asks for the lock could fail at its
    first write, with a snapshot that is out of date. `ahead` is held while it waits for the lock.
    """
    with ahead:
        db.execute("BEGIN IMMEDIATE")
    try:
        if kind is not None:
            known_version(db, kind)
        yield
        db.execute("COMMIT")
    except BaseException:
        _roll_back(db)
        raise


@contextlib.contextmanager
def impatient(db: apsw.Connection) -> Iterator[None]:
    """Wait for the lock of another process for `MOMENT` at most within the block."""
    usual = db.pragma("busy_timeout")
    db.set_busy_timeout(min(usual, MOMENT))
    try:
        yield
    finally:
        db.set_busy_timeout(usual)


@contextlib.contextmanager
def snapshot(db: apsw.Connection) -> Iterator[None]:
    """Show one state of the file to all reads of the block. Trap: the log of the file cannot be reset meanwhile."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        _roll_back(db)


def lock(db: apsw.Connection) -> None:
    """Begin a transaction during which no other connection can use the file. Raises apsw.BusyError if one is there."""
    # SQLite gives the write-ahead log up only for the last connection.
    db.pragma("journal_mode", "DELETE")
    db.execute("BEGIN EXCLUSIVE")


def _roll_back(db: apsw.Connection) -> None:
    # After some faults (a full disk, an I/O error) SQLite has rolled back by itself.
    if db.in_transaction:
        db.execute("ROLLBACK")
