"""How a runtime is put together and taken apart: nesting is the shutdown order."""

import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import trio

from warren.actors.erasing import finish_erasing
from warren.actors.memory import OpenMemory, remembering
from warren.actors.projector import OpenProjection, ProjectorActor, projecting
from warren.actors.service import Service
from warren.actors.shared import McpHealthOf, PassingTools, Shared
from warren.actors.storage import DirectStorage, OpenStore, Storage, storing
from warren.actors.supervision import Restarts, supervised_nursery
from warren.actors.supervisor.gauge import MemoryGauge
from warren.actors.supervisor.store_watcher import StoreWatcher
from warren.actors.supervisor.supervisor import Supervisor
from warren.actors.vitals import LoopLag
from warren.config import Config
from warren.errors import StoreError
from warren.model import Providers
from warren.storage.ephemeral import EphemeralStore
from warren.tools import Tool

logger: Final = logging.getLogger("warren.runtime")


@asynccontextmanager
async def open_service(
    config: Config,
    providers: Providers,
    tools: Iterable[Tool] = (),
    *,
    open_store: OpenStore | None = None,
    open_memory: OpenMemory | None = None,
    open_projection: OpenProjection | None = None,
    passing_tools: PassingTools | None = None,
    mcp_health: McpHealthOf | None = None,
    notes: Mapping[str, str] | None = None,
) -> AsyncIterator[Service]:
    """Run the actors for as long as the body lasts: storage outside, then memory, the projector, and the sessions.

    They end the other way round: the sessions first. `passing_tools`, `mcp_health` and `notes` are as in `Shared`. A
    memory that cannot be opened is left out; the log and the health say why.

    Raises StoreError where the store cannot be opened, ActorFailedError where an actor crashed too often; what the
    body raises leaves unchanged.
    """
    async with AsyncExitStack() as stack:
        stored = memory = projector = memory_fault = None
        if open_store is not None:
            stored = await stack.enter_async_context(storing(open_store, Restarts(config.intensity)))
        storage: Storage = stored or DirectStorage(EphemeralStore(config.limits.event_log))
        if open_memory is not None:
            try:
                memory = await stack.enter_async_context(remembering(open_memory, Restarts(config.intensity), storage))
            except StoreError as exc:  # no session needs the memory in order to go on
                memory_fault = exc
                logger.critical("the memory cannot be used, sessions run without it: %s", exc)
        if memory is not None:
            await finish_erasing(storage, memory)
        if open_projection is not None:
            projector = await stack.enter_async_context(projecting(open_projection))
        threads = trio.CapacityLimiter(config.limits.tool_threads)
        by_name = {tool.spec.name: tool for tool in tools}
        runtime = (config, providers, by_name, storage, memory, threads, passing_tools, mcp_health, notes or {})
        shared = Shared(*runtime, memory_fault=memory_fault, session_store=stored is not None)
        yield await stack.enter_async_context(_sessions(shared, projector))


@asynccontextmanager
async def _sessions(shared: Shared, projector: ProjectorActor | None) -> AsyncIterator[Service]:
    async with supervised_nursery() as nursery:
        supervisor, loop = Supervisor(shared, nursery), LoopLag()
        watcher, gauge = StoreWatcher(supervisor), MemoryGauge(shared.config.limits.max_memory)
        nursery.start_soon(supervisor.evict_loop)
        nursery.start_soon(watcher.watch_loop)
        nursery.start_soon(watcher.recover_loop)
        nursery.start_soon(gauge.watch_loop, supervisor.memory)
        nursery.start_soon(loop.watch)
        try:
            yield Service(supervisor, loop, projector)
        finally:
            with trio.CancelScope(shield=True):
                await supervisor.stop()
            nursery.cancel_scope.cancel()
