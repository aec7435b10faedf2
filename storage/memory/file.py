"""The memory's file, or its database in memory."""

import contextlib
import secrets
from pathlib import Path
from typing import Final

import apsw

from warren.base.errors import StoreError
from warren.conversation.memory import MemoryConfig
from warren.storage.rows import shown
from warren.storage.sqlite import database
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.database import Kind, check_regular, create

FILE_NAME: Final = "memory.sqlite3"
MEMORY_STORE: Final = Kind(
    noun="memory store",
    file_name=FILE_NAME,
    application_id=0x5741524D,  # the letters WARM
    package=__package__,
    migrations=("schema.sql", "schema_2.sql", "schema_3.sql", "schema_4.sql"),
)
VERSION: Final = MEMORY_STORE.version
"""The version of the files that this program writes."""


def locate(config: MemoryConfig) -> str:
    """Return the database's URI; the file and its folder are made if they are missing. Raises OSError, StoreError."""
    if config.path is None:
        # With a name, so that several connections can open the same database; it ends with the last of them.
        return f"file:/{secrets.token_hex(16)}?vfs=memdb"
    return create(config.path.absolute(), FILE_NAME).as_uri()


def open_writer(uri: str, config: MemoryConfig) -> apsw.Connection:
    """Open the connection that writes; a new database gets its tables, an old one is migrated.

    Raises StoreError with `cause` "newer_schema" or "not_a_store", and apsw.Error.
    """
    return database.open_writer(MEMORY_STORE, uri, busy_timeout=config.busy_timeout)


def open_reader(uri: str, config: MemoryConfig) -> apsw.Connection:
    """Open a connection that cannot write, beside an open writer. Raises apsw.Error."""
    return database.open_reader(uri, busy_timeout=config.busy_timeout)


def known_dimensions(folder: Path, embedder: str) -> int:
    """Return the length of an embedder's newest vectors in the memory of a folder; 0 if it has none."""
    with contextlib.suppress(apsw.Error, OSError, StoreError):
        check_regular(folder / FILE_NAME)
        reader = database.open_reader((folder / FILE_NAME).absolute().as_uri(), busy_timeout=0)
        with contextlib.closing(reader) as db:
            for (name,) in db.execute(f"SELECT {raw('name')} FROM spaces ORDER BY key DESC"):  # noqa: S608 - a constant
                of, _, dimensions = shown(name).rpartition("/")
                if of == embedder and dimensions.isdecimal():
                    return int(dimensions)
    return 0


def identity(db: apsw.Connection) -> str:
    """Return the text by which a saved graph names its database; a damaged text is still returned."""
    return shown(db.execute(f"SELECT {raw('store')} FROM identity").get)  # noqa: S608 - a constant
