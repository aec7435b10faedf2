"""A world of two nodes, whose clients talk to the node that does not have the sessions."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar

import attrs
import trio

from tests.parity.surface import Client
from tests.parity.surfaces.client import Remote
from tests.parity.surfaces.sdk import Program
from tests.parity.world import World
from tests.support.faulty_store import Faults
from tests.support.runtime import supervisor_of
from tests.transport.clients import HOST
from tests.transport.cluster.nodes import free_port
from warren.actors.calls.service import Service
from warren.actors.runtime import Runtime
from warren.client import RemoteService, connect
from warren.settings.config import Config, NodeConfig
from warren.transport.access.config import GatewayConfig
from warren.transport.cluster.placed import clustered
from warren.transport.gateway.gateway import serve_gateway


@attrs.define(eq=False)
class TwoNodes(World):
    """A world whose runtime is a node, with another node beside it that takes no work.

    Attributes:
        ports: of the gateways of the two nodes.
    """

    ports: tuple[int, int] = attrs.field(factory=lambda: (free_port(), free_port()))
    _opening: int = 0

    def config(self) -> Config:
        """Return the settings of the node that is opened now."""
        named = NodeConfig(("home", "entrance")[self._opening], f"ws://{HOST}:{self.ports[self._opening]}")
        return attrs.evolve(super().config(), node=named)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run both nodes. Faults of the store are those of the first one alone."""
        async with super().running(), AsyncExitStack() as stack:
            await self._serve(self.service, self.ports[0], stack)
            self._opening, faults, self.faults = 1, self.faults, Faults()
            try:
                entrance = await stack.enter_async_context(self.open())
            finally:
                self._opening, self.faults = 0, faults
            supervisor_of(entrance).scheduler.closed = True
            await self._serve(entrance, self.ports[1], stack)
            yield

    async def _serve(self, service: Service, port: int, stack: AsyncExitStack) -> None:
        node = await stack.enter_async_context(clustered(Runtime(service, supervisor_of(service))))
        nursery = await stack.enter_async_context(trio.open_nursery())
        stack.callback(nursery.cancel_scope.cancel)
        await nursery.start(serve_gateway, node, GatewayConfig(port=port, close_timeout=0.3))


class ThroughAnotherNode(Remote):
    """`connect` to the node that takes no work; new sessions are made at the other one."""

    name: ClassVar[str] = "node"

    @asynccontextmanager
    async def connect(self, world: World, *, slow: bool = False) -> AsyncIterator[Client]:
        """Connect to both nodes; `slow` makes no difference to a callback."""
        del slow
        assert isinstance(world, TwoNodes)
        home, entrance = (f"ws://{HOST}:{port}" for port in world.ports)
        async with connect(home) as there, connect(entrance) as here:
            service: Any = _Apart(there, here)
            yield Program(world, service)


@attrs.frozen
class _Apart:
    """The service of the entrance, but for new sessions."""

    there: RemoteService
    here: RemoteService

    def __getattr__(self, name: str) -> Any:
        return getattr(self.here, name)

    @property
    def create_session(self) -> Any:
        return self.there.create_session

    @property
    def delegate(self) -> Any:
        return self.there.delegate
