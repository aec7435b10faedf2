"""`Service`, the sessions of a runtime for an asyncio program."""

import asyncio
import contextlib
import copy
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Self, TypeVar

import attrs
import trio

from warren.agents.agent import Agent
from warren.agents.hooks import Hooks
from warren.base.principals import Principal
from warren.base.values import define
from warren.calls.base import Call
from warren.calls.facade import Capabilities, Health, RuntimeService, SessionService
from warren.calls.handle import Session
from warren.calls.streams import ChangeReader, EventReader, OnEvent
from warren.calls.turn_stream import StreamedTurn, TurnStream
from warren.calls.turns import SessionCall, TurnCall, WaitRequest
from warren.conversation.events import Envelope
from warren.conversation.views import SessionChanges
from warren.reports.metrics import History, Metrics
from warren.reports.statistics import RuntimeStatistics
from warren.transport.aio.crossing import agent_on, hook_on, tool_on
from warren.transport.aio.portal import Portal, ended
from warren.transport.aio.reading import News, begun, crossed

R = TypeVar("R")
logger: Final = logging.getLogger("warren.aio")
WITH_CODE: Final = (SessionCall, TurnCall, WaitRequest)
"""The calls that bring functions of the program."""


class Service(SessionService):
    """The sessions of a runtime, for the asyncio loop that has opened it. `warren.aio.open_supervisor` makes it.

    Its methods do what those of `SessionService` say, and what `RuntimeService` says of the runtime. In addition:

    * Where these name trio, it is asyncio: use `asyncio.timeout`, and cancel tasks. A cancelled call raises
      CancelledError at once; a turn that was admitted runs on. `on_event` and `on_begin` are called on the loop.
    * `health`, `statistics`, `load` and `metrics` are async, as they are those of another thread.
    """

    def __init__(
        self, portal: Portal, service: RuntimeService, capabilities: Capabilities, agents: dict[str, Agent[Any]]
    ) -> None:
        """Serve a runtime behind a portal.

        Args:
            portal: the way to it.
            service: its service, on trio.
            capabilities: the optional capabilities that are on.
            agents: the agents that it has, as the program has made them.
        """
        self._portal = portal
        self._service = service
        self._capabilities = capabilities
        self._agents = agents

    def perform(self, call: Call[R]) -> Coroutine[Any, Any, R]:
        """Carry a call out on trio."""
        self._portal.check_loop()
        if isinstance(call, WITH_CODE):
            call = self._crossed(call)
        return self._portal.run(self._service.perform, call)

    def _crossed(self, call: Any) -> Any:
        """Return a call whose functions of the program run on the loop."""
        portal, changes = self._portal, dict[str, Any]()
        if call.extra_tools:
            changes["extra_tools"] = tuple(tool_on(portal.loop, each) for each in call.extra_tools)
        if getattr(call, "hooks", ()):
            changes["hooks"] = tuple(hook_on(portal.loop, each) for each in call.hooks)
        if getattr(call, "on_event", None) is not None:
            told = _Told(call.on_event)
            changes["on_event"] = lambda envelope: portal.to_loop(told.tell, envelope)
        if getattr(call, "on_begin", None) is not None:
            changes["on_begin"] = partial(begun, portal, call.on_begin)
        return attrs.evolve(call, **changes) if changes else call

    def session(
        self,
        agent: Agent[Any] | str | None = None,
        *,
        id: str | None = None,  # noqa: A002 - as a session's attribute is named
        labels: Mapping[str, str] | None = None,
        title: str | None = None,
        hooks: Sequence[Hooks] = (),
    ) -> Session:
        self._portal.check_loop()
        if isinstance(agent, Agent) and self._agents.get(agent.name) != agent:
            # Its refusal is raised here and now: the loop waits for trio, once for each agent.
            try:
                trio.from_thread.run_sync(
                    self._service.session, agent_on(self._portal.loop, agent), trio_token=self._portal.token
                )
            except trio.RunFinishedError:
                raise ended() from None
            self._agents[agent.name] = agent
        return super().session(agent, id=id, labels=labels, title=title, hooks=hooks)

    # -- events and changes

    @asynccontextmanager
    async def stream(self, call: SessionCall | TurnCall) -> AsyncIterator[TurnStream]:
        turn = StreamedTurn(call, self.perform, self.subscribe, News)
        task = asyncio.create_task(turn.run())
        try:
            async with turn.opened() as events:
                yield events
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((task,))

    @asynccontextmanager
    async def subscribe(self, session_id: str, *, after_seq: int | None = None) -> AsyncIterator[EventReader]:
        opened = partial(self._service.subscribe, session_id, after_seq=after_seq)
        async with self._portal.entered(opened) as inner:
            reader = crossed(self._portal, inner)
            try:
                yield reader
            finally:
                reader.close()

    @asynccontextmanager
    async def watch(
        self, *, labels: Mapping[str, str] | None = None, include_archived: bool = False
    ) -> AsyncIterator[ChangeReader]:
        opened = partial(self._service.watch, labels=labels, include_archived=include_archived)
        async with self._portal.entered(opened) as inner:
            watch = _Changes(self._portal, inner)
            try:
                yield watch
            finally:
                watch.close()

    # -- the runtime

    @property
    def principal(self) -> Principal:
        """The principal of all calls: they have its rights, and find its tenant's sessions."""
        return self._service.principal

    def as_(self, principal: Principal) -> Self:
        """Return the same service for a caller, as `RuntimeService.as_` does."""
        bound = copy.copy(self)
        bound._service = self._service.as_(principal)  # noqa: SLF001 - a copy of this object
        return bound

    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def ready(self) -> bool:
        """Whether new work should be sent here; see `RuntimeService.ready`. It does not wait."""
        return self._portal.open and self._service.ready

    async def drain(self) -> None:
        """Refuse new turns from now on, and return when the running turns have ended; see `RuntimeService.drain`."""
        await self._portal.run(self._service.drain)

    async def stop(self) -> None:
        """End every session, and return when all have ended; see `RuntimeService.stop`."""
        await self._portal.run(self._service.stop)

    async def health(self) -> Health:
        """Return the health of the runtime."""
        return await self._asked(self._service.health)

    async def statistics(self) -> RuntimeStatistics:
        """Return the figures of the runtime."""
        return await self._asked(self._service.statistics)

    async def load(self) -> History:
        """Return the load of the last hour; see `RuntimeService.load`."""
        return await self._asked(self._service.load)

    async def metrics(self) -> Metrics:
        """Return the totals since the start of the runtime, and its figures; see `RuntimeService.metrics`."""
        return await self._asked(self._service.metrics)

    async def _asked(self, function: Callable[[], R]) -> R:
        async def ask() -> R:
            return function()

        return await self._portal.run(ask)


@define(eq=False)
class _Told:
    """The `on_event` of a turn; one that raises is not called again, as on trio."""

    on_event: OnEvent | None

    def tell(self, envelope: Envelope) -> None:
        """Pass an event on."""
        if self.on_event is None:
            return
        try:
            self.on_event(envelope)
        except Exception:
            logger.exception("on_event of session %s raised: it gets no more of this turn", envelope.session_id)
            self.on_event = None


class _Changes(AsyncIterator[SessionChanges]):
    """A watch of trio, read on the loop."""

    def __init__(self, portal: Portal, inner: ChangeReader) -> None:
        self._portal = portal
        self._inner = inner
        self._next: asyncio.Task[SessionChanges | None] | None = None

    async def __anext__(self) -> SessionChanges:
        # It goes on if the caller is cancelled: changes that were taken are for the next call.
        if self._next is None:
            self._next = asyncio.create_task(self._portal.run(self._take))
        found = await asyncio.shield(self._next)
        self._next = None
        if found is None:
            raise StopAsyncIteration
        return found

    async def _take(self) -> SessionChanges | None:
        return await anext(aiter(self._inner), None)

    def close(self) -> None:
        """Stop reading."""
        if self._next is not None:
            self._next.cancel()
