"""The home of a memory by its settings: in files, in the process, or in a database."""

from typing import TYPE_CHECKING

from warren.base.errors import MemoryDisabledError
from warren.base.extras import cure, lack
from warren.conversation.memory import Embedder, MemoryConfig

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from warren.storage.memory_store import MemoryStore

_EXTRA = "Semantic memory is disabled (build without 'memory-store')."


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
