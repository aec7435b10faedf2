"""The machine of a session alone: its table as a whole, and random lives that a loop like the actor's leads with it."""

from collections import deque
from typing import Any, Final

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from warren.actors.session.machine import ADMITTED, TABLE, Effect, Machine, Move, Signal, State, Verdict
from warren.base.errors import SessionBusyError, SessionNotFoundError, SessionNotRunningError, WarrenError

REFUSALS: Final[dict[Verdict, tuple[type[WarrenError], str | None]]] = {
    Verdict.BUSY: (SessionBusyError, None),
    Verdict.NOT_RUNNING: (SessionNotRunningError, None),
    Verdict.RETIRED: (SessionNotFoundError, "retired"),
}
REQUESTS: Final = (Signal.INTERRUPT, Signal.RETIRE, Signal.RETIRE_NOW, Signal.EVICT)
"""The signals that requests give in any state of a live session."""
TURN_RUNS: Final = frozenset({State.RUNNING, State.INTERRUPTING, State.DRAINING})


def targets(state: State) -> set[State]:
    """Return the states that follow a state."""
    return {move.target for move in TABLE[state].values() if isinstance(move, Move)}


def reached(start: State) -> set[State]:
    """Return the states that a session in a state can come to."""
    found, rest = {start}, [start]
    while rest:
        new = targets(rest.pop()) - found
        rest.extend(new)
        found |= new
    return found


def test_every_state_is_reached() -> None:
    """From the first state all others can be reached, and from each of them the end."""
    assert set(TABLE) == set(State)
    assert reached(State.IDLE) == set(State)
    assert all(State.CLOSED in reached(state) for state in State)
    assert targets(State.CLOSED) == set()


@pytest.mark.parametrize("state", [state for state in State if state is not State.CLOSED])
def test_requests_have_an_answer_in_every_state(state: State) -> None:
    """Whatever is asked of a live session, the table moves, refuses or postpones it."""
    assert {Signal.CLAIM, *REQUESTS} <= set(TABLE[state])
    # While a turn runs the conversation is loaded: no request needs the store.
    assert (Signal.NEED in TABLE[state]) is (state not in TURN_RUNS)


@pytest.mark.parametrize("state", State)
def test_a_turn_is_admitted_once(state: State) -> None:
    """A claim is refused from the admission of a turn to its end, and leads to no effect in the sender's task."""
    rule = TABLE[state][Signal.CLAIM]
    if isinstance(rule, Move):
        assert (rule, state in ADMITTED) == (Move(State.CLAIMED), False)
    else:
        assert rule is (Verdict.BUSY if state in ADMITTED - {State.DRAINING} else Verdict.RETIRED)


@pytest.mark.parametrize("state", State)
def test_a_turn_is_reported_once(state: State) -> None:
    """Exactly the moves that end the admission of a turn report it to the scheduler."""
    for move in TABLE[state].values():
        if isinstance(move, Move):
            assert (Effect.FREE in move.effects) is (state in ADMITTED and move.target not in ADMITTED)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("signal", Signal)
def test_every_entry(state: State, signal: Signal) -> None:
    """A move changes the state and gives its effects; every other entry of the table leaves the state as it is."""
    machine: Machine[str] = Machine("s", state)
    match TABLE[state].get(signal):
        case Move(target, effects):
            assert machine.step(signal) == effects
            assert machine.state is target
            return
        case Verdict.POSTPONE:
            assert machine.step(signal, "request") == ()
            assert machine.postponed == ["request"]
        case None:
            with pytest.raises(RuntimeError, match=f"{signal.name} in state {state.name}"):
                machine.step(signal)
        case Verdict() as verdict:
            refusal, cause = REFUSALS[verdict]
            with pytest.raises(refusal) as caught:
                machine.step(signal)
            assert (type(caught.value), caught.value.session_id, caught.value.cause) == (refusal, "s", cause)
    assert machine.state is state


@attrs.define(eq=False)
class Request:
    """A request, which has to be answered exactly once."""

    signal: Signal
    answers: int = 0

    def answer(self) -> None:
        """Count an answer."""
        self.answers += 1
        assert self.answers == 1, f"{self.signal.name} is answered twice"


@attrs.define(eq=False)
class Turn:
    """The running turn: whether it was interrupted, and those who want it to be."""

    cancelled: bool = False
    interrupters: list[Request] = attrs.field(factory=list)


