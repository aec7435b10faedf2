"""Approval of tool calls: calls that wait for a decision, and the time that a turn may run meanwhile."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

import attrs
import trio

from warren.actors.events.eventlog import utc_now
from warren.base.errors import InvalidParamsError
from warren.base.values import define
from warren.conversation.categories import Decision, Gates
from warren.conversation.events import Event, ToolApprovalRequested, ToolApprovalResolved
from warren.conversation.messages import ToolUseBlock
from warren.conversation.views import PendingApproval, WaitingCall
from warren.models.tools import Tool

NOBODY: Final = "not run: it was not approved in time"


@define(eq=False)
class RunningTime:
    """The running time of a turn. Its clock is stopped while a tool call waits for approval.

    Attributes:
        left: seconds that the turn may run; infinite without a limit.
        began: the time at which it began, later by the time for which the clock was stopped.
        scope: the cancel scope that the turn runs in; None before it runs, and once it is over. The scope belongs to
            the session, so whoever has a turn that is over cannot cancel it.
    """

    left: float
    began: float = attrs.field(factory=trio.current_time)
    scope: trio.CancelScope | None = None
    _stopped: float | None = None
    _waiting: int = 0

    def begin(self, scope: trio.CancelScope) -> None:
        """Have a scope end the turn with its time, until `end`."""
        self.scope = scope
        if self.left != math.inf:
            scope.deadline = self.began + self.left
            if scope.deadline <= trio.current_time():  # trio looks at it between checkpoints alone: one would pass
                scope.cancel()

    def end(self) -> None:
        """Leave the scope as it was."""
        if self.left != math.inf:
            self._limit(math.inf)
        self.scope = None

    def _limit(self, deadline: float) -> None:
        if self.scope is not None and self.left != math.inf:
            self.scope.deadline = deadline

    def seconds(self) -> float:
        """Return the running time so far."""
        return (trio.current_time() if self._stopped is None else self._stopped) - self.began

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the clock for a body; bodies of several tasks may overlap."""
        if not self._waiting:
            self._stopped = trio.current_time()
            self._limit(math.inf)
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self.began, self._stopped = trio.current_time() - self.seconds(), None
                self._limit(self.began + self.left)


@define(eq=False)
class _Waiting:
    call: PendingApproval
    since: datetime = attrs.field(factory=utc_now)
    decided: trio.Event = attrs.field(factory=trio.Event)
    decision: Decision | None = None


@define(eq=False)
class Approvals:
    """The gates of a turn's tool calls, and the calls that wait for a decision.

    Attributes:
        gates: for each kind of tools whether a call runs, waits for approval, or is refused.
        timeout: seconds that a call waits.
        emit: publishes an event.
        time: the turn's running time.
        changed: called when there are other calls that wait.
    """

    gates: Gates
    timeout: float
    emit: Callable[[Event], object]
    time: RunningTime
    changed: Callable[[], object] = lambda: None
    _waiting: dict[str, _Waiting] = attrs.field(factory=dict)

    def asks(self, tool: Tool) -> bool:
        """Return whether calls of a tool wait for approval."""
        return self.gates.of(tool.category) == "ask"

    def denied(self, tool: Tool) -> str | None:
        """Return the reason, for the model, if calls of a tool are always refused; else None."""
        if self.gates.of(tool.category) != "deny":
            return None
        return f"not run: {tool.category} tools are denied here; go on without them"

    async def refused(self, call: ToolUseBlock, tool: Tool, *, may_have_run: bool = False) -> str | None:
        """Wait for approval of a call. Return None if it may run, else the reason of the refusal, for the model."""
        decision = await self.decision(call, tool, may_have_run=may_have_run)
        if decision is None:
            return NOBODY
        reason = f": {decision.reason}" if decision.reason else ""
        return None if decision.allow else f"not run: it was refused{reason}"

    async def decision(
        self, call: ToolUseBlock, tool: Tool, question_of: str | None = None, *, may_have_run: bool = False
    ) -> Decision | None:
        """Wait for the decision on a call, or on a question of a running call. Return None after the timeout.

        Args:
            call: the call.
            tool: its tool.
            question_of: the running call, if it is a question of one.
            may_have_run: whether the call may have run already, as its process ended.
        """
        asked = (call.id, call.name, call.args, tool.category)
        self.emit(ToolApprovalRequested(*asked, round(self.timeout * 1000), question_of, may_have_run))
        until = utc_now() + timedelta(seconds=self.timeout)
        try:
            decision = await self._wait(PendingApproval(*asked, until, question_of, may_have_run))
        except trio.Cancelled:
            self.emit(ToolApprovalResolved(call.id, call.name, "cancelled"))
            raise
        if decision is None:
            self.emit(ToolApprovalResolved(call.id, call.name, "timeout"))
        else:
            self.emit(ToolApprovalResolved(call.id, call.name, "allow" if decision.allow else "deny", decision.reason))
        return decision

    @property
    def pending(self) -> tuple[PendingApproval, ...]:
        """The calls that wait for a decision, the oldest first."""
        return tuple(each.call for each in self._waiting.values() if each.decision is None)

    @property
    def waiting(self) -> tuple[WaitingCall, ...]:
        """The same calls, for the view of the turn."""
        waiting = (each for each in self._waiting.values() if each.decision is None)
        return tuple(WaitingCall(each.call.call_id, each.call.name, "approval", each.since) for each in waiting)

    @property
    def held(self) -> set[str]:
        """The ids of the calls that wait, or that wait for the answer to a question of theirs."""
        return {each.question_of or each.call_id for each in self.pending}

    async def _wait(self, call: PendingApproval) -> Decision | None:
        self._waiting[call.call_id] = waiting = _Waiting(call)
        self.changed()
        try:
            with self.time.stopped(), trio.move_on_after(self.timeout):
                await waiting.decided.wait()
        finally:
            del self._waiting[call.call_id]
            self.changed()
        return waiting.decision

    def decide(self, call_id: str, decision: Decision) -> None:
        """Approve or refuse a waiting call. Raises InvalidParamsError if no call of that id waits."""
        waiting = self._waiting.get(call_id)
        if waiting is None or waiting.decision is not None:
            raise not_waiting(call_id)
        waiting.decision = decision
        waiting.decided.set()


def not_waiting(call_id: str) -> InvalidParamsError:
    """Return the error of a decision on a call that waits for none."""
    return InvalidParamsError.at("$.call_id", f"no tool call {call_id!r} waits for approval")
