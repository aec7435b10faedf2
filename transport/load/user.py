"""One user of a run: a client with a session of its own, which follows the plan and keeps a ledger."""

from contextlib import AsyncExitStack

import attrs
import trio

from warren.base.errors import ErrorCode
from warren.base.values import define
from warren.transport.http.shutdown import Shutdown
from warren.transport.load.follower import FollowerCheck
from warren.transport.load.pace import TurnPace
from warren.transport.load.plan import Conduct, LoadPlan
from warren.transport.load.recorder import Recorder
from warren.transport.load.stream import ENDS, StreamCheck
from warren.transport.load.target import LOST, Seen, Target, TargetConnection, TargetError, tried_again
from warren.transport.load.verify import Ledger, SentTurn


@define(eq=False)
class EventRecorder:
    """Checks the events of a client, and wakes the tasks that wait for one."""

    check: StreamCheck
    recorder: Recorder
    began: float | None = None
    spoken: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)
    lost: bool = False

    def __call__(self, seen: Seen) -> None:
        """Check an event; the end of the connection also ends the wait for the end of a turn."""
        if seen.kind == LOST:
            self.lost = not self.ended.is_set()
            self.ended.set()
            return
        self.recorder.events += 1
        self.check.take(seen)
        if seen.kind == "tool_result_received":
            self.recorder.counts["tool calls"] += 1
        if self.began is not None:
            self.recorder.first.add(trio.current_time() - self.began)
            self.began = None
        if self.check.speaking:
            self.spoken.set()
        if seen.kind in ENDS:
            self.ended.set()

    def listen(self) -> None:
        """Reset the state for the next turn."""
        self.began, self.spoken, self.ended = trio.current_time(), trio.Event(), trio.Event()
        self.check.speaking = self.lost = False


