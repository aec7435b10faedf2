"""One turn: the loop of steps from the user's prompt to the final answer."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs
import trio

from warren import codec
from warren.actors.counters import Counters
from warren.actors.fence import Guard, proved
from warren.actors.limiter import Limiter
from warren.actors.supervision import first_error
from warren.actors.tenancy import Spending
from warren.actors.turn.answer import bounded, cut_again, cut_calls, endless, too_many_calls, with_files
from warren.actors.turn.approvals import Approvals, RunningTime
from warren.actors.turn.chain import Chain
from warren.actors.turn.compaction import CommitCompaction, ContextKeeper, SummaryCall
from warren.actors.turn.extraction import Extraction
from warren.actors.turn.model_call import ModelCall, ask_aside, sent_size
from warren.actors.turn.outcome import Outcome
from warren.actors.turn.refusal import Refusals
from warren.actors.turn.repeats import Repeats
from warren.actors.turn.room import MOST_TRIES, CompactionPlan, Lessons, Room, Within
from warren.actors.turn.route import Route
from warren.actors.turn.toolbox import BUDGET_USED, NO_CUTS, KeepFiles, ToolRun, keep_nothing
from warren.attachments import Attachment
from warren.budget import Meter, Use
from warren.categories import Decision, Gates
from warren.compaction.layout import estimate
from warren.config import Limits, RetryPolicy
from warren.errors import AgentError, BudgetExhaustedError, CompactionDisabledError, ProviderError, WarrenError
from warren.events import (
    CompactionFailed,
    Event,
    FilesComplete,
    InputTaken,
    RequestRepaired,
    Retrying,
    RunStarted,
    TextComplete,
    TurnCompleted,
    TurnStarted,
)
from warren.fields import encodable
from warren.inputs import Entering, Input
from warren.ledger import Charge
from warren.messages import (
    AssistantMessage,
    ContextMessage,
    Message,
    StopReason,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
    files_of,
    with_unique_calls,
)
from warren.model import NO_FILES, Files, ModelChoice, ModelReply, ModelRequest
from warren.options import ModelOptions, OutputWish
from warren.records import CompactionEntry, SessionRecord
from warren.tools import Tool
from warren.transcript import Continued, Transcript
from warren.usage import NO_USAGE, Usage
from warren.values import define, value
from warren.views import PendingApproval
from warren.windows import Window

logger: Final = logging.getLogger("warren.turn")
CANCELLED: Final = "cancelled before it ended"


@value
class TurnPlan:
    """The settings of a turn.

    Attributes:
        prompt: the user's prompt; None compacts the context and does nothing else.
        instructions: the user's instructions for the summary of such a compaction.
        route: the models.
        options: the options of each model call.
        tools: the tools by name.
        gates: the gates of the tool calls.
        meter: the budgets.
        retry: the retries of failed model calls.
        limits: the bounds of the runtime.
        tool_threads: bounds the sync tools of the whole runtime.
        window: the window to keep requests in; None if it is unknown.
        compaction: the settings of compaction; None if it is off.
        within: makes both anew for a window that a refusal has told.
        lessons: what refusals have told about the models of the runtime.
        output: the schema of the answer; None if it stays a text.
        counters: what the sessions of the runtime count for the metrics.
        limiter: holds the calls of models against the limits of tokens.
        charges: gets the tokens of each call, until they are stored in the ledger.
        attachments: the files of the prompt.
        files: the access of the model to the files of the session.
        keep: stores the files of a tool's result, and those of an answer.
        payer: the client whose limit of tokens it counts for; empty if it has none.
        key: the idempotency key of the prompt; None if it has none.
        spending: the tokens that it uses; None if nobody has a limit of them.
        chain: the chain of messages of peers that the turn belongs to; None if the session has no name.
        keep_alive: whether messages of peers begin turns after this one; None leaves that as it is.
    """

    prompt: str | None
    instructions: str | None
    route: Route
    options: ModelOptions
    tools: Mapping[str, Tool]
    gates: Gates
    meter: Meter
    retry: RetryPolicy
    limits: Limits
    tool_threads: trio.CapacityLimiter
    window: Window | None
    compaction: CompactionPlan | None
    within: Within
    lessons: Lessons
    output: OutputWish | None
    counters: Counters
    limiter: Limiter
    charges: list[Charge] = attrs.field(factory=list)
    attachments: tuple[Attachment, ...] = ()
    files: Files = NO_FILES
    keep: KeepFiles = keep_nothing
    payer: str = ""
    key: str | None = None
    chain: Chain | None = None
    spending: Spending | None = None
    keep_alive: bool | None = None

    @property
    def ended(self) -> Charge:
        """The entry of the ledger for the end of the turn."""
        return Charge(self.choice.model, turns=1, payer=self.payer)

    @property
    def choice(self) -> ModelChoice:
        """The model that is called unless another one takes over."""
        return self.route.candidates[0].choice

    def charge(self, usage: Usage) -> None:
        """Charge the tokens of a call of the current model of the route."""
        self.meter.charge(usage)
        self.charges.append(Charge(self.route.current.choice.model, usage, payer=self.payer))
        if self.spending is not None:
            self.spending.spend(usage.total_tokens)

    async def check_allowed(self) -> None:
        """Check that one more model call may be made. Raises CapacityExceededError, and StoreError."""
        if self.spending is not None:
            await self.limiter.check_step(self.spending.by)


@define(eq=False)
class Turn:
    """A running turn. It appends to the session's context; the session actor commits the messages, or removes them.

    Attributes:
        record: the record at the start of the turn.
        context: the model's context.
        inputs: takes inputs from the inbox if the budgets leave a step for them.
        emit: publishes an event; returns its number.
        guard: keeps the turn from going on without a proved lease; None if no other process can have the session.
        commit_compaction: stores a new head of the context with all messages of the turn so far, and returns the
            event that announces it.
        changed: called when there are other tool calls that wait for approval.
        text: the text of the newest answer.
        stop_reason: the model's stop reason.
        structured_output: the answer as data, if a schema was given.
        unsettled: number of newest messages that a compaction leaves for the end of the turn to store, as their data is
            yet to come.
        files: the files that the model has made.
        room: the room of requests.
        keeper: keeps the context within the model's window.
        compacted: the result of a turn that only compacts.
        first_seq: the number of the first event once that is published; the terminal one has to follow then.
        began: the time at which it began, on trio's clock.
    """

    plan: TurnPlan
    record: SessionRecord
    context: Transcript
    inputs: Callable[[Entering, Callable[[], bool]], Sequence[Input]]
    emit: Callable[[Event], int]
    commit_compaction: CommitCompaction
    guard: Guard | None = None
    changed: Callable[[], object] = lambda: None
    text: str = ""
    stop_reason: StopReason = "end_turn"
    structured_output: Any = None
    unsettled: int = 0
    files: tuple[Attachment, ...] = ()
    first_seq: int | None = None
    compacted: CompactionEntry | None = None
    began: float = attrs.field(factory=trio.current_time)
    room: Room = attrs.field(init=False)
    keeper: ContextKeeper = attrs.field(init=False)
    _approvals: Approvals = attrs.field(init=False)
    _time: RunningTime = attrs.field(init=False)
    _step_usage: Usage = NO_USAGE
    _refused: bool = False
    _refusals: Refusals | None = None
    _answered: int = attrs.field(init=False)  # the position up to which the messages were in a request with an answer
    _interrupted: AgentError | None = None
    _call: ModelCall | None = None
    _tool_run: ToolRun | None = None
    _calls: int = 0
    _call_ids: dict[str, int] = attrs.field(factory=dict)
    _cuts: int = 0  # answers in a row that were cut within a tool call
    _repeats: Repeats | None = None
    _asked: int = 0  # the tool calls of the newest answer if it has many, also those that are not kept

    def __attrs_post_init__(self) -> None:
        # These must not refer to the turn: without a cycle it is freed at once, not by the garbage collector.
        plan, record = self.plan, self.record
        self._answered = record.message_count
        # A summary is asked for without tools, so in a session with tools its request begins like no other.
        cache = "off" if plan.tools else plan.options.prompt_cache
        book, commit, most = plan.charge, self.commit_compaction, plan.limits.content
        summarising = SummaryCall(
            plan.route, plan.retry, self.emit, book, commit, record.session_id, cache, most, plan.counters, plan.files
        )
        self.room = Room(
            plan.window, plan.compaction, plan.within, self.context, plan.route, plan.lessons, record.last_input_tokens
        )
        self.keeper = ContextKeeper(self.room, summarising, record.last_compaction_step)
        self._time = RunningTime(plan.meter.seconds_left(), self.began)
        plan.meter.clock = self._time.seconds
        self._approvals = Approvals(plan.gates, plan.limits.approval_timeout, self.emit, self._time, self.changed)

    def interrupt(self, error: AgentError) -> None:
        """End the turn with an error at its next checkpoint; a turn past its last step is not affected."""
        self._interrupted = self._interrupted or error
        self._time.scope.cancel()

    @property
    def pending_approvals(self) -> tuple[PendingApproval, ...]:
        """The tool calls that wait for approval."""
        return self._approvals.pending

    def decide(self, call_id: str, decision: Decision) -> None:
        """Approve or refuse a waiting tool call.

        Raises InvalidParamsError if no call of that id waits, and StoreError while the lease is not proved.
        """
        if self.guard is not None and not self.guard.open:
            raise self.guard.fence.unproved(self.record.session_id)
        self._approvals.decide(call_id, decision)

    async def run(self) -> Outcome:
        """Run to the end: an answer, an error or an interrupt.

        The messages of the turn are acceptable to providers in each case. A cancellation from outside passes through.
        """
        error: WarrenError | None = None
        self.context.turn = None if self.plan.prompt is None else self.context.end
        try:
            with self._time.scope:
                await (self._compact_only() if self.plan.prompt is None else self._converse(self.plan.prompt))
        except WarrenError as exc:
            error = exc
        except Exception as exc:  # a tool or a provider may be the host's code: its bug ends the turn, not the session
            logger.exception("a turn of session %s crashed", self.record.session_id)
            error = AgentError(encodable(f"the turn crashed: {first_error(exc)!r}"), cause="crash")
        if self._time.scope.cancelled_caught or (self._interrupted is not None and error is not None):
            error = self._cancelled()
        return self._outcome(error)

    def _outcome(self, error: WarrenError | None) -> Outcome:
        if error is not None:
            self._close(CANCELLED if self._interrupted else error.message)
        if self._refused:
            self._refusing.give_up(self._answered, declined=self.stop_reason == "content_filter")
        if self.first_seq is not None:
            self._warn()  # subscribers get the usage of the last step before the terminal event
        return self.so_far() if error is None else self.so_far().failed(error)

    def so_far(self) -> Outcome:
        """Return the outcome of the turn."""
        marks = (self.room.last_input_tokens, self.keeper.last_step)
        return Outcome(
            self.text,
            self.stop_reason,
            self.plan.meter.usage,
            self.plan.meter.spent,
            *marks,
            self.plan.prompt,
            structured_output=self.structured_output,
            left_out=None if self._refusals is None else self._refusals.left_out,
            keep_alive=self.plan.keep_alive,
            files=self.files,
        )

    @property
    def _refusing(self) -> Refusals:
        self._refusals = self._refusals or Refusals(self.context, self.record)
        return self._refusals

    def _cancelled(self) -> WarrenError:
        if self._interrupted is not None:
            return self._interrupted
        return self._exhausted(self.plan.meter.exhausted() or self.plan.meter.use("time"))

    async def _compact_only(self) -> None:
        if self.plan.compaction is None:
            raise CompactionDisabledError("session compaction is disabled")
        await proved(self.guard)
        await self.plan.check_allowed()
        self._check_exhausted()
        came = await self.keeper.compact(self.plan.compaction, self._step, self.plan.instructions)
        if isinstance(came, CompactionFailed):
            raise AgentError(came.error, cause="compaction_failed", details={"reason": came.reason})
        self.compacted = came

    async def _converse(self, prompt: str) -> None:
        await proved(self.guard)
        publish = self.emit if self.guard is None else self.guard.publish  # not held back: its number is asked for
        self.first_seq = publish(RunStarted(self.record.session_id, prompt, self.plan.attachments))
        self._take_inputs("before")
        self.context.append(UserMessage(prompt, self.plan.attachments))
        self._take_inputs("next")
        while True:
            message = await self._answer()
            calls = message.tool_calls
            if calls:
                await self._run_tools(calls)
            self.emit(TurnCompleted(message.stop_reason, self._step_usage, self.plan.route.stand_in))
            final = not calls and message.stop_reason != "pause_turn"
            if not self._take_inputs("last" if final else "next") and final:
                break
        if self.plan.output is not None:
            self.unsettled = 1
            try:
                data = await Extraction(self.plan.output, self.emit, self._ask_for_data).run()
            except ProviderError as exc:
                self._refused |= exc.refuses_request
                raise
            self.structured_output = data
            self.context.note_data(data)
        await proved(self.guard)  # so that the commit has all events

    async def _answer(self) -> AssistantMessage:
        """Return the model's next answer. If the provider refuses the newest results, they are told in words."""
        while True:
            try:
                return await self._call_model(await self._make_room())
            except ProviderError as exc:
                told = self._refusing.tell(self._answered) if exc.refuses_request or self._stays(exc) else None
                if told is None:
                    raise
                self._refused = False
                self.emit(RequestRepaired(*told, encodable(exc.message)))

    def _stays(self, error: ProviderError) -> bool:
        """Return whether a proxy refuses, maybe for what an earlier turn has left without an answer."""
        foreign = not error.retryable and error.cause in error.refusals and not error.refuses_request
        return foreign and self._answered == self.record.message_count and self._refusing.earlier(self._answered)

    def _take_inputs(self, entering: Entering) -> bool:
        """Add inputs that came meanwhile to the conversation; return whether there were any."""
        taken = self.inputs(entering, self._has_room)
        for input_ in taken:
            text, source, files = input_.text, input_.source, input_.attachments
            if self.plan.chain is not None and entering != "before":  # the prompt is newer than those before it
                self.plan.chain.take(input_)
            steers = input_.kind == "steer"
            message = UserMessage(text, files, steered=True) if steers else ContextMessage(text, source)
            self.context.append(message)
            self.emit(InputTaken(input_.input_id, input_.kind, text, source, files))
        return bool(taken)

    def _has_room(self) -> bool:
        """Return whether the budgets have a step left for inputs; if not, the next turn takes them."""
        return self.plan.meter.has_steps(
            1 if self.plan.output is None else 2
        )  # a step for the answer, and one for the answer as data

    async def _make_room(self) -> Sequence[Message]:
        """Return the context for the next step; raise the error of a used-up budget if there may be none."""
        await proved(self.guard)
        await self.plan.check_allowed()
        self._check_budgets()
        if self.room.plan is None and self.room.window is None:
            return self.context
        before = self.plan.meter.usage
        context = await self.keeper.make_room(self._step)
        if self.plan.meter.usage is not before:  # a compaction may have used the rest of the budget
            self._check_budgets()
        return context

    async def _ask_for_data(self, asked: Sequence[Message], schema: Mapping[str, Any] | None) -> ModelReply:
        """Make a step that is not published, with messages that are no part of the conversation."""
        plan, context = self.plan, await self._make_room()
        request = ModelRequest(
            plan.choice.model,
            Continued(context, asked),
            options=plan.options,
            answer_schema=schema,
            tokens_left=self._tokens_left(Continued(context, asked)),
            session_id=self.record.session_id,
            files=plan.files,
        )
        plan.meter.charge(steps=1)
        ask = partial(
            ask_aside,
            plan.route,
            policy=plan.retry,
            emit=self.emit,
            book=plan.charge,
            counters=plan.counters,
            most=plan.limits.content,
        )
        try:
            return await ask(request)
        except ProviderError as exc:
            return await self._ask_within(exc, request, ask)

    async def _ask_within(
        self, error: ProviderError, request: ModelRequest, ask: Callable[[ModelRequest], Awaitable[ModelReply]]
    ) -> ModelReply:
        """Ask again with a smaller request while the server says that it exceeds the window. Raises ProviderError."""
        asked = request.messages.asked if isinstance(request.messages, Continued) else ()
        size, beside = sent_size(request.messages), sent_size(asked)
        capped = (request.tokens_left or request.options.max_tokens) is not None
        for attempt in range(2, MOST_TRIES + 1):
            if not self.room.learn(error, size, capped=capped):
                break
            before, left = size, request.tokens_left
            context = await self.keeper.shrink(self._step, beside)
            self._check_exhausted()  # a compaction may have used the rest of the budget
            messages = Continued(context, asked) if asked else context
            request = attrs.evolve(request, messages=messages, tokens_left=self._tokens_left(messages))
            size = sent_size(messages)
            if size >= before and request.tokens_left == left:  # nothing of it can be left out
                break
            self.emit(Retrying(attempt, MOST_TRIES, encodable(error.message), 0))
            try:
                reply = await ask(request)
            except ProviderError as exc:
                error = exc
            else:
                self.room.answered()
                return reply
        raise error

    def _tokens_left(self, sent: Sequence[Message]) -> int | None:
        """Return the tokens that the budgets leave for the next answer, by an estimate of its input; at least one."""
        left = self.plan.meter.tokens_left()
        if left is None and not self.room.caps:
            return None
        size = sent_size(sent)
        return self.room.answer_cap(None if left is None else max(1, left - estimate(size)), size)

    @property
    def _step(self) -> int:
        """The number of the session's steps so far."""
        return self.record.steps + self.plan.meter.steps

    async def _call_model(self, context: Sequence[Message]) -> AssistantMessage:
        plan, limits = self.plan, self.plan.limits
        self.emit(TurnStarted(self._step))
        request = ModelRequest(
            plan.choice.model,
            context,
            tuple([tool.spec for tool in plan.tools.values()]),
            plan.options,
            tokens_left=self._tokens_left(context),
            session_id=self.record.session_id,
            max_output=plan.route.current.entry.max_output,
            files=plan.files,
        )
        plan.meter.charge(steps=1)
        self._call = ModelCall(self.emit, plan.charge, plan.retry, plan.counters, most=limits.content)
        try:
            try:
                reply = await self._call.run(plan.route, request)
            except ProviderError as exc:
                reply = await self._ask_within(exc, request, partial(self._call.run, plan.route))
                context = ()  # a part of it was sent
        except ProviderError as exc:
            self._refused = exc.refuses_request
            raise
        self._refused, sent = False, self.context.end
        self._step_usage = reply.usage
        plan.charge(self._step_usage)
        self.room.last_input_tokens = reply.usage.input_tokens
        if context is self.context and not reply.usage.estimated:
            context.counted = reply.usage.input_tokens, context.size
        message, self._asked = (await with_files(reply, plan.keep)) if reply.files else reply.message, 0
        if len(message.blocks) > limits.max_answer_calls:
            self._asked = len(message.tool_calls)
            message = bounded(message, limits.max_answer_calls)
        message = with_unique_calls(message, self._call_ids)
        self._accept(message)
        self._call = None
        text = self._say(message)
        self._refused = self.stop_reason == "content_filter"
        if not self._refused:
            self._answered = sent
        if text:
            self.emit(TextComplete(text))
        if reply.files and (files := files_of(message)):
            self.files += files
            self.emit(FilesComplete(files))
        return message

    def _say(self, message: AssistantMessage) -> str:
        """Note the text of an answer, and return it; one that the provider had paused goes on with it."""
        text, before = message.text, self.text if self.stop_reason == "pause_turn" else ""
        self.text, self.stop_reason = before + text, message.stop_reason
        return text

    async def _run_tools(self, calls: Sequence[ToolUseBlock]) -> None:
        plan = self.plan
        refusal = too_many_calls(self._asked, plan.limits.max_answer_calls)
        allowed = plan.meter.tool_calls_left(len(calls)) if refusal is None else 0
        plan.meter.charge(tool_calls=allowed)
        timeout, approvals, tokens, cut = (
            plan.limits.tool_timeout,
            self._approvals,
            self._step_usage.output_tokens,
            NO_CUTS,
        )
        if self.stop_reason == "max_tokens":
            cut = cut_calls(calls, plan.tools, tokens)
        self._cuts = self._cuts + 1 if cut else 0
        place = self.record.session_id, self.record.turns + 1, self._calls
        self._tool_run = run = ToolRun(
            plan.tools,
            self.emit,
            timeout,
            plan.tool_threads,
            approvals,
            self.guard,
            *place,
            counters=plan.counters,
            keep=plan.keep,
            cut=cut,
            prompt_key=plan.key,
        )
        self._calls += len(calls)
        await run.run(calls, allowed, refusal or BUDGET_USED)
        self._tool_run = None
        repeats = self._repeats
        if repeats is None:
            repeats = self._repeats = Repeats(plan.limits.repeated_calls_note, plan.limits.repeated_calls)
        results, ended = repeats.told(calls, run.ordered(), plan.tools)
        self.context.append(ToolResultsMessage(results))
        if allowed < len(calls) and refusal is None:
            raise self._exhausted(plan.meter.use("tool_calls"))
        if self._cuts > 1:
            raise cut_again(tokens)
        if ended is not None:
            raise ended

    def _accept(self, message: AssistantMessage) -> None:
        """Add the answer to the context.

        Raises ProviderError for content that is no JSON, such as half a character, and for too much of it.
        """
        context, most = self.context, self.plan.limits.content
        try:
            context.append(message)
        except (TypeError, ValueError) as exc:
            raise ProviderError(f"the model's answer cannot be kept: {exc}", cause="provider_bug") from exc
        if len(context.rows[-1]) > 2 * most:  # JSON escapes take room, and so does what providers keep in blocks
            context.truncate(context.end - 1)
            raise endless(most)
        if codec.is_deep(context.rows[-1], codec.MAX_INNER_DEPTH):  # as arguments may
            context.truncate(context.end - 1)
            problem = f"the model's answer cannot be kept: it nests deeper than {codec.MAX_INNER_DEPTH} levels"
            raise ProviderError(problem, cause="bad_response")

    def _check_budgets(self) -> None:
        self._warn()
        self._check_exhausted()

    def _warn(self) -> None:
        for warning in self.plan.meter.warnings():
            self.emit(warning)

    def _check_exhausted(self) -> None:
        if (use := self.plan.meter.exhausted()) is not None:
            raise self._exhausted(use)

    def _exhausted(self, use: Use) -> BudgetExhaustedError:
        kind = use.budget_type
        details = {"budget_type": kind, "used": use.used, "limit": use.limit}
        problem = f"the {kind} budget "
        problem += "cannot be kept: the cost of a call is unknown" if use.unknown else "is used up"
        if kind == "steps" and use.limit == self.plan.limits.turn.max_steps:
            problem += f": limits.turn.max_steps, the model calls of a turn, is {use.limit:g}; a turn or a session may "
            problem += "have a budget of its own"
        return BudgetExhaustedError(problem, cause=kind, details=details)

    def _close(self, reason: str) -> None:
        """Complete the messages after an abrupt end: keep partial text, give every open call a result."""
        if self._call is not None and (partial := self._call.partial()) is not None:
            self._say(partial)
            self.context.append(partial)
        if self._tool_run is not None:
            self._tool_run.close(reason)
            self.context.append(ToolResultsMessage(self._tool_run.ordered()))


def cancelled() -> AgentError:
    """Return the error of a turn that a caller has interrupted."""
    return AgentError("the turn was interrupted", cause="cancelled")


def shut_down() -> AgentError:
    """Return the error of a turn that the end of the runtime interrupted."""
    return AgentError("the turn was interrupted: the runtime is shutting down", cause="shutting_down")
