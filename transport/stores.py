"""The home of sessions by its settings: in files, or in a database."""

from typing import TYPE_CHECKING

from warren.base.errors import PersistenceDisabledError
from warren.base.extras import cure, lack
from warren.settings.config import PostgresConfig, StoreConfig

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from warren.storage.store import Store


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
