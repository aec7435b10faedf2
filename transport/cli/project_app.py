"""The commands of `warren project`, their arguments and their help."""

from typing import Any

import click

from warren.transport.cli.groups import CommandGroup
from warren.transport.cli.help import examples
from warren.transport.cli.options import gather, project_option, stored_options


@click.group(cls=CommandGroup)
def project() -> None:
    """Look after the plain files that mirror the store.

    They are in the store's folder, or in that of --project if the store is in a database, and there in tenants/TENANT:
    index.jsonl has a line for each session of the tenant, sessions/ID its session.json, events.jsonl and, once it was
    summarised, summary.txt. The process that runs sessions keeps them up to date; nothing depends on them.
    """


@project.command(
    "rebuild",
    epilog=examples("warren project rebuild", "warren project rebuild --store postgresql://db/warren --project files"),
)
@project_option
@stored_options
def project_rebuild(**given: Any) -> None:
    """Make all of these files anew from the store.

    It is refused while another process keeps them up to date. After an interrupt the next process on the store goes on.
    """
    from warren.transport.cli import project as work  # noqa: PLC0415 - help does without it

    work.rebuild(gather(given))
