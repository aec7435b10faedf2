"""What waits to be sent to one client: bounded, in order, told apart by session. No I/O."""

from collections import deque
from collections.abc import Callable
from typing import Final

import attrs

from warren import codec, journal
from warren.events import DELTAS, Envelope

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

    Nothing is ever dropped: as long as there is no `room`, events stay in the log of their session, and replies with
    their caller.

    Attributes:
        capacity: events that may wait.
        notify: called, without arguments, when there is something to take again. It must not block.
        max_bytes: about how much the events that wait may have to say; one that is larger passes if none waits.
        reply_bytes: what the replies that wait have in all.
        closed: whether the client is gone.
    """

    capacity: int
    notify: Callable[[], object] = lambda: None
    max_bytes: int = MAX_BYTES
    reply_bytes: int = attrs.field(default=0, init=False)
    closed: bool = attrs.field(default=False, init=False)
    _items: deque[Item] = attrs.field(factory=deque, init=False)
    _events: int = attrs.field(default=0, init=False)
    _event_bytes: int = attrs.field(default=0, init=False)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def replies(self) -> int:
        """How many replies wait."""
        return len(self._items) - self._events

    @property
    def room(self) -> bool:
        """Whether it takes another event."""
        return self._events < self.capacity and self._event_bytes < self.max_bytes

    def event(self, envelope: Envelope) -> None:
        """Add an event; whoever calls it sees to it that there is `room`. Never waits; does nothing once closed."""
        if not self.closed:
            self._events += 1
            event = envelope.event
            self._event_bytes += len(event.delta) if isinstance(event, DELTAS) else codec.weight(event)
            self._add(envelope)

    def tell(self, frame: bytes) -> None:
        """Add a notification that is ready to send; it takes room as an event does. Does nothing once closed."""
        if not self.closed:
            self._events += 1
            self._event_bytes += len(frame)
            self._add(frame)

    def reply(self, frame: bytes | Over) -> None:
        """Add a reply, ready to send, or the word of an end: it leaves after everything that was added before it."""
        if not self.closed:
            self.reply_bytes += 0 if isinstance(frame, Over) else len(frame)
            self._add(frame)

    def take(self) -> list[Item]:
        """Return everything that waits, in order, and forget it; if much waits, adjacent deltas come as one.

        Merging may move a delta before events of other sessions and before replies to other requests, never before
        something of its own session.
        """
        crowded = self._events > PRESSURE
        taken = list(self._items)
        self._clear()
        return _merged(taken) if crowded else taken

    def close(self) -> None:
        """Forget what waits and take no more: the client is gone."""
        self.closed = True
        self._clear()

    def _add(self, item: Item) -> None:
        self._items.append(item)
        if len(self._items) == 1:
            self.notify()

    def _clear(self) -> None:
        self._items.clear()
        self._events = self._event_bytes = self.reply_bytes = 0


def is_large(result: object) -> bool:
    """Tell whether a result is to be encoded in a thread: on the loop it would hold up everybody."""
    return codec.weight(result) > LARGE


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
