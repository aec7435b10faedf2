"""The runtime behind a surface: a runtime in one of the capability builds, whose model follows a script."""

import functools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import trio

from tests.parity.surface import up_to
from tests.support.faulty_store import Faults
from tests.support.memories import memory_in
from tests.support.runtime import open_runtime
from warren.actors.calls.service import Service
from warren.actors.resources.memory import OpenMemory
from warren.agents.agent import Agent
from warren.base.principals import LOCAL, Principal
from warren.compaction import CompactionConfig
from warren.conversation import codec
from warren.conversation.budget import Budget
from warren.conversation.events import Envelope, Event
from warren.conversation.memory import MemoryConfig
from warren.conversation.options import ModelOptions
from warren.models.model import ModelReply, ModelRequest, Piece
from warren.models.tools import ToolOutput, current_call, tool
from warren.settings.config import Config, Limits, PostgresConfig, RetryPolicy
from warren.storage.memory.postgres import PostgresMemory
from warren.storage.runner import inline_runner
from warren.transport.providers.scripted import Script, ScriptedModel

Capability = Literal["store", "memory", "compaction"]
MEMORY: Final = "memory"
"""The folder of the memory, below the store's: as the command line has it."""
SCRIPT: Final = "script.json"


@attrs.frozen
class Build:
    """A set of capabilities, as settings of a runtime; its store and memory are in files, or in a database."""

    name: str
    on: frozenset[Capability] = frozenset()
    database: bool = False


BUILDS: Final = (
    Build("A"),
    Build("B", frozenset({"store"})),
    Build("C", frozenset({"memory"})),
    Build("D", frozenset({"compaction"})),
    Build("E", frozenset({"store", "memory"})),
    Build("F", frozenset({"store", "memory", "compaction"})),
)
DATABASES: Final = (
    Build("G", frozenset({"store", "compaction"}), database=True),
    Build("H", frozenset({"store", "memory"}), database=True),
    Build("I", frozenset({"store", "memory", "compaction"}), database=True),
)
"""Played where there is a server; see `tests.support.postgres`."""


@attrs.frozen
class Setting:
    """How a scenario wants the runtime.

    Attributes:
        steps: what the model does, call by call; as in a script's file.
        budget: of every turn.
        max_sessions: turns that may run.
        threshold: tokens from which on contexts are compacted, where the build does that; nothing is kept as it is
            then but the exchange in flight.
        tool_timeout: seconds that a tool may take.
        approval_timeout: seconds that a call waits to be approved.
        event_log: events that a session without a store keeps.
        principal: the one whose service is behind the surface.
        agents: the agents of the runtime.
    """

    steps: tuple[Mapping[str, Any], ...] = ({"text": "hello there"},)
    budget: Budget = attrs.field(factory=lambda: Budget(max_steps=10))
    max_sessions: int = 100
    threshold: int = 100_000
    tool_timeout: float = 600.0
    approval_timeout: float = 300.0
    event_log: int = 10_000
    principal: Principal = LOCAL
    agents: tuple[Agent, ...] = ()

    @property
    def script(self) -> Mapping[str, Any]:
        """The model's script."""
        return {"steps": list(self.steps), "loop": True}

    def config(self, build: Build) -> Config:
        """Return the settings of a runtime in the test's process."""
        compaction = CompactionConfig(self.threshold, recent_turn_budget=0, min_turns_between_compactions=0)
        return Config(
            retry=RetryPolicy(max_attempts=2, initial_delay=0.001, jitter=0),
            limits=Limits(
                max_sessions=self.max_sessions,
                turn=self.budget,
                tool_timeout=self.tool_timeout,
                approval_timeout=self.approval_timeout,
                event_log=self.event_log,
            ),
            compaction=compaction if "compaction" in build.on else None,
            agents=self.agents,
        )


@tool
async def look(at: str) -> str:
    """Look at something."""
    await trio.lowlevel.checkpoint()
    return f"it is a {at}"


@tool(category="shell")
async def launch(what: str) -> str:
    """Launch something."""
    await trio.lowlevel.checkpoint()
    return f"{what} is gone"


