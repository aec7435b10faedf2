"""One session's event stream: numbered once, kept until it is stored, handed to every subscriber without waiting."""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

import attrs
import trio

from warren.events import Envelope, Event, StreamTruncated
from warren.journal import Entry, Journal
from warren.records import EventRow


@attrs.frozen
class LogPage:
    """A part of a session's stored events.

    Attributes:
        events: those above where the reader stood, in order; empty at the end.
        gone: events up to this seq are no longer kept.
    """

    events: list[Envelope] = attrs.field(factory=list)
    gone: int = 0


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
        read_stored: reads what the journal no longer holds; None without a store.
        keep: how many of the newest events stay where no store takes them.
        closed: whether the session is gone: subscriptions end.
        bound: events up to it may have been shown by another process.
        journal: what the store does not have yet.
    """

    session_id: str
    read_stored: ReadLog | None
    keep: int
    closed: bool = False
    bound: int = 0
    journal: Journal = attrs.field(init=False)
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
        return self.watched or self.pending

    @property
    def watched(self) -> bool:
        """Whether somebody subscribes to it."""
        return bool(self._subscribers)

    @property
    def pending(self) -> bool:
        """Whether it holds events that were shown and that no store has."""
        return len(self.journal) > 0

    @property
    def floor(self) -> int:
        """The newest event that is no longer here; the store has what is up to it, or nobody."""
        return self.journal.floor

    def begin(self, record_seq: int) -> None:
        """Go on from the store, which has everything up to `record_seq`; new events are numbered above it.

        Where another process has gone on meanwhile, subscribers catch up from the store.
        """
        if record_seq > self.last_seq:
            for subscriber in self._subscribers:
                subscriber.fall_back()
        self.journal.forget(record_seq)
        self.journal.start_above(record_seq)

    def unstored(self, terminal: Entry | None) -> tuple[EventRow, ...]:
        """Return the rows that the store does not have yet, and that of a terminal event to come."""
        return self.journal.rows(terminal)

    def stamp(self, event: Event) -> Entry:
        """Return the event with the next number and the time, without publishing it."""
        return Entry(self.journal.last_seq + 1, utc_now(), event)

    def publish(self, entry: Entry) -> None:
        """Append to the journal and hand to every subscriber; never waits."""
        self.journal.append(entry)
        for subscriber in self._subscribers:
            subscriber.push(entry.envelope(self.session_id))

    def stored(self) -> None:
        """Everything up to now is in the store: forget it."""
        self.journal.forget(self.last_seq)

    def trim(self) -> None:
        """Forget the oldest events past `keep`: no store takes them."""
        self.journal.forget_oldest(self.keep)

    def close(self) -> None:
        """End every subscription after what was published."""
        self.closed = True
        for subscriber in self._subscribers:
            subscriber.wake()

    def attach(self, subscription: "Subscription") -> None:
        """Count a subscription in: from now on it is pushed to."""
        self._subscribers.append(subscription)

    def detach(self, subscription: "Subscription") -> None:
        """Count a subscription out. Idempotent."""
        if subscription in self._subscribers:
            self._subscribers.remove(subscription)


@attrs.define(eq=False)
class Subscription(AsyncIterator[Envelope]):
    """One reader of a session's events: first what it has missed, from store and journal; then live, from a buffer.

    Attributes:
        log: the stream.
        cursor: the last seq that was queued for the reader.
        limit: events that may wait for the reader while it follows live; past it there is a gap.
    """

    log: EventLog
    cursor: int
    limit: int
    _ready: deque[Envelope] = attrs.field(factory=deque)
    _dropped: int = 0
    _live: bool = False
    _wakeup: trio.Event = attrs.field(factory=trio.Event)

    def push(self, envelope: Envelope) -> None:
        """Take a live event, or count it as dropped until the reader has emptied its buffer."""
        if not self._live or envelope.seq <= self.cursor:  # a terminal event is in the store before it is published
            return
        if self._dropped or len(self._ready) >= self.limit:
            self._dropped += 1
        else:
            self._ready.append(envelope)
            self.cursor = envelope.seq
        self.wake()

    def begin_with(self, seq: int, event: Event) -> None:
        """Tell this reader alone of an event, and go on above its number."""
        self._ready.append(Envelope(self.log.session_id, seq, utc_now(), event))
        self.cursor = seq

    def fall_back(self) -> None:
        """Read from the store again: events were added to it that nobody pushed."""
        if not self._dropped:
            self._live = False
            self.wake()

    def wake(self) -> None:
        """Let the reader look again."""
        self._wakeup.set()

    async def __anext__(self) -> Envelope:
        while not self._ready:
            if self._dropped:
                self._skip(self._dropped, to=self.log.last_seq)
            elif not self._live:
                await self._catch_up()
            elif self.log.closed:
                raise StopAsyncIteration
            else:
                self._wakeup = trio.Event()
                await self._wakeup.wait()
        return self._ready.popleft()

    async def _catch_up(self) -> None:
        """Queue the next events above the cursor; with none left, go live. No checkpoint between look and leap."""
        await trio.lowlevel.checkpoint()
        log, floor = self.log, self.log.floor
        if self.cursor >= log.last_seq:
            self._live = True
        elif self.cursor >= floor:
            self._ready.extend(log.journal.after(self.cursor))
            self.cursor = log.last_seq
        elif log.read_stored is None:
            self._skip(floor - self.cursor, to=floor)
        else:
            self._queue(await log.read_stored(log.session_id, self.cursor), floor)

    def _queue(self, page: LogPage, floor: int) -> None:
        if page.gone > self.cursor:
            self._skip(page.gone - self.cursor, to=page.gone)
        self._ready.extend(page.events)
        self.cursor = page.events[-1].seq if page.events else max(self.cursor, floor)

    def _skip(self, dropped: int, *, to: int) -> None:
        """Queue the one marker of a gap: it repeats the last delivered seq, from which a replay fills it."""
        marker = StreamTruncated(dropped, self.cursor)
        self._ready.append(Envelope(self.log.session_id, self.cursor, utc_now(), marker))
        self._dropped = 0
        self.cursor = to
