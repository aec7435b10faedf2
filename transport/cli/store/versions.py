"""`warren store init`, `warren store migrate` and `warren store status`."""

from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import click

from warren.settings.config import PostgresConfig, StoreConfig
from warren.transport.cli.command import command
from warren.transport.cli.groups import CommandGroup
from warren.transport.cli.runtime import execute
from warren.transport.cli.settings.options import Options, stored_options
from warren.transport.cli.store.chosen import existing_store_of, files_of, store_of
from warren.transport.cli.terminal.progress import bar
from warren.transport.cli.terminal.results import show_text
from warren.transport.cli.terminal.streams import Streams

if TYPE_CHECKING:
    from warren.storage.maintenance.versions import StoreVersion

ADVICE = {
    "missing": "there is no store: run `warren store init`",
    "older": "older than this program: its next use migrates it, or `warren store migrate`",
    "current": "up to date",
    "newer": "a newer release has expanded it: this program can use it",
    "too_new": "this program is too old for it: use a newer version of Warren",
}


@click.group(cls=CommandGroup)
def store() -> None:
    """Create a store, and bring it up to the version of this program.

    A program that opens a store does both by itself, if it may: these commands are for databases in which the programs
    may not create tables, and for updates that are done step by step.
    """


@command("warren store init", "warren store init --store postgresql://db.example.com/app", of=store)
@stored_options
def init(options: Options) -> None:
    """Create a store, if there is none.

    A store that is there is left as it is.
    """
    config = store_of(options, needed=True)
    before = _seen(options, config)
    if not before.version:
        before = _migrated(options, config, make=True)
    _show_change(options, before, _seen(options, config), "was there already")


@command("warren store migrate", "warren store migrate --contract --output json", of=store)
@click.option(
    "--contract", is_flag=True, help="Also remove from a database whatever only programs of older releases use."
)
@stored_options
def migrate(*, contract: bool, options: Options) -> None:
    """Bring a store up to the version of this program.

    In a database this only adds to the tables: programs of an older release go on. Once all of them have ended,
    --contract removes the rest; it is refused as long as one of them lives.
    """
    config = existing_store_of(options)
    before = _migrated(options, config, make=False, contract=contract)
    _show_change(options, before, _seen(options, config), "up to date already")


@command("warren store status", "warren store status --output json", of=store)
@stored_options
def status(options: Options) -> int:
    """Show the version of a store, and of this program.

    Nothing is changed. The exit code is 0 if this program can use the store as it is, else 1.
    """
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
    if (before.version, before.needs) == (after.version, after.needs):
        text = f"{unchanged}, version {after.version}"
    elif before.version == after.version:
        text = f"version {after.version}, contracted: programs have to know version {after.needs}"
    else:
        text = f"version {before.version} before, {after.version} now" if before.version else f"version {after.version}"
    show_text(options, _data(after), f"{after.path}: {text}\n")


def _data(found: "StoreVersion") -> dict[str, Any]:
    return {"state": found.state, **attrs.asdict(found)}


def _show(options: Options, found: "StoreVersion") -> None:
    facts = [("store", found.path), ("state", ADVICE[found.state]), ("version", f"{found.version or 'none'}")]
    if found.version:
        by = f", by Warren {found.release}" if found.release else ""
        facts[-1] = ("version", f"{found.version}{by}; programs have to know version {found.needs}")
    facts.append(("known", f"version {found.known}"))
    if found.contractible:
        facts.append(("contract", "parts are left for older releases: `warren store migrate --contract` removes them"))
    facts += [("program", f"{each.name}: knows version {each.version}") for each in found.programs]
    show_text(options, _data(found), "".join(f"{name + ':':<10}{text}\n" for name, text in facts))
