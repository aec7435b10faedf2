"""The way in for programs: a runtime with its store and its model providers, in one context manager."""

import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import trio

from warren.actors.events.eventlog import utc_now
from warren.actors.runtime import Runtime, open_runtime
from warren.actors.turn.attaching import FetchFile
from warren.agents.agent import Agent, check_hooks, with_workers
from warren.agents.hooks import Hooks
from warren.agents.spec import provider_of
from warren.base.errors import InvalidParamsError
from warren.base.extras import missing
from warren.base.values import frozen
from warren.calls.facade import RuntimeService
from warren.conversation.memory import Embedder
from warren.models.model import Provider, Providers
from warren.models.tools import Tool
from warren.reports.tracing import Tracer
from warren.settings.config import Config, PostgresConfig, StoreConfig, TraceConfig
from warren.transport.providers import Bounds, open_providers
from warren.transport.providers.registry import scripts_of
from warren.transport.stores import memory_opener, store_opener

if TYPE_CHECKING:
    from warren.actors.tools.session_tools import RuntimeServers, SessionTools
    from warren.storage.projection import Follower


@frozen
class Hosted:
    """A runtime for its host.

    Attributes:
        service: its sessions.
        session_tools: gives single sessions MCP servers of their own; None if `Config.tools` is None.
    """

    service: RuntimeService
    session_tools: "SessionTools | None" = None


@asynccontextmanager
async def open_supervisor(
    config: Config | None = None,
    *,
    tools: Iterable[Tool] = (),
    agents: Iterable[Agent[Any]] = (),
    providers: Mapping[str, Provider] | None = None,
    embedder: Embedder | None = None,
    environ: Mapping[str, str] | None = None,
    tracer: Tracer | None = None,
    hooks: Iterable[Hooks] = (),
) -> AsyncIterator[RuntimeService]:
    """Run Warren inside the calling trio program for a body. On leaving, running turns are parked or interrupted.

    An exception of the body is raised as it is, never in an exception group.

    Args:
        config: the settings.
        tools: tools that every session can be offered.
        agents: agents that sessions can be made of, besides those of the config. Give all of them here: turns that an
            earlier process has left go on at once, and need the code of their agents.
        providers: model providers of your own, by name.
        embedder: the embedder of the memory, under the name in its config.
        environ: the variables with API keys and base URLs; None is the environment of the process.
        tracer: makes the traces of turns in place of that by `config.traces`, such as a
            `warren.transport.tracing.OtelTracer` with the program's own span processor. The program closes it.
        hooks: the hooks around what all sessions do; the first is the outermost.

    Raises:
        RuntimeError: if the caller does not run on trio.
        StoreError: if the store cannot be opened.
        PersistenceDisabledError: if the config names a store and its extra is not installed.
        MemoryDisabledError: if the config names a memory and its extra is not installed.
        InvalidParamsError: if no provider is known for the model of the config or for one that takes over, if a tool
            cannot be made, or if the config makes this a node or asks for traces, and the extra for that is missing.
        warren.actors.supervision.ActorFailedError: if the storage actor crashed too often.
    """
    opened = open_host(
        config,
        tools=tools,
        agents=agents,
        providers=providers,
        embedder=embedder,
        environ=environ,
        tracer=tracer,
        hooks=hooks,
    )
    async with opened as hosted:
        yield hosted.service


@asynccontextmanager
async def open_host(
    config: Config | None = None,
    *,
    tools: Iterable[Tool] = (),
    agents: Iterable[Agent[Any]] = (),
    providers: Mapping[str, Provider] | None = None,
    embedder: Embedder | None = None,
    environ: Mapping[str, str] | None = None,
    tracer: Tracer | None = None,
    hooks: Iterable[Hooks] = (),
    takes_up: bool = True,
    clock: Callable[[], datetime] = utc_now,
) -> AsyncIterator[Hosted]:
    """Run Warren as `open_supervisor` does, for hosts that give single sessions MCP servers of their own.

    The servers end after the sessions. Commands of the shell get their variables from `environ`. With `takes_up` off,
    the work that other processes have left in the store stays there. `clock` returns the time (UTC) by which something
    is due in sessions that are kept in memory.
    """
    _check_loop()
    config, given, of_all = config or Config(), tuple(tools), tuple(hooks)
    check_hooks(of_all, "hooks")
    if added := tuple(agents):
        config = attrs.evolve(config, agents=(*config.agents, *added))
    if config.agent_folders:
        from warren.actors.tools.agent_files import with_agents_of_folders  # noqa: PLC0415 - few runtimes have any

        config = with_agents_of_folders(config)
    every, _ = with_workers(config.agents, {})
    own_models = {provider_of(each.name): each.own_model for each in every if each.own_model is not None}
    store = config.store
    open_store = None if store is None else store_opener(store)
    open_projection = None if store is None or not _is_projected(store) else _projection_opener(store)
    open_memory = None if config.memory is None else memory_opener(config.memory, embedder)
    async with AsyncExitStack() as stack:
        limits = config.limits
        bounds = Bounds(limits.model_silence, limits.model_stall, limits.max_answer, limits.model_wait)
        servers, scripts = config.model_servers, scripts_of(config)
        opened = open_providers(
            environ, extra={**(providers or {}), **own_models}, servers=servers, bounds=bounds, scripts=scripts
        )
        made = await stack.enter_async_context(opened)
        made.check_defaults(config)
        registry: Providers = made
        if config.record is not None:
            from warren.transport.providers.recording import AnswerRecorder, RecordedProviders  # noqa: PLC0415 - few record

            registry = RecordedProviders(registry, AnswerRecorder(config.record))
        own = await _tools_of(config, environ, stack)
        watching, told = await _hooks_of(config, environ, own.servers, stack)
        if tracer is None and config.traces is not None:
            tracer = await stack.enter_async_context(_traced(config.traces))
        runtime = await stack.enter_async_context(
            open_runtime(
                config,
                registry,
                [*own.tools, *given],
                open_store=open_store,
                open_memory=open_memory,
                open_projection=open_projection,
                servers=own.servers,
                fetch_file=own.fetch_file,
                notes=own.notes_beside(given),
                tracer=tracer,
                hooks=(*watching, *of_all),
                takes_up=takes_up,
                clock=clock,
            )
        )
        told(runtime)
        service = runtime.service if config.node is None else await _clustered(runtime, stack)
        yield await _hosted(service, own.servers, stack)


