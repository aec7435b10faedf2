"""`warren backup` and `warren restore`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from warren.base.errors import InvalidParamsError
from warren.settings.config import PostgresConfig, StoreConfig
from warren.transport.cli.command import command
from warren.transport.cli.settings.options import Options, stored_options
from warren.transport.cli.store.chosen import existing_store_of, files_of, store_of
from warren.transport.cli.terminal.progress import bar
from warren.transport.cli.terminal.results import show_text
from warren.transport.cli.terminal.streams import Streams

if TYPE_CHECKING:
    from warren.storage.maintenance.backup import Copied


FILE: Final = click.Path(path_type=Path)


@command(
    "warren backup backup.sqlite3", "warren backup --store conversations --force /mnt/backup/conversations.sqlite3"
)
@click.argument("file", type=FILE)
@click.option("--force", is_flag=True, help="Replace FILE.")
@stored_options
def backup(file: Path, *, force: bool, options: Options) -> None:
    """Copy the store to FILE, as it is at this moment.

    Other processes may use the store meanwhile. FILE holds all sessions; the memory goes into a file beside it:
    x.memory.sqlite3 beside x.sqlite3. Both are checked before they appear, and only your user can read them.
    """
    if not file.name or (file.exists() and not file.is_file()):
        raise InvalidParamsError.at("$.file", f"{file} is not a plain file")
    config = _of_files(existing_store_of(options))
    from warren.storage.maintenance import backup as copying  # noqa: PLC0415 - it has an extra of its own

    with bar(Streams(), "copying") as progress:
        copied = copying.back_up(config, file, force=force, progress=progress)
    _show(options, copied)


@command("warren restore backup.sqlite3", "warren restore backup.sqlite3 --store elsewhere")
@click.argument("file", type=FILE)
@click.option("--force", is_flag=True, help="Replace the store that is there, and its memory.")
@stored_options
def restore(file: Path, *, force: bool, options: Options) -> None:
    """Make a store of a backup.

    No process may use the store. The memory is restored too if its file is beside FILE; its index is made anew on first
    use.
    """
    config = _of_files(store_of(options, needed=True))
    from warren.storage.maintenance import backup as copying  # noqa: PLC0415 - it has an extra of its own

    with bar(Streams(), "copying") as progress:
        copied = copying.restore(file, config, force=force, progress=progress)
    _show(options, copied)


def _of_files(store: StoreConfig | PostgresConfig | None) -> StoreConfig:
    """Return a store that can be copied as a file. Raises InvalidParamsError for a database."""
    if isinstance(store, PostgresConfig):
        problem = f"$.store: the store is the database {store.shown}"
        advice = "copy it by `pg_dump -Fc --schema=warren`, and make it anew by `pg_restore`"
        raise InvalidParamsError(f"{problem}: {advice}", path="$.store")
    return files_of(store)


def _show(options: Options, copied: "Copied") -> None:
    memory = None if copied.memory is None else os.fspath(copied.memory)
    data = {"file": os.fspath(copied.path), "bytes": copied.bytes, "sessions": copied.sessions, "memory": memory}
    text = f"{copied.path}: {copied.sessions} sessions, {copied.bytes} bytes\n"
    show_text(options, data, text + ("" if memory is None else f"{memory}: the memory\n"))
