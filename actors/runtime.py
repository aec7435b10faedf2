"""How a runtime is put together and taken apart: nesting is the shutdown order."""

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from warren.actors.memory import OpenMemory, remembering
from warren.actors.service import Service
from warren.actors.session import Shared
from warren.actors.storage import OpenStore, StorageActor
from warren.actors.supervision import Restarts, supervised_nursery
from warren.actors.supervisor import Supervisor
from warren.config import Config
from warren.model import Providers
from warren.tools import Tool


@asynccontextmanager
async def open_service(
    config: Config,
    providers: Providers,
    tools: Iterable[Tool] = (),
    *,
    open_store: OpenStore | None = None,
    open_memory: OpenMemory | None = None,
) -> AsyncIterator[Service]:
    """Run the actors for as long as the body lasts: storage outside, then memory, sessions inside: they end first.

    Raises StoreError where the store cannot be opened, ActorFailedError where an actor crashed too often; what the
    body raises leaves unchanged.
    """
    async with AsyncExitStack() as stack:
        storage = memory = None
        if open_store is not None:
            storage = await stack.enter_async_context(StorageActor.running(open_store, Restarts(config.intensity)))
        if open_memory is not None:
            memory = await stack.enter_async_context(remembering(open_memory, Restarts(config.intensity)))
        threads = trio.CapacityLimiter(config.limits.tool_threads)
        by_name = {tool.spec.name: tool for tool in tools}
        shared = Shared(config, providers, by_name, storage, memory, threads)
        yield await stack.enter_async_context(_sessions(shared))


@asynccontextmanager
async def _sessions(shared: Shared) -> AsyncIterator[Service]:
    async with supervised_nursery() as nursery:
        supervisor = Supervisor(shared, nursery)
        try:
            yield Service(supervisor)
        finally:
            with trio.CancelScope(shield=True):
                await supervisor.stop()
