"""What waits to be sent to one client: bounded, in order, told apart by session. No I/O."""

from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import attrs

from warren import journal
from warren.events import DELTAS, Envelope, StreamTruncated

PRESSURE: Final = 4
MERGED_TEXT: Final = 16 * 1024
MAX_BYTES: Final = 16 * 1024 * 1024
LARGE: Final = 256 * 1024


@attrs.frozen
class Over:
    """The place in the queue where a subscription has ended by itself."""

    session_id: str


Item = Envelope | bytes | Over


@attrs.define
class _Gap:
    """The place in the queue where events of a session found no room."""

    session_id: str
    resume_after: int
    timestamp: datetime
    dropped: int = 0

    def marker(self) -> Envelope:
        event = StreamTruncated(self.dropped, self.resume_after)
        return Envelope(self.session_id, self.resume_after, self.timestamp, event)


@attrs.define
class _Run:
    """Envelopes that leave as one: adjacent deltas, up to a size, or a single envelope."""

    envelopes: list[Envelope]
    _size: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        first = self.envelopes[0].event
        self._size = len(first.delta) if isinstance(first, DELTAS) else 0

    def take(self, envelope: Envelope) -> bool:
        """Take in what follows, where it belongs here; return whether it does."""
        event = envelope.event
        if not isinstance(event, DELTAS) or self._size >= MERGED_TEXT:
            return False
        if not journal.adjacent(self.envelopes[-1], envelope):
            return False
        self.envelopes.append(envelope)
        self._size += len(event.delta)
        return True


@attrs.define(eq=False)
class Outbox:
    """The outbound queue of one connection.

    Where it fills up, adjacent deltas become one. Events that still find no room are dropped; the client learns of them
    by one `stream_truncated` a session and gap, in their place. Replies are never dropped: whoever calls `reply` bounds
    them.

    Attributes:
        capacity: events that may wait.
        notify: called, without arguments, when there is something to take again. It must not block.
        max_bytes: about how much the events that wait may have to say; one that is larger passes where none waits.
        reply_bytes: what the replies that wait have in all.
    """

    capacity: int
    notify: Callable[[], None] = lambda: None
    max_bytes: int = MAX_BYTES
    reply_bytes: int = attrs.field(default=0, init=False)
    _items: deque[Item | _Gap] = attrs.field(factory=deque, init=False)
    _gaps: dict[str, _Gap] = attrs.field(factory=dict, init=False)
    _events: int = attrs.field(default=0, init=False)
    _event_bytes: int = attrs.field(default=0, init=False)
    _full: bool = attrs.field(default=False, init=False)
    _closed: bool = attrs.field(default=False, init=False)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def replies(self) -> int:
        """How many replies wait."""
        return len(self._items) - self._events - len(self._gaps)

    def event(self, envelope: Envelope) -> None:
        """Add an event, or count it as dropped where there is no room. Never waits; does nothing once closed."""
        if self._closed:
            return
        if not self._full and (self._events >= self.capacity or self._event_bytes >= self.max_bytes):
            self._make_room()
        if self._full:
            self._drop(envelope)
        else:
            self._events += 1
            event = envelope.event
            self._event_bytes += len(event.delta) if isinstance(event, DELTAS) else weight(event)
            self._add(envelope)

    def reply(self, frame: bytes | Over) -> None:
        """Add a reply, ready to send, or the word of an end: it leaves after everything that was added before it."""
        if not self._closed:
            self.reply_bytes += 0 if isinstance(frame, Over) else len(frame)
            self._add(frame)

    def take(self) -> list[Item]:
        """Return everything that waits, in order, and forget it; where much waits, adjacent deltas come as one.

        Merging may move a delta before events of other sessions and before replies to other requests, never before
        something of its own session.
        """
        crowded = self._events > PRESSURE
        taken = [item.marker() if isinstance(item, _Gap) else item for item in self._items]
        self._clear()
        return _merged(taken) if crowded else taken

    def close(self) -> None:
        """Forget what waits and take no more: the client is gone."""
        self._closed = True
        self._clear()

    def _add(self, item: Item | _Gap) -> None:
        self._items.append(item)
        if len(self._items) == 1:
            self.notify()

    def _make_room(self) -> None:
        """Merge what can be merged; it is worth the while of doing it again only where that halves the queue."""
        kept = _merged([item for item in self._items if not isinstance(item, _Gap)])
        self._items = deque(kept)
        self._events = sum(isinstance(item, Envelope) for item in kept)
        self._full = self._events > self.capacity // 2 or self._event_bytes >= self.max_bytes

    def _drop(self, envelope: Envelope) -> None:
        resume_after, missing = _extent(envelope)
        gap = self._gaps.get(envelope.session_id)
        if gap is None:
            self._gaps[envelope.session_id] = gap = _Gap(envelope.session_id, resume_after, envelope.timestamp)
            self._add(gap)
        gap.dropped += missing

    def _clear(self) -> None:
        self._items.clear()
        self._gaps.clear()
        self._events = self._event_bytes = self.reply_bytes = 0
        self._full = False


def weight(value: Any) -> int:
    """Return about how many bytes a value has as JSON: those of its texts, and a few for all else."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(weight(name) + weight(each) for name, each in value.items())
    if isinstance(value, list | tuple):
        return sum(map(weight, value))
    if attrs.has(type(value)):
        return sum(weight(getattr(value, field.name)) for field in attrs.fields(type(value)))
    return 8


def is_large(result: object) -> bool:
    """Tell whether a result is to be encoded in a thread: on the loop it would hold up everybody."""
    return weight(result) > LARGE


def _merged(items: list[Item]) -> list[Item]:
    merged: list[bytes | Over | _Run] = []
    newest: dict[str, _Run] = {}
    for item in items:
        if not isinstance(item, Envelope):
            merged.append(item)
        elif (run := newest.get(item.session_id)) is None or not run.take(item):
            newest[item.session_id] = run = _Run([item])
            merged.append(run)
    return [journal.merged(each.envelopes) if isinstance(each, _Run) else each for each in merged]


def _extent(envelope: Envelope) -> tuple[int, int]:
    """Return after which seq the log has what an envelope says, and how many events that is."""
    if isinstance(envelope.event, StreamTruncated):
        return envelope.event.before, envelope.event.dropped
    first = envelope.first_seq or envelope.seq
    return first - 1, envelope.seq - first + 1
