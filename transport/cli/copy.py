"""`warren copy`."""

from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from warren import codec
from warren.config import PostgresConfig, StoreConfig
from warren.database_url import DatabaseUrl
from warren.errors import InvalidParamsError, PersistenceDisabledError
from warren.storage import thread_runner
from warren.storage.copying import Copied
from warren.storage.copying import copy as copy_rows
from warren.transport.cli.chosen_store import store_of
from warren.transport.cli.failures import PERSISTENCE_DISABLED
from warren.transport.cli.options import Options
from warren.transport.cli.progress import bar
from warren.transport.cli.runtime import execute
from warren.transport.cli.streams import Streams

if TYPE_CHECKING:
    from warren.storage.copying import Source, Target

Place = StoreConfig | PostgresConfig


def copy(options: Options, source: Path | DatabaseUrl, target: Path | DatabaseUrl) -> None:
    """Run `warren copy`, with a bar on a terminal.

    Raises:
        InvalidParamsError: if both places are the same.
        PersistenceDisabledError: if the extra of one of the stores is missing.
        StoreError: see `storage.copying`; the cause is `leased` while a process uses one of the stores.
    """
    streams = Streams()
    from_, to = (_place(options, each) for each in (source, target))
    if _same(from_, to):
        raise InvalidParamsError(f"$.target: the store {target} cannot be copied to itself", path="$.target")

    async def work() -> tuple[Copied, str | None]:
        with bar(streams, "copying") as progress:
            async with _source(from_) as one, _target(to) as other:
                copied = await copy_rows(one, other, progress)
                memory = await _copy_memory(from_, to) if await one.remembers() else None
                await other.finish(await one.last_input())
        return copied, memory

    copied, memory = execute(work, options)
    if options.mode.json:
        data = {"source": str(source), "target": str(target), **attrs.asdict(copied), "memory": memory}
        streams.write(codec.encode(data).decode() + "\n")
    else:
        counts = ", ".join(f"{copied.rows[name]} {name}" for name in ("sessions", "messages", "events"))
        streams.write(f"{target}: {counts}\n")
    if memory == "left":
        streams.note(f"the memory was not copied: it stays in {source}", "yellow")


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

    return file.source(place)


def _target(place: Place) -> "AbstractAsyncContextManager[Target]":
    if isinstance(place, PostgresConfig):
        from warren.storage.postgres import copying as database  # noqa: PLC0415 - it has an extra of its own

        return database.target(place)
    from warren.storage.sqlite import copying as file  # noqa: PLC0415 - it has an extra of its own

    return file.target(place)


# -- the memory


async def _copy_memory(source: Place, target: Place) -> str:
    """Copy a memory between two folders; return "copied" or "left"."""
    if isinstance(source, PostgresConfig) or isinstance(target, PostgresConfig):
        return "left"
    from warren.storage.maintenance import backup  # noqa: PLC0415 - it has an extra of its own

    await thread_runner(partial(backup.copy_memory, source, target))
    return "copied"
