"""`warren copy`."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from warren.base.database_url import DatabaseUrl
from warren.base.errors import InvalidParamsError, MemoryDisabledError, PersistenceDisabledError
from warren.base.extras import installed, lack
from warren.settings.config import PostgresConfig, StoreConfig
from warren.storage.copying import MEMORY, TABLES, Copied
from warren.storage.copying import copy as copy_rows
from warren.storage.runner import thread_runner
from warren.transport.cli.command import command
from warren.transport.cli.failures import MEMORY_DISABLED, PERSISTENCE_DISABLED
from warren.transport.cli.runtime import execute
from warren.transport.cli.settings.options import Options, output_options
from warren.transport.cli.settings.values import place_of
from warren.transport.cli.store.chosen import MEMORY_FOLDER, store_of
from warren.transport.cli.terminal.progress import bar
from warren.transport.cli.terminal.results import show_text
from warren.transport.cli.terminal.streams import Streams

if TYPE_CHECKING:
    from warren.storage.copying import Source, Target
    from warren.storage.sqlite.copying import WholeFile

Place = StoreConfig | PostgresConfig


@command(
    "warren copy .rkat postgresql://app@db.example.com/warren",
    "warren copy postgresql://app@db.example.com/warren conversations --output json",
    note="A password belongs into PGPASSWORD or ~/.pgpass.",
)
@click.argument("source", metavar="SRC", type=place_of)
@click.argument("target", metavar="DST", type=place_of)
@output_options
def copy(source: Path | DatabaseUrl, target: Path | DatabaseUrl, options: Options) -> None:
    """Copy all of a store into another one: a folder, or the address of a PostgreSQL database.

    No other process may use one of them. DST has no sessions yet; it cannot be opened before the copy is whole. If the
    command is interrupted, the same command goes on where it stopped. At its end it compares each row.
    """
    from_, to = (_place(options, each) for each in (source, target))
    if _same(from_, to):
        raise InvalidParamsError.at("$.target", f"the store {target} cannot be copied to itself")

    async def work() -> tuple[Copied, str | None]:
        with bar(Streams(), "copying") as progress:
            async with _source(from_) as one, _target(to) as other:
                remembers = await one.remembers()
                as_files = isinstance(from_, StoreConfig) and isinstance(to, StoreConfig)
                tables = TABLES if not remembers or as_files else (*TABLES, *MEMORY)
                copied = await copy_rows(one, other, progress, tables=tables)
                if remembers and isinstance(from_, StoreConfig) and isinstance(to, StoreConfig):
                    from warren.storage.maintenance import backup  # noqa: PLC0415 - it has an extra of its own

                    # With the vectors of its texts, which need not be made anew.
                    await thread_runner(partial(backup.copy_memory, from_, to))
                await other.finish(await one.last_input(), await one.secret())
        return copied, "copied" if remembers else None

    copied, memory = execute(work, options)
    data = {"source": str(source), "target": str(target), **attrs.asdict(copied), "memory": memory}
    counts = ", ".join(f"{copied.rows[name]} {name}" for name in ("sessions", "messages", "events"))
    show_text(options, data, f"{target}: {counts}\n")


def _place(options: Options, place: Path | DatabaseUrl) -> Place:
    found = store_of(attrs.evolve(options, store=place, store_named=True, storage={}), needed=True)
    if found is None:
        raise PersistenceDisabledError(PERSISTENCE_DISABLED)
    return found


def _same(source: Place, target: Place) -> bool:
    if isinstance(source, StoreConfig) and isinstance(target, StoreConfig):
        return source.path.resolve() == target.path.resolve()
    return isinstance(source, PostgresConfig) and isinstance(target, PostgresConfig) and source.url == target.url


def _source(place: Place) -> "AbstractAsyncContextManager[Source]":
    if isinstance(place, PostgresConfig):
        from warren.storage.postgres import copying as database  # noqa: PLC0415 - it has an extra of its own

        return database.source(place)
    from warren.storage.sqlite import copying as file  # noqa: PLC0415 - it has an extra of its own

    return _remembering(file.source(place), place)


def _target(place: Place) -> "AbstractAsyncContextManager[Target]":
    if isinstance(place, PostgresConfig):
        from warren.storage.postgres import copying as database  # noqa: PLC0415 - it has an extra of its own

        return database.target(place)
    from warren.storage.sqlite import copying as file  # noqa: PLC0415 - it has an extra of its own

    return _remembering(file.target(place), place)


@asynccontextmanager
async def _remembering(
    opening: "AbstractAsyncContextManager[WholeFile]", place: StoreConfig
) -> AsyncIterator["WholeFile"]:
    """Open a store in files with its memory, if there are the means to read one."""
    async with opening as store:
        if not installed("memory-store"):
            if await store.remembers():
                raise MemoryDisabledError(MEMORY_DISABLED, details=lack("memory-store"))
            yield store
            return
        from warren.storage.memory.copying import memory_in  # noqa: PLC0415 - it has an extra of its own

        async with memory_in(place.path / MEMORY_FOLDER) as memory:
            store.memory = memory
            yield store