@define(eq=False)
class User:
    """A client and its session, from the first turn to the last.

    Attributes:
        target: the target.
        plan: the plan.
        number: the number of the user.
        recorder: records the measurements.
        shutdown: after its begin no turn begins.
        ledger: the ledger of the session; None without a session.
        turned_away: the error if it got no session.
    """

    target: Target
    plan: LoadPlan
    number: int
    recorder: Recorder
    shutdown: Shutdown
    ledger: Ledger | None = None
    turned_away: TargetError | None = None
    _events: EventRecorder = attrs.field(init=False)
    _line: TargetConnection = attrs.field(init=False)
    _watcher: FollowerCheck | None = None
    _stack: AsyncExitStack = attrs.field(factory=AsyncExitStack)
    _watching: AsyncExitStack = attrs.field(factory=AsyncExitStack)

    @property
    def _known(self) -> Ledger:
        assert self.ledger is not None  # noqa: S101 - the user has arrived
        return self.ledger

    async def arrive(self) -> None:
        """Connect and create the session; an error is noted in `turned_away` and in the recorder."""
        if self.shutdown.begun:
            return
        self._events = EventRecorder(StreamCheck(""), self.recorder)
        asked = trio.current_time()
        try:
            with trio.fail_after(self.plan.turn_limit):
                await tried_again(self._create_session, self.recorder.counts)
        except (TargetError, trio.TooSlowError) as exc:
            refused = exc if isinstance(exc, TargetError) else TargetError(LOST, "no answer in time")
            self.turned_away = refused
            self.recorder.errors[refused.code] += 1
        else:
            self.recorder.setup.add(trio.current_time() - asked)

    async def run(self, pace: TurnPace) -> None:
        """Run the turns of the session, one after the other, and disconnect; connect first if there is no session yet.

        Errors go into the recorder and the ledger.
        """
        async with self._watching, self._stack:
            with trio.CancelScope() as waiting, self.shutdown.cancels(waiting):
                await pace.join()
            if self.ledger is None and self.turned_away is None:
                await self.arrive()
            if self.ledger is not None:
                await self._take_turns(pace)

    async def _take_turns(self, pace: TurnPace) -> None:
        for conduct in self.plan.conducts(self.number):
            meant: float | None = None
            with trio.CancelScope() as waiting, self.shutdown.cancels(waiting):
                meant = await pace.next(conduct.think)
            if meant is None:
                await self._rest()
                return
            if not await self._live(conduct, meant):
                return

    async def recovery_turn(self) -> None:
        """Run the recovery turn, which has to be answered: the target has no other load."""
        if self.ledger is None:
            return
        self.recorder = self._events.recorder = Recorder()  # a recovery turn is no part of the load
        async with AsyncExitStack() as self._watching, AsyncExitStack() as self._stack:
            try:
                await tried_again(self._connect_again, self.recorder.counts)
            except TargetError as exc:
                self._unconnected("recovery", "no connection after the load", exc)
                return
            with trio.move_on_after(self.plan.turn_limit):
                await self._turn(self.plan.recovery_turn(self.number), trio.current_time())
            await self._rest()
        if self.ledger.sent[-1].code == LOST:
            self.ledger.unchecked = "the recovery turn after the load lost its connection"
        elif self.ledger.sent[-1].outcome != "answered":
            self.ledger.wrong("recovery", f"the recovery turn after the load ended as {self.ledger.sent[-1]}")

    async def _connect_again(self) -> None:
        await self._connect()
        await self._watch()

    def _unconnected(self, rule: str, detail: str, error: TargetError) -> None:
        """Note that there was no way back: a violation, unless the connections were dropped."""
        if error.dropped:
            self._known.unchecked = f"{detail}: {error}"
        else:
            self._known.wrong(rule, f"{detail}: {error}")

    async def _connect(self) -> None:
        """Connect; an earlier connection is dropped."""
        await self._stack.aclose()
        self._line = await self._stack.enter_async_context(self.target.line(self._events))

    async def _create_session(self) -> None:
        await self._connect()
        session_id = await self._line.create(self.plan.model)
        self._events.check.session_id = session_id
        if self.plan.is_followed(self.number):
            self._watcher = FollowerCheck(StreamCheck(session_id))
            await self._watch()
            self.recorder.counts["followed"] += 1
        watched = None if self._watcher is None else self._watcher.check
        self.ledger = Ledger(session_id, self._events.check, watched=watched)

    async def _watch(self) -> None:
        """Reconnect the follower of the session, if it has one, behind its last event."""
        if self._watcher is not None:
            await self._watching.aclose()
            line = await self._watching.enter_async_context(self.target.line(self._watcher))
            await line.follow(self._watcher.check.session_id, self._watcher.check.last_seq)

    async def _live(self, conduct: Conduct, meant: float) -> bool:
        """Run a turn with its special event; return whether the session can go on."""
        self.recorder.running += 1
        try:
            with trio.move_on_after(self.plan.turn_limit) as limit:
                await self._turn(conduct, meant)
                if conduct.compact:
                    await self._compact()
        finally:
            self.recorder.running -= 1
        if limit.cancelled_caught:
            self._known.wrong("limit", f"{conduct.prompt!r} was not over after {self.plan.turn_limit:g} s")
            self.recorder.errors["TURN_LIMIT"] += 1
        return not limit.cancelled_caught and not self._known.lost

    async def _turn(self, conduct: Conduct, meant: float) -> None:
        """Start a turn, disturb it as planned, and wait for its end."""
        self._events.listen()
        sent = SentTurn(conduct.prompt)
        self._known.sent.append(sent)
        if not (conduct.interrupt or conduct.busy or conduct.disconnect):
            await self._ask(sent, conduct, meant)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._disturb, conduct, nursery.cancel_scope)
            await self._ask(sent, conduct, meant)
            nursery.cancel_scope.cancel()
        if sent.outcome == "unknown" and sent.code != LOST:
            await self._come_back(sent)

    async def _ask(self, sent: SentTurn, conduct: Conduct, meant: float) -> None:
        began = trio.current_time()
        told = len(self._events.check.turns)
        try:
            sent.text = await self._line.turn(self._known.session_id, sent.prompt)
        except TargetError as exc:
            sent.take(exc)
            if exc.cancelled:
                self.recorder.counts["interrupted"] += 1
            else:
                self.recorder.refused(exc.code, began)
        else:
            sent.outcome = "answered"
            self.recorder.answered(meant, began)
            self._check_reply(sent, conduct, told)

    def _check_reply(self, sent: SentTurn, conduct: Conduct, told: int) -> None:
        """Check that the answer comes after the turn's last event, and belongs to its prompt."""
        check = self._events.check
        if not check.truncated and all(turn.prompt != sent.prompt for turn in check.turns[told:]):
            self._known.wrong("reply", f"{sent.prompt!r} was answered before its last event")
        if self.target.tagged and not sent.text.startswith(f"{conduct.tag} "):
            self._known.wrong("answer", f"{sent.prompt!r} was answered with {sent.text!r}")

    async def _disturb(self, conduct: Conduct, turn: trio.CancelScope) -> None:
        """Disturb a turn after its first text, as planned."""
        await self._events.spoken.wait()
        if conduct.busy:
            await self._collide(conduct)
        if conduct.interrupt:
            await self._interrupt()
        if conduct.disconnect and self._events.check.running:
            turn.cancel()

    async def _collide(self, conduct: Conduct) -> None:
        """Start a second turn. If the first one is over by then, it is a turn like any other."""
        prompt = f"{conduct.tag} and another thing"
        second = SentTurn(prompt)
        began = trio.current_time()
        try:
            # Shielded: the end of the first turn cancels this task, and the ledger needs the outcome of the second.
            with trio.move_on_after(self.plan.turn_limit, shield=True):
                second.text = await self._line.turn(self._known.session_id, prompt)
                second.outcome = "answered"
        except TargetError as exc:
            second.take(exc)
        if second.code == ErrorCode.SESSION_BUSY:
            self.recorder.counts["busy"] += 1
            self.recorder.refusal.add(trio.current_time() - began)
        self._known.sent.append(second)

    async def _interrupt(self) -> None:
        try:
            await self._line.interrupt(self._known.session_id)
        except TargetError as exc:
            if exc.code == ErrorCode.SESSION_NOT_RUNNING:
                self.recorder.counts["interrupts too late"] += 1
            else:
                self.recorder.errors[exc.code] += 1

    async def _come_back(self, sent: SentTurn) -> None:
        """Drop the connection, open another one, and get the rest of the turn."""
        await self._stack.aclose()
        self.recorder.counts["disconnects"] += 1
        try:
            await tried_again(self._hear_the_rest, self.recorder.counts)
        except TargetError as exc:
            self._unconnected("resume", f"{sent.prompt!r}: could not follow it after a disconnect", exc)
            sent.code = LOST

    async def _hear_the_rest(self) -> None:
        """Follow the turn to its end on a new connection, and leave that for another one."""
        if self._events.lost:
            self._events.ended, self._events.lost = trio.Event(), False
        await self._connect()
        await self._line.follow(self._known.session_id, self._events.check.last_seq)
        await self._events.ended.wait()
        if self._events.lost:
            raise TargetError(LOST, "the connection ended again")
        await self._connect()

    async def _compact(self) -> None:
        try:
            await self._line.compact(self._known.session_id)
        except TargetError as exc:
            if exc.cause == "compaction_failed":
                self.recorder.counts["compactions with nothing to shorten"] += 1
            else:
                self.recorder.errors[exc.code] += 1
        else:
            self.recorder.counts["compactions"] += 1

    async def _rest(self) -> None:
        """Wait until the follower of the session has its last event."""
        if self._watcher is not None:
            with trio.move_on_after(self.plan.turn_limit):
                await self._watcher.reach(self._events.check.last_seq)
