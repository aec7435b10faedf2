"""The traces of a session's turns, when an actor ends in the middle of one."""

from types import SimpleNamespace
from typing import Any

from tests.support.logs import new_log
from warren.actors.session.trace import TurnTrace
from warren.conversation.events import TurnStarted
from warren.reports.tracing import TraceContext, TracedTurn, Tracer

SAMPLED = TraceContext(1, 2, sampled=True)
UNSAMPLED = TraceContext(3, 4, sampled=False)


class Deciding(Tracer):
    """A tracer that samples as its test says, and keeps the turns."""

    def __init__(self) -> None:
        self.turns: list[TracedTurn] = []

    def begin(self, parent: TraceContext | None) -> TraceContext:
        assert parent is not None
        return parent

    def ended(self, turn: TracedTurn) -> None:
        self.turns.append(turn)


def turn_at(caller: TraceContext) -> Any:
    """Return what a trace asks of a turn before its end."""
    return SimpleNamespace(context=SimpleNamespace(bodies=[]), caller=caller, place=None)


def test_a_turn_that_is_not_sampled_has_no_trace_after_one_that_never_ended() -> None:
    """The log outlives an actor that crashed within a sampled turn; the next actor's turn is recorded by nobody."""
    tracer, log = Deciding(), new_log()
    TurnTrace(tracer, log).begin(turn_at(SAMPLED))
    trace, turn = TurnTrace(tracer, log), turn_at(UNSAMPLED)
    trace.begin(turn)
    assert log.recorder is None
    trace.end(turn, None)
    assert tracer.turns == []


def test_the_part_of_a_turn_that_goes_on_elsewhere_is_traced_as_a_part_of_the_turn() -> None:
    """It has no terminal event, and yet it is no compaction. One without any event is none: it had nothing to do."""
    tracer, log = Deciding(), new_log()
    for first_seq, events in ((7, 1), (None, 1), (7, 0)):
        turn = turn_at(SAMPLED)
        turn.record = SimpleNamespace(session_id="s", tenant="default", turns=2)
        turn.candidates = [SimpleNamespace(name="m", choice=SimpleNamespace(name="m", model="m", server=None))]
        turn.first_seq, turn.usage = first_seq, None
        trace = TurnTrace(tracer, log)
        trace.begin(turn)
        for number in range(events):
            log.emit(TurnStarted(number))
        trace.end(turn, None)
    assert [each.number for each in tracer.turns] == [3, None]
