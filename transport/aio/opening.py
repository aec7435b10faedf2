"""`open_supervisor` for programs on asyncio, and the thread in which it runs trio."""

import asyncio
import atexit
import contextvars
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final

import attrs
import trio

from warren.actors.supervision import background
from warren.agents.agent import Agent
from warren.agents.hooks import Hooks
from warren.base.values import define
from warren.calls.facade import Capabilities, RuntimeService
from warren.conversation.memory import Embedder
from warren.models.model import Provider
from warren.models.tools import Tool
from warren.reports.tracing import Tracer
from warren.settings.config import Config
from warren.transport.aio.crossing import agent_on, embedder_on, hook_on, provider_on, tool_on
from warren.transport.aio.portal import Portal
from warren.transport.aio.service import Service
from warren.transport.embed import open_host

logger: Final = logging.getLogger("warren.aio")
AT_EXIT: Final = 2.0
"""Seconds beyond the drain time for which a program that ends waits for a runtime that nobody has left."""
TWICE: Final = 2
Opener = Callable[..., AbstractAsyncContextManager[RuntimeService]]


@asynccontextmanager
async def open_supervisor(
    config: Config | None = None,
    *,
    tools: Iterable[Tool] = (),
    agents: Iterable[Agent] = (),
    hooks: Iterable[Hooks] = (),
    providers: Mapping[str, Provider] | None = None,
    embedder: Embedder | None = None,
    environ: Mapping[str, str] | None = None,
    tracer: Tracer | None = None,
) -> AsyncIterator[Service]:
    """Run Warren beside the calling asyncio program for a body. On leaving, running turns are parked or interrupted.

    The runtime runs on trio in a thread of its own, so a loop that is blocked for a moment holds up none of its leases
    and deadlines. Functions of the program that are `async def` run on the calling loop: tools, the instructions of
    agents, hooks, providers and the embedder. Those declared for trio do not (`@tool(loop="trio")`, or an attribute).
    Plain functions run in threads of the runtime; a compactor and a tracer are called in its own thread.

    Leaving waits for the end of the runtime. A cancellation does not shorten that, but a second one does: then the
    runtime ends behind the program, and the interpreter waits for it at its exit. An exception of the body is raised as
    it is. If the runtime fails, the body is cancelled, and leaving raises the runtime's error.

    Args:
        config: the settings.
        tools: tools that every session can be offered.
        agents: agents that sessions can be made of, besides those of the config. Give all of them here: turns that an
            earlier process has left go on at once, and need the code of their agents.
        hooks: the hooks around what all sessions do; the first is the outermost.
        providers: model providers of your own, by name.
        embedder: the embedder of the memory, under the name in its config.
        environ: the variables with API keys and base URLs; None is the environment of the process.
        tracer: makes the traces of turns in place of that by `config.traces`.

    Raises:
        RuntimeError: if the caller does not run on asyncio.
        WarrenError: each error of `warren.open_supervisor`.
        warren.actors.supervision.ActorFailedError: if the storage actor crashed too often.
    """
    loop = _running_loop()
    config = config or Config()
    given = (*config.agents, *agents)
    opened = partial(
        _opened,
        attrs.evolve(config, agents=()),
        tools=[tool_on(loop, each) for each in tools],
        agents=[agent_on(loop, each) for each in given],
        hooks=[hook_on(loop, each) for each in hooks],
        providers={name: provider_on(loop, each) for name, each in (providers or {}).items()},
        embedder=None if embedder is None else embedder_on(loop, embedder),
        environ=environ,
        tracer=tracer,
    )
    async with hosted(opened, config.limits.drain, given) as service:
        yield service


@asynccontextmanager
async def hosted(
    opened: Callable[[], AbstractAsyncContextManager[RuntimeService]], drain: float, agents: Iterable[Agent] = ()
) -> AsyncIterator[Service]:
    """Run a service of trio in a thread, for a body on asyncio.

    Args:
        opened: opens the service, on trio.
        drain: seconds that its end may take.
        agents: the agents that it is opened with, as the program has them.
    """
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - the loop runs nothing else
    before = task.cancelling()
    thread = _TrioThread(Portal(_running_loop()), opened, task)
    await thread.start()
    at_exit = partial(thread.end_now, drain + AT_EXIT)
    atexit.register(at_exit)
    try:
        try:
            yield Service(thread.portal, thread.service, thread.capabilities, {each.name: each for each in agents})
        finally:
            await thread.stop()
    except asyncio.CancelledError:
        if thread.has_cancelled and task.uncancel() <= before:  # it was cancelled for the runtime's sake alone
            assert thread.failure is not None  # noqa: S101 - else it would not cancel
            raise thread.failure from None
        raise
    finally:
        if thread.over:
            atexit.unregister(at_exit)
    if thread.failure is not None:
        if thread.has_cancelled:
            task.uncancel()
        raise thread.failure