def _check_loop() -> None:
    """Raise RuntimeError if the caller does not run on trio: the first wait would fail with words about a bad yield."""
    if not trio.lowlevel.in_trio_run():
        cure = (
            "this is asyncio: use warren.aio.open_supervisor, with the same arguments"
            if _asyncio_runs()
            else "no loop of trio runs here: start the program with trio.run(main)"
        )
        raise RuntimeError(f"warren.open_supervisor needs trio, and {cure}")


def _asyncio_runs() -> bool:
    asyncio = sys.modules.get("asyncio")  # not imported for this: few programs on trio need it
    return asyncio is not None and asyncio._get_running_loop() is not None  # noqa: SLF001 - it is public but for its name


def _traced(config: TraceConfig) -> AbstractAsyncContextManager[Tracer]:
    problem = missing("traces", "traces need")
    if problem is not None:
        raise InvalidParamsError.at("$.traces", problem)
    from warren.transport.tracing import open_tracer  # noqa: PLC0415 - it has an extra of its own

    return open_tracer(config)


async def _clustered(runtime: Runtime, stack: AsyncExitStack) -> RuntimeService:
    problem = missing("client", "a node needs")
    if problem is not None:
        raise InvalidParamsError.at("$.node", problem)
    from warren.transport.cluster.placed import clustered  # noqa: PLC0415 - it needs the extra of the client

    return await stack.enter_async_context(clustered(runtime))


@frozen
class _Tools:
    """The tools of a runtime by its settings; without settings no module of them is imported."""

    tools: tuple[Tool, ...] = ()
    notes: Mapping[str, str] = attrs.field(factory=dict)
    fetch_file: FetchFile | None = None
    servers: "RuntimeServers | None" = None

    def notes_beside(self, given: Iterable[Tool]) -> Mapping[str, str]:
        """Return the notes on these tools, without the tools that one of the host replaces."""
        taken = {tool.spec.name for tool in given}
        return {name: note for name, note in self.notes.items() if name not in taken}


async def _tools_of(config: Config, environ: Mapping[str, str] | None, stack: AsyncExitStack) -> _Tools:
    if config.tools is None:
        return _Tools()
    from warren.actors.tools.session_tools import open_pool  # noqa: PLC0415 - see above
    from warren.actors.tools.workspace import workspace_of  # noqa: PLC0415 - see above

    made = await workspace_of(config.tools, environ, memory=config.memory is not None)
    servers = await stack.enter_async_context(open_pool(config.tools.mcp_servers))
    return _Tools(made.tools, made.notes, made.fetch_file, servers)


async def _hooks_of(
    config: Config, environ: Mapping[str, str] | None, servers: "RuntimeServers | None", stack: AsyncExitStack
) -> tuple[Sequence[Hooks], Callable[[Runtime], object]]:
    """Return the hooks of the settings, and what tells them of the runtime; without any no module is imported."""
    if not config.hook_commands and not config.hooks_files:
        return (), lambda _runtime: None
    from warren.actors.hooks.opening import open_watched  # noqa: PLC0415 - see above
    from warren.actors.hooks.watching import hooks_of  # noqa: PLC0415 - see above

    watched = await stack.enter_async_context(open_watched(config, environ, servers))
    return hooks_of(watched), watched.opened


async def _hosted(service: RuntimeService, servers: "RuntimeServers | None", stack: AsyncExitStack) -> Hosted:
    if servers is None:
        return Hosted(service)
    from warren.actors.tools.session_tools import open_session_tools  # noqa: PLC0415 - as above

    return Hosted(service, await stack.enter_async_context(open_session_tools(servers, service)))


def _is_projected(config: StoreConfig | PostgresConfig) -> bool:
    return config.projections if isinstance(config, StoreConfig) else config.project is not None


def _projection_opener(config: StoreConfig | PostgresConfig) -> "Callable[[], Follower]":
    from warren.storage.projection import Follower  # noqa: PLC0415 - it needs what the store needs

    return partial(Follower, config)
