"""`warren project rebuild`."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import click

from warren.base.errors import InvalidParamsError, StoreError
from warren.conversation.memory import Progress
from warren.settings.config import PostgresConfig, StoreConfig
from warren.storage.runner import thread_runner
from warren.transport.cli.command import command
from warren.transport.cli.groups import CommandGroup
from warren.transport.cli.runtime import execute
from warren.transport.cli.settings.options import Options, project_option, stored_options
from warren.transport.cli.store.chosen import existing_store_of
from warren.transport.cli.terminal.progress import bar
from warren.transport.cli.terminal.results import show_result
from warren.transport.cli.terminal.streams import Streams

SLICE: Final = 0.2
"""Seconds between two looks at the bar, and at Ctrl-C."""


@click.group(cls=CommandGroup)
def project() -> None:
    """Look after the plain files that mirror the store.

    They are in the store's folder, or in that of --project if the store is in a database, and there in tenants/TENANT:
    index.jsonl has a line for each session of the tenant, sessions/ID its session.json, events.jsonl and, once it was
    summarised, summary.txt. The process that runs sessions keeps them up to date; nothing depends on them.
    """


@command("warren project rebuild", "warren project rebuild --store postgresql://db/warren --project files", of=project)
@project_option
@stored_options
def rebuild(options: Options) -> None:
    """Make all of these files anew from the store.

    It is refused while another process keeps them up to date. After an interrupt the next process on the store goes on.
    """
    config = existing_store_of(options)
    if isinstance(config, PostgresConfig) and config.project is None:
        problem = "a store in a database has its plain files in a folder of their own: name it with --project"
        raise InvalidParamsError.at("$.project", problem)

    async def work() -> dict[str, Any]:
        await _brought_up_to_date(config)
        with bar(Streams(), "projecting") as progress:
            return await _rebuilt(config, progress)

    done = execute(work, options)
    show_result(options, done, _show, done)


def _show(streams: Streams, done: Mapping[str, Any]) -> None:
    streams.write(f"{done['path']}: {done['sessions']} sessions\n")
    for session_id, why in done["skipped"].items():
        streams.note(f"left out: {session_id}: {why}", "yellow")


async def _brought_up_to_date(config: StoreConfig | PostgresConfig) -> None:
    """Migrate a store of an older version, which cannot be followed."""
    if isinstance(config, PostgresConfig):
        from warren.storage.postgres import PostgresStore  # noqa: PLC0415 - it has an extra of its own

        await (await PostgresStore.open(config)).aclose()
        return
    from warren.storage.sqlite import SqliteStore  # noqa: PLC0415 - as above

    await (await SqliteStore.open(config)).aclose()


async def _rebuilt(config: StoreConfig | PostgresConfig, progress: Progress | None) -> dict[str, Any]:
    from warren.storage.projection import Follower, folder_of  # noqa: PLC0415 - it has an extra of its own

    follower = Follower(config)
    try:
        total = await thread_runner(follower.begin_anew)
        while (await thread_runner(partial(follower.step, SLICE))).more:
            if progress is not None:
                progress(follower.status().taken, total)
        await thread_runner(follower.finish)
        status = follower.status()
    finally:
        await thread_runner(follower.close)
    if status.trouble is not None:
        raise StoreError(f"not all files could be written: {status.trouble}", cause="io_error")
    return {"path": str(folder_of(config)), "sessions": status.written, "skipped": status.skipped}
