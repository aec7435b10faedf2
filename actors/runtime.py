"""How a runtime is put together and taken apart: nesting is the shutdown order."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio

from warren.actors.service import Service
from warren.actors.session import Shared
from warren.actors.storage import OpenStore, StorageActor, open_storage
from warren.actors.supervision import Restarts, supervised_nursery
from warren.actors.supervisor import Supervisor
from warren.config import Config
from warren.model import Providers
from warren.tools import Tool


@asynccontextmanager
async def open_service(
    config: Config, providers: Providers, tools: Iterable[Tool] = (), *, open_store: OpenStore | None = None
) -> AsyncIterator[Service]:
    """Run the actors for as long as the body lasts: storage outside, sessions inside, so that sessions end first.

    Raises StoreError where the store cannot be opened, ActorFailedError where an actor crashed too often; what the
    body raises leaves unchanged.
    """
    if open_store is None:
        async with _sessions(config, providers, tools, None) as service:
            yield service
    else:
        async with (
            open_storage(open_store, Restarts(config.intensity)) as storage,
            _sessions(config, providers, tools, storage) as service,
        ):
            yield service


@asynccontextmanager
async def _sessions(
    config: Config, providers: Providers, tools: Iterable[Tool], storage: StorageActor | None
) -> AsyncIterator[Service]:
    async with supervised_nursery() as nursery:
        threads = trio.CapacityLimiter(config.limits.tool_threads)
        shared = Shared(config, providers, {tool.spec.name: tool for tool in tools}, storage, threads)
        supervisor = Supervisor(shared, nursery)
        try:
            yield Service(supervisor)
        finally:
            with trio.CancelScope(shield=True):
                await supervisor.stop()