def _running_loop() -> asyncio.AbstractEventLoop:
    """Return the loop of the caller. Raises RuntimeError if it does not run on asyncio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        cure = (
            "this is trio: use warren.open_supervisor, with the same arguments"
            if trio.lowlevel.in_trio_run()
            else "no loop of asyncio runs here: start the program with asyncio.run(main())"
        )
        raise RuntimeError(f"warren.aio.open_supervisor needs asyncio, and {cure}") from None


@asynccontextmanager
async def _opened(config: Config, **given: object) -> AsyncIterator[RuntimeService]:
    async with open_host(config, **given) as host:  # type: ignore[arg-type] # as `open_supervisor` passes them on
        yield host.service


@define(eq=False)
class _TrioThread:
    """The thread in which trio runs, as the loop sees it.

    Attributes:
        portal: the way to it.
        failure: what has ended it, if that was no stop.
        over: whether it has ended.
        has_cancelled: whether it has cancelled the body, as it has failed.
    """

    portal: Portal
    _opened: Callable[[], AbstractAsyncContextManager[RuntimeService]]
    _task: "asyncio.Task[object]"
    failure: BaseException | None = attrs.field(default=None, init=False)
    over: bool = attrs.field(default=False, init=False)
    has_cancelled: bool = attrs.field(default=False, init=False)
    service: RuntimeService = attrs.field(init=False)
    capabilities: Capabilities = attrs.field(init=False)
    _leaving: bool = attrs.field(default=False, init=False)
    _changed: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)  # it is ready, or over
    _thread: threading.Thread = attrs.field(init=False)
    _stop: trio.Event = attrs.field(factory=trio.Event, init=False)
    _whole: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _is_open: bool = attrs.field(default=False, init=False)  # trio's

    async def start(self) -> None:
        """Return once the service is open. Raises what opening it raises."""
        # A daemon: for any other thread the interpreter waits before it runs what `atexit` has, which ends this one.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._main,), name="warren", daemon=True)
        self._thread.start()
        try:
            await self._changed.wait()
        except asyncio.CancelledError:
            await self.stop()
            raise
        if self.over:
            self._thread.join()
            assert self.failure is not None  # noqa: S101 - nobody has stopped it
            raise self.failure
        self._changed.clear()

    async def stop(self) -> None:
        """End the runtime, and return when the thread has ended."""
        self._leaving = True
        self.portal.to_trio(self._end_soon)
        cancelled: asyncio.CancelledError | None = None
        while not self.over:
            try:
                await self._changed.wait()
                self._changed.clear()
            except asyncio.CancelledError as exc:
                if self._task.cancelling() >= TWICE:
                    raise
                cancelled = exc
        self._thread.join()  # it has nothing left to do
        if cancelled is not None:
            raise cancelled

    def end_now(self, seconds: float) -> None:
        """End the runtime at the exit of the interpreter, without a loop."""
        logger.warning("a runtime of warren.aio still runs at the end of the program: ending it")
        self.portal.to_trio(self._end_soon)
        self._thread.join(seconds)

    # -- on trio

    def _main(self) -> None:
        failure: BaseException | None = None
        try:
            trio.run(self._run)
        except BaseException as exc:  # noqa: BLE001 - the program has it
            failure = exc
        self.portal.to_loop(self._end, failure)

    async def _run(self) -> None:
        with self._whole:
            self.portal.begin(self._end_soon)
            async with self._opened() as service, background() as nursery:
                self._is_open = True
                self.portal.work_in(nursery)
                self.portal.to_loop(self._ready, service, service.capabilities())
                await self._stop.wait()
                await service.stop()  # while the nursery lives: whoever waits gets the answer of its turn

    def _end_soon(self) -> None:
        """End in order, or at once if the service is not open yet."""
        self._stop.set()
        if not self._is_open:
            self._whole.cancel()

    # -- on the loop

    def _ready(self, service: RuntimeService, capabilities: Capabilities) -> None:
        self.service, self.capabilities = service, capabilities
        self._changed.set()

    def _end(self, failure: BaseException | None) -> None:
        self.failure, self.over = failure, True
        self.portal.end()
        self._changed.set()
        if failure is not None and not self._leaving and hasattr(self, "service"):
            self.has_cancelled = True
            self._task.cancel()
