"""The messages that wait to be sent to one client, in order. No I/O."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

import attrs

from warren.base.values import define
from warren.conversation import codec

MAX_BYTES: Final = 16 * 1024 * 1024
"""The default bound of the notifications that wait, and of the replies."""
LARGE: Final = 256 * 1024
"""Bytes of a result beyond which it is encoded in a thread."""
BATCH: Final = 256
"""Messages that are sent in one piece. At the end of a connection, each piece proves that the peer still reads."""
PIECE: Final = 256 * 1024
"""Bytes after which a piece takes no more messages."""


class Source(Protocol):
    """An item whose messages are made when they are sent, so that a log is read no faster than the client reads."""

    def frames(self) -> Iterable[bytes]:
        """Return the messages that are ready now. Must not raise."""


Item = bytes | Source


@define(eq=False)
class Outbox:
    """The outbound queue of one connection.

    Nothing is ever dropped: events stay in the log of their session until they are sent, replies with their caller.

    Attributes:
        capacity: notifications that may wait.
        notify: called when the queue is no longer empty. It must not block.
        max_bytes: bytes that the notifications may have. A larger one is taken if no other one waits.
        items: the items that wait, in order.
        replies: replies that wait.
        reply_bytes: bytes of the replies that wait.
        closed: whether the client is gone.
        stalled: whether the client has not read all items that were taken.
    """

    capacity: int
    notify: Callable[[], object] = lambda: None
    max_bytes: int = MAX_BYTES
    reply_bytes: int = attrs.field(default=0, init=False)
    closed: bool = attrs.field(default=False, init=False)
    stalled: bool = attrs.field(default=False, init=False)
    items: list[Item] = attrs.field(factory=list, init=False)
    replies: int = attrs.field(default=0, init=False)
    _told: int = attrs.field(default=0, init=False)
    _told_bytes: int = attrs.field(default=0, init=False)

    @property
    def room(self) -> bool:
        """Whether another notification may be added."""
        return self._told < self.capacity and self._told_bytes < self.max_bytes

    def tell(self, frame: bytes) -> None:
        """Add an encoded notification. The caller must have checked that there is `room`. Does nothing once closed."""
        if not self.closed:
            self._told += 1
            self._told_bytes += len(frame)
            self.add(frame)

    def reply(self, frame: bytes) -> None:
        """Add an encoded reply. It is sent after everything that was added before it. Does nothing once closed."""
        if not self.closed:
            self.replies += 1
            self.reply_bytes += len(frame)
            self.add(frame)

    def add(self, item: Item) -> None:
        """Add a source, which is asked for messages once everything before it was sent. Does nothing once closed."""
        if not self.closed:
            self.items.append(item)
            if len(self.items) == 1:
                self.notify()

    def take(self) -> list[Item]:
        """Remove and return all items, in order."""
        taken, self.items = self.items, []
        self.replies = self._told = self._told_bytes = self.reply_bytes = 0
        return taken

    def close(self) -> None:
        """Drop all items and take no more: the client is gone."""
        self.closed = True
        self.take()


def pieces_of(items: Iterable[Item]) -> Iterator[list[bytes]]:
    """Yield the messages of items, in order, in pieces to send. A source makes each message when it is sent."""
    piece, size = list[bytes](), 0
    for item in items:
        for frame in (item,) if isinstance(item, bytes) else item.frames():
            piece.append(frame)
            size += len(frame)
            if len(piece) >= BATCH or size >= PIECE:
                yield piece
                piece, size = [], 0
    if piece:
        yield piece


def is_large(result: object) -> bool:
    """Return whether a result is to be encoded in a thread: on the event loop it would delay all other tasks."""
    return codec.weight(result) > LARGE
