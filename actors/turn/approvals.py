"""Approval of tool calls: the gates, calls that wait in memory, and the time that a turn may run meanwhile."""

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

import attrs
import trio

from warren.actors.events.eventlog import utc_now
from warren.actors.events.fence import Guard
from warren.base.values import define
from warren.conversation.categories import Gates
from warren.conversation.events import Event, ToolApprovalRequested, ToolApprovalResolved
from warren.conversation.messages import ToolUseBlock
from warren.conversation.waits import Wait, WaitKey
from warren.models.tools import Tool

NOBODY: Final = "not run: it was not approved in time"
PROVED_AFTER: Final = 5.0
"""Seconds that a call waits in memory from one look at the lease to the next."""


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
    wait: Wait
    answered: trio.Event = attrs.field(factory=trio.Event)


@define(eq=False)
class Approvals:
    """The gates of a turn's tool calls, and the waits that last no longer than their process.

    Attributes:
        gates: for each kind of tools whether a call runs, waits for approval, or is refused.
        timeout: seconds that a call waits.
        emit: publishes an event.
        time: the turn's running time.
        changed: called when there are other calls that wait.
        now: returns the time (UTC).
        allowed: returns the names of the tools whose calls run without approval in the session.
        guard: knows whether this process has the session still; None if no other process can have it.
    """

    gates: Gates
    timeout: float
    emit: Callable[[Event], object]
    time: RunningTime
    changed: Callable[[], object] = lambda: None
    now: Callable[[], datetime] = utc_now
    allowed: Callable[[], Collection[str]] = tuple
    guard: Guard | None = None
    _waiting: dict[WaitKey, _Waiting] = attrs.field(factory=dict)
    _answered: list[Wait] = attrs.field(factory=list)

    def asks(self, tool: Tool) -> bool:
        """Return whether calls of a tool wait for approval."""
        return self.gates.of(tool.category) == "ask"

    def holds_up(self, call: ToolUseBlock, tool: Tool) -> bool:
        """Return whether a call waits for approval: not if its tool is allowed for the session."""
        return self.asks(tool) and call.name not in self.allowed()

    def denied(self, tool: Tool) -> str | None:
        """Return the reason, for the model, if calls of a tool are always refused; else None."""
        if self.gates.of(tool.category) != "deny":
            return None
        return f"not run: {tool.category} tools are denied here; go on without them"

    def wait_for(
        self, call: ToolUseBlock, tool: Tool, question_of: str | None = None, *, may_have_run: bool = False
    ) -> Wait:
        """Return the wait for the decision on a call, or on a question of a running call.

        Args:
            call: the call, or the question.
            tool: its tool.
            question_of: the running call, if it is a question of one.
            may_have_run: whether the call may have run already, as its process ended.
        """
        now = self.now()
        return Wait(
            call.id,
            "approval" if question_of is None else "question",
            "waiting",
            call.name,
            call.args,
            tool.category,
            now,
            now + timedelta(seconds=self.timeout),
            question_of,
            may_have_run,
        )

    def ask(self, wait: Wait) -> None:
        """Publish that somebody is to decide."""
        milliseconds = round((wait.until - wait.since).total_seconds() * 1000)
        asked = (wait.wait_id, wait.name, wait.args, wait.category, milliseconds)
        self.emit(ToolApprovalRequested(*asked, wait.question_of, wait.may_have_run, wait.question))

    def resolved(self, wait: Wait) -> None:
        """Publish how a wait has ended: by its decision, or without one in time."""
        decision = wait.decision
        if decision is None:
            self.emit(ToolApprovalResolved(wait.wait_id, wait.name, "timeout"))
        else:
            self.emit(ToolApprovalResolved(wait.wait_id, wait.name, decision.answer, decision.reason))

    async def decided(self, wait: Wait) -> Wait:
        """Publish that somebody is to decide, wait for that in this task, and publish how it has ended."""
        self.ask(wait)
        try:
            wait = await self.answer_to(wait, self.timeout)
        except trio.Cancelled:
            self.emit(ToolApprovalResolved(wait.wait_id, wait.name, "cancelled"))
            raise
        self.resolved(wait)
        return wait

    async def answer_to(self, wait: Wait, seconds: float) -> Wait:
        """Wait in this task for so many seconds at most; return the wait with its answer, if it has got one.

        Raises StoreError if another process has taken the session over meanwhile.
        """
        self._waiting[wait.key] = waiting = _Waiting(wait)
        self.changed()
        try:
            with self.time.stopped(), trio.move_on_after(seconds):
                await self._answered_or_lost(waiting)
        finally:
            del self._waiting[wait.key]
            self.changed()
        if self.guard is not None and self.guard.refusal is not None:
            raise self.guard.refusal.copy()
        return waiting.wait

    async def _answered_or_lost(self, waiting: _Waiting) -> None:
        """Wait for an answer, or until another process has taken the session over: nothing else would ask for that."""
        while not (waiting.answered.is_set() or (self.guard is not None and self.guard.refusal is not None)):
            with trio.move_on_after(PROVED_AFTER if self.guard is not None else math.inf):
                await waiting.answered.wait()
            if self.guard is not None:
                await self.guard.prove()

    @property
    def waiting(self) -> tuple[Wait, ...]:
        """The waits without an answer, the oldest first."""
        return tuple(each.wait for each in self._waiting.values() if not each.answered.is_set())

    def find(self, matches: Callable[[Wait], bool]) -> Wait | None:
        """Return the first wait that matches; None if there was none in the turn."""
        return next(filter(matches, (*(each.wait for each in self._waiting.values()), *self._answered)), None)

    def answer(self, wait: Wait) -> None:
        """Give a wait its answer, or keep that for a call that is to wait for it."""
        waiting = self._waiting.get(wait.key)
        self._answered.append(wait)
        if waiting is not None and not waiting.answered.is_set():
            waiting.wait = wait
            waiting.answered.set()


def refusal_of(wait: Wait) -> str | None:
    """Return None if the call may run after the end of its wait, else the reason of the refusal, for the model."""
    decision = wait.decision
    if decision is None:
        return NOBODY
    reason = f": {decision.reason}" if decision.reason else ""
    return None if decision.allow else f"not run: it was refused{reason}"
