"""A runtime: its actors, opened in one another. The nesting is the order of the shutdown."""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from warren.actors.calls.firing import ScheduleActor
from warren.actors.calls.history import LoadHistory
from warren.actors.calls.local import Local
from warren.actors.calls.posting import DeliveryActor
from warren.actors.calls.service import Service
from warren.actors.events.eventlog import utc_now
from warren.actors.observe.metrics import LoopLag
from warren.actors.resources.audit import auditing
from warren.actors.resources.erasing import finish_erasing
from warren.actors.resources.no_memory import NoMemory
from warren.actors.resources.projector import OpenProjection, ProjectorActor, projecting
from warren.actors.resources.storage import DirectStorage, OpenStore, Storage, StorageActor, storing
from warren.actors.shared import Shared
from warren.actors.supervision import Restarts, first_error, supervised_nursery
from warren.actors.supervisor.gauge import MemoryGauge
from warren.actors.supervisor.store_watcher import StoreWatcher
from warren.actors.supervisor.supervisor import Supervisor
from warren.actors.turn import attaching
from warren.agents.hooks import Hooks
from warren.base.errors import StoreError, WarrenError
from warren.base.fields import FieldValueError
from warren.base.values import frozen
from warren.models.model import Providers
from warren.models.tools import Tool
from warren.reports.audit import AuditEntry
from warren.reports.tracing import Tracer
from warren.settings.config import Config

if TYPE_CHECKING:
    from warren.actors.resources.memory import Memory, OpenMemory
    from warren.actors.tools.session_tools import RuntimeServers

logger: Final = logging.getLogger("warren.runtime")


@frozen
class Runtime:
    """The parts of an open runtime.

    Attributes:
        service: the interface for hosts and surfaces.
        supervisor: the sessions' actors, and in `shared` the actors of the store and of the memory.
    """

    service: Service
    supervisor: Supervisor


@asynccontextmanager
async def open_runtime(
    config: Config,
    providers: Providers,
    tools: Iterable[Tool] = (),
    *,
    open_store: OpenStore | None = None,
    open_memory: "OpenMemory | None" = None,
    open_projection: OpenProjection | None = None,
    servers: "RuntimeServers | None" = None,
    fetch_file: attaching.FetchFile | None = None,
    notes: Mapping[str, str] | None = None,
    tracer: Tracer | None = None,
    hooks: Iterable[Hooks] = (),
    takes_up: bool = True,
    clock: Callable[[], datetime] = utc_now,
) -> AsyncIterator[Runtime]:
    """Run the actors for as long as the body lasts: storage outside, then memory, the projector, and the sessions.

    They end in the opposite order, the sessions first. If the memory cannot be opened, or crashes too often, the
    sessions run without it; the log and the health have the reason. An error of the body leaves unchanged.

    Args:
        config: the settings.
        providers: resolves models.
        tools: tools for all sessions.
        open_store: opens the store; None keeps the sessions in memory.
        open_memory: opens the memory; None is no memory.
        open_projection: opens the projections of the store as files; None is no projections.
        servers: see `Shared`.
        fetch_file: see `Shared`.
        notes: see `Shared`.
        tracer: see `Shared`.
        hooks: see `Shared`.
        takes_up: whether the work that other processes have left in the store goes on here.
        clock: returns the time (UTC) by which something is due in sessions that are kept in memory.

    Raises:
        FieldValueError: if the config names a node, and there is no store.
        StoreError: if the store cannot be opened.
        ActorFailedError: if the storage actor crashed too often.
    """
    if config.node is not None and open_store is None:
        raise FieldValueError("node", "needs a store, which all nodes have open")
    async with AsyncExitStack() as stack:
        stored = projector = None
        memory: Memory = NoMemory()
        if open_store is not None:
            stored = await stack.enter_async_context(storing(open_store, Restarts(config.intensity), config.node))
        storage: Storage = stored or _in_memory(config, clock)
        await attaching.sweep(storage)
        auditor = await stack.enter_async_context(auditing(storage))
        if open_memory is not None:
            from warren.actors.resources.memory import remembering  # noqa: PLC0415 - most programs have no memory

            try:
                memory = await stack.enter_async_context(remembering(open_memory, Restarts(config.intensity), storage))
            except StoreError as exc:  # no session needs the memory in order to go on
                memory = NoMemory(exc)
                logger.critical("the memory cannot be used, sessions run without it: %s", exc)
            except (WarrenError, FieldValueError):  # the settings are wrong
                raise
            except Exception as exc:
                memory = NoMemory(StoreError(f"the memory crashed when it was opened: {first_error(exc)!r}"))
                logger.critical("the memory cannot be used, sessions run without it", exc_info=True)
            else:
                await finish_erasing(storage, memory)
        if open_projection is not None:
            projector = await stack.enter_async_context(projecting(open_projection))
        threads = trio.CapacityLimiter(config.limits.tool_threads)
        by_name = {tool.spec.name: tool for tool in tools}
        runtime = (config, providers, by_name, storage, auditor, memory, threads, servers, fetch_file)
        shared = Shared(*runtime, notes or {}, tracer=tracer, hooks=tuple(hooks))
        yield await stack.enter_async_context(_sessions(shared, projector, takes_up=takes_up))


