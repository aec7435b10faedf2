"""Files that replace others: made under a temporary name, then put in place, all of them or none.

The file of the sessions takes its place last. Until then it has a number in its header by which every program refuses
the store: a process that is killed leaves either the former store, or one that has to be restored again.
"""

import contextlib
import os
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import apsw

from warren.base.errors import StoreError
from warren.storage.maintenance.files import sync_folder
from warren.storage.sqlite.file import REPLACED, SESSION_STORE

if sys.platform != "win32":  # without such locks no file of a killed process is removed
    import fcntl

BUSY_TIMEOUT: Final = 5_000
"""Milliseconds for which the way back waits for a process that looks at the store, and is refused."""


def part_of(target: Path) -> Path:
    """Return the path of a file until it is whole and replaces the target."""
    return target.with_name(f".{target.name}.{os.getpid()}.part")


@contextmanager
def making(target: Path) -> Iterator[None]:
    """Make the part of a target, empty and for its owner alone; it is removed at the end if it has that name still.

    Parts of processes that were killed are removed: a process that lives has its own locked.

    Raises StoreError(cause="locked") if a process of the same number, in another container, makes it; OSError.
    """
    _sweep(target)
    part = part_of(target)
    file = _created(part, target)
    try:
        yield
    finally:
        with SESSION_STORE.faults(part):
            _remove_with_logs(part)
        os.close(file)


def _created(part: Path, target: Path) -> int:
    while True:
        file = os.open(part, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            if sys.platform != "win32":
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may have taken it for one that is left, and removed it, before it was locked.
            if part.exists() and os.path.samestat(part.stat(), os.fstat(file)):
                os.ftruncate(file, 0)
                return file
        except BlockingIOError:
            os.close(file)
            raise StoreError(f"another process copies to {target}: let it end", cause="locked") from None
        except OSError:  # a file system without locks
            os.ftruncate(file, 0)
            return file
        os.close(file)


def _sweep(target: Path) -> None:
    """Remove the parts that no process has locked; those of other users stay."""
    named = re.compile(rf"\.{re.escape(target.name)}\.\d+\.part")
    for path in target.parent.iterdir() if sys.platform != "win32" else ():
        if named.fullmatch(path.name):
            with contextlib.suppress(OSError):
                _remove_if_free(path)


def _remove_if_free(path: Path) -> None:
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove_with_logs(path)
    finally:
        os.close(file)


def _remove_with_logs(path: Path) -> None:
    for each in (*side_files(path), path):
        each.unlink(missing_ok=True)


def side_files(path: Path) -> list[Path]:
    """Return the paths of the files that SQLite makes beside a database."""
    return [path.with_name(path.name + ending) for ending in ("-wal", "-shm", "-journal")]


@contextmanager
def refused_meanwhile(path: Path, db: apsw.Connection | None) -> Iterator[None]:
    """Make every program refuse the store in a file for the block; an exception makes it usable again.

    Args:
        path: the file, which the block replaces at its end. A file is made if there is none.
        db: the connection that has locked the file; None if the file is missing, or so damaged that every program
            refuses it as it is.

    Raises OSError and apsw.Error.
    """
    with ExitStack() as stack:
        if not path.exists():
            stack.enter_context(_made(path))
        elif db is not None:
            stack.enter_context(_marked(db))
        yield


@contextmanager
def _marked(db: apsw.Connection) -> Iterator[None]:
    former = db.pragma("application_id")
    try:
        # A file that is too damaged to be marked is refused by everybody as well.
        with contextlib.suppress(apsw.CorruptError):
            db.pragma("application_id", REPLACED)
            db.execute("COMMIT")
            db.execute("BEGIN EXCLUSIVE")
        yield
    except BaseException:
        db.set_busy_timeout(BUSY_TIMEOUT)
        db.pragma("application_id", former)
        if db.in_transaction:
            db.execute("COMMIT")
        raise


@contextmanager
def _made(path: Path) -> Iterator[None]:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    made = path.stat()
    try:
        with contextlib.closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as db:
            db.pragma("application_id", REPLACED)
        yield
    except BaseException:
        if os.path.samestat(made, path.stat()):
            path.unlink()
        raise


@contextmanager
def out_of_the_way(*paths: Path, last: Path) -> Iterator[None]:
    """Give files other names for the block, and remove them at its end.

    If the block raises before it has renamed its `last` file, they are put back, and files of their names that it has
    made are removed.

    Raises OSError.
    """
    there = {path: path.with_name(f".{path.name}.{secrets.token_hex(4)}.old") for path in paths if path.exists()}
    try:
        for path, former in there.items():
            path.replace(former)
        for folder in {path.parent for path in there}:
            sync_folder(folder)
        yield
    except BaseException:
        for path in paths if last.exists() else ():
            if path not in there:
                path.unlink(missing_ok=True)
            elif there[path].exists():
                there[path].replace(path)
        raise
    for path in paths:  # also those that a killed process has left
        for former in path.parent.glob(f".{path.name}.*.old"):
            former.unlink(missing_ok=True)
