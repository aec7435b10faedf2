"""One prompt under way: its events in order up to the last, and a cancel that hits this prompt or nothing."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final, Protocol, TypeVar

import attrs
import trio

from warren.categories import Gates
from warren.errors import AgentError, SessionNotRunningError, WarrenError
from warren.events import (
    TERMINAL,
    Envelope,
    Event,
    StreamTruncated,
    ToolApprovalRequested,
    ToolApprovalResolved,
)
from warren.records import CompactionEntry
from warren.service import SessionService
from warren.views import TurnResult

T = TypeVar("T")
Tell = Callable[[Event], Awaitable[None]]


class Settle(Protocol):
    """Sees to a call that waits for somebody's word; it has started once somebody is asked."""

    async def __call__(self, event: ToolApprovalRequested, *, task_status: trio.TaskStatus[None]) -> None:
        """Return once the call waits no longer."""
        ...


logger: Final = logging.getLogger(__name__)


@attrs.define(eq=False)
class PendingPrompt:
    """A prompt that has no answer yet.

    Attributes:
        service: the runtime.
        session_id: the session.
        over: set once it has its answer.
    """

    service: SessionService
    session_id: str
    over: trio.Event = attrs.field(factory=trio.Event)
    _cancelled: trio.Event = attrs.field(factory=trio.Event)
    _begun: trio.Event = attrs.field(factory=trio.Event)

    def cancel(self) -> None:
        """End it: at once where it has not begun yet, else as soon as its turn lets go."""
        self._cancelled.set()

    async def turn(self, prompt: str, tell: Tell, settle: Settle, approvals: Gates | None = None) -> TurnResult:
        """Run a turn; returns or raises after `tell` has been through with its last event.

        However slow `tell` is, the turn does not wait for it, and no event that the log has is left out. `settle` is
        for each call that waits for somebody's word, once `tell` has told of it; it is cancelled where the call waits
        no longer. Raises what `start_turn` raises, AgentError(cause="cancelled") also for a turn that was cancelled
        before it began.
        """
        start = partial(self.service.start_turn, self.session_id, prompt, approvals=approvals, on_event=self._note)
        relayed = trio.Event()
        async with self.service.subscribe(self.session_id) as events, trio.open_nursery() as nursery:
            asking = _Asking(nursery, settle, self._cancelled)
            nursery.start_soon(self._relay, events, partial(asking.tell, tell), relayed)
            outcome = await outcome_of(self._stoppable(start))
            if self._begun.is_set():
                await relayed.wait()
            nursery.cancel_scope.cancel()
        return unwrap(outcome)

    async def compact(self, instructions: str | None) -> CompactionEntry:
        """Compact the session's context. Raises what `compact` raises."""
        self._begun.set()  # it has no events to wait for
        return await self._stoppable(lambda: self.service.compact(self.session_id, instructions=instructions))

    async def look_up(self, search: Callable[[], Awaitable[T]]) -> T:
        """Do what leaves no trace in the session: a cancel just gives it up. Raises what it raises."""
        found: list[T | WarrenError] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._give_up, nursery.cancel_scope)
            found.append(await outcome_of(search()))
            nursery.cancel_scope.cancel()
        return unwrap(found[0] if found else cancelled())

    async def _give_up(self, scope: trio.CancelScope) -> None:
        await self._cancelled.wait()
        scope.cancel()

    async def _stoppable(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do what an interrupt of the session ends."""
        if self._cancelled.is_set():
            raise cancelled()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop_when_cancelled)
            outcome = await outcome_of(work())
            # From here on no interrupt can begin; one that has is the ended turn's, and the next one does not feel it.
            nursery.cancel_scope.cancel()
        return unwrap(outcome)

    async def _stop_when_cancelled(self) -> None:
        await self._cancelled.wait()
        await self._begun.wait()
        try:
            await self.service.interrupt(self.session_id)
        except SessionNotRunningError:
            pass  # it has just ended by itself
        except WarrenError as exc:
            logger.warning("session %s: the turn does not end: %s", self.session_id, exc)

    def _note(self, _envelope: Envelope) -> None:
        self._begun.set()

    async def _relay(self, events: AsyncIterator[Envelope], tell: Tell, relayed: trio.Event) -> None:
        try:
            await _pass_on(events, tell)
        except WarrenError as exc:
            logger.warning("session %s: the client misses the end of a turn: %s", self.session_id, exc)
        finally:
            relayed.set()


@attrs.define(eq=False)
class _Asking:
    """The calls of a turn that wait for somebody's word."""

    nursery: trio.Nursery
    settle: Settle
    cancelled: trio.Event
    _scopes: dict[str, trio.CancelScope] = attrs.field(factory=dict)

    async def tell(self, tell: Tell, event: Event) -> None:
        """Tell of an event, and see to it where it is about such a call."""
        await tell(event)
        match event:
            case ToolApprovalRequested(id=call):
                self._scopes[call] = scope = trio.CancelScope()
                await self.nursery.start(self._settle, event, scope)  # they are asked about in their order
            case ToolApprovalResolved(id=call) if call in self._scopes:
                self._scopes.pop(call).cancel()

    async def _settle(
        self, event: ToolApprovalRequested, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]
    ) -> None:
        if self.cancelled.is_set():
            return task_status.started()  # the turn is about to end, and the call with it
        with scope:
            await self.settle(event, task_status=task_status)
        return None


async def _pass_on(events: AsyncIterator[Envelope], tell: Tell) -> None:
    """Tell of events up to the turn's last; those that the log does not have are left out."""
    async for envelope in events:
        if not isinstance(envelope.event, StreamTruncated):
            await tell(envelope.event)
        if isinstance(envelope.event, TERMINAL):
            break


def cancelled() -> AgentError:
    """Return the error of a prompt that was cancelled before anything came of it."""
    return AgentError("the prompt was cancelled before it began", cause="cancelled")


async def outcome_of(work: Awaitable[T]) -> T | WarrenError:
    """Return what comes of some work, so that no nursery wraps its error."""
    try:
        return await work
    except WarrenError as exc:
        return exc


def unwrap(outcome: T | WarrenError) -> T:
    """Return or raise what came of some work."""
    if isinstance(outcome, WarrenError):
        raise outcome
    return outcome