@attrs.define(eq=False)
class Scripted:
    """A model with a script.

    Attributes:
        said: set while a call runs that has said something.
        asked: the options of each call so far.
    """

    provider: ScriptedModel
    said: trio.Event = attrs.field(factory=trio.Event)
    asked: list[ModelOptions] = attrs.field(factory=list)

    async def complete(self, request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        """Play the next step."""
        self.asked.append(request.options)

        def heard(piece: Piece) -> None:
            emit(piece)
            self.said.set()

        try:
            return await self.provider.complete(request, heard)
        finally:
            self.said = trio.Event()


@attrs.define(eq=False)
class World:
    """A runtime that can be opened again, and what goes wrong in it.

    Attributes:
        build: its capabilities.
        setting: how the scenario wants it.
        folder: of its store, and of what its processes leave.
        faults: of the store.
        go: lets the tool `hold` return.
        tokens: the completion tokens that the tool `build_outside` has handed out.
        inside: whether the runtime is in this process; else each command opens its own.
        url: the address of the database of the store and the memory; None keeps them in files.
    """

    build: Build
    setting: Setting
    folder: Path
    inside: bool = True
    url: str | None = None
    faults: Faults = attrs.field(factory=Faults)
    model: Scripted = attrs.field(init=False)
    go: trio.Event = attrs.field(factory=trio.Event)
    tokens: list[str] = attrs.field(factory=list)
    _service: Service | None = None

    def __attrs_post_init__(self) -> None:
        self.model = Scripted(ScriptedModel(codec.from_data(Script, self.setting.script)))
        (self.folder / SCRIPT).write_bytes(codec.encode(self.setting.script))

    @property
    def service(self) -> Service:
        """The runtime in this process."""
        assert self._service is not None, "it does not run"
        return self._service

    @property
    def store(self) -> Path | PostgresConfig | None:
        """The folder of the store, or its database; None without one."""
        if self.url is not None:
            return PostgresConfig(self.url)
        return self.folder / "store" if "store" in self.build.on else None

    @property
    def place(self) -> str | None:
        """The place of the store, as a command is told it."""
        return self.url or (None if self.store is None else str(self.store))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run it, where it is in this process."""
        async with AsyncExitStack() as stack:
            if self.inside:
                service: Service = await stack.enter_async_context(self.open())
                self._service = service.as_(self.setting.principal)
            yield
        self._service = None

    def open(self) -> Any:
        """Open a runtime on the store: the one behind the surface, or another one beside it."""
        return open_runtime(
            self.model,
            store=self.store,
            tools=[look, launch, tool(self.hold), tool(self.build_outside)],
            config=self.config(),
            faults=self.faults,
            memory=self._memory() if "memory" in self.build.on else None,
        )

    def config(self) -> Config:
        """Return the settings of the runtime."""
        return self.setting.config(self.build)

    def _memory(self) -> OpenMemory:
        if self.url is not None:
            return functools.partial(PostgresMemory.open, MemoryConfig(url=self.url), runner=inline_runner)
        store = self.store
        return memory_in(store / MEMORY if isinstance(store, Path) else None)

    async def hold(self) -> str:
        """Wait until the test goes on."""
        await self.go.wait()
        return "go on"

    async def build_outside(self) -> ToolOutput:
        """Have something built elsewhere."""
        token = current_call().token(expires=600)
        self.tokens.append(token)
        await trio.lowlevel.checkpoint()
        return ToolOutput.later(token)

    @asynccontextmanager
    async def truth(self) -> AsyncIterator[Service]:
        """Yield the runtime, to be asked without a surface: the one behind it, or one on what it has stored."""
        if self.inside:
            yield self.service
        else:
            async with self.open() as service:
                yield service

    async def log(self, session_id: str, after_seq: int = 0) -> list[Envelope]:
        """Return a session's events as the log has them."""
        async with self.truth() as service, service.subscribe(session_id, after_seq=after_seq) as envelopes:
            last = last_seq(service, session_id)
            return await up_to(envelopes, last if last > after_seq else 0)


def last_seq(service: Service, session_id: str) -> int:
    """Return the number of the newest event of a live session."""
    found = service.session_statistics(session_id)
    return 0 if found is None else found.last_seq


async def until_event(world: World, session_id: str, kind: type[Event]) -> None:
    """Return once a session's log has an event of a kind."""
    async with world.service.subscribe(session_id, after_seq=0) as envelopes:
        async for envelope in envelopes:
            if isinstance(envelope.event, kind):
                return
