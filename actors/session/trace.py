"""The trace of a running turn: its place, and the events that the spans are made of once it has ended."""

from datetime import datetime
from typing import Final

import attrs

from warren.actors.eventlog import EventLog, utc_now
from warren.actors.turn.turn import Turn
from warren.events import DELTAS, Envelope, RunFailed
from warren.tracing import TraceContext, TracedTurn, Tracer
from warren.values import define

KEPT: Final = 10_000
"""Events of a turn that its trace may have; of a longer turn the later ones are left out."""


@define(eq=False)
class TurnTrace:
    """The trace of a sampled turn.

    Attributes:
        tracer: gets the turn when it has ended.
        place: the turn's own span.
        parent: the place of the turn's caller.
        log: the session's events.
        began: the time at which the turn began.
        events: the events so far, each run of deltas by its first one.
    """

    tracer: Tracer
    place: TraceContext
    parent: TraceContext | None
    log: EventLog
    began: datetime = attrs.field(factory=utc_now)
    events: list[Envelope] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.log.recorder = self._record

    def _record(self, envelope: Envelope) -> None:
        events = self.events
        more = bool(events) and isinstance(envelope.event, DELTAS) and isinstance(events[-1].event, DELTAS)
        if not more and len(events) < KEPT:
            events.append(envelope)

    def end(self, turn: Turn, terminal: Envelope | None) -> None:
        """Hand the turn over to the tracer.

        Args:
            turn: the turn.
            terminal: its last event; None if it only compacted.
        """
        self.log.recorder = None
        failed = terminal.event.cause if terminal is not None and isinstance(terminal.event, RunFailed) else None
        record, choice = turn.record, turn.plan.choice
        self.tracer.ended(
            TracedTurn(
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
            )
        )
