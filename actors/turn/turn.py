"""One turn: the loop of steps from the user's prompt to the final answer."""

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Protocol

import attrs
import trio

from warren.actors.events.eventlog import utc_now
from warren.actors.protocol import Compact, StartTurn
from warren.actors.supervision import first_error
from warren.actors.turn import attaching
from warren.actors.turn.answer import bounded, cut_again, cut_calls, endless, too_many_calls, with_files
from warren.actors.turn.approvals import Approvals, RunningTime
from warren.actors.turn.background import Background, Origin
from warren.actors.turn.chain import Chain
from warren.actors.turn.compaction import CommitCompaction, ContextKeeper, SummaryCall
from warren.actors.turn.extraction import Extraction
from warren.actors.turn.hooked import HaltedError, HeldPieces, HookChain
from warren.actors.turn.left import NO_WAITS, NOTHING_LEFT, begun, cancels, left_elsewhere, left_results, named
from warren.actors.turn.model_call import ModelCall, ask_aside, sent_size
from warren.actors.turn.outcome import Outcome, title_after
from warren.actors.turn.plan import TurnPlan
from warren.actors.turn.refusal import Refusals
from warren.actors.turn.repeats import Repeats
from warren.actors.turn.room import MOST_TRIES, Room
from warren.actors.turn.route import Candidate
from warren.actors.turn.running import KeepFiles, ToolRunner
from warren.actors.turn.seam import surrounded
from warren.actors.turn.steps import Steps
from warren.actors.turn.toolbox import BUDGET_USED, NO_CUTS, ToolRun
from warren.agents.hooks import HookedRequest, HookedTurn, TurnEnd
from warren.base.errors import (
    AgentError,
    BudgetExhaustedError,
    CompactionDisabledError,
    ProviderError,
    StoreError,
    WarrenError,
)
from warren.base.fields import encodable
from warren.base.values import define
from warren.compaction.layout import estimate
from warren.conversation import codec
from warren.conversation.agents import AgentPin
from warren.conversation.attachments import Attachment
from warren.conversation.budget import NO_EXPENSE, Use
from warren.conversation.categories import Gates
from warren.conversation.events import (
    CompactionFailed,
    Event,
    FilesComplete,
    InputTaken,
    RequestRepaired,
    Retrying,
    RunStarted,
    TextComplete,
    TurnCompleted,
    TurnResumed,
    TurnStarted,
)
from warren.conversation.inputs import Entering, Input
from warren.conversation.messages import (
    AssistantMessage,
    ContextMessage,
    Message,
    StopReason,
    SystemMessage,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
    files_of,
    with_unique_calls,
)
from warren.conversation.open_turn import KeptCall, OpenTurn, TurnStart
from warren.conversation.options import CacheTime, OutputWish
from warren.conversation.records import CompactionEntry, SessionRecord, with_parts
from warren.conversation.transcript import Continued, Transcript
from warren.conversation.usage import NO_USAGE, Usage
from warren.conversation.views import TurnView, waiting_call
from warren.conversation.waits import Wait, WaitKey
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import Tool
from warren.reports.tracing import TraceContext

logger: Final = logging.getLogger("warren.turn")
CANCELLED: Final = "cancelled before it ended"
CRASHED: Final = "a turn of session %s crashed"


class _SuspendsError(Exception):
    """All calls of the newest answer that have no result wait: the turn needs no task until one of them has."""


class Inputs(Protocol):
    """The inputs of a session, as its running turn sees them."""

    @property
    def waiting(self) -> Collection[object]:
        """The inputs that wait."""

    def take_for_step(self, entering: Entering) -> Sequence[Input]:
        """Take the inputs that enter the turn before its next step, if it has one."""