class Life(RuleBasedStateMachine):
    """A session whose requests, errands and turns come and end in any order, led by a loop like the actor's."""

    def __init__(self) -> None:
        super().__init__()
        self.live()

    def live(self) -> None:
        """Begin the life of an actor."""
        self.machine: Machine[Request] = Machine("s")
        self.requests: list[Request] = []
        self.mail: deque[Request] = deque()
        self.errands: deque[Effect] = deque()
        self.results: deque[tuple[Signal, bool]] = deque()
        self.turn: Turn | None = None
        self.ended = self.pending = self.archived = self.unplannable = False
        self.current = True
        self.inputs = self.admitted = 0

    # -- what others do

    @rule(signal=st.sampled_from([*REQUESTS, *[Signal.INTERRUPT] * 4, *[Signal.NEED] * 2]), sleeps=st.booleans())
    def ask(self, signal: Signal, sleeps: bool) -> None:  # noqa: FBT001 - a rule
        """Send a request, to a loop that sleeps and handles it at once, or to one that has not come to it yet."""
        self._send(Request(signal))
        if sleeps:
            self.work()

    @rule(signal=st.sampled_from([Signal.START, Signal.NEXT]), sleeps=st.booleans())
    def claim(self, signal: Signal, sleeps: bool) -> None:  # noqa: FBT001 - a rule
        """Send the request for a turn, which is admitted or refused at once, to a loop that sleeps or not."""
        request = Request(signal)
        state = self.machine.state
        try:
            assert self.machine.step(Signal.CLAIM) == ()
        except WarrenError:
            assert self.machine.state is state
            return
        self.admitted += 1
        self._send(request)
        if sleeps:
            self.work()

    @rule()
    def say(self) -> None:
        """Put an input into the inbox, and let the session know."""
        self.inputs += 1
        self._send(Request(Signal.NEED))

    @rule()
    def expire_lease(self) -> None:
        """Let the lease lapse."""
        self.current = False

    @rule(fact=st.sampled_from(["pending", "pending", "unplannable", "unplannable", "archived"]))
    def change(self, fact: str) -> None:
        """Let a commit fail, a model be unknown, another process archive the session; or let that be over."""
        setattr(self, fact, not getattr(self, fact))

    # -- what the session's tasks do

    @precondition(lambda self: self.errands and self.machine.state is not State.CLOSED)
    @rule(luck=st.integers(0, 5))
    def errand_ends(self, luck: int) -> None:
        """End the errand that is under way, mostly well; but few sessions retire, as nothing comes after it."""
        self._end_errand(well=luck == 0 if self.errands[0] is Effect.RETIRE else luck > 2)

    @precondition(lambda self: self.turn is not None and not self.ended)
    @rule()
    def turn_ends(self) -> None:
        """End the turn."""
        self.ended = True

    @rule()
    def work(self) -> None:
        """Let the loop run until it has to wait."""
        for _ in range(1_000):
            if self.machine.state is State.CLOSED:
                return
            if self.mail:
                self._handle(self.mail.popleft())
            elif self.ended:
                self._end_turn()
            elif self.results:
                signal, well = self.results.popleft()
                self._apply(signal, well=well)
            elif not self._go_on():
                return
            if self.machine.replay:
                self.mail.extendleft(reversed(self.machine.take_postponed()))
        raise AssertionError("the loop never comes to rest")

    @precondition(lambda self: self.machine.state is not State.CLOSED)
    @rule()
    def come_to_rest(self) -> None:
        """Let everything end that is under way: nobody waits then, and the session does nothing."""
        self.work()
        for _ in range(1_000):
            if not (self.errands or self.turn) or self.machine.state is State.CLOSED:
                break
            if self.errands:
                self._end_errand(well=True)
            else:
                self.ended = True
            self.work()
        assert self.machine.state in (State.IDLE, State.CLOSED)
        waiting = [self.machine.starter, *self.machine.interrupters, *self.machine.retirers]
        assert waiting == [None] or self.machine.state is State.CLOSED
        assert not self.machine.postponed or self.machine.state is State.CLOSED

    @precondition(lambda self: self.machine.state is State.CLOSED)
    @rule(signal=st.sampled_from(Signal))
    def end(self, signal: Signal) -> None:
        """A session that has ended takes no signal, and has answered all requests; then another actor begins."""
        with pytest.raises((WarrenError, RuntimeError)):
            self.machine.step(signal)
        self.teardown()
        self.live()

    # -- what has to hold

    @invariant()
    def turns_are_counted(self) -> None:
        """The scheduler has counted a turn exactly while one is admitted, and none runs that was not."""
        assert self.admitted == self.machine.admitted
        assert (self.turn is not None) is (self.machine.state in TURN_RUNS)

    @invariant()
    def interrupts_reach_the_turn(self) -> None:
        """A turn that is to end early was told so, and whoever wants that is not answered before its end."""
        if self.turn is not None:
            assert self.turn.cancelled or self.machine.state is not State.INTERRUPTING
            assert all(not request.answers for request in self.machine.interrupters)
            hurried = any(request.signal is Signal.RETIRE_NOW for request in self.machine.retirers)
            assert self.turn.cancelled or not (self.machine.interrupters or hurried)

    def teardown(self) -> None:
        """End the session wherever it is: each request is answered, once."""
        for request in [*self.machine.close(), *self.mail]:
            request.answer()
        assert [request for request in self.requests if request.answers != 1] == []
        assert self.machine.state is State.CLOSED

    # -- the loop

    def _send(self, request: Request) -> None:
        if self.machine.state is not State.CLOSED:  # as the mailbox of an actor that has ended
            self.requests.append(request)
            self.mail.append(request)

    def _handle(self, request: Request) -> None:
        machine, signal = self.machine, request.signal
        if signal is Signal.NEED and (self.turn is not None or (machine.state is State.IDLE and self.current)):
            request.answer()
            return
        try:
            effects = machine.step(signal, request if signal is not Signal.NEXT else None)
        except WarrenError:
            request.answer()
            return
        if signal is Signal.NEXT or (signal is Signal.EVICT and request not in machine.postponed):
            request.answer()
        self._perform(effects)

    def _perform(  # noqa: C901, PLR0912 - one branch for each effect
        self, effects: tuple[Effect, ...], signal: Signal | None = None
    ) -> None:
        for effect in effects:
            match effect:
                case Effect.FETCH | Effect.RETIRE:
                    self.errands.append(effect)
                case Effect.PREPARE if self.errands or self.results or not self.current:
                    self.errands.append(effect)
                case Effect.PREPARE | Effect.BEGIN:
                    self._begin()
                case Effect.LEAVE if self.pending:
                    self.errands.append(effect)
                case Effect.LEAVE:
                    self._leave()
                case Effect.SERVE:
                    served = [each for each in self.machine.postponed if each.signal is Signal.NEED]
                    self.machine.postponed = [each for each in self.machine.postponed if each not in served]
                    self._answer(served)
                case Effect.CANCEL:
                    assert self.turn is not None
                    self.turn.cancelled = True
                case Effect.FREE:
                    self.admitted -= 1
                case Effect.REPLY:
                    self._answer([each for each in [self.machine.take_starter()] if each is not None])
                case Effect.ANSWER:
                    assert self.turn is None
                    self._answer(self.machine.take_interrupters())
                case Effect.REPORT:
                    assert signal in (Signal.RETIRED, Signal.RETIRE_FAILED)
                    self._answer(self.machine.take_retirers())
                case Effect.HANG_UP | Effect.STAY:
                    pass

    @staticmethod
    def _answer(requests: list[Request]) -> None:
        for request in requests:
            request.answer()

    def _begin(self) -> None:
        assert self.turn is None, "two turns at once"
        if self.unplannable or (self.machine.starter is None and not self.inputs):
            self.inputs -= bool(self.inputs and self.machine.starter is None)
            self._perform(self.machine.step(Signal.NOT_BEGUN))
        else:
            self.inputs -= self.machine.starter is None
            self.turn = Turn()
            self._perform(self.machine.step(Signal.BEGUN))

    def _end_turn(self) -> None:
        self.turn, self.ended = None, False
        self._perform(self.machine.step(Signal.ENDED))

    def _end_errand(self, *, well: bool) -> None:
        match self.errands.popleft():
            case Effect.FETCH:
                self.current |= well
                self.results.append((Signal.FETCHED, well))
            case Effect.PREPARE:
                self.current |= well
                self.results.append((Signal.PREPARED if well else Signal.LEASE_REFUSED, well))
            case Effect.RETIRE:
                self.results.append((Signal.RETIRED if well else Signal.RETIRE_FAILED, well))
            case Effect.LEAVE:
                self.pending &= not well
                self.results.append((Signal.LEFT, well))

    def _apply(self, signal: Signal, *, well: bool) -> None:
        if signal is Signal.LEFT:
            self._leave()
            return
        if not well and signal in (Signal.FETCHED, Signal.LEASE_REFUSED):
            self.inputs = 0  # they are for the process that has the lease
        self._perform(self.machine.step(signal), signal)

    def _leave(self) -> None:
        leaves = self.machine.state is State.LEAVING and not (self.mail or self.errands or self.inputs or self.pending)
        self._perform(self.machine.step(Signal.LEFT if leaves else Signal.STAYS))

    def _go_on(self) -> bool:
        if self.machine.state is not State.IDLE or self.errands:
            return False
        if self.archived:
            self._perform(self.machine.step(Signal.ARCHIVED))
        elif not self.inputs:
            return False
        elif not self.current:
            self._perform(self.machine.step(Signal.NEED))
        else:
            self.admitted += 1
            self._perform(self.machine.step(Signal.NEXT))
        return True


TestLife: Any = Life.TestCase
TestLife.settings = settings(max_examples=max(120, settings().max_examples), stateful_step_count=40)
