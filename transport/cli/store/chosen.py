"""The store that the options of a command choose, and its memory. It imports no runtime: a list needs none."""

from pathlib import Path
from typing import Final

import attrs

from warren.base.database_url import DatabaseUrl
from warren.base.errors import InvalidParamsError, MemoryDisabledError, PersistenceDisabledError, SessionNotFoundError
from warren.base.extras import installed, lack, missing
from warren.conversation.memory import MemoryConfig
from warren.settings.config import PostgresConfig, StoreConfig
from warren.transport.cli.failures import MEMORY_DISABLED, PERSISTENCE_DISABLED
from warren.transport.cli.settings.options import Options

MEMORY_FOLDER: Final = "memory"
"""The folder of the memory within that of the store."""
MEMORY_FILE: Final = "memory.sqlite3"
OF_DATABASES: Final = ("readers", "lease", "project")
"""Settings of the table `[storage]` that hold for a store in a database too."""


def memory_of(options: Options, store: StoreConfig | PostgresConfig | None) -> MemoryConfig:
    """Return the settings of a store's memory; without a store it ends with the process.

    Raises MemoryDisabledError if its extra is not installed.
    """
    if not installed("memory-store"):
        raise MemoryDisabledError(MEMORY_DISABLED, details=lack("memory-store"))
    if isinstance(store, PostgresConfig):
        return attrs.evolve(options.memory, url=store.url)
    return attrs.evolve(options.memory, path=None if store is None else store.path / MEMORY_FOLDER)


def store_of(options: Options, *, needed: bool = False) -> StoreConfig | PostgresConfig | None:
    """Return the store to use, None to keep nothing.

    The default store is left out if its extra is not installed. Raises PersistenceDisabledError if a store is needed or
    named and ruled out, and InvalidParamsError for a database with their settings.
    """
    if isinstance(options.store, DatabaseUrl):
        return _database_of(options, options.store)
    if options.store is not None and installed("session-store"):
        if "project" in options.storage:
            problem = f"is a setting of a store in a database; the files of {options.store} are in this folder itself"
            raise InvalidParamsError.at("$.storage.project", problem)
        return StoreConfig(options.store, holder=options.command, **options.storage)
    if needed or (options.store is not None and options.store_named):
        details = None if options.store is None else lack("session-store")
        raise PersistenceDisabledError(PERSISTENCE_DISABLED, details=details)
    return None


def _database_of(options: Options, address: DatabaseUrl) -> PostgresConfig:
    problem = missing("postgres", f"the store {address} needs")
    if problem is not None:
        raise PersistenceDisabledError(problem, details=lack("postgres"))
    for name, value in options.storage.items():
        if name not in OF_DATABASES and value is not False:
            path = f"$.storage.{name}"
            raise InvalidParamsError.at(path, f"is a setting of a store in files, and the store is {address}")
    if options.storage.get("projections") is False and options.storage.get("project") is not None:
        path = "$.storage.projections"
        raise InvalidParamsError.at(path, "is false, and `project` names a folder for them")
    settings = {name: value for name, value in options.storage.items() if name in OF_DATABASES}
    return PostgresConfig(address.url, holder=options.command, **settings)


def existing_store_of(options: Options) -> StoreConfig | PostgresConfig:
    """Return the store to read from; a folder has to hold one. Raises as `open_service` does."""
    store = store_of(options, needed=True)
    if store is None or not is_there(store):
        raise SessionNotFoundError(f"there is no store at {options.store}")
    return store


def check_place(options: Options) -> None:
    """Raise as `open_service` does for a store that is needed and does not exist; only connecting asks a server."""
    if options.server is None:
        existing_store_of(options)


def has_place(options: Options) -> bool:
    """Tell whether there may be sessions to read: at a server, or in a store that exists.

    Raises PersistenceDisabledError if the options have neither.
    """
    if options.server is not None:
        return True
    store = store_of(options, needed=True)
    return store is not None and is_there(store)


def is_there(store: StoreConfig | PostgresConfig) -> bool:
    """Tell whether there is a store at its place; of a database only its opening tells more."""
    return isinstance(store, PostgresConfig) or holds_store(store.path)


def files_of(store: StoreConfig | PostgresConfig | None) -> StoreConfig:
    """Return a store for a command that works on its files. Raises InvalidParamsError for a database."""
    if isinstance(store, StoreConfig):
        return store
    shown = "in no place" if store is None else f"the database {store.shown}"
    raise InvalidParamsError.at("$.store", f"this command works on the files of a store, and the store is {shown}")


def holds_store(folder: Path) -> bool:
    """Return whether a folder has a store; it may have a configuration file alone."""
    from warren.storage.sqlite.file import FILE_NAME  # noqa: PLC0415 - it has an extra of its own

    try:
        return (folder / FILE_NAME).exists()
    except PermissionError:
        return True  # opening it will say what is wrong


def holds_memory(folder: Path) -> bool:
    """Return whether the folder of a store has a memory."""
    try:
        return (folder / MEMORY_FOLDER / MEMORY_FILE).exists()
    except PermissionError:
        return True  # opening it will say what is wrong


def remembers(store: StoreConfig | PostgresConfig) -> bool:
    """Return whether a store may have a memory; in a database there is a place for one in each store."""
    return installed("memory-store") if isinstance(store, PostgresConfig) else holds_memory(store.path)
