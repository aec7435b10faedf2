"""The homes of sessions and of memories by their settings: in files, or in a database."""

from typing import TYPE_CHECKING

from warren.base.errors import MemoryDisabledError, PersistenceDisabledError
from warren.base.extras import cure, lack
from warren.conversation.memory import Embedder, MemoryConfig
from warren.settings.config import PostgresConfig, StoreConfig

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from warren.storage.memory_store import MemoryStore
    from warren.storage.store import Store

_EXTRA = "Semantic memory is disabled (build without 'memory-store')."


def store_opener(config: StoreConfig | PostgresConfig) -> "Callable[[], Awaitable[Store]]":
    """Return the function that opens a store; its modules are imported only here, for runtimes without its extra.

    Raises PersistenceDisabledError if the extra is missing.
    """
    if isinstance(config, PostgresConfig):
        return _database_opener(config)
    try:
        from warren.storage.sqlite import Holder, SqliteStore  # noqa: PLC0415 - see above
    except ModuleNotFoundError as exc:
        raise PersistenceDisabledError(
            "Session persistence is disabled (build without 'session-store').", details=lack("session-store")
        ) from exc
    holder = Holder.of(config)  # one for all openings: a storage actor that crashed keeps its leases
    return lambda: SqliteStore.open(config, holder=holder)


def _database_opener(config: PostgresConfig) -> "Callable[[], Awaitable[Store]]":
    try:
        from warren.storage.postgres import Holder, PostgresStore  # noqa: PLC0415 - as above
    except ImportError as exc:  # psycopg raises one of its own kind if it finds no libpq
        problem = f"a PostgreSQL store needs psycopg: {cure('postgres')}"
        raise PersistenceDisabledError(problem, details=lack("postgres")) from exc
    holder = Holder.of(config)  # one for all openings, as above
    return lambda: PostgresStore.open(config, holder=holder)


def memory_opener(config: MemoryConfig, embedder: Embedder | None) -> "Callable[[], Awaitable[MemoryStore]]":
    """Return the function that opens a memory; its modules are imported only here, for runtimes without its extra.

    Raises MemoryDisabledError if the extra is missing, or that of the database.
    """
    try:
        from warren.storage.memory import FileMemory  # noqa: PLC0415 - see above
    except ModuleNotFoundError as exc:
        raise MemoryDisabledError(_EXTRA, details=lack("memory-store")) from exc
    if config.url is None:
        return lambda: FileMemory.open(config, embedder)
    try:
        from warren.storage.memory.postgres import PostgresMemory  # noqa: PLC0415 - see above
    except ImportError as exc:  # psycopg raises one of its own kind if it finds no libpq
        problem = f"a memory in PostgreSQL needs psycopg: {cure('postgres')}"
        raise MemoryDisabledError(problem, details=lack("postgres")) from exc
    return lambda: PostgresMemory.open(config, embedder)


async def known_dimensions(config: MemoryConfig, embedder: str) -> int:
    """Return the length of an embedder's newest vectors in a memory; 0 if it has none, or cannot be read."""
    if config.path is not None:
        from warren.storage.memory import file  # noqa: PLC0415 - it has an extra of its own

        return file.known_dimensions(config.path, embedder)
    if config.url is not None:
        from warren.storage.memory import postgres  # noqa: PLC0415 - as above

        return await postgres.known_dimensions(config, embedder)
    return 0
