"""The tool calls of a session that run in the background, beyond their turn, until their results are inputs."""

import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import attrs
import trio

from warren.actors.events.fence import Guard
from warren.actors.observe.counters import COMPLETED, FAILED
from warren.actors.protocol import GiveAnswer
from warren.actors.session.answers import answers
from warren.actors.session.conversation import Conversation
from warren.actors.session.host import SessionHost
from warren.actors.session.planning import Planner
from warren.actors.shared import Shared
from warren.actors.turn.approvals import Approvals, RunningTime
from warren.actors.turn.background import Origin
from warren.actors.turn.left import MAY_HAVE_RUN, named
from warren.actors.turn.running import Ran, ToolRunner, result_of
from warren.actors.turn.toolbox import NO_RESULT
from warren.base.backoff import Backoff
from warren.base.errors import LeasedError, SessionNotFoundError, StoreError, WarrenError
from warren.base.fields import FieldValueError, encodable
from warren.base.ids import id_under
from warren.base.values import define
from warren.conversation import codec
from warren.conversation.categories import Gates
from warren.conversation.completion import CompletionToken
from warren.conversation.inputs import Input
from warren.conversation.messages import ToolResult, ToolUseBlock
from warren.conversation.waits import NEVER, Wait
from warren.models.tools import Handed, Remote, Tool, ToolArgumentsError, ToolContext, ToolOutput, bounded
from warren.reports.audit import AuditEntry
from warren.storage.operations import Lease

AGAIN: Final = Backoff(first=0.2, longest=30.0, jitter=0.2)
"""The waits between attempts to store a result, which go on as long as the process has the session."""
ASKED: Final = "asked"
"""The member of `Wait.data` that has the question whether a call runs again, with its answer."""
logger: Final = logging.getLogger("warren.background")
Errand = Callable[[Callable[[], Awaitable[Callable[[], None]]]], None]
"""Runs a change of the store in its turn, and then the function that it returns."""


@define(eq=False)
class _Running:
    """A call that runs.

    Attributes:
        wait: its wait.
        lease: the lease of the session under which its result enters.
        guard: lets it begin only if no other process has had the session since its wait was stored, or loaded.
        scope: cancels it.
        given: set once somebody has given its result from outside.
        question: cancelled then: nobody is asked any more whether the call runs again.
        known: whether it is known that no process before this one has let the result enter.
        over: whether it is decided which result enters: a later one from outside is refused.
        remote: has its result, with the handle, if the tool has handed its work over.
    """

    wait: Wait
    lease: Lease
    guard: Guard | None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    given: trio.Event = attrs.field(factory=trio.Event)
    question: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    known: bool = True
    over: bool = False
    remote: tuple[Remote, Mapping[str, Any]] | None = None


