"""`warren nodes`: the processes that have a store open, and asking one of them to drain."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import click

from warren.base.nodes import Node, not_drained
from warren.conversation import codec
from warren.reports.audit import AuditEntry
from warren.storage.operations import Audit
from warren.storage.queries import LivingNodes
from warren.transport.cli.command import command
from warren.transport.cli.groups import CommandGroup
from warren.transport.cli.runtime import execute, open_service, open_store
from warren.transport.cli.settings.options import Options, shared_options
from warren.transport.cli.store.chosen import existing_store_of
from warren.transport.cli.terminal.results import show_result, show_text
from warren.transport.cli.terminal.tables import moment, show_rows

COLUMNS: Final = ("node", "state", "turns", "live", "since", "release", "address")


@click.group(cls=CommandGroup)
def nodes() -> None:
    """List the processes that share a store, and end one of them in order."""


@command(
    "warren nodes list --store postgresql://db.example.com/app",
    "warren nodes list --server ws://127.0.0.1:8420 --output json",
    name="list",
    of=nodes,
)
@shared_options
def list_nodes(options: Options) -> None:
    """List the living processes that have the store open.

    Those with an address serve the sessions of all of them, to clients and to each other; the others are embedded
    runtimes and commands. Turns are those that run, and may run, as of the last second or so.

    Piped, each is a line of fields between tabs: node, state, turns, live sessions, since, release, address.
    """

    async def work() -> Sequence[Node]:
        if options.server is not None:
            async with open_service(options, takes_up=False) as service:
                return await service.nodes()
        async with open_store(existing_store_of(options)) as store:
            return await store.read(LivingNodes())

    found = execute(work, options)
    data, rows = {"nodes": codec.to_data(list(found))}, [_row(each) for each in found]
    show_result(options, data, show_rows, COLUMNS, rows, "no process has the store open")


def _row(node: Node) -> tuple[str, ...]:
    load = node.load
    turns = f"{load.running_turns} of {load.max_sessions}" if load.max_sessions else ""
    state = "draining" if node.draining else "full" if load.full else "serving" if node.address else ""
    live = f"{load.live_sessions}" if load.max_sessions else ""
    return node.name, state, turns, live, moment(node.started_at), node.release, node.address or ""


@command(
    "warren nodes drain web-1 --store postgresql://db.example.com/app",
    "warren nodes drain web-1 --server wss://warren.example.com",
    of=nodes,
)
@click.argument("name")
@shared_options
def drain(name: str, options: Options) -> None:
    """Ask a node to end in order.

    It takes no new sessions, ends its turns, and releases its sessions to the other nodes; then the process ends, as
    after SIGTERM. The command does not wait for that. At a server it needs the scope tenant:admin.
    """

    async def work() -> str | None:
        if options.server is not None:
            async with open_service(options, takes_up=False) as service:
                await service.drain_node(name)
            return None
        async with open_store(existing_store_of(options)) as store:
            if not await store.ask_to_drain(name):
                return not_drained(name, await store.read(LivingNodes()))
            await store.write([Audit((_entry(options, name),))])
            return None

    problem = execute(work, options)
    if problem is not None:
        raise click.ClickException(f"{problem}; `warren nodes list` has the names")
    show_text(options, {"asked": name}, f"{name} is asked to drain: it ends when its turns have ended\n")


def _entry(options: Options, name: str) -> AuditEntry:
    """Return the entry of the audit about a drain that somebody with the store itself has asked for."""
    who, tenant = options.user.name, options.user.tenant
    details = {"node": name}
    return AuditEntry(at=datetime.now(UTC), action="drain", who=who, tenant=tenant, by="principal", details=details)
