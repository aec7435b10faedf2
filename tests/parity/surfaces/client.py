"""`warren.client`: the service of the SDK over the gateway's WebSocket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

from tests.parity.surface import Client
from tests.parity.surfaces.sdk import Program, Sdk
from tests.parity.world import World
from tests.transport.clients import HOST, gateway
from warren.client import connect


class Remote(Sdk):
    """`connect`, to a gateway in the test's process."""

    name: ClassVar[str] = "client"

    @asynccontextmanager
    async def connect(self, world: World, *, slow: bool = False) -> AsyncIterator[Client]:
        """Serve on a port of its own and connect to it; `slow` makes no difference to a callback."""
        del slow
        async with gateway(world.service) as port, connect(f"ws://{HOST}:{port}") as service:
            yield Program(world, service)
