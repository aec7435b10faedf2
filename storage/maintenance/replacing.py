"""Files of a store that others replace: either all of them are replaced, or the store stays as it was.

The file of the sessions takes its place last. Until then it has a number in its header by which every program refuses
the store: a process that is killed leaves either the former store, or one that has to be restored again.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import apsw

from warren.storage.maintenance.files import sync_folder
from warren.storage.sqlite.file import REPLACED

BUSY_TIMEOUT: Final = 5_000
"""Milliseconds for which the way back waits for a process that looks at the store, and is refused."""


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