def _in_memory(config: Config, clock: Callable[[], datetime]) -> Storage:
    from warren.storage.ephemeral import EphemeralStore  # noqa: PLC0415 - most programs have a store

    return DirectStorage(EphemeralStore(keep_events=config.limits.event_log, clock=clock))


def _start_anew(shared: Shared, supervisor: Supervisor, projector: ProjectorActor | None) -> None:
    """Drop all that was derived from a store that has gone back."""
    supervisor.start_anew()
    shared.completions.forget()
    shared.agents.forget()
    shared.limiter.tenancy.expire()
    shared.auditor.note(AuditEntry(at=utc_now(), action="went_back", who="", tenant=None))
    if projector is not None:
        projector.start_anew()


@asynccontextmanager
async def _sessions(shared: Shared, projector: ProjectorActor | None, *, takes_up: bool) -> AsyncIterator[Runtime]:
    async with supervised_nursery() as nursery:
        supervisor, loop = Supervisor(shared, nursery, takes_up), LoopLag()
        node = shared.storage.node
        if node is not None:
            node.load = supervisor.load
            nursery.start_soon(shared.limiter.count_nodes)
        if isinstance(shared.storage, StorageActor):
            shared.storage.on_went_back = partial(_start_anew, shared, supervisor, projector)
        watcher, gauge = StoreWatcher(supervisor), MemoryGauge(shared.config.limits.max_memory)
        if any(limits.tokens_per_day is not None for limits in shared.config.tenants.values()):
            nursery.start_soon(shared.limiter.follow_tokens, supervisor.waiting_tenants, supervisor.look_again)
        nursery.start_soon(supervisor.evict_loop)
        nursery.start_soon(watcher.watch_loop)
        if takes_up:
            nursery.start_soon(watcher.recover_loop)
            nursery.start_soon(ScheduleActor(Local(supervisor)).run)
            shared.storage.on_noted = lambda: supervisor.deliveries.set(shared.storage.now())
            nursery.start_soon(DeliveryActor(supervisor).run)
        nursery.start_soon(gauge.watch_loop, supervisor.memory)
        nursery.start_soon(loop.watch)
        history = LoadHistory(supervisor, loop)
        nursery.start_soon(history.keep)
        try:
            yield Runtime(Service(Local(supervisor), loop, history, projector), supervisor)
        finally:
            # Cancelling the runtime ends it in order: turns are interrupted and stored, and each caller gets an answer.
            with trio.CancelScope(shield=True):
                await supervisor.stop()
            nursery.cancel_scope.cancel()
