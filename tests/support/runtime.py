"""Whole runtimes for tests: real actors and a real store; on a virtual clock the store works on the loop."""

import functools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import attrs
import trio
from trio.testing import MockClock

import warren.structured.check  # noqa: F401 - its first import is done in a thread, which a virtual clock passes by
from tests.support.faulty_store import Faults, FaultyStore
from warren.actors import runtime
from warren.actors.calls.service import Service
from warren.actors.resources.memory import MemoryActor, OpenMemory
from warren.actors.resources.storage import StorageActor
from warren.actors.supervisor.supervisor import Supervisor
from warren.actors.tools.session_tools import RuntimeServers
from warren.agents.hooks import Hooks
from warren.calls.facade import SessionService
from warren.conversation.events import Envelope
from warren.conversation.messages import Message
from warren.models.model import Provider
from warren.models.tools import Tool
from warren.settings.config import Config, PostgresConfig, StoreConfig
from warren.storage.postgres import Holder as PostgresHolder
from warren.storage.runner import Runner, inline_runner
from warren.storage.sqlite import Holder
from warren.testing import Recorder as Recorder  # noqa: PLC0414 - for tests that import the other helpers from here
from warren.transport.providers import open_providers


@asynccontextmanager
async def open_runtime(
    model: Provider | None = None,
    *,
    store: Path | PostgresConfig | None = None,
    tools: Iterable[Tool] = (),
    config: Config | None = None,
    faults: Faults | None = None,
    models: Mapping[str, Provider] | None = None,
    runner: Runner = inline_runner,
    memory: OpenMemory | None = None,
    synchronous: Literal["FULL", "NORMAL"] = "NORMAL",
    clock: Callable[[], float] | None = None,
    servers: RuntimeServers | None = None,
    hooks: Iterable[Hooks] = (),
) -> AsyncIterator[Service]:
    """Run the actors; `model` is what sessions that name none are answered by (else echo).

    `store` is a folder or a database; `memory` opens one: see `tests.support.memories`. `clock` is that of the store in
    a folder, in seconds since 1970; None is the machine's.
    """
    settings = config or Config()
    if model is not None:
        settings = attrs.evolve(settings, model="test")
    extra = {**(models or {}), **({"test": model} if model is not None else {})}
    opener = None
    if store is not None:
        where = store if isinstance(store, PostgresConfig) else StoreConfig(store, synchronous=synchronous)
        holder = PostgresHolder.of(where) if isinstance(where, PostgresConfig) else Holder.of(where)
        if clock is not None and isinstance(holder, Holder):
            holder.clock = clock
        opener = functools.partial(FaultyStore.prepared, where, faults or Faults(), runner, holder)
    async with (
        open_providers({}, extra=extra) as providers,
        runtime.open_runtime(
            settings, providers, tools, open_store=opener, open_memory=memory, servers=servers, hooks=tuple(hooks)
        ) as opened,
    ):
        yield opened.service


def supervisor_of(service: SessionService) -> Supervisor:
    """Return the supervisor behind a service, however the runtime was opened."""
    assert isinstance(service, Service)
    return service.local.supervisor


def storage_of(service: SessionService) -> StorageActor:
    """Return the storage actor of a runtime with a store."""
    storage = supervisor_of(service).shared.storage
    assert isinstance(storage, StorageActor)
    return storage


def memory_of(service: SessionService) -> MemoryActor:
    """Return the memory actor of a runtime with a memory."""
    memory = supervisor_of(service).shared.memory
    assert isinstance(memory, MemoryActor)
    return memory


async def new_session(service: SessionService, **options: object) -> str:
    """Create a session without a turn; return its id."""
    return (await service.create_session(None, **options)).session_id  # type: ignore[arg-type]


async def transcript(service: SessionService, session_id: str) -> list[Message]:
    """Return the whole transcript, as the service shows it."""
    page = await service.history(session_id, limit=1000)
    return [entry.message for entry in page.messages]


async def replay(service: SessionService, session_id: str, after_seq: int = 0) -> list[Envelope]:
    """Return the session's log above a seq, up to the last event so far."""
    found: list[Envelope] = []
    virtual = isinstance(trio.lowlevel.current_clock(), MockClock)
    with trio.move_on_after(0.001 if virtual else 0.3):  # a database takes its time
        async with service.subscribe(session_id, after_seq=after_seq) as events:
            async for envelope in events:
                found.append(envelope)  # noqa: PERF401 - what was found stays when the time is over
    return found
