"""`warren store init`, `warren store migrate` and `warren store status`."""

from functools import partial
from typing import TYPE_CHECKING

import attrs

from warren import codec
from warren.config import PostgresConfig, StoreConfig
from warren.transport.cli.chosen_store import existing_store_of, files_of, store_of
from warren.transport.cli.options import Options
from warren.transport.cli.progress import bar
from warren.transport.cli.runtime import execute
from warren.transport.cli.streams import Streams

if TYPE_CHECKING:
    from warren.storage.maintenance.versions import StoreVersion

ADVICE = {
    "missing": "there is no store: run `warren store init`",
    "older": "older than this program: its next use migrates it, or `warren store migrate`",
    "current": "up to date",
    "newer": "a newer release has expanded it: this program can use it",
    "too_new": "this program is too old for it: use a newer version of Warren",
}


def init(options: Options) -> None:
    """Run `warren store init`. Raises PersistenceDisabledError without the extra, StoreError."""
    store = store_of(options, needed=True)
    before = _seen(options, store)
    if not before.version:
        before = _migrated(options, store, make=True)
    _show_change(options, before, _seen(options, store), "was there already")


def migrate(options: Options, *, contract: bool) -> None:
    """Run `warren store migrate`. Raises SessionNotFoundError without a store, StoreError."""
    store = existing_store_of(options)
    before = _migrated(options, store, make=False, contract=contract)
    _show_change(options, before, _seen(options, store), "up to date already")


def status(options: Options) -> int:
    """Run `warren store status`; return the exit code. Raises StoreError if the store cannot be read."""
    found = _seen(options, store_of(options, needed=True))
    _show(options, found)
    return 0 if found.state in ("current", "newer") else 1


def _seen(options: Options, store: StoreConfig | PostgresConfig | None) -> "StoreVersion":
    if isinstance(store, PostgresConfig):
        from warren.storage.maintenance.postgres import migration as of_database  # noqa: PLC0415 - it needs psycopg

        return execute(partial(of_database.look, store), options)
    from warren.storage.maintenance import migration  # noqa: PLC0415 - it has an extra of its own

    return migration.look(files_of(store))


def _migrated(
    options: Options, store: StoreConfig | PostgresConfig | None, *, make: bool, contract: bool = False
) -> "StoreVersion":
    with bar(Streams(), "making" if make else "migrating") as progress:
        if isinstance(store, PostgresConfig):
            from warren.storage.maintenance.postgres import migration as of_database  # noqa: PLC0415 - it needs psycopg

            work = partial(of_database.migrate, store, make=make, contracting=contract, progress=progress)
            return execute(work, options)
        from warren.storage.maintenance import migration  # noqa: PLC0415 - it has an extra of its own

        files = files_of(store)

        async def migrated() -> "StoreVersion":
            return migration.migrate(files, make=make, progress=progress)

        return execute(migrated, options)


def _show_change(options: Options, before: "StoreVersion", after: "StoreVersion", unchanged: str) -> None:
    if options.mode.json:
        _show(options, after)
        return
    if (before.version, before.needs) == (after.version, after.needs):
        text = f"{unchanged}, version {after.version}"
    elif before.version == after.version:
        text = f"version {after.version}, contracted: programs have to know version {after.needs}"
    else:
        text = f"version {before.version} before, {after.version} now" if before.version else f"version {after.version}"
    Streams().write(f"{after.path}: {text}\n")


def _show(options: Options, found: "StoreVersion") -> None:
    streams = Streams()
    if options.mode.json:
        streams.write(codec.encode({"state": found.state, **attrs.asdict(found)}).decode() + "\n")
        return
    facts = [("store", found.path), ("state", ADVICE[found.state]), ("version", f"{found.version or 'none'}")]
    if found.version:
        by = f", by Warren {found.release}" if found.release else ""
        facts[-1] = ("version", f"{found.version}{by}; programs have to know version {found.needs}")
    facts.append(("known", f"version {found.known}"))
    if found.contractible:
        facts.append(("contract", "parts are left for older releases: `warren store migrate --contract` removes them"))
    facts += [("program", f"{each.name}: knows version {each.version}") for each in found.programs]
    streams.write("".join(f"{name + ':':<10}{text}\n" for name, text in facts))
