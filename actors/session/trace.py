"""The trace of a running turn: its place, and the events that the spans are made of once it has ended."""

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import attrs

from warren.actors.eventlog import EventLog, utc_now
from warren.actors.turn.turn import Turn
from warren.events import DELTAS, Envelope, RunFailed
from warren.tracing import KEPT as KEPT_BEFORE
from warren.tracing import TraceContext, TracedTurn, Tracer
from warren.transcript import Transcript
from warren.values import define

KEPT: Final = 10_000
"""Events of a turn that its trace may have; of a longer turn the later ones are left out."""

logger: Final = logging.getLogger(__name__)


@define(eq=False)
class TurnTrace:
    """The trace of a sampled turn.

    Attributes:
        tracer: gets the turn when it has ended.
        place: the turn's own span.
        parent: the place of the turn's caller.
        log: the session's events.
        before: the newest messages before the turn, and the first one, as JSON.
        began: the time at which the turn began.
        events: the events so far, each run of deltas by its first one.
        cut: whether later events were left out.
    """

    tracer: Tracer
    place: TraceContext
    parent: TraceContext | None
    log: EventLog
    before: Sequence[bytes]
    began: datetime = attrs.field(factory=utc_now)
    events: list[Envelope] = attrs.field(factory=list)
    cut: bool = False

    def __attrs_post_init__(self) -> None:
        self.log.recorder = self._record

    def _record(self, envelope: Envelope) -> None:
        events = self.events
        more = bool(events) and isinstance(envelope.event, DELTAS) and isinstance(events[-1].event, DELTAS)
        if more:
            return
        if len(events) < KEPT:
            events.append(envelope)
        else:
            self.cut = True

    def end(self, turn: Turn, terminal: Envelope | None) -> None:
        """Hand the turn over to the tracer.

        Args:
            turn: the turn.
            terminal: its last event; None if it only compacted.
        """
        self.log.recorder = None
        failed = terminal.event.cause if terminal is not None and isinstance(terminal.event, RunFailed) else None
        record, choice = turn.record, turn.plan.choice
        traced = TracedTurn(
            self.place,
            None if self.parent is None else self.parent.span_id,
            record.session_id,
            record.tenant,
            None if terminal is None else record.turns + 1,
            choice.name,
            choice.model,
            self.began,
            utc_now(),
            self.events,
            failed,
            turn.plan.meter.usage,
            self.before,
            {each.name: each.choice.server for each in turn.plan.route.candidates},
            cut=self.cut,
        )
        try:
            self.tracer.ended(traced)
        except Exception:  # the turn is stored: its session must not end over its trace
            logger.exception("session %s: the tracer failed: the trace of a turn is lost", record.session_id)


def begin(
    tracer: Tracer | None, caller: TraceContext | None, log: EventLog, context: Transcript
) -> tuple[TraceContext | None, TurnTrace | None]:
    """Return the place of a turn that begins, and its trace if it is sampled.

    Without a tracer, or with one that fails, the place is that of its caller: a turn does not end over its trace.
    """
    if tracer is None:
        return caller, None
    try:
        place = tracer.begin(caller)
    except Exception:
        logger.exception("the tracer failed: a turn runs without a trace")
        return caller, None
    return place, TurnTrace(tracer, place, caller, log, _newest(context.bodies)) if place.sampled else None


def _newest(bodies: Sequence[bytes]) -> Sequence[bytes]:
    """Return the first message, which may be the system message, and the newest ones."""
    size, first = 0, len(bodies)
    while first > 1 and size < KEPT_BEFORE:
        first -= 1
        size += len(bodies[first])
    return [*bodies[:1], *bodies[max(first, 1) :]]
