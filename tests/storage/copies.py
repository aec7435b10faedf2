"""Copies of whole stores."""

from contextlib import AbstractAsyncContextManager

from warren.settings.config import PostgresConfig, StoreConfig
from warren.storage.copying import Copied, Source, Target, copy
from warren.storage.postgres import copying as database_copying
from warren.storage.sqlite import copying as file_copying

Place = StoreConfig | PostgresConfig


def source(where: Place) -> AbstractAsyncContextManager[Source]:
    """Open a store that is copied."""
    return database_copying.source(where) if isinstance(where, PostgresConfig) else file_copying.source(where)


def target(where: Place) -> AbstractAsyncContextManager[Target]:
    """Open a store that is filled."""
    return database_copying.target(where) if isinstance(where, PostgresConfig) else file_copying.target(where)


async def copied(here: Place, there: Place) -> Copied:
    """Copy a store."""
    async with source(here) as one, target(there) as other:
        found = await copy(one, other)
        await other.finish(await one.last_input(), await one.secret())
    return found
