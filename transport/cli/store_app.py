"""The commands about the version of a store, their arguments and their help."""

from typing import Any

import click

from warren.transport.cli.groups import CommandGroup
from warren.transport.cli.help import examples
from warren.transport.cli.options import gather, stored_options


@click.group(cls=CommandGroup)
def store() -> None:
    """Create a store, and bring it up to the version of this program.

    A program that opens a store does both by itself, if it may: these commands are for databases in which the programs
    may not create tables, and for updates that are done step by step.
    """


@store.command(
    "init", epilog=examples("warren store init", "warren store init --store postgresql://db.example.com/app")
)
@stored_options
def init(**given: Any) -> None:
    """Create a store, if there is none.

    A store that is there is left as it is.
    """
    from warren.transport.cli import store as work  # noqa: PLC0415 - help does without it

    work.init(gather(given))


@store.command("migrate", epilog=examples("warren store migrate", "warren store migrate --contract --output json"))
@click.option(
    "--contract", is_flag=True, help="Also remove from a database whatever only programs of older releases use."
)
@stored_options
def migrate(*, contract: bool, **given: Any) -> None:
    """Bring a store up to the version of this program.

    In a database this only adds to the tables: programs of an older release go on. Once all of them have ended,
    --contract removes the rest; it is refused as long as one of them lives.
    """
    from warren.transport.cli import store as work  # noqa: PLC0415 - help does without it

    work.migrate(gather(given), contract=contract)


@store.command("status", epilog=examples("warren store status", "warren store status --output json"))
@stored_options
def status(**given: Any) -> int:
    """Show the version of a store, and of this program.

    Nothing is changed. The exit code is 0 if this program can use the store as it is, else 1.
    """
    from warren.transport.cli import store as work  # noqa: PLC0415 - help does without it

    return work.status(gather(given))
