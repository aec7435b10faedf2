"""Runs the tool calls of a step: in parallel, each with its own time limit and its own events."""

import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import attrs
import trio

from warren.actors.observe.counters import COMPLETED, FAILED, Counters
from warren.actors.turn.approvals import Approvals, refusal_of
from warren.actors.turn.background import Background, Origin
from warren.actors.turn.hooked import OTHER_ARGUMENTS, HaltedError, HookChain, Passage
from warren.actors.turn.left import GIVEN, MAY_HAVE_RUN, NO_WAITS, NOTHING_LEFT, is_elsewhere, named
from warren.actors.turn.running import RAREST, Ran, ToolRunner, pause_after
from warren.actors.turn.seam import AroundTool, surrounded
from warren.actors.turn.steps import Steps
from warren.agents.hooks import Asked, HookedCall, ToolOutcome
from warren.base.errors import WarrenError
from warren.base.fields import FieldValueError, encodable
from warren.base.principals import DEFAULT_TENANT, LOCAL
from warren.base.values import define, value
from warren.conversation.attachments import Attachment
from warren.conversation.budget import Expense
from warren.conversation.categories import Decision
from warren.conversation.completion import CompletionToken, TokenMaker
from warren.conversation.events import (
    Event,
    ToolCallRequested,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolExecutionTimedOut,
    ToolResultReceived,
)
from warren.conversation.messages import ToolResult, ToolUseBlock
from warren.conversation.open_turn import CallState, KeptCall
from warren.conversation.waits import NEVER, Wait, WaitKey
from warren.models.arguments import problem_of
from warren.models.tools import (
    ClientGoneError,
    Handed,
    Tool,
    ToolArgumentsError,
    ToolContext,
    ToolError,
    ToolOutput,
    ToolSpec,
    Unfinished,
    bounded,
    failure_text,
)
from warren.settings.config import YEAR

logger: Final = logging.getLogger("warren.tools")


BUDGET_USED: Final = "not run: the tool-call budget is used up"
NO_CUTS: Final[Mapping[str, str]] = {}
NO_RESULT: Final = "not known: the call has begun, and its result did not come in time"
NO_RESPONSE: Final = "the peer has not responded in time; if it does yet, that comes as a message of its own"
NO_END: Final = "not known: the child session {} did not end in time, and is interrupted"
OF_CLIENT: Final[Mapping[str, Any]] = {"of_client": True}
"""The data of the approval of a tool that a client runs."""
SLACK: Final = timedelta(seconds=1)
"""Time by which a wait may end early: the clock that has woken the turn may be a little ahead of this one."""
NEAR: Final = 5.0
"""Seconds for which the turn waits itself for the next look at a call whose work goes on elsewhere.

To suspend it, and to load it again, would cost more, and take longer. As the pauses grow, that is its first minute.
"""
RUNS_ON: Final = "it runs in the background, as call {}: its result will come as a message"


def of_no_turn(_call_id: str, _number: int) -> Origin:
    """Return no origin: no call runs in the background."""
    raise RuntimeError("no call runs in the background here")


def nobody() -> Approvals:
    """Return no gates: no call may have run before."""
    raise RuntimeError("no call was left by an earlier process")


@value
class _Held:
    """A call that waits without a task.

    Attributes:
        wait: its wait.
        go_on: goes on with the call once the wait is over, or has a look at its work.
        looks: the time of the next look, if its work goes on elsewhere; else None.
    """

    wait: Wait
    go_on: Callable[[Wait], Awaitable[None]]
    looks: datetime | None = None


@define(eq=False)
class _Elsewhere:
    """A call whose work goes on elsewhere, with its number in the turn.

    Attributes:
        call: the call.
        number: its number.
        tool: its tool; None if the server of that is away.
        wait: its wait, as it was noted last.
    """

    call: ToolUseBlock
    number: int
    tool: Tool | None
    wait: Wait

    @property
    def here(self) -> bool:
        """Whether this process alone can find the work again."""
        tool = self.tool
        return tool is not None and (tool.of_client or (tool.remote is not None and tool.remote.here))

    def cancel(self) -> None:
        """Have the work end."""
        if self.tool is not None and self.tool.remote is not None:
            self.tool.remote.cancel((self.wait.data or {})["handle"])


@value
class _Done:
    """The result of a call that its hooks have not seen yet."""

    content: str
    files: tuple[Attachment, ...]
    is_error: bool
    timed_out: bool
    seconds: float


@define(eq=False)
class _Within:
    """The way of a call through its hooks."""

    done: _Done | None = None


