"""Events of a log as rows of a store and back, and the merging and cutting of deltas that lie side by side."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from operator import attrgetter
from typing import Final

import attrs

from warren.base.values import define
from warren.conversation import codec
from warren.conversation.events import Envelope, Event, ReasoningDelta, StreamTruncated, TextDelta
from warren.conversation.records import EventRow

LONGEST: Final = 16 * 1024
"""Characters after which deltas that are read together are cut."""


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
    def encoded(self) -> Envelope | None:
        """An item that may hold its JSON, as an envelope does."""
        return self.last_part

    @property
    def size(self) -> int:
        """About how many bytes the deltas have."""
        return sum(map(len, self.pieces)) + (0 if self.last_part is None else size_of(self.last_part))

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

    def body(self) -> bytes:
        """Return the JSON of all the deltas as one."""
        part = self.last_part
        if part is not None and (part.first_seq or part.seq) == self.first_seq and part.seq == self.seq:
            return codec.encode_event(part)
        return codec.event_encoders[self.kind](self.kind("".join(self.pieces)))

    def _part(self, start: int, end: int) -> Envelope:
        first, last, part = self.first_seq + start, self.first_seq + end - 1, self.last_part
        if part is None or part.seq != last or part.first_seq != _first(first, last):
            event = self.kind("".join(self.pieces[start:end]))
            part = Envelope(self.session_id, last, self.timestamps[start], event, _first(first, last))
            self.last_part = part
        return part


_encoded: Final = attrgetter("encoded")
LogItem = Envelope | Deltas
"""An event of a log, or adjacent deltas as one."""


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
        return EventRow(run.seq, run.seq, run.timestamp, run.encoded or codec.encode_event(run))
    cuts = codec.encode_whole([len(piece) for piece in run.pieces]) if run.first_seq < run.seq else None
    return EventRow(run.first_seq, run.seq, run.timestamps[0], run.body(), cuts)


def release(items: Iterable[EventRow | LogItem]) -> None:
    """Drop the JSON and the frames that events hold for further rows and messages; they are made again if needed."""
    for item in filter(_encoded, items):
        if isinstance(item, Deltas):
            item.last_part = None
        else:
            object.__setattr__(item, "encoded", None)
            object.__setattr__(item, "frame", None)


def size_of(item: LogItem) -> int:
    """Return about how many bytes an entry of a log has."""
    if isinstance(item, Deltas):
        return item.size
    # Mostly the JSON is there already. Its length says the same as the weight, which takes twenty times as long.
    return codec.weight(item.event) if item.encoded is None else 2 * len(item.encoded) + len(item.frame or b"")
