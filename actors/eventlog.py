"""One session's event stream: numbered once, kept until it is stored, read by every subscriber at its own pace."""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

import attrs
import trio

from warren.events import Envelope, Event, StreamTruncated
from warren.journal import Entry, Journal, Run
from warren.service import OnEvent

TAIL: Final = 64 * 1024
"""Bytes of stored events that stay in memory for subscribers that are about to read them; the rest has the store."""


@attrs.frozen
class LogPage:
    """A part of a session's stored events.

    Attributes:
        events: those above where the reader stood, in order; empty at the end.
        gone: events up to this seq are no longer kept; None if no event is.
    """

    events: list[Envelope] = attrs.field(factory=list)
    gone: int | None = 0


ReadLog = Callable[[str, int], Awaitable[LogPage]]
"""Reads a page of a session's stored events above a seq."""


def utc_now() -> datetime:
    """Return the wall clock's time."""
    return datetime.now(UTC)


@attrs.define(eq=False)
class EventLog:
    """The stream of one session. It outlives the actor that writes it: subscribers survive a crash and a revival.

    Attributes:
        session_id: the session.
        read_stored: reads events that the journal no longer holds.
        keep: how many of the newest events stay while the store does not take them.
        closed: whether the session is gone: subscriptions end.
        bound: events up to it may have been shown by another process.
        journal: what the store does not have yet.
        listeners: called with each event as it is published. They must not raise.
    """

    session_id: str
    read_stored: ReadLog
    keep: int
    closed: bool = False
    bound: int = 0
    journal: Journal = attrs.field(init=False)
    listeners: list[OnEvent] = attrs.field(factory=list)
    _subscribers: "list[Subscription]" = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.journal = Journal(self.session_id)

    @property
    def last_seq(self) -> int:
        """The last number given out."""
        return self.journal.last_seq

    @property
    def needed(self) -> bool:
        """Whether somebody watches, or it holds events that no store has."""
        return self.watched or self.pending or bool(self.listeners)

    @property
    def watched(self) -> bool:
        """Whether somebody subscribes to it."""
        return bool(self._subscribers)

    @property
    def subscriptions(self) -> int:
        """The number of readers."""
        return len(self._subscribers)

    @property
    def pending(self) -> bool:
        """Whether it holds events that were shown and that no store has."""
        return self.journal.pending

    @property
    def floor(self) -> int:
        """The newest event that is no longer here; the store has what is up to it, or nobody."""
        return self.journal.floor

    def begin(self, record_seq: int) -> None:
        """Go on from the store, which has everything up to `record_seq`; new events are numbered above it.

        If another process has gone on meanwhile, subscribers read its events from the store.
        """
        self.journal.forget(record_seq)
        self.journal.start_above(record_seq)
        self._wake()

    def unstored(self, terminal: Entry | None) -> tuple[Run, ...]:
        """Return the events that the store does not have yet, and that of a terminal event to come."""
        return self.journal.runs(terminal)

    def stamp(self, event: Event) -> Entry:
        """Return the event with the next number and the time, without publishing it."""
        return Entry(self.journal.last_seq + 1, utc_now(), event)

    def publish(self, entry: Entry) -> None:
        """Append to the journal, wake every subscriber and call every listener; never waits."""
        self.journal.append(entry)
        self._wake()
        for listener in tuple(self.listeners):
            listener(entry.envelope(self.session_id))

    def emit(self, event: Event) -> int:
        """Publish the next event; return its number."""
        entry = self.stamp(event)
        self.publish(entry)
        return entry.seq

    def stored(self) -> None:
        """Take note that everything up to now is in the store: forget it, but for what is about to be read.

        A subscriber that keeps up has the last events of a turn still to read when they are stored: reading those
        from the store would cost a query for each turn. One that is further behind reads from the store.
        """
        journal = self.journal
        if not self._subscribers:
            journal.forget(journal.last_seq)
            return
        before, journal.stored = journal.stored, journal.last_seq
        unread = [each.cursor for each in self._subscribers if each.cursor >= journal.floor]
        journal.forget(max(before, min(unread, default=journal.stored)))
        if journal.size > TAIL:
            journal.forget(journal.stored)

    def trim(self) -> None:
        """Forget the oldest events past `keep`: no store takes them."""
        self.journal.forget_oldest(self.keep)

    def close(self) -> None:
        """End every subscription after what was published."""
        self.closed = True
        self._wake()

    def attach(self, subscription: "Subscription") -> None:
        """Count a subscription in: from now on it is woken."""
        self._subscribers.append(subscription)

    def detach(self, subscription: "Subscription") -> None:
        """Count a subscription out. Idempotent."""
        if subscription in self._subscribers:
            self._subscribers.remove(subscription)
        if not self._subscribers and self.read_stored is not None:
            self.journal.forget(self.journal.stored)

    def _wake(self) -> None:
        for subscriber in self._subscribers:
            subscriber.wake()


@attrs.define(eq=False)
class Subscription(AsyncIterator[Envelope]):
    """One reader of a session's events: a place in its log, from which it reads on whenever it is asked for more.

    However slow it is, it misses nothing that the journal or the store has, and holds no more than a page.

    Attributes:
        log: the stream.
        cursor: the last seq that was read for it.
    """

    log: EventLog
    cursor: int
    _ready: deque[Envelope] = attrs.field(factory=deque)
    _wakeup: trio.Event = attrs.field(factory=trio.Event)

    def begin_with(self, seq: int, event: Event) -> None:
        """Tell this reader alone of an event, and go on above its number."""
        self._ready.append(Envelope(self.log.session_id, seq, utc_now(), event))
        self.cursor = seq

    def wake(self) -> None:
        """Let the reader look again."""
        self._wakeup.set()

    async def __anext__(self) -> Envelope:
        while not self._ready:
            # No checkpoint between the look at the log and the wait for its next event.
            if self.cursor < self.log.last_seq:
                await self._read()
            elif self.log.closed:
                raise StopAsyncIteration
            else:
                self._wakeup = trio.Event()
                await self._wakeup.wait()
        return self._ready.popleft()

    async def _read(self) -> None:
        """Read the next events above the cursor."""
        log, floor = self.log, self.log.floor
        if self.cursor >= floor:
            page = log.journal.after(self.cursor)
            self._ready.extend(page)
            self.cursor = page[-1].seq if page else log.last_seq
            if len(page) > 1:  # one that keeps up has just waited; another one may have much to read
                await trio.lowlevel.checkpoint()
        else:
            self._queue(await log.read_stored(log.session_id, self.cursor), floor)

    def _queue(self, page: LogPage, floor: int) -> None:
        gone = floor if page.gone is None else page.gone
        if gone > self.cursor:
            self._skip(gone - self.cursor, to=gone)
        self._ready.extend(page.events)
        self.cursor = page.events[-1].seq if page.events else max(self.cursor, floor)

    def _skip(self, dropped: int, *, to: int) -> None:
        """Queue the marker of events that are kept nowhere; it repeats the last delivered seq."""
        marker = StreamTruncated(dropped, self.cursor)
        self._ready.append(Envelope(self.log.session_id, self.cursor, utc_now(), marker))
        self.cursor = to
