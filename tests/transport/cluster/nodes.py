"""Nodes in the test's process: runtimes on one store, each behind a gateway on a port of its own."""

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal

import attrs
import trio

from tests.support.postgres import database
from tests.transport.clients import HOST
from warren.calls.facade import SessionService
from warren.calls.streams import EventReader
from warren.settings.config import Config, Limits, NodeConfig, PostgresConfig, StoreConfig
from warren.storage.queries import ANY_TENANT, SessionHolder
from warren.transport.access.config import GatewayConfig
from warren.transport.cluster.placed import Placed
from warren.transport.embed import open_supervisor
from warren.transport.gateway.gateway import serve_gateway

Home = Literal["files", "database"]
NAMES = ("anna", "berta", "clara")


@attrs.frozen
class Node:
    """A node.

    Attributes:
        name: its name.
        service: its service.
        port: the port of its gateway.
        gateway: cancel it to end the gateway alone.
    """

    name: str
    service: Placed
    port: int
    gateway: trio.CancelScope

    @property
    def url(self) -> str:
        """The address of its gateway."""
        return f"ws://{HOST}:{self.port}"

    async def holder(self, session_id: str) -> str | None:
        """Return the name of the node that has a session, as this node sees it."""
        found = await (await self.service.store()).read(SessionHolder(session_id, ANY_TENANT))
        return None if found is None else found.name

    async def until_held_by(self, session_id: str, name: str | None) -> None:
        """Return once a node has a session; None is once none has it."""
        while await self.holder(session_id) != name:  # noqa: ASYNC110 - a store has no event
            await trio.sleep(0.01)


@contextmanager
def shared_store(home: Home, folder: Path) -> Iterator[StoreConfig | PostgresConfig]:
    """Make a place for the store of several nodes."""
    if home == "files":
        yield StoreConfig(folder / "store", projections=False, synchronous="NORMAL")
    else:
        with database() as url:
            yield PostgresConfig(url)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


@asynccontextmanager
async def node(
    store: StoreConfig | PostgresConfig,
    name: str,
    *,
    settings: dict[str, Any] | None = None,
    limits: Limits | None = None,
    config: dict[str, Any] | None = None,
    address: str | None = None,
    **models: Any,
) -> AsyncIterator[Node]:
    """Run a node; its models are `echo` and what is given.

    `settings` are those of its gateway, and `address` is where other nodes reach it, if that is not its own port.
    """
    port = free_port()
    named = NodeConfig(name, address or f"ws://{HOST}:{port}")
    told = Config(store=store, node=named, limits=limits or Limits(), **(config or {}))
    served = GatewayConfig(port=port, runtime=told, **{"close_timeout": 0.3, **(settings or {})})
    async with open_supervisor(told, providers=models, environ={}) as service, trio.open_nursery() as nursery:
        await nursery.start(serve_gateway, service, served)
        assert isinstance(service, Placed)
        yield Node(name, service, port, nursery.cancel_scope)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def cluster(store: StoreConfig | PostgresConfig, count: int = 2, **options: Any) -> AsyncIterator[list[Node]]:
    """Run several nodes on a store."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(node(store, name, **options)) for name in NAMES[:count]]


async def events_of(service: SessionService, session_id: str, last: int, after_seq: int = 0) -> list[Any]:
    """Return the envelopes of a session up to a number."""
    async with service.subscribe(session_id, after_seq=after_seq) as reader:
        return await read_to(reader, last)


async def read_to(reader: EventReader, last: int) -> list[Any]:
    """Return the envelopes that a reader brings, up to a number."""
    found = []
    async for envelope in reader:
        found.append(envelope)
        if envelope.seq >= last:
            break
    return found
