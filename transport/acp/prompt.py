"""A pending prompt: it relays its events in order up to the last one, and a cancel never hits another prompt."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol, TypeVar

import attrs
import trio

from warren.base.errors import AgentError, SessionNotRunningError, WarrenError
from warren.base.values import define
from warren.calls.facade import SessionService
from warren.calls.streams import EventReader
from warren.conversation.categories import Gates
from warren.conversation.events import (
    TERMINAL,
    Envelope,
    StreamTruncated,
    ToolApprovalRequested,
    ToolApprovalResolved,
    TurnResumed,
)
from warren.conversation.records import CompactionEntry
from warren.conversation.views import PendingApproval, TurnResult
from warren.transport.acp.content import AcpPrompt
from warren.transport.rpc.relay import Relay, last_seq_of

T = TypeVar("T")
Tell = Callable[[Envelope], Awaitable[None]]


class Approve(Protocol):
    """Has the user decide about a tool call that waits for approval."""

    async def __call__(self, event: ToolApprovalRequested, *, task_status: trio.TaskStatus[None]) -> None:
        """Return when the call no longer waits. `task_status` is started once the user is asked."""


logger: Final = logging.getLogger(__name__)


@define(eq=False)
class PendingPrompt:
    """A prompt that is not answered yet, or the turn of an earlier one that the client has come back to.

    Attributes:
        service: the runtime.
        session_id: the session.
        over: set once it is answered.
    """

    service: SessionService
    session_id: str
    over: trio.Event = attrs.field(factory=trio.Event)
    _cancelled: trio.Event = attrs.field(factory=trio.Event)
    _begun: trio.Event = attrs.field(factory=trio.Event)

    def cancel(self) -> None:
        """End the prompt: at once if its turn has not begun, else when the interrupted turn has ended."""
        self._cancelled.set()

    async def turn(self, prompt: AcpPrompt, tell: Tell, approve: Approve, approvals: Gates | None = None) -> TurnResult:
        """Run a turn, and return its result when `tell` has returned for its last event.

        The turn does not wait for `tell`, however slow it is, and `tell` gets every event that the log has.

        Args:
            prompt: the user's prompt.
            tell: relays one event to the client.
            approve: called for each call that waits for approval, when `tell` has relayed the request. It is cancelled
                when the call no longer waits.
            approvals: the kinds of calls that wait besides those of the runtime; None adds none.

        Raises:
            AgentError: with the cause `cancelled` if the prompt is cancelled, also before its turn began.
            WarrenError: the errors of `SessionService.start_turn`.
        """
        async with trio.open_nursery() as nursery:
            asking = _Asking(nursery, tell, approve, self._cancelled)
            relay = Relay(asking.tell, nursery)

            def begin(events: EventReader) -> None:
                self._begun.set()
                relay.begin(events)

            start = partial(
                self.service.start_turn,
                self.session_id,
                prompt.text,
                attachments=prompt.files,
                approvals=approvals,
                on_begin=begin,
            )
            outcome = await outcome_of(self._interruptible(start))
            await relay.settle(last_seq_of(outcome))
            nursery.cancel_scope.cancel()
        return unwrap(outcome)

    async def follow(
        self, shown: trio.Event, tell: Tell, approve: Approve, *, task_status: trio.TaskStatus[None]
    ) -> None:
        """Relay the rest of a turn that was begun before the client opened the session, if there is one.

        Calls of it that wait already are asked about first. The end of the connection leaves the turn alone.

        Args:
            shown: set once the client knows what the session has.
            tell: relays one event to the client.
            approve: called for each call that waits for approval.
            task_status: started once no later event can be missed.

        Raises:
            WarrenError: if the session cannot be read.
        """
        self._begun.set()
        async with self.service.subscribe(self.session_id) as events, trio.open_nursery() as nursery:
            nursery.start_soon(self._stop_when_cancelled)
            task_status.started()
            await shown.wait()
            found = await outcome_of(self.service.read(self.session_id))
            if not isinstance(found, WarrenError) and found.state.turn is not None:
                asking = _Asking(nursery, tell, approve, self._cancelled)
                for each in found.state.pending_approvals:
                    await asking.ask(requested(each), events.cursor)
                async for envelope in events:
                    await asking.tell(envelope)
                    if isinstance(envelope.event, TERMINAL):
                        break
            nursery.cancel_scope.cancel()
        unwrap(found)

    async def compact(self, instructions: str | None) -> CompactionEntry:
        """Compact the session's context. Raises the errors of `SessionService.compact`."""
        self._begun.set()  # it has no events to wait for
        return await self._interruptible(lambda: self.service.compact(self.session_id, instructions=instructions))

    async def look_up(self, search: Callable[[], Awaitable[T]]) -> T:
        """Run a search, which a cancel simply abandons because it changes nothing. Raises the errors of `search`."""
        found: list[T | WarrenError] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._abandon, nursery.cancel_scope)
            found.append(await outcome_of(search()))
            nursery.cancel_scope.cancel()
        return unwrap(found[0] if found else cancelled())

    async def _abandon(self, scope: trio.CancelScope) -> None:
        await self._cancelled.wait()
        scope.cancel()

    async def _interruptible(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a turn or a compaction; a cancel of the prompt interrupts the session."""
        if self._cancelled.is_set():
            raise cancelled()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop_when_cancelled)
            outcome = await outcome_of(work())
            # From here on no interrupt can begin. One that is under way was sent while this turn ran, so it does not
            # hit the next one.
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
            logger.warning("session %s: the turn could not be interrupted: %s", self.session_id, exc)


@define(eq=False)
class _Asking:
    """Relays the events of a turn, and asks the user about the calls that wait for approval."""

    nursery: trio.Nursery
    relay: Tell
    approve: Approve
    cancelled: trio.Event
    _scopes: dict[str, tuple[int, trio.CancelScope]] = attrs.field(factory=dict)  # by call, with the event's number

    async def tell(self, envelope: Envelope) -> None:
        """Relay an event, and ask the user, or stop asking, if it is about a call that waits."""
        event = envelope.event
        if isinstance(event, StreamTruncated):
            return
        await self.relay(envelope)
        match event:
            case ToolApprovalRequested():
                await self.ask(event, envelope.seq)
            case ToolApprovalResolved(id=call):
                self._drop(call)
            case TurnResumed(kept_seq=kept):
                for call in [call for call, (seq, _) in self._scopes.items() if seq > kept]:
                    self._drop(call)

    async def ask(self, event: ToolApprovalRequested, seq: int) -> None:
        """Ask the user about a call that waits. `seq` is the number of its event, or of a later one."""
        self._drop(event.id)  # a process that goes on with the turn may ask again
        scope = trio.CancelScope()
        self._scopes[event.id] = seq, scope
        await self.nursery.start(self._ask, event, scope)  # the user is asked in the order of the calls

    def _drop(self, call: str) -> None:
        if call in self._scopes:
            self._scopes.pop(call)[1].cancel()

    async def _ask(
        self, event: ToolApprovalRequested, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]
    ) -> None:
        if self.cancelled.is_set():
            return task_status.started()  # the turn is about to end, and the call with it
        with scope:
            await self.approve(event, task_status=task_status)
        return None


def requested(waiting: PendingApproval) -> ToolApprovalRequested:
    """Return the event of a call that has begun to wait before."""
    limit = round((waiting.until - waiting.since).total_seconds() * 1000)
    asked = waiting.call_id, waiting.name, waiting.args, waiting.category
    return ToolApprovalRequested(*asked, limit, waiting.question_of, waiting.may_have_run, waiting.question)


def cancelled() -> AgentError:
    """Return the error of a prompt that was cancelled before its turn began."""
    return AgentError("the prompt was cancelled before it began", cause="cancelled")


async def outcome_of(work: Awaitable[T]) -> T | WarrenError:
    """Return the result or the error of some work: an error that is raised in a nursery would arrive in a group."""
    try:
        return await work
    except WarrenError as exc:
        return exc


def unwrap(outcome: T | WarrenError) -> T:
    """Return a result, or raise an error, of `outcome_of`."""
    if isinstance(outcome, WarrenError):
        raise outcome
    return outcome