@define
class ToolRun:
    """The tool calls of one step.

    Attributes:
        tools: the tools by name.
        emit: publishes an event.
        timeout: seconds for a tool without a time limit of its own.
        runner: runs the tools.
        approvals: the gates of the calls; None if all of them run.
        session_id: the session.
        tenant: its tenant.
        owner: the name of the principal that made it.
        turn: the number of its turn.
        before: the calls in earlier steps of the turn.
        around: the wrappers of each call that runs.
        counters: counts the calls.
        prompt_key: the idempotency key of the prompt that began the turn; None if it has none.
        cut: the calls whose arguments are not whole as their answer was cut, by id, with what the model is told.
        steps: keeps the states of the calls; None if they are kept with the end of the turn alone.
        tokens: makes completion tokens of the calls; None if none can be made.
        asker: returns the gates for a call that somebody has to decide on whatever they say, and for waits in memory.
        waits: the waits that the store has, which change meanwhile.
        background: runs calls of tools for the background; None if those run as others do.
        origin: returns what is kept of a call, by its id and its number, for the time after the turn.
        tells: whether a request for a decision that an earlier process has published is to be published again.
        left: the calls that an earlier process has left, by id, with their states; empty if none has.
        spends: called with what a child has spent whose end a call has got.
        gives_up: called with a child session whose time limit is over: it is to end before the other calls do.
        hears: called with the number in its chain of the message of a peer that a call has got as its result.
        given_up: the child sessions whose ends nobody waits for any more, of calls that the store does not know.
        hooks: the hooks around each call; None if none surrounds calls.
        results: the results by call id; complete after `run`, and after `close` even if `run` was cancelled.
    """

    tools: Mapping[str, Tool]
    emit: Callable[[Event], object]
    timeout: float
    runner: ToolRunner
    approvals: Approvals | None = None
    session_id: str = ""
    turn: int = 1
    before: int = 0
    around: Sequence[AroundTool] = attrs.field(default=(), kw_only=True)
    counters: Counters = attrs.field(factory=Counters, kw_only=True)
    prompt_key: str | None = attrs.field(default=None, kw_only=True)
    cut: Mapping[str, str] = attrs.field(default=NO_CUTS, kw_only=True)
    steps: Steps | None = attrs.field(default=None, kw_only=True)
    left: Mapping[str, KeptCall] = attrs.field(default=NOTHING_LEFT, kw_only=True)
    tenant: str = attrs.field(default=DEFAULT_TENANT, kw_only=True)
    owner: str = attrs.field(default=LOCAL.name, kw_only=True)
    tokens: TokenMaker | None = attrs.field(default=None, kw_only=True)
    asker: Callable[[], Approvals] = attrs.field(default=nobody, kw_only=True)
    waits: Mapping[WaitKey, Wait] = attrs.field(default=NO_WAITS, kw_only=True)
    background: Background | None = attrs.field(default=None, kw_only=True)
    origin: Callable[[str, int], Origin] = attrs.field(default=of_no_turn, kw_only=True)
    tells: bool = attrs.field(default=True, kw_only=True)
    spends: Callable[[Expense], object] = attrs.field(default=lambda _expense: None, kw_only=True)
    gives_up: Callable[[str], object] = attrs.field(default=lambda _child: None, kw_only=True)
    hears: Callable[[int], object] = attrs.field(default=lambda _hops: None, kw_only=True)
    given_up: list[str] = attrs.field(factory=list, kw_only=True)
    hooks: HookChain | None = attrs.field(default=None, kw_only=True)
    results: dict[str, ToolResult] = attrs.field(factory=dict)
    _calls: Sequence[ToolUseBlock] = ()
    _places: Mapping[str, int] = attrs.field(factory=dict)  # of the calls, by id
    _shown: dict[str, ToolContext] = attrs.field(factory=dict)  # the calls as their tools see them, by id
    _starts: list[Callable[[], Awaitable[None]]] = attrs.field(factory=list)
    _detached: dict[WaitKey, Callable[[], None]] = attrs.field(factory=dict)  # begin the calls for the background
    _changed: dict[str, KeptCall] = attrs.field(factory=dict)
    _changed_waits: dict[WaitKey, Wait] = attrs.field(factory=dict)
    _held: dict[str, _Held] = attrs.field(factory=dict)  # the calls that wait without a task, by id
    _allowed: dict[str, Wait] = attrs.field(factory=dict)  # the waits of calls that may run now, by their ids
    _elsewhere: dict[str, _Elsewhere] = attrs.field(factory=dict)  # the calls whose work goes on there, by id
    _resting: dict[str, trio.CancelScope] = attrs.field(factory=dict)  # of such calls, until a look that is not near
    _asked: dict[str, int] = attrs.field(factory=dict)  # by call, the number of its newest question with an answer
    _nursery: trio.Nursery | None = None  # while calls run
    _lock: trio.Lock | None = None
    _news: trio.Event | None = None  # set with each result; None until calls run
    _scope: trio.CancelScope | None = None
    _started: dict[str, float] = attrs.field(factory=dict)
    _awaiting: dict[str, Wait] = attrs.field(factory=dict)  # what calls wait for once their tools have run, by id
    _ran: set[str] = attrs.field(factory=set)  # the calls whose tools may have done something
    _within: dict[str, _Within] = attrs.field(factory=dict)  # the ways of calls through their hooks, by id
    _args: dict[str, Mapping[str, Any]] = attrs.field(factory=dict)  # the arguments that hooks have changed, by id

    async def run(self, calls: Sequence[ToolUseBlock], allowed: int, refusal: str = BUDGET_USED) -> None:
        """Run the first `allowed` calls; the others get `refusal` as their results."""
        self._calls, self._places = calls, {call.id: place for place, call in enumerate(calls)}
        for call in calls:
            if call.id not in self.left:
                self.emit(ToolCallRequested(call.id, call.name, call.args))
        for number, call in enumerate(calls, 1):
            left = self.left.get(call.id)
            given = None if left is None or left.result is not None else self._given_wait(call, self.before + number)
            if left is not None and not (left.state == "waiting" and given is None):
                self._go_on(call, left, given, self.before + number)
            elif number > allowed:
                self._refuse(call, refusal)
            else:
                self._start(call, self.before + number)
        await self._run_all(self.steps)

    async def _run_all(self, steps: Steps | None) -> None:
        """Run the calls; with steps to keep, each once it is kept that it begins.

        Raises WarrenError if the store refuses: then the calls that ran are cut off.
        """
        if steps is not None and (self._starts or self._changed_waits):
            asked = tuple(self._changed_waits.values())
            await self._keep_states(steps)
            for wait in asked:
                if wait.reason == "approval":
                    self.asker().ask(wait)
            # A commit is no checkpoint, and a call that is cancelled would run up to its first one.
            await trio.lowlevel.checkpoint_if_cancelled()
        self._start_detached()
        if not self._starts:
            return
        async with trio.open_nursery() as nursery:
            self._scope, self._nursery = nursery.cancel_scope, nursery
            if steps is not None and len(self._starts) + len(self._held) > 1:
                nursery.start_soon(self._keep_results, steps)
            for start in self._starts:
                nursery.start_soon(start)
        self._nursery = None
        if steps is not None and steps.refusal is not None:
            raise steps.refusal

    async def _keep_results(self, steps: Steps) -> None:
        """Keep the results that come while other calls run; those that come together are one commit."""
        news = self._news = trio.Event()
        while self._runs:  # the last result ends it
            await news.wait()
            news = self._news = trio.Event()
            if self._runs:  # else the messages of the step, or the turn that suspends, have them all
                await self._keep_changed(steps)

    @property
    def _runs(self) -> bool:
        return len(self.results) + len(self._held) < len(self._calls)

    async def _keep_changed(self, steps: Steps) -> None:
        try:
            async with self._keeping:
                await self._keep_states(steps)
        except WarrenError:  # `run` raises it, once no call runs any more
            if self._scope is not None:
                self._scope.cancel()
        await trio.lowlevel.checkpoint_if_cancelled()

    async def _keep_states(self, steps: Steps) -> None:
        """Commit the calls and the waits that have changed; what is not stored stays noted."""
        calls, waits = tuple(self._changed.values()), tuple(self._changed_waits.values())
        if calls or waits:
            await steps.keep(calls, waits)
        for each in calls:
            if self._changed.get(each.call_id) is each:  # else it has changed again meanwhile
                del self._changed[each.call_id]
        for wait in waits:
            if self._changed_waits.get(wait.key) is wait:
                del self._changed_waits[wait.key]
        self._start_detached()  # no checkpoint lies between the commit and this: whoever finds it has to know it began

    @property
    def _keeping(self) -> trio.Lock:
        """Held by the one of several calls that commits, made for the first of them."""
        self._lock = self._lock or trio.Lock()
        return self._lock

    def unkept(self) -> tuple[Sequence[KeptCall], Sequence[Wait]]:
        """Return the calls and waits to be stored as the turn leaves memory; a call that has not run begins anew."""
        for call in self._calls:
            left = self.left.get(call.id)
            begun = call.id in self._started and not (left is not None and left.state == "begun")
            if begun and call.id not in self._ran and call.id not in self.results:
                # One with a wait of its own would wait in vain for what its tool has not begun.
                self._note(call, "begun" if call.id in self._awaiting else "waiting")
                if (allowed := self._allowed.get(call.id)) is not None:  # nobody is to be asked again
                    self._changed_waits[allowed.key] = allowed
        return tuple(self._changed.values()), tuple(self._changed_waits.values())

    @property
    def suspends(self) -> bool:
        """Whether all calls without a result wait without a task."""
        return bool(self._held)

    @property
    def waiting(self) -> Mapping[str, Wait]:
        """The waits of the calls that wait without a task, or whose work goes on elsewhere, by the ids of the calls."""
        elsewhere = {call_id: each.wait for call_id, each in self._elsewhere.items()}
        return elsewhere | {call_id: each.wait for call_id, each in self._held.items()}

    def wakes(self, now: datetime) -> datetime | None:
        """Return the time at which a call that waits goes on without an answer: now, if one has come; None if none."""
        if any(self.waits.get(each.wait.key, each.wait).state != "waiting" for each in self._held.values()):
            return now
        return min([each.looks or each.wait.until for each in self._held.values()], default=None)

    @property
    def elsewhere(self) -> Sequence[_Elsewhere]:
        """The calls without a result whose work goes on elsewhere."""
        return tuple(self._elsewhere.values())

    def answered(self, wait: Wait) -> None:
        """Go on with a call whose wait has its answer in the store, if other calls still run; else the turn does."""
        held = self._held.get(wait.call_id)
        if held is None:
            return
        if held.wait.key == wait.key:  # it may be the answer to an earlier question of the call
            self._resume(wait.call_id, partial(held.go_on, wait))
        elif wait.reason == "outside" and self.awaits_result(wait):  # nobody need decide whether the call runs again
            call = next(each for each in self._calls if each.id == wait.call_id)
            self._since(call, wait)
            self._resume(wait.call_id, partial(self._give, call, wait))

    def _resume(self, call_id: str, run: Callable[[], Awaitable[None]]) -> bool:
        """Go on with a call that waits without a task, if other calls still run; return whether they do."""
        nursery = self._open_nursery
        if nursery is None:
            return False
        del self._held[call_id]
        nursery.start_soon(run)
        for each, held in list(self._held.items()):
            if held.looks is not None:  # the turn suspends no more
                del self._held[each]
                nursery.start_soon(held.go_on, held.wait)
        return True

    @property
    def _open_nursery(self) -> trio.Nursery | None:
        """The nursery of the calls while one runs: after the last one it takes no more, before its body goes on."""
        return self._nursery if self._nursery is not None and self._nursery.child_tasks else None

    def _note(self, call: ToolUseBlock, state: CallState, result: ToolResult | None = None) -> None:
        """Note the state of a call, to be kept."""
        self._changed[call.id] = KeptCall(call.id, self._places[call.id], state, result)
        if result is not None:
            self._tell()

    def _tell(self) -> None:
        """Note that one more call has a result, or waits."""
        if self._news is not None:
            self._news.set()
        if self._all_wait:
            for scope in self._resting.values():
                scope.cancel()

    @property
    def _all_wait(self) -> bool:
        """Whether the turn may suspend: no call without a result does more than to wait."""
        return len(self.results) + len(self._held) + len(self._resting) == len(self._calls)

    @property
    def unfinished(self) -> set[str]:
        """The ids of the calls without a result."""
        return {call.id for call in self._calls} - self.results.keys()

    def close(self, reason: str) -> None:
        """Give every call without a result an error result, so that the transcript stays valid."""
        self._within.clear()
        for call in self._calls:
            if call.id not in self.results:
                awaiting = self._awaiting.get(call.id)
                self._gives_up(awaiting)
                if (wait := self.waits.get(("child", call.id), awaiting)) is not None:
                    self.spends(wait.expense)
                self._finish(call, reason, is_error=True)

    def ordered(self) -> tuple[ToolResult, ...]:
        """Return the results in call order."""
        return tuple(self.results[call.id] for call in self._calls)

    def _start(self, call: ToolUseBlock, number: int) -> None:
        if call.id in self.cut:
            return self._refuse(call, self.cut[call.id])
        tool = self._tool_of(call) or self._absent(call)
        if tool is None:
            known = ", ".join(sorted(self.tools)) or "none"
            return self._refuse(call, f"there is no tool {call.name!r}; there are: {known}")
        if call.invalid_args is not None:
            given = call.invalid_args
            return self._refuse(call, f"the arguments are not a JSON object: {problem_of(given)}: {given[:2000]}")
        approvals = self.approvals
        if approvals is not None and (reason := approvals.denied(tool)) is not None:
            return self._refuse(call, reason)
        try:
            bound = tool.bind(call.args)
        except ToolArgumentsError as exc:
            return self._refuse(call, failure_text(exc))
        asks = approvals is not None and approvals.holds_up(call, tool)
        if self.hooks is not None and ("approval", call.id) not in self.waits:
            self._starts.append(self._entry(call, tool, number, asks=asks))
            if self.steps is not None:  # so that a process that goes on with the turn knows the call
                self._note(call, "waiting")
        elif asks or ("approval", call.id) in self.waits:  # asked before, whatever the gates say now
            self._ask(call, tool, bound, number)
        elif self._detaches(tool):
            self._detach(call, tool, bound, number)
        else:
            self._begin(call, tool, number)
            self._starts.append(partial(self._run_one, call, tool, bound, number))
        return None

    def _go_on(self, call: ToolUseBlock, left: KeptCall, given: Wait | None, number: int) -> None:
        """Take the result of a call that an earlier process has left, or go on with it as its tool says.

        It may wait for a result, which may be `given` by now.
        """
        tool = self._tool_of(call)
        if left.result is not None:
            self.results[call.id] = left.result
            return
        if given is not None and is_elsewhere(given):
            self._since(call, given)
            self._ran.add(call.id)
            self._starts.append(partial(self._follow, _Elsewhere(call, number, tool, given), given))
            return
        returned = given is not None and given.reason == "client" and not self._is_over(given)
        returned = returned and tool is not None and tool.of_client
        if given is not None and not returned and (left.state == "waiting" or given.state == "answered"):
            self._since(call, given)
            if given.state != "answered":
                self._hold(given, partial(self._give, call))
            elif self._is_within(call):
                self._take(call, given)
            else:
                self._starts.append(partial(self._give, call, given))
            return
        reports = tool is not None and tool.restart == "report" and not returned
        if tool is None or reports or (self.approvals is not None and self.approvals.denied(tool)):
            self._refuse(call, MAY_HAVE_RUN)
            return
        try:
            bound = tool.bind(call.args)
        except ToolArgumentsError:  # the tool is another one now
            self._refuse(call, MAY_HAVE_RUN)
            return
        if tool.restart == "ask":
            self._ask(call, tool, bound, number, may_have_run=True)
        elif self.hooks is not None:
            self._starts.append(self._entry(call, tool, number, again=True))
        else:
            self._begin(call, tool, number)
            self._starts.append(partial(self._run_one, call, tool, bound, number))

    def _since(self, call: ToolUseBlock, wait: Wait) -> None:
        """Count the time of a call from the beginning of its wait."""
        self._started[call.id] = trio.current_time() - (self._now() - wait.since).total_seconds()

    def _tool_of(self, call: ToolUseBlock) -> Tool | None:
        return named(self.tools, call.name)

    def _ask(
        self, call: ToolUseBlock, tool: Tool, bound: dict[str, Any], number: int, *, may_have_run: bool = False
    ) -> None:
        """Let a call wait for approval: as a row of the store, or else in a task."""
        approvals = self.asker() if self.approvals is None else self.approvals
        wait = self.waits.get(("approval", call.id))
        if wait is None or wait.may_have_run != may_have_run:
            wait = approvals.wait_for(call, tool, may_have_run=may_have_run)
            wait = wait.changed(data=OF_CLIENT) if tool.of_client else wait
        elif self.tells and wait.state == "waiting":
            approvals.ask(wait)
        run: Callable[[], Awaitable[None]] = partial(self._begin_and_run, call, tool, bound, number)
        if self.hooks is not None:
            run = self._entry(call, tool, number, again=may_have_run)
        if self.steps is None:
            self._starts.append(partial(self._ask_in_memory, approvals, call, run, wait))
            return
        if not may_have_run:
            self._note(call, "waiting")
        self._hold(wait, partial(self._decided, approvals, call, run))

    async def _ask_in_memory(
        self, approvals: Approvals, call: ToolUseBlock, run: Callable[[], Awaitable[None]], wait: Wait
    ) -> None:
        wait = await approvals.decided(wait)
        if (reason := refusal_of(wait)) is not None:
            return self._refuse(call, reason)
        self._allowed[call.id] = wait
        return await run()

    async def _decided(
        self, approvals: Approvals, call: ToolUseBlock, run: Callable[[], Awaitable[None]], wait: Wait
    ) -> None:
        """Run a call whose wait is over, or refuse it."""
        wait = await self._with_answer(wait)
        approvals.resolved(wait)
        if (reason := refusal_of(wait)) is not None:
            return self._refuse(call, reason)
        self._allowed[call.id] = wait
        return await run()

    def _settle(self, call: ToolUseBlock) -> None:
        """Let the approval of a call be over with the next commit, as the call begins or is refused."""
        if self.steps is not None and (allowed := self._allowed.get(call.id)) is not None:
            self._changed_waits[allowed.key] = allowed.changed(state="settled")

    async def _begin_and_run(self, call: ToolUseBlock, tool: Tool, bound: dict[str, Any], number: int) -> None:
        self._settle(call)
        detaches = self._detaches(tool)
        if detaches:
            self._detach(call, tool, bound, number)
        else:
            self._begin(call, tool, number)
        if self.steps is not None:
            await self._keep_changed(self.steps)
        if detaches:  # it runs in the background now, or was refused
            return self._start_detached()
        return await self._run_one(call, tool, bound, number)

    # -- hooks

    def _entry(
        self, call: ToolUseBlock, tool: Tool, number: int, *, asks: bool = False, again: bool = False
    ) -> Callable[[], Awaitable[None]]:
        """Return what lets a call go the way through its hooks, and run behind them."""
        return partial(self._hooked, call, tool, partial(self._admit, call, tool, number, asks=asks), again=again)

    def _is_within(self, call: ToolUseBlock) -> bool:
        """Return whether a call has no hooks, or is within them."""
        return self.hooks is None or call.id in self._within

    async def _hooked(
        self,
        call: ToolUseBlock,
        tool: Tool | None,
        inner: Callable[[Passage[HookedCall, ToolOutcome], HookedCall], Awaitable[None]],
        *,
        again: bool | None = None,
    ) -> None:
        """Do what is next to be done with a call within its hooks, and record what they make of its result.

        Args:
            call: the call.
            tool: its tool; None if the server of that is away.
            inner: what is to be done.
            again: whether the tool may have run in an earlier process; None if it has, and its result is there.
        """
        chain, tool = self.hooks, tool or self._tool_of(call)
        assert chain is not None  # noqa: S101 - for the type checker
        self._within[call.id] = within = _Within()
        allowed = self._allowed.get(call.id)

        async def go(hooked: HookedCall) -> ToolOutcome:
            await inner(way, hooked)
            if (done := within.done) is not None:
                return ToolOutcome(done.content, done.is_error, done.files, call.id in self._started)
            if (told := self.results.get(call.id)) is None:
                await way.halt(None)
            return ToolOutcome(told.content, told.is_error)  # it runs in the background

        def denied(reason: str, begun: bool) -> ToolOutcome:  # noqa: FBT001 - it is called by place
            ran = begun or again is None
            what = "the result is withheld" if ran else "not run again" if again else "not run"
            return ToolOutcome(f"{what}: {reason}", is_error=True, ran=ran)

        same = lambda hooked: allowed is not None and hooked.args == allowed.args  # noqa: E731
        way = chain.call(go, denied, given=None if allowed is None else same)
        value = HookedCall(
            **chain.place,
            name=call.name,
            args=call.args,
            category="mcp" if tool is None else tool.category,
            key=self._place(call, self.before + 1 + self._places[call.id]).key,
            call_id=call.id,
            given=None if allowed is None else allowed.decision,
            runs_again=again is not False,
        )
        end: ToolOutcome | None = None
        try:
            end = await way.run(value)
        except HaltedError:
            pass  # it waits, or is about to
        finally:
            if self._within.get(call.id) is within:
                del self._within[call.id]
        if end is not None:
            self._end(call, end, within.done)
        elif tool is not None and isinstance(way.halted, tuple):
            await self._ask_within(call, tool, inner, *way.halted, again=bool(again))

    async def _admit(
        self,
        call: ToolUseBlock,
        tool: Tool,
        number: int,
        way: Passage[HookedCall, ToolOutcome],
        hooked: HookedCall,
        *,
        asks: bool,
    ) -> None:
        """Run a call that its hooks have let pass, unless it has to wait for approval."""
        args, allowed = hooked.args, self._allowed.get(call.id)
        if asks and not (way.allowed or way.passed):
            if allowed is None:
                await way.halt((Asked(), args))
            elif allowed.args != args:
                return self._refuse(call, f"not run: {OTHER_ARGUMENTS}")
        try:
            bound = tool.bind(args)
        except ToolArgumentsError as exc:
            return self._refuse(call, f"not run: a hook has changed the arguments: {failure_text(exc)}")
        if args != call.args:
            self._args[call.id] = args
        if call.id in self._started:  # its client was away, and has come back
            return await self._run_one(call, tool, bound, number)
        return await self._begin_and_run(call, tool, bound, number)

    async def _ask_within(
        self,
        call: ToolUseBlock,
        tool: Tool,
        inner: Callable[[Passage[HookedCall, ToolOutcome], HookedCall], Awaitable[None]],
        asked: Asked,
        args: Mapping[str, Any],
        *,
        again: bool,
    ) -> None:
        """Let a call wait for approval that a hook has asked for, or a gate behind the hooks."""
        approvals, steps = self.asker() if self.approvals is None else self.approvals, self.steps
        wait = approvals.wait_for(attrs.evolve(call, args=args), tool, may_have_run=again)
        data = {**(OF_CLIENT if tool.of_client else {}), **({"question": asked.question} if asked.question else {})}
        wait = wait.changed(data=data or None)
        run = partial(self._hooked, call, tool, inner, again=again)
        if steps is None:
            await self._ask_in_memory(approvals, call, run, wait)
            return
        if not again:
            self._note(call, "waiting")
        self._changed_waits[wait.key] = wait
        await self._keep_changed(steps)
        approvals.ask(wait)
        decided, there = partial(self._decided, approvals, call, run), self.waits.get(wait.key, wait)
        if self._is_over(there):
            await decided(there)
            return
        self._let_wait(_Held(there, decided))
        self._tell()

    def _end(self, call: ToolUseBlock, end: ToolOutcome, done: _Done | None) -> None:
        """Record what the hooks have made of the result of a call."""
        if call.id in self.results:  # it runs in the background
            return None
        content = encodable(bounded(str(end.text)))
        if (started := self._started.get(call.id)) is None:
            self._settle(call)
            return self._refuse(call, content, is_error=end.is_error)
        seconds = trio.current_time() - started if done is None else done.seconds
        timed_out = done is not None and done.timed_out and content == done.content
        return self._record(call, content, end.files, seconds, is_error=end.is_error, timed_out=timed_out)

    def _hold(self, wait: Wait, go_on: Callable[[Wait], Awaitable[None]]) -> None:
        """Let a call wait without a task, unless its wait is over already."""
        # One that is new is told of in any case, however short its time is.
        if wait.key in self.waits and self._is_over(wait):
            self._starts.append(partial(go_on, wait))
            return
        if wait.key not in self.waits or self.waits[wait.key].since != wait.since:
            self._changed_waits[wait.key] = wait
        self._let_wait(_Held(wait, go_on))

    def _let_wait(self, held: _Held) -> None:
        """Let a call wait without a task; with its answer it enters its hooks anew."""
        self._held[held.wait.call_id] = held
        self._within.pop(held.wait.call_id, None)

    def _is_over(self, wait: Wait) -> bool:
        return wait.state == "answered" or wait.until <= self._now() + SLACK

    def _given_wait(self, call: ToolUseBlock, number: int) -> Wait | None:
        """Return what an earlier process has left a call waiting for, if that is a result."""
        found = next((each for reason in GIVEN if (each := self.waits.get((reason, call.id))) is not None), None)
        return found if found is not None and self._may_get(call, number, found) else None

    def _may_get(self, call: ToolUseBlock, number: int, wait: Wait) -> bool:
        """Return whether a wait is one of a call, and not of an earlier one with the same id and other tokens."""
        key, data = self._place(call, number).key, wait.data or {}
        if "handle" in data or wait.reason in ("child", "peer"):
            return data.get("key") == key
        if wait.reason != "outside":
            return True
        return wait.data == {"token": CompletionToken(self.tenant, self.session_id, call.id, key, 0).mark}

    def awaits_result(self, wait: Wait) -> bool:
        """Return whether the call of a wait has no result, and may get the one that the wait will have."""
        found = next((each for each in enumerate(self._calls, self.before + 1) if each[1].id == wait.call_id), None)
        return found is not None and found[1].id in self.unfinished and self._may_get(found[1], found[0], wait)

    def find_request(self, request_id: str) -> Wait | None:
        """Return the wait of a call without a result for the response to a request; None if there is none."""
        open_ = (wait for call_id, wait in self._awaiting.items() if call_id not in self.results)
        return next((wait for wait in open_ if wait.request == request_id), None)

    def _place(self, call: ToolUseBlock, number: int) -> ToolContext:
        """Return a call as its tool sees it, always the same one: it takes time to make its key."""
        shown = self._shown.get(call.id)
        if shown is None:
            shown = ToolContext(
                self.session_id,
                self.turn,
                number,
                call.id,
                call.name,
                call.args,
                self.prompt_key,
                self.tokens,
                tenant=self.tenant,
                owner=self.owner,
            )
            self._shown[call.id] = shown
        return shown

    async def wait_for_result(self, call: ToolUseBlock, wait: Wait) -> None:
        """Let a running call wait for a result that somebody else gives: as a row of the store, or else in its task.

        In a durable turn the call's task is to end then.
        """
        steps = self.steps
        there = self.waits.get(wait.key) if steps is not None else self.asker().find(lambda each: each.key == wait.key)
        if there is not None and (there.state, there.data) == ("answered", wait.data):  # before the tool said "later"
            await self._give(call, there)
        elif steps is None:
            await self._give(call, await self.asker().answer_to(wait, wait.left(self._now())))
        else:
            if there is None or there.data != wait.data:
                self._note(call, "waiting")
                self._changed_waits[wait.key] = wait
                await self._keep_changed(steps)
            there = self.waits.get(wait.key, wait)
            if self._is_over(there):  # it was answered while it was stored
                await self._give(call, there)
                return
            self._let_wait(_Held(there, partial(self._give, call)))
            self._tell()

    async def _give(self, call: ToolUseBlock, wait: Wait) -> None:
        """Give a call the result that it has waited for, within its hooks."""
        if self._is_within(call):
            self._take(call, await self._with_answer(wait))
            return

        async def take(_way: object, _call: HookedCall) -> None:
            self._take(call, await self._with_answer(wait))

        await self._hooked(call, None, take)

    def _take(self, call: ToolUseBlock, wait: Wait) -> None:
        """Give a call the result of its wait, which is over."""
        result = wait.result
        if result is None:
            self._gives_up(wait)
            if wait.child is not None:
                self.gives_up(wait.child)
            self.spends(wait.expense)  # until the child has ended
            text = NO_RESPONSE if wait.request else NO_RESULT if wait.child is None else NO_END.format(wait.child)
            self._finish(call, text, is_error=True, timed_out=True)
        else:
            self.spends(wait.expense)
            if wait.reason == "peer":
                self.hears((wait.data or {}).get("hops", 0))
            self._finish(call, result.content, result.attachments, is_error=result.is_error)

    def _gives_up(self, wait: Wait | None) -> None:
        """Note that nobody waits for a child any more; the store finds those of waits that it has."""
        if self.steps is None and wait is not None and wait.child is not None:
            self.given_up.append(wait.child)

    async def _await(self, call: ToolUseBlock, wait: Wait) -> None:
        """Let a call whose tool has run wait: as the row of the store that it has, or else in its task."""
        if self.steps is None:
            given = self.asker().find(lambda each: each.same_as(wait))  # it came at once
            if given is None or given.state != "answered":
                given = await self.asker().answer_to(wait, wait.left(self._now()))
            await self._give(call, given)
            return
        await self.steps.answers()
        there = self.waits.get(wait.key, wait)
        self._note(call, "waiting")
        if self._is_over(there):
            await self._give(call, there)
            return
        self._let_wait(_Held(there, partial(self._give, call)))
        self._tell()

    async def _with_answer(self, wait: Wait) -> Wait:
        """Return a wait that is over, with the answer if one was on its way to the store as its time ended.

        No checkpoint lies between this and the result of the call, which later answers find.
        """
        if self.steps is None or wait.state == "answered":
            return wait
        await self.steps.answers()
        return self.waits.get(wait.key, wait)

    def _detaches(self, tool: Tool) -> bool:
        return tool.background and self.background is not None

    def _detach(
        self, call: ToolUseBlock, tool: Tool, bound: Mapping[str, Any], number: int, handed: Handed | None = None
    ) -> None:
        """Let a call run in the background, once that is kept, and tell the model so."""
        background = self.background
        assert background is not None  # noqa: S101 - for the type checker
        if (reason := background.refusal(len(self._detached))) is not None:
            return self._refuse(call, reason)
        handle, told = (None, "") if handed is None else (handed.handle, f"{handed.told}\n")
        wait = background.wait_for(call, tool, self.origin(call.id, number), handle)
        if self.steps is not None:
            self._changed_waits[wait.key] = wait
        self._detached[wait.key] = partial(background.start, wait, tool, bound)
        if handed is not None:
            self._within.pop(call.id, None)  # its hooks cannot change what the model is told
            return self._finish(call, told + RUNS_ON.format(wait.wait_id), is_error=False)
        self.results[call.id] = result = ToolResult(call.id, RUNS_ON.format(wait.wait_id))
        if self.steps is not None:
            self._note(call, "done", result)
        self.emit(ToolExecutionStarted(call.id, call.name))
        self.emit(ToolExecutionCompleted(call.id, call.name, result.content, is_error=False, duration_ms=0))
        self.emit(ToolResultReceived(call.id, call.name, is_error=False))
        return None

    def _start_detached(self) -> None:
        """Begin the calls for the background that are stored, or that are in a turn without steps."""
        for key in [key for key in self._detached if key not in self._changed_waits]:
            self._detached.pop(key)()

    def _now(self) -> datetime:
        return self.asker().now()

    def _absent(self, call: ToolUseBlock) -> Tool | None:
        """Return a stand-in for the tool of a client that is away, if the call has waited for approval; else None."""
        asked = self.waits.get(("approval", call.id))
        if asked is None or not of_client(asked):
            return None
        return Tool(ToolSpec(call.name, "", {}), _away, is_async=True, category=asked.category, of_client=True)

    def offered(self, tools: Mapping[str, Tool]) -> bool:
        """Have a client that has come back run the calls that wait for it, if other calls still run.

        Return whether no call is left that is to have one of the tools later.
        """
        whole = True
        for number, call in enumerate(self._calls, self.before + 1):
            held, tool = self._held.get(call.id), tools.get(call.name)
            if tool is None or call.id in self.results:
                continue
            runs = held is not None and held.wait.reason == "client"
            run: Callable[[], Awaitable[None]] = partial(self._run_one, call, tool, dict(call.args), number)
            if self.hooks is not None:
                run = self._entry(call, tool, number, again=True)
            whole &= runs and self._resume(call.id, run)
        return whole

    def _begin(self, call: ToolUseBlock, tool: Tool, number: int) -> None:
        self._started[call.id] = trio.current_time()
        child = None
        if tool.awaits is not None and (wait := self._awaited(call, tool, number)) is not None:
            self._awaiting[call.id], child = wait, wait.child
            if self.steps is not None and wait.key not in self.waits:
                self._changed_waits[wait.key] = wait
        if self.steps is not None and tool.of_client:  # whoever goes on asks the client again, or its next connection
            self._note(call, "waiting")
            if ("client", call.id) not in self.waits:
                wait = attrs.evolve(self.asker().wait_for(call, tool), reason="client")
                self._changed_waits[wait.key] = wait
        elif self.steps is not None:
            self._note(call, "begun")
        self.emit(ToolExecutionStarted(call.id, call.name, child, self._args.get(call.id) if self._args else None))

    def _awaited(self, call: ToolUseBlock, tool: Tool, number: int) -> Wait | None:
        """Return what a call waits for once its tool has run; None if it does not wait."""
        assert tool.awaits is not None  # noqa: S101 - for the type checker
        awaited = tool.awaits(self._place(call, number))
        if awaited is None:
            return None
        there, now = self.waits.get((awaited.reason, call.id)), self._now()
        if there is not None and self._may_get(call, number, there):
            return there
        until = NEVER if awaited.seconds is None else now + timedelta(seconds=min(awaited.seconds, YEAR))
        times = now, until
        return Wait(call.id, awaited.reason, "waiting", call.name, call.args, tool.category, *times, data=awaited.data)

    async def _run_one(self, call: ToolUseBlock, tool: Tool, bound: dict[str, Any], number: int) -> None:
        run = partial(self._run_direct, call, tool, bound, number)
        if not self.around:
            return await run()
        try:
            await surrounded([partial(each, call) for each in self.around], run)
        except WarrenError as exc:  # of a wrapper: nothing of the call was done
            self._finish(call, exc.message, is_error=True)

    async def _run_direct(  # noqa: PLR0911 - one for each kind of outcome
        self, call: ToolUseBlock, tool: Tool, bound: dict[str, Any], number: int
    ) -> None:
        if call.id in self.left and (given := await self._given_meanwhile(call, number)) is not None:
            return await self._give(call, given)
        limit = tool.timeout or self.timeout

        def invoke() -> Awaitable[object]:
            self._ran.add(call.id)
            return self.runner.invoke(tool, bound)

        ran = await self._outcome(call, tool, number, invoke, limit)
        if ran.gone and (there := self.waits.get(("client", call.id))) is not None:
            return await self.wait_for_result(call, there)
        if isinstance(ran.later, ToolOutput) and ran.later.token is not None:
            try:
                later = self._later(call, number, tool, ran.later.token)
            except ToolError as exc:
                return self._finish(call, failure_text(exc), is_error=True)
            return await self.wait_for_result(call, later)
        if isinstance(ran.later, Handed):
            return await self._handed(call, tool, number, ran.later)
        if (awaiting := self._awaiting.get(call.id)) is not None and not ran.is_error:
            return await self._await(call, awaiting)
        if ran.timed_out:
            self.emit(ToolExecutionTimedOut(call.id, call.name, round(limit * 1000)))
        self._gives_up(awaiting)
        return self._finish(call, ran.content, ran.files, is_error=ran.is_error, timed_out=ran.timed_out)

    async def _given_meanwhile(self, call: ToolUseBlock, number: int) -> Wait | None:
        """Return the wait of a call that is about to run again if it has got its result meanwhile; else None."""
        if self.steps is not None:
            await self.steps.answers()
        given = self._given_wait(call, number)
        return given if given is not None and given.state == "answered" else None

    async def _outcome(
        self,
        call: ToolUseBlock,
        tool: Tool,
        number: int,
        work: Callable[[], Awaitable[object]],
        limit: float,
        *,
        asked: int = 0,
    ) -> Ran:
        """Do the work of a call within so many seconds; it may ask questions beside those that it has `asked`."""
        asks = partial(self._question, call, tool, itertools.count(asked + 1))
        return await self.runner.run(work, self._place(call, number), asks, limit)

    async def _handed(self, call: ToolUseBlock, tool: Tool, number: int, handed: Handed) -> None:
        """Let a call whose work goes on elsewhere run in the background if the model was told so, else wait for it."""
        steps, background = self.steps, self.background
        if handed.told is not None and background is not None and background.refusal(len(self._detached)) is None:
            self._detach(call, tool, {}, number, handed)
            if steps is not None:
                await self._keep_changed(steps)
            return self._start_detached()
        since = self._now()
        times = since, since + timedelta(seconds=tool.timeout or self.timeout)
        data = {"handle": handed.handle, "key": self._place(call, number).key}
        wait = Wait(call.id, "outside", "waiting", call.name, call.args, tool.category, *times, data=data)
        if steps is not None:  # from here on a process that goes on with the call does not make it again
            self._changed_waits[wait.key] = wait
            await self._keep_changed(steps)
        return await self._follow(_Elsewhere(call, number, tool, wait), wait)

    async def _follow(self, work: _Elsewhere, wait: Wait) -> None:
        """Look at the work of a call that goes on elsewhere until it has its result, or the turn suspends."""
        call, tool, data, work.wait = work.call, work.tool, wait.data or {}, wait
        if tool is not None and tool.remote is None:
            return self._finish(call, NO_RESULT, is_error=True)
        self._elsewhere[call.id] = work
        self._asked[call.id] = max(data.get("asked", 0), self._asked.get(call.id, 0))
        now, at, looks = self._now(), trio.current_time(), data.get("looks")
        began, ends = at - (now - wait.since).total_seconds(), at + (wait.until - now).total_seconds()
        seconds = 0.0 if looks is None else (datetime.fromisoformat(looks) - now).total_seconds()
        while await self._rest(work, seconds):
            ran = await self._look(work, max(ends - trio.current_time(), NEAR))  # also a last time at the end
            at, later = trio.current_time(), ran.later
            if not isinstance(later, Unfinished):
                return await self._found(work, ran)
            if at >= ends:
                return await self._found(work, Ran("", is_error=True, timed_out=True))
            await self._keep_asked(work)
            seconds = min(pause_after(later, at - began), ends - at)
        return None

    async def _look(self, work: _Elsewhere, limit: float) -> Ran:
        """Look at the work of a call, for so many seconds at most; its questions are asked meanwhile."""
        call, tool, data = work.call, work.tool, work.wait.data or {}
        if tool is None or tool.remote is None:  # its server is away, and may come back
            return Ran("", later=Unfinished(RAREST))
        look = partial(tool.remote.look, data["handle"])
        return await self._outcome(call, tool, work.number, look, limit, asked=self._asked[call.id])

    async def _found(self, work: _Elsewhere, ran: Ran) -> None:
        """Give a call the result of its work, within its hooks."""
        if self._is_within(work.call):
            return self._found_now(work, ran)

        async def found(_way: object, _call: HookedCall) -> None:
            self._found_now(work, ran)

        return await self._hooked(work.call, work.tool, found)

    def _found_now(self, work: _Elsewhere, ran: Ran) -> None:
        call, wait, content = work.call, work.wait, ran.content
        del self._elsewhere[call.id]
        if ran.timed_out:
            limit = (wait.until - wait.since).total_seconds()
            content = f"timed out after {limit:g} s"
            work.cancel()
            self.emit(ToolExecutionTimedOut(call.id, call.name, round(limit * 1000)))
        self._finish(call, content, ran.files, is_error=ran.is_error, timed_out=ran.timed_out)

    async def _keep_asked(self, work: _Elsewhere) -> None:
        """Keep how many questions of a call have their answers: a later one with the same words is another one."""
        data, asked = work.wait.data or {}, self._asked[work.call.id]
        if self.steps is not None and asked > data.get("asked", 0):
            work.wait = wait = work.wait.changed(data={**data, "asked": asked})
            self._changed_waits[wait.key] = wait
            await self._keep_changed(self.steps)

    async def _rest(self, work: _Elsewhere, seconds: float) -> bool:
        """Wait for the next look at a call; return False if the turn suspends until then, as all calls wait."""
        if self.steps is None or seconds <= NEAR:
            await trio.sleep(max(seconds, 0.0))
            return True
        call_id, all_wait = work.call.id, False
        at, looks = trio.current_time() + seconds, self._now() + timedelta(seconds=seconds)
        while not all_wait:
            self._resting[call_id] = scope = trio.CancelScope()
            try:
                with scope:
                    self._tell()
                    await trio.sleep_until(at)
                if not scope.cancel_called:
                    return True
                all_wait = self._all_wait  # else a call has got its answer meanwhile, and runs
            finally:
                del self._resting[call_id]
        wait = work.wait.changed(data={**(work.wait.data or {}), "looks": looks.isoformat()})
        self._changed_waits[wait.key] = wait
        self._let_wait(_Held(wait, partial(self._follow, work), looks))
        self._tell()
        return False

    def _later(self, call: ToolUseBlock, number: int, tool: Tool, token: str) -> Wait:
        """Return the wait for the result that comes under a token. Raises ToolError if that is not one of this call."""
        try:
            claims = CompletionToken.read(token)
        except FieldValueError as exc:
            raise ToolError(f"ToolOutput.later: the token {exc.problem}") from exc
        times, data = (self._now(), claims.expires), {"token": claims.mark}
        wait = Wait(call.id, "outside", "waiting", call.name, call.args, tool.category, *times, data=data)
        if not self._may_get(call, number, wait):
            raise ToolError("ToolOutput.later: the token is one of another call")
        return wait

    async def _question(
        self, call: ToolUseBlock, tool: Tool, numbers: Iterator[int], question: Mapping[str, Any]
    ) -> Decision | None:
        """Ask a question of a running call: one of a server only if calls of its tools wait for approval."""
        approvals = self.asker()
        if tool.category == "mcp" and not approvals.asks(tool):
            return None
        for number in numbers:
            there = self.waits.get(("question", f"{call.id}.{number}"))
            if there is None or there.args == question:  # else an answer to the other one would count for this one
                break
        asked = ToolUseBlock(f"{call.id}.{number}", call.name, question)
        wait = approvals.wait_for(asked, tool, question_of=call.id)
        there = self.waits.get(wait.key)
        if there is not None and there.decision is not None:
            decision: Decision | None = there.decision  # the call runs again, and asks what it has asked before
        else:
            if self.steps is not None:
                self._changed_waits[wait.key] = wait
                await self._keep_changed(self.steps)
            decision = (await approvals.decided(wait)).decision
        if decision is not None:
            self._asked[call.id] = max(number, self._asked.get(call.id, 0))
        return decision

    def _refuse(self, call: ToolUseBlock, reason: str, *, is_error: bool = True) -> None:
        if self._within and (within := self._within.get(call.id)) is not None:
            within.done = _Done(reason, (), is_error, timed_out=False, seconds=0.0)
            return
        self.counters.tool(self._tool_of(call), "refused")
        self.results[call.id] = result = ToolResult(call.id, reason, is_error)
        if self.steps is not None:
            self._note(call, "done", result)
        self.emit(ToolResultReceived(call.id, call.name, is_error, result=reason))

    def _finish(
        self,
        call: ToolUseBlock,
        content: str,
        files: tuple[Attachment, ...] = (),
        *,
        is_error: bool,
        timed_out: bool = False,
    ) -> None:
        started = self._started.get(call.id)
        if started is None:
            return self._refuse(call, content)
        content = encodable(bounded(content))
        seconds = trio.current_time() - started
        if self._within and (within := self._within.get(call.id)) is not None:
            within.done = _Done(content, files, is_error, timed_out, seconds)
            return None
        return self._record(call, content, files, seconds, is_error=is_error, timed_out=timed_out)

    def _record(
        self,
        call: ToolUseBlock,
        content: str,
        files: tuple[Attachment, ...],
        seconds: float,
        *,
        is_error: bool,
        timed_out: bool,
    ) -> None:
        duration = round(seconds * 1000)
        outcome = "timed_out" if timed_out else FAILED if is_error else COMPLETED
        self.counters.tool(self._tool_of(call), outcome)
        self.counters.tool_seconds.add(seconds)
        self.results[call.id] = result = ToolResult(call.id, content, is_error, files)
        if self.steps is not None:
            self._note(call, "done", result)
        self.emit(ToolExecutionCompleted(call.id, call.name, content, is_error, duration, files))
        self.emit(ToolResultReceived(call.id, call.name, is_error))


def of_client(wait: Wait) -> bool:
    """Return whether a call waits for a client to run it, or will once it is approved."""
    return wait.reason == "client" or (wait.reason == "approval" and bool((wait.data or {}).get("of_client")))


async def _away(**_arguments: Any) -> str:
    await trio.lowlevel.checkpoint()
    raise ClientGoneError("the client that runs this tool is gone")
