"""From a command's options to a runtime, and from its log to stderr."""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from warren.config import Config, PostgresConfig, StoreConfig
from warren.database_url import DatabaseUrl
from warren.errors import InvalidParamsError, MemoryDisabledError, PersistenceDisabledError, SessionNotFoundError
from warren.extras import installed, missing
from warren.memory import MemoryConfig
from warren.options import ModelOptions, given
from warren.service import RuntimeService, SessionService
from warren.transport.cli.failures import MEMORY_DISABLED, PERSISTENCE_DISABLED
from warren.transport.cli.options import Mode, Options
from warren.transport.cli.streams import Streams
from warren.transport.embed import Hosted, open_host
from warren.transport.embedders import open_embedder
from warren.transport.providers import default_model

if TYPE_CHECKING:
    from warren.compaction.policy import Compactor, NewCompactor

T = TypeVar("T")
MEMORY_FOLDER: Final = "memory"
"""The folder of the memory within that of the store."""
MEMORY_FILE: Final = "memory.sqlite3"
OF_DATABASES: Final = ("readers", "lease")
"""Settings of the table `[storage]` that hold for a store in a database too."""
IN_MEMORY: Final = "sessions are kept in memory and end with this process: the extra `session-store` is not installed"


def execute(work: Callable[[], Awaitable[T]], options: Options, *, log_level: int = logging.CRITICAL) -> T:
    """Run the work of a command on trio; log records from `log_level` on go to stderr."""
    _start_log(options.mode, log_level)
    return trio.run(work)


def open_service(options: Options, *, stored: bool = False) -> AbstractAsyncContextManager[SessionService]:
    """Open the service of a command: a runtime in this process, or the gateway that the options name.

    Args:
        options: the options.
        stored: whether a runtime needs a store that exists already.

    Raises:
        PersistenceDisabledError: if a store is needed and the options have none.
        SessionNotFoundError: if a store is needed and does not exist.
        StoreError: if the store cannot be used.
        MemoryDisabledError: if the options ask for a memory and its extra is missing.
        ProviderError: if the memory's embedder does not answer.
        AgentError: with the cause `unreachable` if the gateway cannot be reached or refuses the connection.
    """
    if options.server is not None:
        from warren.transport.cli.server import open_server  # noqa: PLC0415 - few commands have a server

        return open_server(options.server)
    return open_runtime(config_of(options, existing_store_of(options) if stored else store_of(options)))


@asynccontextmanager
async def open_runtime(config: Config) -> AsyncIterator[RuntimeService]:
    """Open a runtime; see `open_hosted`."""
    async with open_hosted(config) as hosted:
        yield hosted.service


@asynccontextmanager
async def open_hosted(config: Config) -> AsyncIterator[Hosted]:
    """Open a runtime with the embedder of its memory, for hosts that give single sessions MCP servers."""
    name = None if config.memory is None else config.memory.embedder
    async with (
        open_embedder(name, os.environ, memory=config.memory) as embedder,
        open_host(config, embedder=embedder) as hosted,
    ):
        yield hosted


def config_of(options: Options, store: StoreConfig | PostgresConfig | None) -> Config:
    """Return the settings of the runtime by the options."""
    return Config(
        store=store,
        model=options.model or default_model(os.environ),
        provider=options.provider,
        system_prompt=options.system,
        compaction=options.compaction,
        compactor=compactor_of(options),
        memory=memory_of(options, store) if options.memory else None,
        **given(ModelOptions, options),
        tools=options.tools,
        switches=options.switches,
        gates=options.gates,
        retry=options.retry,
        intensity=options.intensity,
        limits=options.limits if options.drain is None else attrs.evolve(options.limits, drain=options.drain),
    )


def compactor_of(options: Options) -> "Compactor | NewCompactor | None":
    """Return the compactor of the options; None for the default one, and if compaction is off.

    Raises InvalidParamsError if it cannot be imported or is no compactor.
    """
    if options.compactor is None or options.compaction is None:
        return None
    from warren.transport.cli.compactors import load_compactor  # noqa: PLC0415 - few have one

    return load_compactor(options.compactor, options.compaction)


def served_config_of(options: Options) -> Config:
    """Return the settings of a runtime for other programs; stderr says so if the extra of the default store is missing.

    Raises PersistenceDisabledError if the extra of a named store is missing, and raises as `config_of`.
    """
    store = store_of(options)
    if store is None and options.store is not None:
        Streams().note(IN_MEMORY)
    return config_of(options, store)


def memory_of(options: Options, store: StoreConfig | PostgresConfig | None) -> MemoryConfig:
    """Return the settings of a store's memory; without a store it ends with the process.

    Raises MemoryDisabledError if its extra is not installed.
    """
    if not installed("memory-store"):
        raise MemoryDisabledError(MEMORY_DISABLED)
    if isinstance(store, PostgresConfig):
        return MemoryConfig(url=store.url, embedder=options.embedder)
    return MemoryConfig(None if store is None else store.path / MEMORY_FOLDER, options.embedder)


def store_of(options: Options, *, needed: bool = False) -> StoreConfig | PostgresConfig | None:
    """Return the store to use, None to keep nothing.

    The default store is left out if its extra is not installed. Raises PersistenceDisabledError if a store is needed or
    named and ruled out, and InvalidParamsError for a database with their settings.
    """
    if isinstance(options.store, DatabaseUrl):
        return _database_of(options, options.store)
    if options.store is not None and installed("session-store"):
        return StoreConfig(options.store, holder=options.command, **options.storage)
    if needed or (options.store is not None and options.store_named):
        raise PersistenceDisabledError(PERSISTENCE_DISABLED)
    return None


def _database_of(options: Options, address: DatabaseUrl) -> PostgresConfig:
    problem = missing("postgres", f"the store {address} needs")
    if problem is not None:
        raise PersistenceDisabledError(problem)
    for name, value in options.storage.items():
        if name not in OF_DATABASES and value is not False:
            path = f"$.storage.{name}"
            raise InvalidParamsError(f"{path}: is a setting of a store in files, and the store is {address}", path=path)
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
    problem = f"$.store: this command works on the files of a store, and the store is {shown}"
    raise InvalidParamsError(problem, path="$.store")


def existing_files_of(options: Options) -> StoreConfig:
    """Return the store whose files are to be worked on. Raises as `existing_store_of` and `files_of` do."""
    return files_of(existing_store_of(options))


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


def _start_log(mode: Mode, level: int) -> None:
    """Send the log to stderr: with `verbose` all of it with tracebacks, else single lines from a level on."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s") if mode.verbose else _OneLine())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO if mode.verbose else level)


class _OneLine(logging.Formatter):
    """Formats records without their tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        cause = record.exc_info[1] if record.exc_info else None
        return f"{record.levelname}: {record.getMessage()}" + (f": {cause}" if cause is not None else "")
