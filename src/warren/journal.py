"""The events of a session that are not stored yet, and the merging and cutting of deltas."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

import attrs

from warren import codec
from warren.events import DELTAS, Envelope, Event, ReasoningDelta, StreamTruncated, TextDelta
from warren.records import EventRow
from warren.values import value


@value
class Entry:
    """An event with its number and its time (UTC). Subscribers get it as an envelope."""

    seq: int
    timestamp: datetime
    event: Event

    def envelope(self, session_id: str) -> Envelope:
        """Return the envelope for subscribers."""
        return Envelope(session_id, self.seq, self.timestamp, self.event)


@attrs.define
class _Deltas:
    """Adjacent deltas of one kind in one step. They take less memory together than as entries."""

    first_seq: int
    seq: int
    timestamp: datetime
    kind: type[TextDelta | ReasoningDelta]
    pieces: list[str]

    @property
    def lengths(self) -> list[int]:
        """The characters of each delta."""
        return [len(piece) for piece in self.pieces]

    @property
    def event(self) -> TextDelta | ReasoningDelta:
        """One delta with the text of all."""
        return self.kind("".join(self.pieces))

    def envelope(self, session_id: str) -> Envelope:
        """Return one envelope for all of them."""
        return Envelope(session_id, self.seq, self.timestamp, self.event, _first(self.first_seq, self.seq))


@attrs.define
class Journal:
    """An append-only run of events in memory.

    Attributes:
        session_id: the session.
        last_seq: the last number of an event, in the journal or not.
        floor: the last number that is no longer in the journal (0 at the start); such events are in the store, if
            anywhere.
    """

    session_id: str
    last_seq: int = 0
    floor: int = attrs.field(default=attrs.Factory(lambda self: self.last_seq, takes_self=True))
    _runs: list[Entry | _Deltas] = attrs.field(factory=list, repr=False)

    def __len__(self) -> int:
        return len(self._runs)

    def append(self, entry: Entry) -> None:
        """Add the next event. Its seq must be above `last_seq`."""
        event, runs = entry.event, self._runs
        self.last_seq = entry.seq
        if not isinstance(event, DELTAS):
            runs.append(entry)
        elif runs and isinstance(run := runs[-1], _Deltas) and run.kind is type(event) and run.seq + 1 == entry.seq:
            run.seq = entry.seq  # only without a gap: a piece is found by its seq
            run.pieces.append(event.delta)
        else:
            runs.append(_Deltas(entry.seq, entry.seq, entry.timestamp, type(event), [event.delta]))

    def rows(self, last: Entry | None = None) -> tuple[EventRow, ...]:
        """Return the events as rows of the log, with `last` after them."""
        return tuple(map(_row, self._runs if last is None else [*self._runs, last]))

    def start_above(self, seq: int) -> None:
        """Give the next event a number above `seq`. Events up to `seq` that are not in the journal are in the store."""
        if seq > self.last_seq:
            self.last_seq = seq
            self.floor = self.floor if self._runs else seq

    def after(self, seq: int) -> list[Envelope]:
        """Return the events above `seq`, adjacent deltas merged."""
        newer: list[Envelope] = []
        for run in reversed(self._runs):
            if run.seq <= seq:
                break
            envelope = run.envelope(self.session_id)
            newer.append(cut(envelope, run.lengths, seq) if isinstance(run, _Deltas) else envelope)
        return newer[::-1]

    def forget(self, up_to: int) -> None:
        """Drop the events up to `up_to`, which are in the store now."""
        self._runs = [run for run in self._runs if run.seq > up_to]
        self.floor = max(self.floor, up_to)

    def forget_oldest(self, keep: int) -> None:
        """Drop all but the newest `keep` runs. It is for sessions without a store."""
        oldest = len(self._runs) - keep
        if oldest > 0:
            self.floor = self._runs[oldest - 1].seq
            del self._runs[:oldest]


def envelopes(session_id: str, rows: Iterable[EventRow], after_seq: int) -> Iterator[Envelope]:
    """Yield the events above `after_seq` of rows of the log. A row of merged deltas is cut at `after_seq`.

    A damaged row yields a StreamTruncated with the number of the row, from which a reader continues.
    """
    for row in rows:
        try:
            event, cuts = read(row)
        except ValueError:
            yield Envelope(session_id, row.seq, row.timestamp, unreadable(row))
            continue
        envelope = Envelope(session_id, row.seq, row.timestamp, event, _first(row.first_seq, row.seq))
        yield cut(envelope, cuts, after_seq)


def read(row: EventRow) -> tuple[Event, list[int]]:
    """Return the event of a row, and the length of each merged delta. Raises ValueError if the row is damaged."""
    event = codec.decode_event(row.body)
    if row.cuts is None:
        return event, []
    return event, list(codec.decode_stored(tuple[int, ...], row.cuts))


def unreadable(row: EventRow) -> StreamTruncated:
    """Return the event that replaces a damaged row."""
    return StreamTruncated(row.seq - row.first_seq + 1, row.seq, "damaged")


def cut(envelope: Envelope, lengths: list[int], after_seq: int) -> Envelope:
    """Return the part of merged deltas above `after_seq`.

    Args:
        envelope: the merged deltas, or any other event, which is returned unchanged.
        lengths: characters of each delta.
        after_seq: number of the last delta that the reader has.
    """
    first = envelope.first_seq
    if first is None or after_seq < first or not isinstance(envelope.event, TextDelta | ReasoningDelta):
        return envelope
    known = after_seq - first + 1
    rest = envelope.event.delta[sum(lengths[:known]) :]
    return attrs.evolve(envelope, event=type(envelope.event)(rest), first_seq=_first(after_seq + 1, envelope.seq))


def adjacent(left: Envelope, right: Envelope) -> bool:
    """Tell whether two envelopes can be merged: adjacent deltas of one kind in one log."""
    kind = type(left.event)
    return (
        kind is type(right.event)
        and (right.first_seq or right.seq) == left.seq + 1
        and left.session_id == right.session_id
        and kind in DELTAS
    )


def merged(run: Sequence[Envelope]) -> Envelope:
    """Merge envelopes into one. Each must be `adjacent` to the next."""
    first, last = run[0], run[-1]
    if first is last or not isinstance(first.event, DELTAS):
        return first
    text = "".join([each.event.delta for each in run if isinstance(each.event, DELTAS)])
    return Envelope(first.session_id, last.seq, first.timestamp, type(first.event)(text), first.first_seq or first.seq)


def _first(first_seq: int, seq: int) -> int | None:
    return first_seq if first_seq < seq else None


def _row(run: Entry | _Deltas) -> EventRow:
    first_seq, cuts = run.seq, None
    if isinstance(run, _Deltas) and run.first_seq < run.seq:
        first_seq, cuts = run.first_seq, codec.encode(run.lengths)
    return EventRow(first_seq, run.seq, run.timestamp, codec.encode(run.event), cuts)
