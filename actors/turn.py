"""One turn: the loop of steps from the user's prompt to the final answer."""

from collections.abc import Callable, Mapping
from typing import Final

import attrs
import trio

from warren.actors.model_call import ModelCall
from warren.actors.toolbox import ToolRun
from warren.budget import Meter, Use
from warren.config import Limits, RetryPolicy
from warren.errors import AgentError, BudgetExhaustedError, ProviderError, StoreError, WarrenError
from warren.events import Envelope, Event, FailureCause, RunStarted, TextComplete, TurnCompleted, TurnStarted
from warren.messages import AssistantMessage, Message, StopReason, ToolResultsMessage, UserMessage
from warren.model import ModelChoice, ModelRequest
from warren.records import SessionRecord
from warren.tools import Tool
from warren.transcript import Transcript
from warren.usage import Usage

CANCELLED: Final = "cancelled before it ended"


@attrs.frozen
class TurnPlan:
    """What a turn is started with.

    Attributes:
        prompt: what the user says.
        choice: the model to call.
        max_tokens: cap of one answer.
        tools: what the model may call, by name.
        meter: the budgets it draws from.
        retry: how failed model calls are tried again.
        limits: the runtime's bounds.
        tool_threads: shared by all sync tools of the runtime.
    """

    prompt: str
    choice: ModelChoice
    max_tokens: int | None
    tools: Mapping[str, Tool]
    meter: Meter
    retry: RetryPolicy
    limits: Limits
    tool_threads: trio.CapacityLimiter


@attrs.define(eq=False)
class Turn:
    """A running turn. It appends to the session's context; the session actor commits that, or takes it back.

    Attributes:
        record: the session as the turn found it.
        context: what the model sees; the turn appends to it.
        number: gives an event its number and time.
        publish: takes the numbered events.
        text: the newest answer's text.
        stop_reason: why the model stopped.
        usage: tokens of this turn.
    """

    plan: TurnPlan
    record: SessionRecord
    context: Transcript
    number: Callable[[Event], Envelope]
    publish: Callable[[Envelope], None]
    text: str = ""
    stop_reason: StopReason = "end_turn"
    usage: Usage = attrs.field(factory=Usage)
    _step_usage: Usage = attrs.field(factory=Usage)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _interrupted: bool = False
    _call: ModelCall | None = None
    _tool_run: ToolRun | None = None
    _began: float = attrs.field(factory=trio.current_time)

    @property
    def steps(self) -> int:
        """Model calls of this turn."""
        return self.plan.meter.spent.steps

    @property
    def tool_calls(self) -> int:
        """Tools run in this turn."""
        return self.plan.meter.spent.tool_calls

    def emit(self, event: Event) -> None:
        """Publish the next event."""
        self.publish(self.number(event))

    def interrupt(self) -> None:
        """End the turn at its next checkpoint; a turn already past its last step is not touched."""
        self._interrupted = True
        self._scope.cancel()

    async def run(self) -> WarrenError | None:
        """Run to the end, whichever it is; return None for an answer, else the error that ended the turn.

        What was added is a transcript that providers accept, in every case. A cancellation from outside passes
        through.
        """
        self._scope.deadline = self._began + self.plan.meter.seconds_left()
        try:
            with self._scope:
                await self._steps()
        except WarrenError as exc:
            self._close(str(exc))
            return exc
        self.plan.meter.clock(trio.current_time() - self._began)
        if not self._scope.cancelled_caught:
            return None
        self._close(CANCELLED)
        return AgentError("the turn was interrupted", cause="cancelled") if self._interrupted else self._exhausted()

    async def _steps(self) -> None:
        self.emit(RunStarted(self.record.session_id, self.plan.prompt))
        self._add(UserMessage(self.plan.prompt))
        while True:
            self._check_budgets()
            message = await self._call_model()
            if message.tool_calls:
                await self._run_tools(message)
            self.emit(TurnCompleted(message.stop_reason, self._step_usage))
            if not message.tool_calls:
                return

    async def _call_model(self) -> AssistantMessage:
        plan = self.plan
        self.emit(TurnStarted(self.record.steps + self.steps))
        request = ModelRequest(
            plan.choice.model, self.context, tuple(tool.spec for tool in plan.tools.values()), plan.max_tokens
        )
        plan.meter.charge(steps=1)
        self._call = ModelCall(self.emit, plan.retry)
        reply = await self._call.run(plan.choice, request)
        self._call = None
        self._book(reply.usage)
        self.text, self.stop_reason = reply.message.text, reply.message.stop_reason
        if self.text:
            self.emit(TextComplete(self.text))
        self._add(reply.message)
        return reply.message

    async def _run_tools(self, message: AssistantMessage) -> None:
        plan, calls = self.plan, message.tool_calls
        allowed = plan.meter.tool_calls_left(len(calls))
        plan.meter.charge(tool_calls=allowed)
        self._tool_run = run = ToolRun(plan.tools, self.emit, plan.limits.tool_timeout, plan.tool_threads)
        await run.run(calls, allowed)
        self._tool_run = None
        self._add(ToolResultsMessage(run.ordered()))

    def _book(self, usage: Usage) -> None:
        self._step_usage = usage
        self.usage += usage
        self.plan.meter.charge(usage)

    def _check_budgets(self) -> None:
        meter = self.plan.meter
        meter.clock(trio.current_time() - self._began)
        for warning in meter.warnings():
            self.emit(warning)
        if meter.exhausted() is not None:
            raise self._exhausted()

    def _exhausted(self) -> BudgetExhaustedError:
        use: Use | None = self.plan.meter.exhausted()
        kind = use.budget_type if use is not None else "time"
        figures = {"used": use.used, "limit": use.limit} if use is not None else {}
        return BudgetExhaustedError(
            f"the {kind} budget is used up", cause=kind, details={"budget_type": kind, "text": self.text} | figures
        )

    def _close(self, reason: str) -> None:
        """Complete what an abrupt end left open: keep partial text, give every open call a result."""
        if self._call is not None and (partial := self._call.partial()) is not None:
            self.text, self.stop_reason = partial.text, partial.stop_reason
            self._add(partial)
        if self._tool_run is not None:
            self._tool_run.close(reason)
            self._add(ToolResultsMessage(self._tool_run.ordered()))

    def _add(self, message: Message) -> None:
        self.context.append(message)


def cause_of(error: WarrenError) -> FailureCause:
    """Return how `run_failed` names the error."""
    match error:
        case ProviderError():
            return "provider_error"
        case BudgetExhaustedError():
            return "budget_exhausted"
        case StoreError():
            return "store_error"
        case AgentError(cause="cancelled"):
            return "cancelled"
    return "crash"
