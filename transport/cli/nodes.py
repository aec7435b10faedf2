"""`warren nodes`: the processes that have a store open, and asking one of them to drain."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from warren import codec
from warren.audit import AuditEntry
from warren.nodes import Node, not_drained
from warren.storage import Audit
from warren.transport.cli.chosen_store import existing_store_of
from warren.transport.cli.options import Options
from warren.transport.cli.runtime import execute, open_service
from warren.transport.cli.streams import Streams
from warren.transport.cli.tables import moment, show_table
from warren.transport.stores import store_opener

if TYPE_CHECKING:
    from warren.storage.store import Store

COLUMNS: Final = ("node", "state", "turns", "live", "since", "release", "address")


def list_nodes(options: Options) -> None:
    """Run `warren nodes list`. Raises SessionNotFoundError without a store, StoreError, and as the server."""

    async def work() -> Sequence[Node]:
        if options.server is not None:
            async with open_service(options) as service:
                return await service.nodes()
        async with _opened(options) as store:
            return await store.nodes()

    nodes, streams = execute(work, options), Streams()
    if options.mode.json:
        streams.write(codec.encode({"nodes": codec.to_data(list(nodes))}).decode() + "\n")
    elif nodes:
        show_table(streams, COLUMNS, [_row(each) for each in nodes])
    else:
        streams.note("no process has the store open")


def _row(node: Node) -> tuple[str, ...]:
    load = node.load
    turns = f"{load.running_turns} of {load.max_sessions}" if load.max_sessions else ""
    state = "draining" if node.draining else "full" if load.full else "serving" if node.address else ""
    live = f"{load.live_sessions}" if load.max_sessions else ""
    return node.name, state, turns, live, moment(node.started_at), node.release, node.address or ""


def drain_node(options: Options, name: str) -> None:
    """Run `warren nodes drain`. Raises click.ClickException if no living node has that name, and as `list_nodes`."""

    async def work() -> str | None:
        if options.server is not None:
            async with open_service(options) as service:
                await service.drain_node(name)
            return None
        async with _opened(options) as store:
            if not await store.ask_to_drain(name):
                return not_drained(name, await store.nodes())
            await store.write([Audit((_entry(options, name),))])
            return None

    problem = execute(work, options)
    if problem is not None:
        raise click.ClickException(f"{problem}; `warren nodes list` has the names")
    if options.mode.json:
        Streams().write(codec.encode({"asked": name}).decode() + "\n")
    else:
        Streams().write(f"{name} is asked to drain: it ends when its turns have ended\n")


def _entry(options: Options, name: str) -> AuditEntry:
    """Return the entry of the audit about a drain that somebody with the store itself has asked for."""
    who, tenant = options.user.name, options.user.tenant
    details = {"node": name}
    return AuditEntry(at=datetime.now(UTC), action="drain", who=who, tenant=tenant, by="principal", details=details)


@asynccontextmanager
async def _opened(options: Options) -> "AsyncIterator[Store]":
    store = await store_opener(existing_store_of(options))()
    try:
        yield store
    finally:
        await store.aclose()