@define(eq=False)
class BackgroundCalls:
    """The calls of one session that run in the background. The session stays in memory as long as there are any.

    Each is a task of the session's actor, and, if the turn that makes it keeps its steps, a `Wait` in the store from
    before its beginning until its result is an input there. The input has a key that follows from the key of the call:
    so it enters once, however often the call is run and its result is stored. A call whose wait is in the store and
    that runs nowhere was left by a process that ended: `take_up` goes on with it as its tool says.

    Attributes:
        session_id: the session.
        shared: the resources of the runtime.
        planner: has the tools of the session, and the runner for them.
        conversation: has the waits that the store has.
        host: takes the results, and keeps the session in memory.
        approvals: calls that may have run, and that somebody decides on before they are run again.
    """

    session_id: str
    shared: Shared
    planner: Planner
    conversation: Conversation
    host: SessionHost
    approvals: Approvals = attrs.field(init=False)
    _running: dict[str, _Running] = attrs.field(factory=dict)
    _tasks: trio.Nursery | None = None
    _errand: Errand | None = None

    def __attrs_post_init__(self) -> None:
        timeout, changed = self.shared.config.limits.approval_timeout, partial(self.host.changed, self.session_id)
        now = self.shared.storage.now
        # Outside of turns there are no events of it: the views of the session show who is asked.
        self.approvals = Approvals(Gates(), timeout, lambda _event: None, RunningTime(math.inf), changed, now)

    @property
    def waits(self) -> tuple[Wait, ...]:
        """The calls that run, the oldest first."""
        return tuple(running.wait for running in self._running.values())

    def begin(self, tasks: trio.Nursery, errand: Errand) -> None:
        """Run calls in a nursery; `errand` changes the store after all changes of the session that are under way."""
        self._tasks, self._errand = tasks, errand

    def leave(self) -> None:
        """Cancel all calls, as the session leaves memory, and refer to it no more."""
        self.end()
        self._tasks = self._errand = None

    # -- for turns

    def refusal(self, more: int) -> str | None:
        most = self.shared.config.limits.background_calls
        if len(self._running) + more < most:
            return None
        return f"not run: {most} calls of this session run in the background already; wait for the result of one"

    def wait_for(self, call: ToolUseBlock, tool: Tool, origin: Origin, handle: Mapping[str, Any] | None = None) -> Wait:
        since = self.shared.storage.now()
        until = NEVER if tool.timeout is None else since + timedelta(seconds=tool.timeout)
        # Models number the calls of each turn anew: another turn may have one of the same id that still runs.
        taken = call.id in self._running or ("background", call.id) in self.conversation.waits
        wait_id = f"{call.id}.{origin.turn}.{origin.number}" if taken else call.id
        data: dict[str, Any] = json.loads(codec.encode(origin)) | {"token": self._mark(origin, call, wait_id)}
        if handle is not None:
            data["handle"] = handle
        return Wait(wait_id, "background", "waiting", call.name, call.args, tool.category, since, until, data=data)

    def start(self, wait: Wait, tool: Tool, bound: Mapping[str, Any]) -> None:
        self._start(wait, partial(self._run, wait, tool, bound))

    # -- for the session

    def take_up(self) -> bool:
        """Go on with the calls that the store has and that run nowhere; return whether there is one."""
        left = [
            wait
            for wait in self.conversation.waits.values()
            if wait.reason == "background" and wait.wait_id not in self._running
        ]
        for wait in left:
            self._start(wait, partial(self._go_on, wait), known=False)
        return bool(left)

    def doubt(self) -> None:
        """Note that another process may have had the session meanwhile, and let results of these calls enter."""
        for running in self._running.values():
            running.known, running.lease = False, self.conversation.held

    @property
    def asked(self) -> tuple[Wait, ...]:
        """The calls that may have run, and that somebody decides on."""
        return self.approvals.waiting

    def find(self, message: GiveAnswer) -> Wait | None:
        """Return the call that somebody decides on, or has, and that a message is meant for; None if there is none."""
        return self.approvals.find(partial(answers, message=message))

    async def decide(self, asked: Wait, audit: Sequence[AuditEntry]) -> None:
        """Store the decision on a call that may have run, and go on with the call. Raises WarrenError."""
        wait = self._newest(self._running[asked.wait_id])
        await self.conversation.store_answer(wait.changed(data={**(wait.data or {}), ASKED: _plain(asked)}), audit)
        self.approvals.answer(asked)

    def awaited(self, message: GiveAnswer) -> Wait | None:
        """Return the wait of a call that runs, and that a result from outside is meant for; None if there is none."""
        waits = map(self._newest, self._running.values())
        return None if message.begins is None else next((wait for wait in waits if answers(wait, message)), None)

    async def look(self, wait: Wait, lease: Lease | None = None) -> None:
        """Find out whether a process before this one has let the result of a call enter. Raises StoreError.

        With the cause "lease_lost" if another process has taken a lease over: that one goes on with the call.
        """
        running = self._running.get(wait.wait_id)
        if running is not None and wait.reason == "background" and not running.known:
            entered = await self.host.has_entered(self.session_id, self._input(wait, Ran("")), lease)
            running.known, running.over = True, running.over or entered

    def has_given_up(self, wait: Wait) -> bool:
        """Return whether the result of a call enters, or has entered, without the one that its wait may get."""
        running = self._running.get(wait.wait_id)
        if running is None:  # it may have entered while the store was asked for the wait
            return wait.key not in self.conversation.waits
        return running.over

    def given(self, wait: Wait) -> None:
        """Take the result of a call, which somebody has given from outside."""
        running = self._running.get(wait.wait_id)
        if running is not None and wait.reason == "background":
            running.wait = wait
            running.given.set()
            running.question.cancel()

    def end(self, *, for_good: bool = False) -> None:
        """Cancel all calls. What is in the store stays there; unless it is `for_good`, the next process goes on."""
        for running in self._running.values():
            running.scope.cancel()
            if for_good and running.remote is not None:
                remote, handle = running.remote
                remote.cancel(handle)

    # -- one call

    def _start(self, wait: Wait, run: Callable[[], Awaitable[None]], *, known: bool = True) -> None:
        if not self._running:
            self.host.holds(self.session_id)
        self._running[wait.wait_id] = running = _Running(
            wait, self.conversation.held, self.conversation.guard(), known=known
        )
        if wait.state == "answered":
            running.given.set()
        if self._tasks is not None:
            self._tasks.start_soon(self._live, running, run)
        self.host.changed(self.session_id)

    async def _live(self, running: _Running, run: Callable[[], Awaitable[None]]) -> None:
        wait = running.wait
        try:
            with running.scope:
                await run()
        finally:
            del self._running[wait.wait_id]
            # If it is not settled, the process that loads the session next goes on with it.
            self.conversation.waits.pop(wait.key, None)
            if not self._running:
                self.host.lets_go(self.session_id)
            self.host.changed(self.session_id)

    async def _run(self, wait: Wait, tool: Tool, bound: Mapping[str, Any]) -> None:
        """Run a call, or wait for the result of one whose work was handed over, and let the result enter."""
        running, counters = self._running[wait.wait_id], self.shared.counters
        data, limit = dict(wait.data or {}), tool.timeout
        began, ran = trio.current_time(), Ran("")
        while True:
            if not await self._proved(running):
                return
            later = data.get("later") or ("handle" not in data and await self._given_early(running))
            if running.guard is None or running.guard.open:  # that may have taken long
                break
        runner = self.planner.runner(self.conversation.known, running.guard)
        if "handle" not in data and not later:
            ran = await runner.run(partial(runner.invoke, tool, bound), self._call(wait), None, limit)
            if isinstance(ran.later, Handed):
                data["handle"] = ran.later.handle
                await self._keep(running, wait.until, {"handle": ran.later.handle})
            elif isinstance(ran.later, ToolOutput):
                if (until := self._until(data, ran.later.token or "")) is None:
                    ran = Ran("ToolOutput.later: the token is none of this call", is_error=True)
                else:
                    later = True
                    await self._keep(running, until, {"later": True})
        if "handle" in data:
            ran = await self._remote_result(running, runner, tool, data["handle"])
        elif later:
            ran = await self._given_result(running)
        ran = await self._decide(running, ran)
        counters.tool(tool, "timed_out" if ran.timed_out else FAILED if ran.is_error else COMPLETED)
        counters.tool_seconds.add(trio.current_time() - began)
        await self._deliver(wait, ran)

    async def _proved(self, running: _Running) -> bool:
        """Return True once it is proved that no other process has had the session since the call was started here.

        Else return False: the process that has the session goes on with the call. If that is this one again, it has.
        """
        guard, wait = running.guard, running.wait
        while guard is not None:
            try:
                await guard.wait()
            except StoreError as exc:
                if exc.cause != "lease_lost":  # nobody waits for the call as long as for a turn
                    guard.refusal = None
                    continue
                if self.conversation.current:
                    running.guard = self.conversation.guard()
                    running.known, running.lease = False, self.conversation.held
                    await self._go_on(self._newest(running))
                else:
                    logger.warning(
                        "session %s: the background call %s did not begin: %s", self.session_id, wait.wait_id, exc
                    )
                return False
            break
        return True

    async def _given_early(self, running: _Running) -> bool:
        """Return once tools can make tokens, with whether the call has its result by then and need not run again.

        A process that takes a call up may not have read the secret as yet.
        """
        for seconds in AGAIN:
            try:
                await self.shared.completions.key()
            except StoreError:
                await trio.sleep(seconds)
            else:
                break
        await self.conversation.answers()
        return self._newest(running).state == "answered"

    async def _decide(self, running: _Running, ran: Ran) -> Ran:
        """Return the result that enters: the one from outside if its sender was told that it was taken.

        No checkpoint lies between the last answer and this: what comes later is refused.
        """
        await self.conversation.answers()
        running.over, wait = True, self._newest(running)
        return ran if wait.result is None else _given(wait.result)

    def _newest(self, running: _Running) -> Wait:
        """Return the wait of a call as it is stored: an answer may be in the store and not be applied as yet."""
        return self.conversation.waits.get(running.wait.key, running.wait)

    def _call(self, wait: Wait) -> ToolContext:
        known, origin = self.conversation.known, _origin_of(wait)
        tokens = self.shared.completions.maker(known.tenant)
        seen = (origin.turn, origin.number, origin.call_id, wait.name, wait.args, origin.prompt_key)
        tokens = tokens and attrs.evolve(tokens, wait_id=wait.wait_id)
        return ToolContext(self.session_id, *seen, tokens, tenant=known.tenant, owner=known.owner)

    def _mark(self, origin: Origin, call: ToolUseBlock, wait_id: str) -> str:
        """Return what the completion tokens of a call have in common."""
        seen = (origin.turn, origin.number, origin.call_id, call.name, call.args, origin.prompt_key)
        key = ToolContext(self.session_id, *seen).key
        return CompletionToken(self.conversation.known.tenant, self.session_id, wait_id, key, 0).mark

    def _until(self, data: Mapping[str, Any], token: str) -> datetime | None:
        """Return the time at which a token of a call expires; None if it is none of the call."""
        try:
            claims = CompletionToken.read(token)
        except FieldValueError:
            return None
        return claims.expires if claims.mark == data["token"] else None

    async def _keep(self, running: _Running, until: datetime, more: Mapping[str, Any]) -> bool:
        """Store what a process needs that goes on with a call, after the answers to it that are on their way.

        Return False if the store refuses: then the tool says what becomes of the call, if the process ends.
        """
        kept, refused = trio.Event(), False

        async def keep() -> Callable[[], None]:
            nonlocal refused
            there = self.conversation.waits.get(running.wait.key)
            wait = there or running.wait  # a result that has just been stored is not applied as yet
            changed = wait.changed(until=until, data={**(wait.data or {}), **more})
            if there is not None:
                try:
                    await self.conversation.store_answer(changed)
                except WarrenError:
                    refused = True
            running.wait = changed
            return kept.set

        if self._errand is not None:
            self._errand(keep)
            await kept.wait()
        return not refused

    async def _remote_result(self, running: _Running, runner: ToolRunner, tool: Tool, handle: Mapping[str, Any]) -> Ran:
        """Wait for the result of work that was handed over."""
        remote, wait = tool.remote, running.wait
        if remote is None:
            return Ran(
                f"not known: the tool {wait.name} has handed the work over, and is another one now", is_error=True
            )
        running.remote = remote, handle
        now = self.shared.storage.now()
        work = partial(result_of, remote, handle, (now - wait.since).total_seconds())
        ran = await runner.run(work, self._call(wait), None, wait.left(now))
        running.remote = None
        if ran.timed_out:
            remote.cancel(handle)
        return ran

    async def _given_result(self, running: _Running) -> Ran:
        """Wait for the result that somebody gives from outside."""
        with trio.move_on_after(running.wait.left(self.shared.storage.now())):
            await running.given.wait()
        result = running.wait.result
        return Ran(NO_RESULT, is_error=True, timed_out=True) if result is None else _given(result)

    async def _go_on(self, wait: Wait) -> None:
        """Go on with a call that may have run in a process that has ended."""
        running = self._running[wait.wait_id]
        if not await self._looked(running, wait):
            return
        if running.over:  # the process ended between the two
            await self._settle(wait)
            return
        tools = await self.planner.tools_of(self.conversation.known)
        tool = named(tools, wait.name)
        await self.conversation.answers()
        wait = running.wait = self._newest(running)
        data = wait.data or {}
        if wait.state == "answered" or data.get("later"):
            await self._deliver(wait, await self._decide(running, await self._given_result(running)))
            return
        if tool is not None and "handle" in data:
            await self._run(wait, tool, {})
            return
        if tool is not None and tool.restart != "report":
            try:
                bound = tool.bind(wait.args)
            except ToolArgumentsError:  # the tool is another one now
                pass
            else:
                if tool.restart == "replay" or await self._allowed(running, tool):
                    await self._run(running.wait, tool, bound)
                    return
        await self._report(running, tool)

    async def _looked(self, running: _Running, wait: Wait) -> bool:
        """Look whether the result of a call has entered; return False if another process goes on with the call.

        The fence cannot tell that: a clock that is put forward ends leases that this process has proved.
        """
        for seconds in AGAIN:
            lease = running.lease if wait.key in self.conversation.waits else None  # else its turn keeps no steps
            try:
                await self.look(wait, lease)
            except StoreError as exc:
                if exc.cause == "lease_lost" and lease == running.lease:
                    return False
                await trio.sleep(seconds)
            else:
                break
        return True

    async def _report(self, running: _Running, tool: Tool | None) -> None:
        """Let the model know that a call may have run, unless it has its result from outside."""
        ran = await self._decide(running, Ran(MAY_HAVE_RUN, is_error=True))
        if self._newest(running).result is None:
            self.shared.counters.tool(tool, "refused")
        await self._deliver(running.wait, ran)

    async def _allowed(self, running: _Running, tool: Tool) -> bool:
        """Ask whether a call is run again that may have run.

        The question and its answer stay through restarts, until the call runs again.
        """
        asked = _question_in(running.wait)
        if asked is None:
            call = ToolUseBlock(running.wait.wait_id, running.wait.name, running.wait.args)
            asked = self.approvals.wait_for(call, tool, may_have_run=True)
            await self._keep(running, running.wait.until, {ASKED: _plain(asked)})
        if asked.state == "waiting":
            with running.question:
                asked = await self.approvals.answer_to(asked, asked.left(self.shared.storage.now()))
            await self.conversation.answers()  # one may be in the store that came as the time ended
            asked = _question_in(self._newest(running)) or asked
        else:
            self.approvals.answer(asked)  # whoever sends it again hears so
        if asked.decision is None or not asked.decision.allow:
            return False
        for seconds in AGAIN:  # a process that goes on with this run asks anew
            if await self._keep(running, running.wait.until, {ASKED: None}):
                break
            await trio.sleep(seconds)
        return True

    def _input(self, wait: Wait, ran: Ran) -> Input:
        origin, key = _origin_of(wait), f"background:{self._call(wait).key}"
        content = encodable(bounded(ran.content))
        how = "has failed" if ran.is_error else "has ended"
        text = f"The call {wait.wait_id} of the tool {wait.name}, which ran in the background, {how}:\n{content}"
        return Input(
            id_under(key),
            "context",
            text,
            self.shared.storage.now(),
            key=key,
            source=f"{wait.name} (background call {wait.wait_id})",
            options=origin.options,
            attachments=ran.files,
            payer=origin.payer,
            hops=origin.hops,
        )

    async def _deliver(self, wait: Wait, ran: Ran) -> None:
        """Let a result enter the session, however long the store refuses it, and settle the wait.

        A process that has taken the session over goes on with the call, and may be running it again by now.
        """
        input_, running = self._input(wait, ran), self._running[wait.wait_id]
        for seconds in AGAIN:
            lease = running.lease if wait.key in self.conversation.waits else None  # else its turn keeps no steps
            try:
                await self.host.enter(self.session_id, input_, lease)
                break
            except SessionNotFoundError:  # it was archived or deleted: nobody wants the result
                return
            except WarrenError as exc:
                lost = exc.cause == "lease_lost"
                logger.warning(
                    "session %s: the result of the background call %s %s: %s",
                    *(self.session_id, wait.wait_id, "does not enter" if lost else "cannot enter as yet", exc.message),
                )
                if lost:
                    return
            await trio.sleep(seconds)
        await self._settle(wait)

    async def _settle(self, wait: Wait) -> None:
        """Note that a result has entered. If that cannot be stored, the next process finds the input by its key."""
        for seconds in AGAIN:
            if wait.key not in self.conversation.waits:  # its turn keeps no steps
                return
            try:
                over = self.conversation.waits[wait.key].changed(state="settled")
                await self.conversation.store_answer(over)
            except (SessionNotFoundError, LeasedError):
                return
            except WarrenError as exc:
                if exc.cause == "lease_lost":
                    return
                await trio.sleep(seconds)
            else:
                self.conversation.waits.pop(wait.key, None)
                return


def _question_in(wait: Wait) -> Wait | None:
    """Return the question whether a call runs again, as it is stored with the call; None if nobody is asked."""
    plain = (wait.data or {}).get(ASKED)
    asked: Wait | None = None if plain is None else codec.decode_stored(Wait, codec.encode(plain))
    return asked


def _plain(asked: Wait) -> Any:
    return json.loads(codec.encode(asked))


def _given(result: ToolResult) -> Ran:
    return Ran(result.content, result.is_error, result.attachments)


def _origin_of(wait: Wait) -> Origin:
    origin: Origin = codec.decode_stored(Origin, codec.encode(wait.data))
    return origin
