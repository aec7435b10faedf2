"""The newest events of a session, with all that are not stored yet, and the merging and cutting of deltas."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

import attrs

from warren import codec
from warren.events import DELTAS, Envelope, Event, ReasoningDelta, StreamTruncated, TextDelta
from warren.records import EventRow
from warren.values import define

PAGE: Final = 256
"""Envelopes that a reader gets at once."""
LONGEST: Final = 16 * 1024
"""Characters after which deltas that are read together are cut."""
TEXT: Final = 256 * 1024
"""Characters of deltas that a reader gets at once: they are copied for it."""


@define
class Deltas:
    """Adjacent deltas of one kind in one step. They take less memory together than as envelopes.

    Attributes:
        session_id: the session.
        first_seq: the number of the first delta.
        seq: the number of the last delta.
        kind: the class of the deltas.
        timestamps: the time of each (UTC).
        pieces: the text of each.
        last_part: the part that was read last. All readers that keep up read the same one, and often the row has it
            too, so it is made and encoded once.
    """

    session_id: str
    first_seq: int
    seq: int
    kind: type[TextDelta | ReasoningDelta]
    timestamps: list[datetime]
    pieces: list[str]
    last_part: Envelope | None = attrs.field(default=None, init=False, eq=False, repr=False)

    @property
    def size(self) -> int:
        """About how many bytes the deltas have."""
        return sum(map(len, self.pieces)) + (0 if self.last_part is None else _size(self.last_part))

    def parts(self, after_seq: int) -> Iterator[tuple[int, Envelope]]:
        """Yield the deltas above a number, merged up to a length, each with its length."""
        start = max(after_seq - self.first_seq + 1, 0)
        while start < len(self.pieces):
            end, size = start, 0
            while end < len(self.pieces) and size < LONGEST:
                size += len(self.pieces[end])
                end += 1
            yield size, self._part(start, end)
            start = end

    def whole(self) -> Envelope:
        """Return all the deltas as one."""
        return self._part(0, len(self.pieces))

    def _part(self, start: int, end: int) -> Envelope:
        first, last, part = self.first_seq + start, self.first_seq + end - 1, self.last_part
        if part is None or part.seq != last or part.first_seq != _first(first, last):
            event = self.kind("".join(self.pieces[start:end]))
            part = Envelope(self.session_id, last, self.timestamps[start], event, _first(first, last))
            self.last_part = part
        return part


LogItem = Envelope | Deltas
"""An event of a log, or adjacent deltas as one."""


@define
class Journal:
    """An append-only run of events in memory.

    Attributes:
        last_seq: the last number of an event, in the journal or not.
        floor: the last number that is no longer in the journal (0 at the start); such events are in the store, if
            anywhere.
        stored: the last number that is in the store. Events up to it may be in the journal too, for readers that are
            close behind.
    """

    last_seq: int = 0
    floor: int = attrs.field(default=attrs.Factory(lambda self: self.last_seq, takes_self=True))
    stored: int = attrs.field(default=attrs.Factory(lambda self: self.floor, takes_self=True))
    _runs: list[LogItem] = attrs.field(factory=list, repr=False)

    @property
    def pending(self) -> bool:
        """Whether it holds events that are not in the store."""
        return bool(self._runs) and self._runs[-1].seq > self.stored

    @property
    def size(self) -> int:
        """About how many bytes the events of the journal have."""
        return sum(run.size if isinstance(run, Deltas) else _size(run) for run in self._runs)

    def append(self, envelope: Envelope) -> None:
        """Add the next event. Its seq must be above `last_seq`."""
        event, run = envelope.event, self._runs[-1] if self._runs else None
        self.last_seq = envelope.seq
        if not isinstance(event, DELTAS) or envelope.first_seq is not None:
            self._runs.append(envelope)
        elif isinstance(run, Deltas) and run.kind is type(event) and run.seq + 1 == envelope.seq and self.pending:
            run.seq = envelope.seq  # only without a gap: a piece is found by its seq
            run.timestamps.append(envelope.timestamp)
            run.pieces.append(event.delta)
        else:
            seq = envelope.seq
            self._runs.append(Deltas(envelope.session_id, seq, seq, type(event), [envelope.timestamp], [event.delta]))

    def runs(self, last: Envelope | None = None) -> tuple[LogItem, ...]:
        """Return the events that are not stored, with `last` after them; `row_of` makes rows of the log of them."""
        new = self._runs if self.floor >= self.stored else self._runs[self._above(self.stored) :]
        return tuple(new) if last is None else (*new, last)

    def rest(self) -> "Journal":
        """Return a journal of the events that are not stored, which keeps them when this one drops them."""
        rest = Journal(self.last_seq, max(self.floor, self.stored))
        rest._runs = list(self.runs())
        return rest

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
                page.append(run)
                continue
            for size, part in run.parts(seq):
                page.append(part)
                text += size
                if text >= TEXT:
                    return page
        return page

    def has(self, seq: int) -> bool:
        """Return whether the event with a number is in the journal. The numbers have gaps."""
        index = self._above(seq - 1)
        run = self._runs[index] if index < len(self._runs) else None
        return run is not None and (run.first_seq or run.seq) <= seq

    def parts_at(self, seq: int) -> bool:
        """Return whether a number is in the middle of deltas that came merged: they cannot be parted there."""
        index = self._above(seq)
        run = self._runs[index] if index < len(self._runs) else None
        return isinstance(run, Envelope) and run.first_seq is not None and run.first_seq <= seq

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
        return EventRow(run.seq, run.seq, run.timestamp, codec.encode_event(run))
    cuts = codec.encode([len(piece) for piece in run.pieces]) if run.first_seq < run.seq else None
    whole = run.whole()
    return EventRow(run.first_seq, run.seq, whole.timestamp, codec.encode_event(whole), cuts)


def release(items: Iterable[EventRow | LogItem]) -> None:
    """Drop the JSON that events hold for further rows and messages. It is made again if it is needed again."""
    for item in items:
        if isinstance(item, Deltas):
            item.last_part = None
        elif isinstance(item, Envelope) and item.encoded is not None:
            object.__setattr__(item, "encoded", None)


def _size(envelope: Envelope) -> int:
    # Mostly the JSON is there already. Its length says the same as the weight, which takes twenty times as long.
    encoded = envelope.encoded
    return codec.weight(envelope.event) if encoded is None else 2 * len(encoded)
