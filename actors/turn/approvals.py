"""Tool calls that wait for somebody's word."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from warren.categories import Decision, Gates
from warren.errors import InvalidParamsError
from warren.events import Event, ToolApprovalRequested, ToolApprovalResolved
from warren.messages import ToolUseBlock
from warren.tools import Tool

NOBODY: Final = "not run: nobody approved it in time"


@attrs.define(eq=False)
class RunningTime:
    """How long a turn has run. The clock stands still while a tool call waits for somebody's word.

    Attributes:
        left: seconds that the turn may run; infinite without a limit.
        scope: the turn's cancel scope, whose deadline is the end of that time.
    """

    left: float
    scope: trio.CancelScope = attrs.field(init=False)
    _began: float = attrs.field(factory=trio.current_time)
    _stopped: float | None = None
    _waiting: int = 0

    def __attrs_post_init__(self) -> None:
        self.scope = trio.CancelScope(deadline=self._began + self.left)

    @property
    def seconds(self) -> float:
        """Seconds of running time so far."""
        return (trio.current_time() if self._stopped is None else self._stopped) - self._began

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the clock in this block; blocks of several tasks may overlap."""
        if not self._waiting:
            self._stopped, self.scope.deadline = trio.current_time(), math.inf
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._began, self._stopped = trio.current_time() - self.seconds, None
                self.scope.deadline = self._began + self.left


@attrs.define(eq=False)
class _Waiting:
    decided: trio.Event = attrs.field(factory=trio.Event)
    decision: Decision | None = None


@attrs.define(eq=False)
class Approvals:
    """Which of a turn's tool calls may run, and those that wait to hear it.

    Attributes:
        gates: what becomes of a call, by its tool's kind.
        timeout: seconds that a call waits.
        emit: takes the events.
        time: the turn's running time.
    """

    gates: Gates
    timeout: float
    emit: Callable[[Event], None]
    time: RunningTime
    _waiting: dict[str, _Waiting] = attrs.field(factory=dict)

    def asks(self, tool: Tool) -> bool:
        """Tell whether calls of a tool wait for somebody's word."""
        return self.gates.of(tool.category) == "ask"

    def denied(self, tool: Tool) -> str | None:
        """Return why calls of a tool are never run, for the model; None where they are."""
        if self.gates.of(tool.category) != "deny":
            return None
        return f"not run: {tool.category} tools are denied here; go on without them"

    async def refused(self, call: ToolUseBlock, tool: Tool) -> str | None:
        """Wait for somebody's word on a call; return why it is not run, for the model, or None."""
        decision = await self.decision(call, tool)
        if decision is None:
            return NOBODY
        reason = f": {decision.reason}" if decision.reason else ""
        return None if decision.allow else f"not run: it was refused{reason}"

    async def decision(self, call: ToolUseBlock, tool: Tool) -> Decision | None:
        """Wait for somebody's word on a call, or on a question that a running call asks; None if nobody says one."""
        self.emit(ToolApprovalRequested(call.id, call.name, call.args, tool.category, round(self.timeout * 1000)))
        decision = await self._wait(call.id)
        if decision is None:
            self.emit(ToolApprovalResolved(call.id, call.name, "timeout"))
        else:
            self.emit(ToolApprovalResolved(call.id, call.name, "allow" if decision.allow else "deny", decision.reason))
        return decision

    async def _wait(self, call_id: str) -> Decision | None:
        self._waiting[call_id] = waiting = _Waiting()
        try:
            with self.time.stopped(), trio.move_on_after(self.timeout):
                await waiting.decided.wait()
        finally:
            del self._waiting[call_id]
        return waiting.decision

    def decide(self, call_id: str, decision: Decision) -> None:
        """Let a call go on, or refuse it. Raises InvalidParamsError where none of that id waits."""
        waiting = self._waiting.get(call_id)
        if waiting is None or waiting.decision is not None:
            problem = f"$.call_id: no tool call {call_id!r} waits for approval"
            raise InvalidParamsError(problem, path="$.call_id")
        waiting.decision = decision
        waiting.decided.set()
