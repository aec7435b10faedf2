"""The lifecycle of a session: every move from every state, and what the table as a whole promises."""

from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.actors.lifecycle import LIFECYCLE, TURN_RUNS, Admission, Refusal, Signal, State
from warren.actors.protocol import Compact, Interrupt, Retire, StartTurn, Withdraw
from warren.errors import (
    AgentError,
    SessionBusyError,
    SessionNotFoundError,
    SessionNotRunningError,
    WarrenError,
)
from warren.mailbox import Mailbox

# The next state, or in lower case the reason of the refusal.
TABLE: Final = """
state         START    INTERRUPT     TURN_ENDED  RETIRE    RETIRED     RETIRE_FAILED  PASSIVATE
IDLE          RUNNING  not_running   impossible  RETIRING  impossible  impossible     CLOSED
RUNNING       busy     INTERRUPTING  IDLE        DRAINING  impossible  impossible     impossible
INTERRUPTING  busy     INTERRUPTING  IDLE        DRAINING  impossible  impossible     impossible
DRAINING      retired  DRAINING      RETIRING    DRAINING  impossible  impossible     impossible
RETIRING      retired  not_running   impossible  RETIRING  CLOSED      IDLE           impossible
CLOSED        retired  retired       impossible  retired   impossible  impossible     impossible
"""
REFUSALS: Final[dict[str, tuple[type[WarrenError], str | None]]] = {
    "busy": (SessionBusyError, None),
    "not_running": (SessionNotRunningError, None),
    "retired": (SessionNotFoundError, "retired"),
    "impossible": (AgentError, "crash"),
}


def entries() -> Iterator[tuple[State, Signal, str]]:
    """Yield the entries of the table above."""
    head, *rows = [line.split() for line in TABLE.strip().splitlines()]
    for name, *cells in rows:
        for signal, cell in zip(head[1:], cells, strict=True):
            yield State[name], Signal[signal], cell


@pytest.mark.parametrize(("state", "signal", "expected"), list(entries()))
def test_every_move(state: State, signal: Signal, expected: str) -> None:
    """A legal move changes the state; an illegal one raises the error of its refusal and changes nothing."""
    admission = Admission("s", state)
    if expected in State.__members__:
        admission.move(signal)
        assert admission.state is State[expected]
    else:
        refusal, cause = REFUSALS[expected]
        with pytest.raises(refusal) as caught:
            admission.move(signal)
        assert (type(caught.value), caught.value.session_id, caught.value.cause) == (refusal, "s", cause)
        assert admission.state is state


def test_the_table_is_complete() -> None:
    """Every signal has an answer in every state, and the tests above have seen each of them."""
    assert {(state, signal) for state, row in LIFECYCLE.items() for signal in row} == {
        (state, signal) for state in State for signal in Signal
    }
    assert len(list(entries())) == len(State) * len(Signal)
    assert set(REFUSALS) == {refusal.name.lower() for refusal in Refusal}


def test_a_bug_of_the_actor_is_named() -> None:
    """A move that only a bug makes says which and where."""
    with pytest.raises(AgentError, match="RETIRED in state RUNNING"):
        Admission("s", State.RUNNING).move(Signal.RETIRED)


def test_the_life_begins_idle() -> None:
    """A new session runs no turn."""
    assert Admission("s").state is State.IDLE
    assert not Admission("s").turn_runs


@pytest.mark.parametrize("state", State)
def test_a_turn_runs_until_it_ends(state: State) -> None:
    """Exactly where a turn runs can it end; there and nowhere else a session refuses to be retired at once."""
    assert Admission("s", state).turn_runs == (state in TURN_RUNS)
    assert (LIFECYCLE[state][Signal.TURN_ENDED] is not Refusal.IMPOSSIBLE) == (state in TURN_RUNS)
    assert (LIFECYCLE[state][Signal.RETIRE] is State.DRAINING) == (state in TURN_RUNS)


def test_every_state_is_reached() -> None:
    """From the beginning every state can be reached, and from every state the end."""
    assert reached(State.IDLE) == set(State)
    assert all(State.CLOSED in reached(state) for state in State)
    assert reached(State.CLOSED) == {State.CLOSED}


def reached(start: State) -> set[State]:
    """Return the states that a session in a state can come to."""
    found, rest = {start}, [start]
    while rest:
        targets = {target for target in LIFECYCLE[rest.pop()].values() if isinstance(target, State)}
        rest.extend(targets - found)
        found |= targets
    return found


@given(st.lists(st.sampled_from(Signal)))
def test_no_life_has_two_turns_at_once(signals: list[Signal]) -> None:
    """Whatever is sent, turns that began and ended differ by the one that runs, and nothing begins after the end."""
    admission = Admission("s")
    begun = ended = 0
    for signal in signals:
        was = admission.state
        try:
            admission.move(signal)
        except WarrenError:
            assert admission.state is was
            continue
        begun += signal is Signal.START
        ended += signal is Signal.TURN_ENDED
        assert begun - ended == admission.turn_runs
        assert was is not State.CLOSED


def test_a_mailbox_admits_one_turn() -> None:
    """Of a turn and a compaction the first is taken and the second refused, until the first has ended."""
    admission = Admission("s")
    mailbox = Mailbox(admit=admission.admit)
    mailbox.tell(StartTurn("hello"))
    for refused in (StartTurn("again"), Compact()):
        with pytest.raises(SessionBusyError) as caught:
            mailbox.tell(refused)
        assert caught.value.session_id == "s"
    admission.move(Signal.TURN_ENDED)
    mailbox.tell(Compact())
    assert [mail.message for mail in mailbox.take()] == [StartTurn("hello"), Compact()]


def test_a_message_without_a_signal_is_admitted_in_every_state() -> None:
    """Only messages that move the state are looked up in the table."""
    for state in State:
        admission = Admission("s", state)
        admission.admit(Withdraw("i"))
        assert admission.state is state


def test_messages_move_the_state() -> None:
    """A start, an interrupt and a retirement that are sent move the state before any of them is received."""
    admission = Admission("s")
    mailbox = Mailbox(admit=admission.admit)
    states = []
    for message in (StartTurn("hello"), Interrupt(), Retire("stop")):
        mailbox.tell(message)
        states.append(admission.state)
    assert states == [State.RUNNING, State.INTERRUPTING, State.DRAINING]
