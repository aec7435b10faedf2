"""`warren backup` and `warren restore`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from warren import codec
from warren.config import PostgresConfig, StoreConfig
from warren.errors import InvalidParamsError
from warren.transport.cli.chosen_store import existing_store_of, files_of, store_of
from warren.transport.cli.options import Options
from warren.transport.cli.progress import bar
from warren.transport.cli.streams import Streams

if TYPE_CHECKING:
    from warren.storage.maintenance.backup import Copied


def back_up(options: Options, file: Path, *, force: bool) -> None:
    """Run `warren backup`.

    Raises:
        InvalidParamsError: if the file is a folder or a device, which `force` would replace too; the path is `file`.
            Also if the store is in a database; the path is `store`.
        SessionNotFoundError: if there is no store.
        StoreError: see `storage.maintenance.backup`.
    """
    if not file.name or (file.exists() and not file.is_file()):
        raise InvalidParamsError(f"$.file: {file} is not a plain file", path="$.file")
    config = _of_files(existing_store_of(options))
    from warren.storage.maintenance import backup  # noqa: PLC0415 - it has an extra of its own

    with bar(Streams(), "copying") as progress:
        copied = backup.back_up(config, file, force=force, progress=progress)
    _show(options, copied)


def restore(options: Options, file: Path, *, force: bool) -> None:
    """Run `warren restore`.

    Raises PersistenceDisabledError without the extra, InvalidParamsError for a database, and StoreError.
    """
    config = _of_files(store_of(options, needed=True))
    from warren.storage.maintenance import backup  # noqa: PLC0415 - it has an extra of its own

    with bar(Streams(), "copying") as progress:
        copied = backup.restore(file, config, force=force, progress=progress)
    _show(options, copied)


def _of_files(store: StoreConfig | PostgresConfig | None) -> StoreConfig:
    """Return a store that can be copied as a file. Raises InvalidParamsError for a database."""
    if isinstance(store, PostgresConfig):
        problem = f"$.store: the store is the database {store.shown}"
        advice = "copy it by `pg_dump -Fc --schema=warren`, and make it anew by `pg_restore`"
        raise InvalidParamsError(f"{problem}: {advice}", path="$.store")
    return files_of(store)


def _show(options: Options, copied: "Copied") -> None:
    streams = Streams()
    memory = None if copied.memory is None else os.fspath(copied.memory)
    if options.mode.json:
        data = {"file": os.fspath(copied.path), "bytes": copied.bytes, "sessions": copied.sessions, "memory": memory}
        streams.write(codec.encode(data).decode() + "\n")
    else:
        streams.write(f"{copied.path}: {copied.sessions} sessions, {copied.bytes} bytes\n")
        if memory is not None:
            streams.write(f"{memory}: the memory\n")
