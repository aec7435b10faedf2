"""The file of the session store."""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

import apsw

from warren.conversation.memory import Progress
from warren.settings.config import StoreConfig
from warren.storage.sqlite import database
from warren.storage.sqlite.database import Kind, check_regular, close_writer, create

if sys.platform != "win32":
    import fcntl

FILE_NAME: Final = "sessions.sqlite3"
UNFINISHED: Final = 0x57415243
"""The number of a file that is to become a copy of another store: the letters WARC."""
REPLACED: Final = 0x57415250
"""The number of a file whose place a backup takes at this moment: the letters WARP."""
SESSION_STORE: Final = Kind(
    noun="session store",
    file_name=FILE_NAME,
    application_id=0x57415252,  # the letters WARR
    package=__package__,
    migrations=tuple(f"schema_{version}.sql" for version in range(1, 19)),
    can_shrink=True,
    unfinished=UNFINISHED,
    replaced=REPLACED,
)
VERSION: Final = SESSION_STORE.version
"""The version of the files that this program writes."""


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let one process at a time run the block, which opens the log of the file, or removes that of a former file.

    Else the index that one process makes of the former log would be there when another one opens the file.

    Raises OSError if the folder cannot be opened.
    """
    if sys.platform == "win32":  # nobody replaces a file there that is open
        yield
        return
    held = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def open_writer(
    config: StoreConfig, progress: Progress | None = None, *, opening: AbstractContextManager[None] | None = None
) -> apsw.Connection:
    """Open the one connection that writes; create the folder and the file, or migrate it with some progress.

    `opening` is held while the log is opened: `alone`, unless another block is given.

    Raises StoreError with `cause` "newer_schema" or "not_a_store", OSError and apsw.Error.
    """
    uri = create(config.path.absolute(), FILE_NAME).as_uri()
    return database.open_writer(
        SESSION_STORE,
        uri,
        busy_timeout=config.busy_timeout,
        synchronous=config.synchronous,
        progress=progress,
        opening=alone(config.path) if opening is None else opening,
    )


def open_reader(config: StoreConfig) -> apsw.Connection:
    """Open a connection that cannot write, beside an open writer. Raises StoreError, OSError and apsw.Error."""
    path = config.path.absolute() / FILE_NAME
    check_regular(path)
    return database.open_reader(path.as_uri(), busy_timeout=config.busy_timeout)


@contextmanager
def opened(config: StoreConfig) -> Iterator[apsw.Connection]:
    """Open the file for the reads of a program that runs no sessions; a file of an older version is migrated.

    Raises StoreError, also for a fault within the block.
    """
    with SESSION_STORE.faults(config.path / FILE_NAME):
        db = open_writer(config)
        try:
            yield db
        finally:
            close_writer(db)
