"""The commands about the nodes on a store, their arguments and their help."""

from typing import Any

import click

from warren.transport.cli.groups import CommandGroup
from warren.transport.cli.help import examples
from warren.transport.cli.options import gather, shared_options


@click.group(cls=CommandGroup)
def nodes() -> None:
    """See the processes that share a store, and have one of them end in order."""


@nodes.command(
    "list",
    epilog=examples(
        "warren nodes list --store postgresql://db.example.com/app",
        "warren nodes list --server ws://127.0.0.1:8420 --output json",
    ),
)
@shared_options
def list_nodes(**given: Any) -> None:
    """List the living processes that have the store open.

    Those with an address serve the sessions of all of them, to clients and to each other; the others are embedded
    runtimes and commands. Turns are those that run, and may run, as of the last second or so.

    Piped, each is a line of fields between tabs: node, state, turns, live sessions, since, release, address.
    """
    from warren.transport.cli import nodes as work  # noqa: PLC0415 - help does without it

    work.list_nodes(gather(given))


@nodes.command(
    "drain",
    epilog=examples(
        "warren nodes drain web-1 --store postgresql://db.example.com/app",
        "warren nodes drain web-1 --server wss://warren.example.com",
    ),
)
@click.argument("name")
@shared_options
def drain(name: str, **given: Any) -> None:
    """Ask a node to end in order.

    It takes no new sessions, ends its turns, and releases its sessions to the other nodes; then the process ends, as
    after SIGTERM. The command does not wait for that. At a server it needs the scope tenant:admin.
    """
    from warren.transport.cli import nodes as work  # noqa: PLC0415 - help does without it

    work.drain_node(gather(given), name)
