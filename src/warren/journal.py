"""The tail of a session's event log that is not in the store yet; and how merged deltas are cut."""

from collections.abc import Iterable, Iterator
from datetime import datetime

import attrs

from warren import codec
from warren.events import DELTAS, Envelope, Event, ReasoningDelta, TextDelta
from warren.records import EventRow


@attrs.define
class _Run:
    """One event, or adjacent deltas of one kind in one step."""

    first_seq: int
    seq: int
    timestamp: datetime
    event: Event
    pieces: list[str] | None = None

    @property
    def lengths(self) -> list[int]:
        """The characters of each delta."""
        return [len(piece) for piece in self.pieces or ()]

    def merged(self) -> Event:
        return type(self.event)("".join(self.pieces)) if self.pieces and isinstance(self.event, DELTAS) else self.event


@attrs.define
class Journal:
    """An append-only run of events in memory.

    Attributes:
        session_id: whose events they are.
        last_seq: the last number given out, kept or not.
        floor: the last number that is no longer here (0 at the start): readers behind it must look elsewhere.
    """

    session_id: str
    last_seq: int = 0
    floor: int = attrs.field(default=attrs.Factory(lambda self: self.last_seq, takes_self=True))
    _runs: list[_Run] = attrs.field(factory=list, repr=False)

    def __len__(self) -> int:
        return len(self._runs)

    def append(self, envelope: Envelope) -> None:
        """Add the next event; its seq must be above `last_seq`."""
        event = envelope.event
        self.last_seq = envelope.seq
        if not isinstance(event, DELTAS):
            self._runs.append(_Run(envelope.seq, envelope.seq, envelope.timestamp, event))
        elif (pieces := self._continued(envelope)) is not None:
            self._runs[-1].seq = envelope.seq
            pieces.append(event.delta)
        else:
            self._runs.append(_Run(envelope.seq, envelope.seq, envelope.timestamp, event, [event.delta]))

    def _continued(self, envelope: Envelope) -> list[str] | None:
        """Return the newest run's pieces where a delta belongs to it; it has no hole: pieces are counted by seq."""
        run = self._runs[-1] if self._runs else None
        if run is None or type(run.event) is not type(envelope.event) or run.seq + 1 != envelope.seq:
            return None
        return run.pieces

    def rows(self, last: Envelope | None = None) -> tuple[EventRow, ...]:
        """Return what is here as rows of the log, and the event that is about to close it."""
        closing = [] if last is None else [_Run(last.seq, last.seq, last.timestamp, last.event)]
        return tuple(_row(run) for run in [*self._runs, *closing])

    def start_above(self, seq: int) -> None:
        """Number the next event above `seq`; what is below is elsewhere, but for what is here already."""
        if seq > self.last_seq:
            self.last_seq = seq
            self.floor = self.floor if self._runs else seq

    def after(self, seq: int) -> list[Envelope]:
        """Return the events above `seq`, adjacent deltas merged."""
        newer: list[_Run] = []
        for run in reversed(self._runs):
            if run.seq <= seq:
                break
            newer.append(run)
        return [
            cut(
                Envelope(self.session_id, run.seq, run.timestamp, run.merged(), _first(run.first_seq, run.seq)),
                run.lengths,
                seq,
            )
            for run in reversed(newer)
        ]

    def forget(self, up_to: int) -> None:
        """Drop what is not above `up_to`: it is in the store now."""
        self._runs = [run for run in self._runs if run.seq > up_to]
        self.floor = max(self.floor, up_to)

    def forget_oldest(self, keep: int) -> None:
        """Drop all but the newest `keep` runs, where no store holds them."""
        oldest = len(self._runs) - keep
        if oldest > 0:
            self.floor = self._runs[oldest - 1].seq
            del self._runs[:oldest]


def envelopes(session_id: str, rows: Iterable[EventRow], after_seq: int) -> Iterator[Envelope]:
    """Yield the events above `after_seq` of rows read from the log; a merged row is cut where the reader stands."""
    for row in rows:
        event = codec.decode_event(row.body)
        cuts = codec.parse(row.cuts) if row.cuts is not None else []
        envelope = Envelope(session_id, row.seq, row.timestamp, event, _first(row.first_seq, row.seq))
        yield cut(envelope, cuts, after_seq)


def cut(envelope: Envelope, lengths: list[int], after_seq: int) -> Envelope:
    """Return the part of merged deltas above `after_seq`; `lengths` has the characters of each delta."""
    first = envelope.first_seq
    if first is None or after_seq < first or not isinstance(envelope.event, TextDelta | ReasoningDelta):
        return envelope
    known = after_seq - first + 1
    rest = envelope.event.delta[sum(lengths[:known]) :]
    return attrs.evolve(envelope, event=type(envelope.event)(rest), first_seq=_first(after_seq + 1, envelope.seq))


def merge(left: Envelope, right: Envelope) -> Envelope | None:
    """Return two adjacent envelopes of one log as one, where both are deltas of one kind; else None."""
    one, two = left.event, right.event
    if not isinstance(one, DELTAS) or not isinstance(two, DELTAS) or type(one) is not type(two):
        return None
    if left.session_id != right.session_id or (right.first_seq or right.seq) != left.seq + 1:
        return None
    return Envelope(
        left.session_id, right.seq, left.timestamp, type(one)(one.delta + two.delta), left.first_seq or left.seq
    )


def _first(first_seq: int, seq: int) -> int | None:
    return first_seq if first_seq < seq else None


def _row(run: _Run) -> EventRow:
    cuts = codec.encode(run.lengths) if run.first_seq < run.seq else None
    return EventRow(run.first_seq, run.seq, run.timestamp, codec.encode(run.merged()), cuts)
