"""A store's file as maintenance meets it: never made, never migrated, looked at without being changed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from warren.config import StoreConfig
from warren.errors import StoreError
from warren.storage.faults import translate
from warren.storage.file import FILE_NAME, open_reader, version_of
from warren.storage.lease import Holder


@contextmanager
def reading(config: StoreConfig) -> Iterator[apsw.Connection]:
    """Open a store that is there for one consistent look, beside whatever writes it.

    Trap: until the end of the block the log beside the file can only grow.

    Raises StoreError; its `cause` is "missing" where there is none, else as `Store.open` says.
    """
    path = config.path / FILE_NAME
    with faults_of(path):
        if not path.exists():
            raise StoreError(f"there is no store at {config.path}", cause="missing", retryable=False)
        db = open_reader(config)
        try:
            db.execute("BEGIN")
            if not version_of(db):
                raise StoreError(f"{path} is empty: it is no session store", cause="not_a_store", retryable=False)
            yield db
        finally:
            db.close()


@contextmanager
def faults_of(path: Path) -> Iterator[None]:
    """Let whatever a database or the system reports leave the block as a StoreError that names the file."""
    try:
        yield
    except (apsw.Error, OSError) as exc:
        raise translate(exc, path=path) from exc


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
