"""The traces of turns: the place of each, and the events that its spans are made of once it has ended."""

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import attrs

from warren.actors.events.eventlog import EventLog, utc_now
from warren.actors.turn.seam import RunningTurn
from warren.base.values import define
from warren.conversation.events import DELTAS, Envelope, RunFailed
from warren.reports.tracing import KEPT as KEPT_BEFORE
from warren.reports.tracing import TracedTurn, Tracer

KEPT: Final = 10_000
"""Events of a turn that its trace may have; of a longer turn the later ones are left out."""

logger: Final = logging.getLogger(__name__)


@define(eq=False)
class TurnTrace:
    """The traces of a session's turns: a wrapper of their seam. A turn does not end over its trace.

    Attributes:
        tracer: gives each turn its place, and gets a sampled one when it has ended.
        log: the session's events.
    """

    tracer: Tracer
    log: EventLog
    _before: Sequence[bytes] = ()
    _began: datetime = attrs.field(factory=utc_now)
    _events: list[Envelope] = attrs.field(factory=list)  # each run of deltas by its first one
    _cut: bool = False  # whether later events were left out

    def begin(self, turn: RunningTurn) -> None:
        """Give a turn its place, below that of its caller; begin to record it if it is sampled."""
        self.log.recorder = None  # the log outlives an actor, which may have left the recorder of a turn that crashed
        try:
            turn.place = self.tracer.begin(turn.caller)
        except Exception:
            logger.exception("the tracer failed: a turn runs without a trace")
            return
        if turn.place.sampled:
            self._before, self._began = _newest(turn.context.bodies), utc_now()
            self._events, self._cut = [], False
            self.log.recorder = self._record

    def _record(self, envelope: Envelope) -> None:
        events = self._events
        more = bool(events) and isinstance(envelope.event, DELTAS) and isinstance(events[-1].event, DELTAS)
        if more:
            return
        if len(events) < KEPT:
            events.append(envelope)
        else:
            self._cut = True

    def end(self, turn: RunningTurn, terminal: Envelope | None) -> None:
        """Hand a sampled turn over to the tracer."""
        if self.log.recorder is None or turn.place is None:
            return
        self.log.recorder = None
        if terminal is None and not self._events:  # a look at a call that waits
            return
        failed = terminal.event.cause if terminal is not None and isinstance(terminal.event, RunFailed) else None
        record, parent, choice = turn.record, turn.caller, turn.candidates[0].choice
        traced = TracedTurn(
            turn.place,
            None if parent is None else parent.span_id,
            record.session_id,
            record.tenant,
            None if turn.first_seq is None else record.turns + 1,
            choice.name,
            choice.model,
            self._began,
            utc_now(),
            self._events,
            failed,
            turn.usage,
            self._before,
            {each.name: each.choice.server for each in turn.candidates},
            cut=self._cut,
        )
        self._before, self._events = (), []
        try:
            self.tracer.ended(traced)
        except Exception:  # the turn is stored: its session must not end over its trace
            logger.exception("session %s: the tracer failed: the trace of a turn is lost", record.session_id)


def _newest(bodies: Sequence[bytes]) -> Sequence[bytes]:
    """Return the first message, which may be the system message, and the newest ones."""
    size, first = 0, len(bodies)
    while first > 1 and size < KEPT_BEFORE:
        first -= 1
        size += len(bodies[first])
    return [*bodies[:1], *bodies[max(first, 1) :]]
