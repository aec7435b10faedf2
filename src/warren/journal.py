"""The newest events of a session, with all that are not stored yet, and the merging and cutting of deltas."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

import attrs

from warren import codec
from warren.events import DELTAS, Envelope, Event, ReasoningDelta, StreamTruncated, TextDelta
from warren.records import EventRow
from warren.values import define, value

PAGE: Final = 256
"""Envelopes that a reader gets at once."""
LONGEST: Final = 16 * 1024
"""Characters after which deltas that are read together are cut."""
TEXT: Final = 256 * 1024
"""Characters of deltas that a reader gets at once: they are copied for it."""


@value
class Entry:
    """An event with its number and its time (UTC). Subscribers get it as an envelope."""

    seq: int
    timestamp: datetime
    event: Event

    def envelope(self, session_id: str) -> Envelope:
        """Return the envelope for subscribers."""
        return Envelope(session_id, self.seq, self.timestamp, self.event)


@define
class Deltas:
    """Adjacent deltas of one kind in one step. They take less memory together than as entries."""

    first_seq: int
    seq: int
    kind: type[TextDelta | ReasoningDelta]
    timestamps: list[datetime]
    pieces: list[str]

    def parts(self, session_id: str, after_seq: int) -> Iterator[tuple[int, Envelope]]:
        """Yield the deltas above a number, merged up to a length, each with its length."""
        start = max(after_seq - self.first_seq + 1, 0)
        while start < len(self.pieces):
            end, size = start, 0
            while end < len(self.pieces) and size < LONGEST:
                size += len(self.pieces[end])
                end += 1
            first, last = self.first_seq + start, self.first_seq + end - 1
            event = self.kind("".join(self.pieces[start:end]))
            yield size, Envelope(session_id, last, self.timestamps[start], event, _first(first, last))
            start = end


LogItem = Entry | Deltas
"""An event of a log, or adjacent deltas as one."""


@define
class Journal:
    """An append-only run of events in memory.

    Attributes:
        session_id: the session.
        last_seq: the last number of an event, in the journal or not.
        floor: the last number that is no longer in the journal (0 at the start); such events are in the store, if
            anywhere.
        stored: the last number that is in the store. Events up to it may be in the journal too, for readers that are
            close behind.
    """

    session_id: str
    last_seq: int = 0
    floor: int = attrs.field(default=attrs.Factory(lambda self: self.last_seq, takes_self=True))
    stored: int = attrs.field(default=attrs.Factory(lambda self: self.floor, takes_self=True))
    _runs: list[Entry | Deltas] = attrs.field(factory=list, repr=False)

    @property
    def pending(self) -> bool:
        """Whether it holds events that are not in the store."""
        return bool(self._runs) and self._runs[-1].seq > self.stored

    @property
    def size(self) -> int:
        """About how many bytes the events of the journal have."""
        return sum(
            sum(map(len, run.pieces)) if isinstance(run, Deltas) else codec.weight(run.event) for run in self._runs
        )

    def append(self, entry: Entry) -> None:
        """Add the next event. Its seq must be above `last_seq`."""
        event, run = entry.event, self._runs[-1] if self._runs else None
        self.last_seq = entry.seq
        if not isinstance(event, DELTAS):
            self._runs.append(entry)
        elif isinstance(run, Deltas) and run.kind is type(event) and run.seq + 1 == entry.seq and self.pending:
            run.seq = entry.seq  # only without a gap: a piece is found by its seq
            run.timestamps.append(entry.timestamp)
            run.pieces.append(event.delta)
        else:
            self._runs.append(Deltas(entry.seq, entry.seq, type(event), [entry.timestamp], [event.delta]))

    def runs(self, last: Entry | None = None) -> tuple[LogItem, ...]:
        """Return the events that are not stored, with `last` after them; `row_of` makes rows of the log of them."""
        new = self._runs if self.floor >= self.stored else self._runs[self._above(self.stored) :]
        return tuple(new) if last is None else (*new, last)

    def start_above(self, seq: int) -> None:
        """Give the next event a number above `seq`. Events up to `seq` that are not in the journal are in the store."""
        if seq > self.last_seq:
            self.last_seq = seq
            self.floor = self.floor if self._runs else seq

    def after(self, seq: int) -> list[Envelope]:
        """Return the first events above `seq`, adjacent deltas merged; none if there are no more."""
        page: list[Envelope] = []
        text = 0
        for run in self._runs[(start := self._above(seq)) : start + PAGE]:
            if not isinstance(run, Deltas):
                page.append(run.envelope(self.session_id))
                continue
            for size, part in run.parts(self.session_id, seq):
                page.append(part)
                text += size
                if text >= TEXT:
                    return page
        return page

    def forget(self, up_to: int) -> None:
        """Drop the events up to `up_to`, which are in the store now."""
        # Mostly it is all of them; the search for the place takes a hundredth of a turn in memory.
        del self._runs[: len(self._runs) if up_to >= self.last_seq else self._above(up_to)]
        self.floor = max(self.floor, up_to)
        self.stored = max(self.stored, up_to)

    def forget_oldest(self, keep: int) -> None:
        """Drop all but the newest `keep` runs. It is for sessions without a store."""
        oldest = len(self._runs) - keep
        if oldest > 0:
            self.floor = self._runs[oldest - 1].seq
            del self._runs[:oldest]

    def _above(self, seq: int) -> int:
        """Return the index of the first run that ends above a number."""
        return bisect_right(self._runs, seq, key=lambda run: run.seq)


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


def _first(first_seq: int, seq: int) -> int | None:
    return first_seq if first_seq < seq else None


def row_of(run: EventRow | LogItem) -> EventRow:
    """Return an event, or merged deltas, as a row of the log; a row stays as it is."""
    if isinstance(run, EventRow):
        return run
    if not isinstance(run, Deltas):
        return EventRow(run.seq, run.seq, run.timestamp, codec.encode(run.event), None)
    cuts = codec.encode([len(piece) for piece in run.pieces]) if run.first_seq < run.seq else None
    body = codec.encode(run.kind("".join(run.pieces)))
    return EventRow(run.first_seq, run.seq, run.timestamps[0], body, cuts)