@define(eq=False)
class Turn:
    """A running turn. It appends to the session's context; the session actor commits the messages, or removes them.

    Attributes:
        record: the record at the start of the turn.
        context: the model's context.
        inbox: the inputs that wait for the session.
        emit: publishes an event; returns its number.
        commit_compaction: stores a new head of the context with all messages of the turn so far, and returns the
            event that announces it.
        changed: called when the list of tool calls that wait for approval has changed.
        steps: keeps its steps; None if its end alone is stored.
        kept: its state as of the newest commit; None while nothing of it is kept.
        left: the calls of its newest answer that an earlier process has left, by id, with their states.
        waits: the waits of its calls that the store has, which change while it runs.
        woken: whether it had suspended, and goes on without anything to take back.
        allowed: returns the names of the tools whose calls run without approval in the session, whatever the gates say.
        background: runs tool calls in the background; None if there is none.
        gives_up: called with a child session whose time limit is over.
        text: the text of the newest answer.
        stop_reason: the model's stop reason.
        structured_output: the answer as data, if a schema was given.
        unsettled: the number of newest messages that a compaction does not store: their data is yet to come, and the
            end of the turn stores them.
        files: the files that the model has made.
        caller: the place in a trace that it was called from; None if it has none.
        place: its own place in the trace; None if it has none.
        room: the room of requests.
        compacted: the result of a turn that only compacts.
        first_seq: the number of the first event once that is published; the terminal one has to follow then.
        began: the time at which it began, on trio's clock.
        cut_off: whether it was cancelled, by an interrupt or at the end of its time, or with its session.
        parks: whether it ends here to be gone on with by another process, as this one ends.
        suspends: whether it ends here to be gone on with once one of its calls that wait has an answer.
        unwanted: once it has ended early, functions that have the work of its calls end that goes on elsewhere.
        unreached: the waits of such calls whose tools were not there yet, as MCP servers were still connecting.
        given_up: the child sessions for whose ends its calls wait no more, if no step of it is stored.
        agent: the agent of the session, with the place of its instructions, if it has changed that.
    """

    plan: TurnPlan
    record: SessionRecord
    context: Transcript
    inbox: Inputs
    emit: Callable[[Event], int]
    commit_compaction: CommitCompaction
    changed: Callable[[], object] = lambda: None
    steps: Steps | None = None
    kept: OpenTurn | None = None
    left: Mapping[str, KeptCall] = NOTHING_LEFT
    waits: Mapping[WaitKey, Wait] = NO_WAITS
    woken: bool = False
    allowed: Callable[[], Collection[str]] = tuple
    background: Background | None = None
    gives_up: Callable[[str], object] = lambda _child: None
    text: str = ""
    stop_reason: StopReason = "end_turn"
    structured_output: Any = None
    unsettled: int = 0
    files: tuple[Attachment, ...] = ()
    first_seq: int | None = None
    compacted: CompactionEntry | None = None
    began: float = attrs.field(factory=trio.current_time)
    cut_off: bool = False
    parks: bool = False
    suspends: bool = False
    unwanted: Sequence[Callable[[], None]] = ()
    unreached: Sequence[Wait] = ()
    given_up: Sequence[str] = ()
    agent: AgentPin | None = None
    caller: TraceContext | None = attrs.field(init=False)
    place: TraceContext | None = attrs.field(init=False)
    room: Room = attrs.field(init=False)
    _keeper: ContextKeeper | None = None
    _approvals: Approvals | None = None
    _time: RunningTime = attrs.field(init=False)
    _step_usage: Usage = NO_USAGE
    _refused: bool = False
    _refusals: Refusals | None = None
    _answered: int = attrs.field(init=False)  # the position up to which the messages were in a request with an answer
    _interrupted: WarrenError | None = None
    _error: WarrenError | None = None
    _call: ModelCall | None = None
    _tool_run: ToolRun | None = None
    _calls: int = 0
    _call_ids: dict[str, int] = attrs.field(factory=dict)
    _since: datetime | None = None
    _cuts: int = 0  # answers in a row that were cut within a tool call
    _repeats: Repeats | None = None
    _asked: int = 0  # the tool calls of the newest answer if it has many, also those that are not kept

    def __attrs_post_init__(self) -> None:
        # These must not refer to the turn: without a cycle it is freed at once, not by the garbage collector.
        plan, record = self.plan, self.record
        settings = plan.settings
        self._answered = record.message_count
        self.caller = self.place = plan.message.caller
        self.room = Room(
            plan.window,
            plan.compaction,
            plan.within,
            self.context,
            plan.route,
            settings.lessons,
            record.last_input_tokens,
        )
        self._time = RunningTime(plan.meter.seconds_left() if "time" in settings.limited else math.inf, self.began)
        plan.meter.clock = self._time.seconds
        if self.kept is not None:
            self._restore(self.kept)
        if settings.gates is not None:
            self._approvals = self._gates(settings.gates)
        for each in plan.seam.around_turn:
            each.begin(self)

    @property
    def keeper(self) -> ContextKeeper:
        """Keeps the context within the model's window: made when compaction, a known window or a refusal needs it."""
        if self._keeper is None:
            plan, settings = self.plan, self.plan.settings
            # A summary is asked for without tools, so in a session with tools its request begins like no other.
            cache: CacheTime | None = "off" if settings.tools else settings.options.prompt_cache
            summarising = SummaryCall(
                plan.route,
                settings.retry,
                self.emit,
                plan.charge,
                self.commit_compaction,
                self.record.session_id,
                cache,
                settings.limits.content,
                settings.counters,
                plan.files,
                plan.hooks,
            )
            self._keeper = ContextKeeper(self.room, summarising, self.record.last_compaction_step)
        return self._keeper

    def _restore(self, kept: OpenTurn) -> None:
        """Be as the turn was when it was kept last."""
        meter, context = self.plan.meter, self.context
        meter.usage, meter.tool_calls, meter.steps = kept.usage, kept.spent.tool_calls, kept.spent.steps
        meter.warned, meter.delegated = kept.warned, kept.delegated
        self._time.began -= kept.spent.seconds
        self.first_seq, self.text, self.stop_reason = kept.first_seq, kept.text, kept.stop_reason
        self._step_usage, self._calls, self._cuts, self.files = kept.step_usage, kept.calls, kept.cuts, kept.files
        calls: Sequence[ToolUseBlock] = ()
        for position, message in context.from_position(kept.start.message_count):
            match message:
                case AssistantMessage():
                    with_unique_calls(message, self._call_ids)
                    calls, self._answered = message.tool_calls, position
                case ToolResultsMessage(results=results) if len(results) == len(calls):
                    self._repeated(calls, results)

    @property
    def _told_before(self) -> AssistantMessage | None:
        """The newest answer if its tool calls have no results as yet, or if it ends the turn; else None."""
        last = codec.decode_message(self.context.rows[-1])
        ended = isinstance(last, AssistantMessage) and (last.tool_calls or last.stop_reason != "pause_turn")
        return last if isinstance(last, AssistantMessage) and ended else None

    def state(
        self, kept_seq: int, inputs: tuple[int, ...], *, parked: bool = False, wakes: datetime | None = None
    ) -> OpenTurn:
        """Return the state of the turn, for another process to go on with.

        Args:
            kept_seq: the number of the newest event that counts.
            inputs: the numbers of the inputs that it has taken.
            parked: whether this process puts it back.
            wakes: see OpenTurn.
        """
        plan, meter = self.plan, self.plan.meter
        kept = self.kept or self._at_first(kept_seq)
        self.kept = OpenTurn(  # not `attrs.evolve`: its loop over all fields takes as long as the encoding
            kept.began,
            kept.first_seq,
            kept_seq,
            kept.prompt_at,
            kept.start,
            kept.options,
            kept.payer,
            kept.key,
            kept.hops if plan.chain is None else plan.chain.hops,
            kept.traceparent,
            inputs,
            meter.usage,
            meter.spent,
            self._step_usage,
            self._calls if self._tool_run is None else self._tool_run.before,
            self._cuts,
            self.context.rows[-1].decode() if self.unsettled else None,
            self.text,
            self.stop_reason,
            kept.resumed,
            kept.deaths,
            parked,
            wakes,
            self.files,
            kept.lives,
            meter.warned,
            meter.delegated,
        )
        return self.kept

    def _at_first(self, kept_seq: int) -> OpenTurn:
        """Return what is kept of the turn from its first step on."""
        record, message, place = self.record, self.plan.message, self.place
        return OpenTurn(
            self.since,
            self.first_seq or 0,
            kept_seq,
            self.context.turn or 0,
            TurnStart(record.message_count, record.steps, record.usage, record.spent, record.delegated),
            message.options,
            message.payer,
            message.key,
            message.hops if isinstance(message, StartTurn) else 0,
            None if place is None else place.traceparent,
        )

    def within(self, now: SessionRecord, at: datetime, last_seq: int, state: OpenTurn | None) -> SessionRecord:
        """Return the session's record within the turn, with all messages so far that are not `unsettled`.

        Args:
            now: the record at present.
            at: the time of the commit.
            last_seq: the number of the last event that is stored with it.
            state: the state of the turn; None if it cannot be gone on with.
        """
        base, context, prompt = self.record, self.context, self.plan.message.prompt
        spent = self.plan.meter.spent if state is None else state.spent
        more: dict[str, Any] = {}
        if self.agent is not None:
            more["agent"] = self.agent
        if self._refusals is not None:
            more["left_out"] = self._refusals.left_out
        if context.parts:
            more["parts_left_out"] = with_parts(base.parts_left_out, context.parts)
        if self._keeper is not None:
            more["last_compaction_step"] = self._keeper.last_step
        return now.changed(
            updated_at=at,
            message_count=context.end - self.unsettled,
            last_seq=last_seq,
            title=title_after(now, prompt),
            turn_open=prompt is not None,
            turn=state,
            usage=base.usage + self.plan.meter.usage,
            spent=base.spent + spent,
            delegated=base.delegated + self.plan.meter.delegated,
            steps=base.steps + spent.steps,
            last_input_tokens=self.room.last_input_tokens,
            **more,
        )

    def park(self) -> None:
        """End here, at the next checkpoint, as far as the turn has come; a turn past its last step is not affected.

        Nor is one that was interrupted: it ends.
        """
        self.parks = self._interrupted is None
        if self._time.scope is not None:
            self._time.scope.cancel()

    def unkept(self) -> tuple[Sequence[KeptCall], Sequence[Wait]]:
        """Return the tool calls and waits that are to be stored as the turn leaves memory, once it runs no more.

        A model call that was cut off counts as not made: the next process makes it.
        """
        if self._call is not None:
            self.plan.meter.steps -= 1
        return ((), ()) if self._tool_run is None else self._tool_run.unkept()

    @property
    def wakes(self) -> datetime | None:
        """The time from which on a turn that suspends goes on, which is now if an answer has come; None if it runs."""
        return None if self._tool_run is None else self._tool_run.wakes(self.plan.settings.storage.now())

    @property
    def stays_here(self) -> bool:
        """Whether the work of a call goes on elsewhere, and this process alone can find it again."""
        return self._tool_run is not None and any(each.here for each in self._tool_run.elsewhere)

    def interrupt(self, error: WarrenError) -> None:
        """End the turn with an error at its next checkpoint; a turn past its last step is not affected."""
        self._interrupted, self.parks = self._interrupted or error, False
        if self._time.scope is not None:
            self._time.scope.cancel()

    @property
    def may_cancel(self) -> bool:
        """Whether the turn has cancelled the scope that it runs in, or its time may have."""
        return self._interrupted is not None or self.parks or self._time.left != math.inf

    @property
    def candidates(self) -> Sequence[Candidate]:
        """The models in the order in which they take over."""
        return self.plan.settings.candidates

    @property
    def usage(self) -> Usage:
        """The tokens so far."""
        return self.plan.meter.usage

    @property
    def asks_model(self) -> bool:
        """Whether an answer is under way: the events of the step so far belong to no message."""
        return self._call is not None

    @property
    def waits_in_memory(self) -> Sequence[Wait]:
        """The waits that last no longer than this process."""
        return () if self._approvals is None else self._approvals.waiting

    @property
    def only_compacts(self) -> bool:
        """Whether it is a compaction that was asked for, and no turn for its callers."""
        return isinstance(self.plan.message, Compact)

    @property
    def since(self) -> datetime:
        """The time at which the turn began (UTC), in whichever process."""
        if self.kept is not None:
            return self.kept.began
        self._since = self._since or utc_now() - timedelta(seconds=trio.current_time() - self.began)
        return self._since

    def view(self) -> TurnView:
        """Return the turn for the views of its session."""
        resumed = 0 if self.kept is None else self.kept.resumed
        tools = self._tool_run
        held = {} if tools is None else {**tools.waiting, **{wait.call_id: wait for wait in self.waits_in_memory}}
        if tools is None or not held or not tools.unfinished <= held.keys():
            return TurnView("running", self.since, resumed)
        return TurnView("waiting", self.since, resumed, tuple(map(waiting_call, held.values())))

    def find_wait(self, matches: Callable[[Wait], bool]) -> Wait | None:
        """Return the first wait that matches of those that last no longer than this process; None if none does."""
        return None if self._approvals is None else self._approvals.find(matches)

    def answered(self, wait: Wait) -> None:
        """Go on with a call that has got its answer, which is stored if the turn is."""
        if self._tool_run is not None:
            self._tool_run.answered(wait)
        if self._approvals is not None or self.steps is None:
            self._asker().answer(wait)

    def offered(self, tools: Mapping[str, Tool]) -> bool:
        """Have a client that has come back run the calls that wait for it; return whether it has no others."""
        return self._tool_run is not None and self._tool_run.offered(tools)

    def find_request(self, request_id: str) -> Wait | None:
        """Return the wait of a running call for the response to a request; None if there is none."""
        return None if self._tool_run is None else self._tool_run.find_request(request_id)

    def awaits_result(self, wait: Wait) -> bool:
        """Return whether a tool call runs, or is held up, and has no result, and may get the one of a wait."""
        if self._tool_run is not None:
            return self._tool_run.awaits_result(wait)
        return begun(self.left, self.waits, wait)

    def has_given_up(self, wait: Wait) -> bool:
        """Return whether the call of a wait of the turn has a result without it, which is stored with the next step."""
        run, left = self._tool_run, self.left.get(wait.call_id)
        return left is None or left.result is not None if run is None else wait.call_id in run.results

    async def run(self, scope: trio.CancelScope) -> None:
        """Run to the end, an answer or an error, or until an interrupt or the end of its time cancels the scope.

        Cancelled passes through. From the end of this on the turn does not touch the scope: if that is not cancelled
        by then, the next turn can run in it.
        """
        time = self._time
        time.begin(scope)
        if self._interrupted is not None or self.parks:  # before it ran
            scope.cancel()
        message = self.plan.message
        if self.kept is not None:
            self.context.turn = self.kept.prompt_at
        else:
            self.context.turn = None if message.prompt is None else self.context.end
        try:
            converse = self._converse if self.plan.hooks is None else self._converse_hooked
            await (converse(message) if isinstance(message, StartTurn) else self._compact_only(message))
        except WarrenError as exc:
            self._error = exc
        except _SuspendsError:
            self.cut_off = self._interrupted is not None or self.parks
            self.suspends = not self.cut_off
        except Exception as exc:  # a tool or a provider may be the host's code: its bug ends the turn, not the session
            logger.exception(CRASHED, self.record.session_id)
            self._error = _crash(exc)
        except trio.Cancelled:
            self.cut_off = True
            raise
        except BaseExceptionGroup as exc:
            cut_off, crash = exc.split(trio.Cancelled)
            if cut_off is None or not (crash is None or isinstance(crash, Exception)):
                raise
            self.cut_off = True
            if crash is not None:
                logger.error(CRASHED, self.record.session_id, exc_info=crash)  # noqa: TRY400 - without Cancelled
                self._error = _crash(crash)
            raise cut_off from None
        finally:
            time.end()

    def outcome(self) -> Outcome:
        """Return the outcome of the turn, which has run or was cut off: an answer, an error or an interrupt.

        The messages of the turn are acceptable to providers in each case.
        """
        error, self._error = self._error, None  # its traceback refers to the turn
        if self.cut_off or (self._interrupted is not None and error is not None):
            error = self._cancelled()
        if error is not None:
            self._close(CANCELLED if self._interrupted else error.message)
        if self._refused:
            self._refusing.give_up(self._answered, declined=self.stop_reason == "content_filter")
        if self.first_seq is not None and self.plan.meter.steps >= self.plan.settings.calm:
            self._warn()  # subscribers get the usage of the last step before the terminal event
        return self.so_far() if error is None else self.so_far().failed(error)

    def so_far(self) -> Outcome:
        """Return the outcome of the turn."""
        plan, keeper = self.plan, self._keeper
        return Outcome(
            self.text,
            self.stop_reason,
            plan.meter.usage,
            plan.meter.spent,
            self.room.last_input_tokens,
            self.record.last_compaction_step if keeper is None else keeper.last_step,
            plan.message.prompt,
            structured_output=self.structured_output,
            left_out=None if self._refusals is None else self._refusals.left_out,
            keep_alive=plan.settings.keep_alive,
            files=self.files,
            delegated=plan.meter.delegated,
            agent=self.agent,
        )

    @property
    def _keep(self) -> KeepFiles:
        settings, record = self.plan.settings, self.record
        most = settings.limits.max_attachment
        return partial(attaching.keep, settings.storage, record.tenant, record.session_id, most)

    @property
    def _refusing(self) -> Refusals:
        self._refusals = self._refusals or Refusals(self.context, self.record)
        return self._refusals

    def _cancelled(self) -> WarrenError:
        if self._interrupted is not None:
            return self._interrupted
        return self._exhausted(self.plan.meter.exhausted() or self.plan.meter.use("time"))

    async def _compact_only(self, asked: Compact) -> None:
        compaction = self.plan.compaction
        if compaction is None:
            raise CompactionDisabledError("session compaction is disabled")

        async def compact() -> CompactionEntry | CompactionFailed:
            self._check_exhausted()
            return await self.keeper.compact(compaction, self._step, asked.instructions)

        came = await surrounded(self.plan.seam.around_model, compact)
        if isinstance(came, CompactionFailed):
            raise AgentError(came.error, cause="compaction_failed", details={"reason": came.reason})
        self.compacted = came

    async def _converse_hooked(self, started: StartTurn) -> None:
        """Converse within the hooks of the turn."""
        hooks = self.plan.hooks
        assert hooks is not None  # noqa: S101 - for the type checker

        async def converse(hooked: HookedTurn) -> TurnEnd:
            nonlocal started
            if hooked.prompt != started.prompt and self.kept is None:
                started = self.plan.message = attrs.evolve(started, prompt=hooked.prompt)
            try:
                await self._converse(started)
            except _SuspendsError:
                await way.halt(None)
            ended.append(self._so_ends)
            return self._so_ends

        prompt, files, ended = started.prompt, started.attachments, list[TurnEnd]()
        if self.kept is not None:
            prompt, files = self._prompt_of(self.kept)
        way = hooks.turn(converse)
        value = HookedTurn(**hooks.place, prompt=prompt, attachments=files, goes_on=self.kept is not None)
        try:
            end = await way.run(value)
        except HaltedError:
            raise _SuspendsError from None
        except AgentError as exc:
            if self.first_seq is None and exc.cause in ("denied", "hook"):  # then no title is made of the prompt either
                self.plan.message = attrs.evolve(started, prompt="")
            raise
        if way.begun and not ended:
            raise AgentError("a hook has cut off the turn that it surrounds", cause="hook")
        if not ended or end.text != self.text:
            await self._answer(started, end.text)

    @property
    def _so_ends(self) -> TurnEnd:
        return TurnEnd(self.text, self.stop_reason, self.structured_output, self.usage)

    def _prompt_of(self, kept: OpenTurn) -> tuple[str, tuple[Attachment, ...]]:
        """Return the prompt of a turn that goes on, and its files; nothing if a compaction has it."""
        for _, message in self.context.from_position(kept.prompt_at):
            if isinstance(message, UserMessage):
                return message.content, message.attachments
        return "", ()

    async def _answer(self, started: StartTurn, text: str) -> None:
        """Let the turn end with an answer of a hook, in place of the newest one if there is one."""
        guard, context, steps = self.plan.guard, self.context, self.steps
        if guard is not None:
            await guard.wait()
        if self.first_seq is None:
            self._begin(started)
        elif isinstance(codec.decode_message(context.rows[-1]), AssistantMessage) and (
            self.unsettled or steps is None or context.end > steps.kept
        ):
            context.truncate(context.end - 1)
        self._accept(AssistantMessage((TextBlock(text),), "end_turn", structured_output=self.structured_output))
        self.text, self.stop_reason = text, "end_turn"
        self.emit(TextComplete(text))
        if guard is not None:
            await guard.wait()

    async def _converse(self, started: StartTurn) -> None:
        guard, output = self.plan.guard, self.plan.settings.output
        if guard is not None:
            await guard.wait()
        message: AssistantMessage | None = None
        if self.kept is None:
            self._begin(started)
            if self.plan.instructs is not None:
                self._instruct(await self.plan.instructs())
        else:
            message = await self._go_on(self.kept)
        if not self.unsettled:
            await self._take_steps(message)
        if output is not None:
            await self._extract(output)
        if guard is not None:
            await guard.wait()  # so that the commit has all events

    async def _take_steps(self, message: AssistantMessage | None) -> None:
        """Take steps until an answer is the final one. If a message is given, the first step has its calls."""
        steps, inbox, around = self.steps, self.inbox, self.plan.seam.around_model
        while True:
            if message is None:
                if steps is not None and self.plan.meter.steps and self.context.end > steps.kept:
                    await steps.keep(settles=True)
                try:
                    message = await (surrounded(around, self._call_model) if around else self._call_model())
                except ProviderError as exc:
                    self._repair(exc)
                    continue
            calls = message.tool_calls
            if calls:
                await self._run_tools(calls)
            self.emit(TurnCompleted(message.stop_reason, self._step_usage, self.plan.route.stand_in))
            final = not calls and message.stop_reason != "pause_turn"
            message = None
            if not (inbox.waiting and self._take_inputs("last" if final else "next")) and final:
                return

    def _begin(self, started: StartTurn) -> None:
        """Begin the turn with its prompt, and with the inputs that wait."""
        prompt, attachments, guard, inbox = started.prompt, started.attachments, self.plan.guard, self.inbox
        publish = self.emit if guard is None else guard.publish  # not held back: its number is asked for
        self.first_seq = publish(RunStarted(self.record.session_id, prompt, attachments))
        if inbox.waiting:
            self._take_inputs("before")
        self.context.append(UserMessage(prompt, attachments))
        if inbox.waiting:
            self._take_inputs("next")

    def _instruct(self, told: SystemMessage) -> None:
        """Let the model have other instructions from here on, if they differ."""
        if told.content != self.context.instructions and self.record.agent is not None:
            self.context.instruct(told)
            self.agent = attrs.evolve(self.record.agent, since=self.context.system)

    async def _go_on(self, kept: OpenTurn) -> AssistantMessage | None:
        """Go on with a turn that was left open; return the newest answer if its calls are to be run first."""
        if not self.woken:
            self.emit(TurnResumed(kept.resumed, kept.kept_seq))
        if kept.answer is not None:
            self.context.append(codec.decode_message(kept.answer))
            self.unsettled = 1
        if self.steps is not None and not self.woken:
            await self.steps.keep()  # before anything is done: so a turn that ends its process each time is known
        if self.unsettled:
            return None
        message = self._told_before
        if message is not None and message.tool_calls and self.plan.await_tools is not None:
            await self.plan.await_tools()
        if message is None and self.inbox.waiting:
            self._take_inputs("next")
        return message

    async def _extract(self, output: OutputWish) -> None:
        """Ask for the answer as data."""
        if self.steps is not None and not self.unsettled:
            self.unsettled = 1
            await self.steps.keep(settles=True)
        self.unsettled = 1
        decode = self.plan.message.decode or self.plan.settings.decode
        try:
            data = await Extraction(output, self.emit, self._ask_for_data, decode).run()
        except ProviderError as exc:
            self._refused |= exc.refuses_request
            raise
        self.structured_output = data
        self.context.note_data(data)

    def _repair(self, error: ProviderError) -> None:
        """Replace the newest results by words if the provider refuses them, for another step; else raise the error."""
        told = self._refusing.tell(self._answered) if error.refuses_request or self._stays(error) else None
        if told is None:
            raise error
        self._refused, self._call = False, None
        self.emit(RequestRepaired(*told, encodable(error.message)))

    def _stays(self, error: ProviderError) -> bool:
        """Return whether a proxy refuses, maybe for what an earlier turn has left without an answer."""
        foreign = not error.retryable and error.cause in error.refusals and not error.refuses_request
        return foreign and self._answered == self.record.message_count and self._refusing.earlier(self._answered)

    def _take_inputs(self, entering: Entering) -> bool:
        """Add inputs that came meanwhile to the conversation; return whether there were any.

        If the budgets have no step left for them, the next turn takes them. A turn that answers with data needs two.
        """
        if not self.plan.meter.has_steps(1 if self.plan.settings.output is None else 2):
            return False
        taken = self.inbox.take_for_step(entering)
        for input_ in taken:
            text, source, files = input_.text, input_.source, input_.attachments
            if self.plan.chain is not None and entering != "before":  # the prompt is newer than those before it
                self.plan.chain.take(input_)
            steers = input_.kind == "steer"
            message = UserMessage(text, files, steered=True) if steers or files else ContextMessage(text, source)
            self.context.append(message)
            self.emit(InputTaken(input_.input_id, input_.shown_kind, text, source, files))
        return bool(taken)

    async def _within_window(self) -> Sequence[Message]:
        """Return the context for the next step, compacted if that is due, and cut if it exceeds the window."""
        before = self.plan.meter.usage
        context = await self.keeper.make_room(self._step)
        if self.plan.meter.usage is not before:  # a compaction may have used the rest of the budget
            self._check_budgets()
        return context

    async def _ask_for_data(self, asked: Sequence[Message], schema: Mapping[str, Any] | None) -> ModelReply:
        """Make a step that is not published, with messages that are no part of the conversation."""
        return await surrounded(self.plan.seam.around_model, partial(self._data_step, asked, schema))

    async def _data_step(self, asked: Sequence[Message], schema: Mapping[str, Any] | None) -> ModelReply:
        plan, settings = self.plan, self.plan.settings
        self._check_budgets()
        within = self.room.plan is not None or self.room.window is not None
        messages = Continued(await self._within_window() if within else self.context, asked)
        request = ModelRequest(
            settings.choice.model,
            messages,
            options=settings.options,
            answer_schema=schema,
            tokens_left=self._tokens_left(messages),
            session_id=self.record.session_id,
            max_output=plan.route.current.entry.max_output,
            files=plan.files,
        )
        plan.meter.steps += 1
        ask = partial(
            ask_aside,
            plan.route,
            policy=settings.retry,
            emit=self.emit,
            book=plan.charge,
            counters=settings.counters,
            most=settings.limits.content,
        )

        async def ask_hooked(hooked: HookedRequest) -> ModelReply:
            try:
                return await ask(hooked.request)
            except ProviderError as exc:
                return await self._ask_within(exc, hooked.request, ask)

        if plan.hooks is not None:
            return await plan.hooks.model(HookedRequest(**plan.hooks.place, request=request), ask_hooked)
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
        if not (self.room.caps or "tokens" in self.plan.settings.limited):
            return None
        left = self.plan.meter.tokens_left()
        size = sent_size(sent)
        return self.room.answer_cap(None if left is None else max(1, left - estimate(size)), size)

    @property
    def _step(self) -> int:
        """The number of the session's steps so far."""
        return self.record.steps + self.plan.meter.steps

    async def _call_model(self) -> AssistantMessage:  # noqa: C901 - in pieces it would cost each step of each turn
        """Make a step: publish and keep the model's next answer; return it."""
        plan, settings, room = self.plan, self.plan.settings, self.room
        limits = settings.limits
        context: Sequence[Message] = self.context
        if plan.meter.steps >= settings.calm or plan.meter.delegated is not NO_EXPENSE:
            self._check_budgets()
        if room.plan is not None or room.window is not None:
            context = await self._within_window()
        self.emit(TurnStarted(self._step))
        request = ModelRequest(
            settings.choice.model,
            context,
            settings.specs,
            settings.options,
            tokens_left=self._tokens_left(context) if room.caps or "tokens" in settings.limited else None,
            session_id=self.record.session_id,
            max_output=plan.route.current.entry.max_output,
            files=plan.files,
        )
        plan.meter.steps += 1
        self._call = ModelCall(self.emit, plan.charge, settings.retry, settings.counters, most=limits.content)
        try:
            if plan.hooks is not None:
                reply, context = await self._reply_hooked(self._call, request, plan.hooks)
            else:
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
        room.last_input_tokens = reply.usage.input_tokens
        if context is self.context and not reply.usage.estimated:
            context.counted = reply.usage.input_tokens, context.size
        message, self._asked = (await with_files(reply, self._keep)) if reply.files else reply.message, 0
        calls = message.tool_calls
        if calls or len(message.blocks) > limits.max_answer_calls:
            message = self._with_bounded_calls(message)
            calls = message.tool_calls
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

    async def _reply_hooked(
        self, call: ModelCall, request: ModelRequest, hooks: HookChain
    ) -> tuple[ModelReply, Sequence[Message]]:
        """Return the reply of the model within its hooks, and the messages that were sent if they are the context."""
        plan, said, sent = self.plan, list[ModelReply](), request.messages
        held = HeldPieces(call.emit) if hooks.holds else None
        if held is not None:
            call.emit, call.held = held, True

        async def ask(hooked: HookedRequest) -> ModelReply:
            nonlocal sent
            asked = hooked.request
            sent = asked.messages
            try:
                reply = await call.run(plan.route, asked)
            except ProviderError as exc:
                reply, sent = await self._ask_within(exc, asked, partial(call.run, plan.route)), ()
            said.append(reply)
            return reply

        try:
            reply = await hooks.model(HookedRequest(**hooks.place, request=request), ask)
        except AgentError:  # nothing of the answer stays
            self._call = None
            if said:
                plan.charge(said[0].usage)
            raise
        if held is not None:
            held.show(said[0] if said else None, reply)
        if not said:
            return reply, ()
        return reply if reply.usage is said[0].usage else attrs.evolve(reply, usage=said[0].usage), sent

    def _with_bounded_calls(self, message: AssistantMessage) -> AssistantMessage:
        """Return an answer with as many tool calls as it may have, each under an id of its own."""
        most = self.plan.settings.limits.max_answer_calls
        if len(message.blocks) > most:
            self._asked = len(message.tool_calls)
            message = bounded(message, most)
        return with_unique_calls(message, self._call_ids)

    def _say(self, message: AssistantMessage) -> str:
        """Note the text of an answer, and return it; one that the provider had paused goes on with it."""
        text, before = message.text, self.text if self.stop_reason == "pause_turn" else ""
        self.text, self.stop_reason = before + text, message.stop_reason
        return text

    async def _run_tools(self, calls: Sequence[ToolUseBlock]) -> None:
        plan, settings = self.plan, self.plan.settings
        if not settings.completions.is_ready:
            with suppress(StoreError):  # a tool that wants a token hears of it
                await settings.completions.key()
        if self.left and self.steps is not None:
            await self.steps.answers()
        left, self.left = self.left, NOTHING_LEFT
        refusal = too_many_calls(self._asked, settings.limits.max_answer_calls)
        allowed = plan.meter.tool_calls_left(len(calls)) if refusal is None else 0
        tokens, cut = self._step_usage.output_tokens, NO_CUTS
        if self.stop_reason == "max_tokens":
            cut = cut_calls(calls, settings.tools, tokens)
        if left:  # the process that has left them had counted them, and refused those beyond the budget
            refused = [each for each in left.values() if each.result is not None and each.result.content == BUDGET_USED]
            allowed = len(calls) - len(refused)
        else:
            plan.meter.tool_calls += allowed
            self._cuts = self._cuts + 1 if cut else 0
        if plan.chain is not None:
            plan.chain.share_out(calls)
        self.given_up = given_up = [*self.given_up]
        self._tool_run = run = ToolRun(
            settings.tools,
            self.emit,
            settings.limits.tool_timeout,
            ToolRunner(settings.tool_threads, plan.guard, self._keep),
            self._approvals,
            self.record.session_id,
            self.record.turns + 1,
            self._calls,
            around=plan.seam.around_tool,
            counters=settings.counters,
            cut=cut,
            prompt_key=plan.message.key,
            steps=self.steps,
            left=left,
            asker=self._asker,
            tenant=self.record.tenant,
            owner=self.record.owner,
            tokens=settings.completions.maker(self.record.tenant),
            waits=self.waits,
            background=self.background,
            origin=self.origin,
            tells=not self.woken,
            spends=plan.meter.spend,
            gives_up=self.gives_up,
            given_up=given_up,
            hears=(plan.chain or Chain()).hear,
            hooks=plan.hooks and plan.hooks.for_tools,
        )
        self._calls += len(calls)
        await run.run(calls, allowed, refusal or BUDGET_USED)
        if run.suspends:
            raise _SuspendsError
        self._tool_run = None
        results, ended = self._repeated(calls, run.ordered())
        self.context.append(ToolResultsMessage(results))
        if allowed < len(calls) and refusal is None:
            raise self._exhausted(plan.meter.use("tool_calls"))
        if self._cuts > 1:
            raise cut_again(tokens)
        if ended is not None:
            raise ended

    def _repeated(
        self, calls: Sequence[ToolUseBlock], results: Sequence[ToolResult]
    ) -> tuple[tuple[ToolResult, ...], BudgetExhaustedError | None]:
        """Count calls that were made before; return the results for the model, and the error if the turn is to end."""
        settings, repeats = self.plan.settings, self._repeats
        if repeats is None:
            repeats = self._repeats = Repeats(settings.limits.repeated_calls_note, settings.limits.repeated_calls)
        return repeats.told(calls, results, settings.tools)

    def origin(self, call_id: str, number: int) -> Origin:
        """Return what is kept of a call for the time after the turn."""
        message, chain = self.plan.message, self.plan.chain
        hops = chain.hops if chain is not None else 0 if self.kept is None else self.kept.hops
        options = attrs.evolve(message.options, output_schema=None, structured_output_retries=None)
        return Origin(self.record.turns + 1, number, call_id, message.key, hops, message.payer, options)

    def _asker(self) -> Approvals:
        """Return the gates, made if no call waits for approval otherwise."""
        if self._approvals is None:
            self._approvals = self._gates(Gates())
        return self._approvals

    def _gates(self, gates: Gates) -> Approvals:
        settings = self.plan.settings
        timeout, now = settings.limits.approval_timeout, settings.storage.now
        given = self.emit, self._time, self.changed, now, self.allowed, self.plan.guard
        return Approvals(gates, timeout, *given)

    def _accept(self, message: AssistantMessage) -> None:
        """Add the answer to the context.

        Raises ProviderError for content that is no JSON, such as half a character, and for too much of it.
        """
        context, most = self.context, self.plan.settings.limits.content
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
        if self.plan.meter.low:
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
        if kind == "steps" and use.limit == self.plan.settings.limits.turn.max_steps:
            problem += f": limits.turn.max_steps, the model calls of a turn, is {use.limit:g}; a turn or a session may "
            problem += "have a budget of its own"
        return BudgetExhaustedError(problem, cause=kind, details=details)

    def _close(self, reason: str) -> None:
        """Complete the messages after an abrupt end: keep partial text, give every open call a result."""
        if self._call is not None and (partial := self._call.partial()) is not None:
            self._say(partial)
            self.context.append(partial)
        if self._tool_run is not None:
            self.unwanted = [each.cancel for each in self._tool_run.elsewhere]
            self._tool_run.close(reason)
            self.context.append(ToolResultsMessage(self._tool_run.ordered()))
        elif (
            self.kept is not None
            and not self.unsettled
            and (results := left_results(self.context, self.left, self.waits, reason)) is not None
        ):
            tools, waits = self.plan.settings.tools, left_elsewhere(self.left, self.waits)
            self.unwanted = cancels(waits, tools)
            if self.plan.await_tools is not None:
                self.unreached = [wait for wait in waits if named(tools, wait.name) is None]
            for wait in self.waits.values():
                if (call := self.left.get(wait.call_id)) is None or call.result is None:
                    self.plan.meter.spend(wait.expense)
            self.left = NOTHING_LEFT
            self.context.append(results)


def _crash(exc: Exception) -> AgentError:
    return AgentError(encodable(f"the turn crashed: {first_error(exc)!r}"), cause="crash")


def cancelled() -> AgentError:
    """Return the error of a turn that a caller has interrupted."""
    return AgentError("the turn was interrupted", cause="cancelled")


def shut_down() -> AgentError:
    """Return the error of a turn that the end of the runtime interrupted."""
    return AgentError("the turn was interrupted: the runtime is shutting down", cause="shutting_down")


def parked() -> AgentError:
    """Return the error for the callers of a turn that another process goes on with, as this one ends."""
    return AgentError("the runtime is shutting down", cause="shutting_down")
