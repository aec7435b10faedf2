"""The event log of a session: it numbers events, keeps them until they are stored, and serves readers at their pace."""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import attrs
import trio

from warren.errors import StoreError
from warren.events import TERMINAL, Envelope, Event, RunFailed, SessionMoved, StreamTruncated
from warren.journal import Journal, LogItem
from warren.service import Notify
from warren.values import define, frozen

if TYPE_CHECKING:
    from warren.storage.results import Lost

TAIL: Final = 64 * 1024
"""Bytes of stored events that stay in memory for readers that are close behind; later readers read the store."""


@frozen
class LogPage:
    """A part of a session's stored events.

    Attributes:
        events: the events above the reader's cursor, in order; empty at the end.
        gone: events up to this seq are no longer kept; None if no stored event is kept.
    """

    events: list[Envelope] = attrs.field(factory=list)
    gone: int | None = 0


PAUSE: Final = 0.5
"""Seconds between two looks of a reader at a store that cannot be read now."""
ReadLog = Callable[[str, int], Awaitable[LogPage]]
"""Reads a page of a session's stored events above a seq."""
FindLost = Callable[[str, int], Awaitable["Lost | None"]]
"""Reads which events around one that was shown are lost; None if it is stored, or may be stored some day."""
LastStored = Callable[[str, int], Awaitable[int | None]]
"""Reads the number of the last stored event of a session up to a seq; None if there is no such session."""


def utc_now() -> datetime:
    """Return the wall clock's time."""
    return datetime.now(UTC)


@define(eq=False)
class EventLog:
    """The events of one session. The log outlives the session's actor, so that readers survive a crash and an eviction.

    Attributes:
        session_id: the session.
        read_stored: reads events that the journal no longer has.
        last_stored: tells which events the store has.
        keep: the number of newest events that stay while the store refuses them.
        on_left: called when a reader has left.
        closed: whether the session is gone; readers end then.
        bound: events up to this seq may have been published by another process.
        journal: the events that the store does not have yet, and those that readers are about to read.
        recorder: gets each event when it is published: the trace of the running turn; None if that has none.
        settling: see EventReader.
        dropped: the last number of each run of events that was dropped because no store took it, in order.
    """

    session_id: str
    read_stored: ReadLog
    last_stored: LastStored
    keep: int
    on_left: Callable[[], object] = lambda: None
    closed: bool = False
    bound: int = 0
    journal: Journal = attrs.field(init=False)
    recorder: Callable[[Envelope], None] | None = None
    settling: bool = False
    dropped: list[int] = attrs.field(factory=list)
    _readers: "list[LogReader]" = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.journal = Journal()

    @property
    def last_seq(self) -> int:
        """The last number given out."""
        return self.journal.last_seq

    @property
    def needed(self) -> bool:
        """Whether the log has a reader, or events that no store has."""
        return bool(self._readers) or self.pending

    @property
    def watched(self) -> bool:
        """Whether the log has a reader."""
        return bool(self._readers)

    @property
    def unsure(self) -> bool:
        """Whether a reader may have to be told of the end of a turn that is lost with another process."""
        return any(reader.find_lost is not None for reader in self._readers)

    @property
    def subscriptions(self) -> int:
        """The number of readers."""
        return len(self._readers)

    @property
    def pending(self) -> bool:
        """Whether the log has events that were published and that no store has."""
        return self.journal.pending

    @property
    def floor(self) -> int:
        """The seq of the newest event that is no longer in memory. Events up to it are in the store, or lost."""
        return self.journal.floor

    def begin(self, record_seq: int) -> None:
        """Go on from the store, which has everything up to `record_seq`; new events are numbered above it.

        If another process has gone on meanwhile, readers get its events from the store. Before these a reader that has
        read on to events which no store takes any more gets the rest of them, with the end of the turn that it saw.
        """
        journal = self.journal
        if journal.pending and record_seq > journal.stored:
            self.pass_over(record_seq, journal.stored)
        journal.forget(record_seq)
        journal.start_above(record_seq)
        self._notify_all()

    def pass_over(self, up_to: int, shown: int) -> None:
        """Forget the events up to a number, which no store may take any more: another process has gone on above them.

        Args:
            up_to: the number.
            shown: a reader that has taken the events up to this number gets the rest of them.
        """
        rest = self.journal.rest()
        for reader in self._readers:
            if reader.cursor >= shown and not rest.parts_at(reader.cursor):
                reader.rest = rest
        self.journal.forget(up_to)

    def unstored(self, terminal: Envelope | None) -> tuple[LogItem, ...]:
        """Return the events that the store does not have yet, with a terminal event that is not published yet."""
        return self.journal.runs(terminal)

    def stamp(self, event: Event) -> Envelope:
        """Return the event with the next number and the time, without publishing it."""
        return Envelope(self.session_id, self.journal.last_seq + 1, utc_now(), event)

    def publish(self, envelope: Envelope) -> None:
        """Append to the journal, and notify every reader that has read all before it; never waits."""
        before = self.journal.last_seq
        self.journal.append(envelope)
        if self.recorder is not None:
            self.recorder(envelope)
        for reader in tuple(self._readers) if self._readers else ():
            if reader.cursor >= before:
                reader.notify(envelope.event)

    def emit(self, event: Event) -> int:
        """Publish the next event; return its number."""
        envelope = self.stamp(event)
        self.publish(envelope)
        return envelope.seq

    def stored(self) -> None:
        """Forget the events, which are all in the store now, except those that a reader is about to read.

        A reader that keeps up reads the last events of a turn just after they are stored. To read them from the store
        would cost a query for each turn. A reader that is further behind reads from the store.
        """
        journal = self.journal
        if not self._readers:
            journal.forget(journal.last_seq)
            return
        before, journal.stored = journal.stored, journal.last_seq
        unread = [each.cursor for each in self._readers if each.cursor >= journal.floor]
        journal.forget(max(before, min(unread, default=journal.stored)))
        if journal.size > TAIL:
            journal.forget(journal.stored)

    def trim(self) -> None:
        """Forget the oldest events beyond `keep`, which no store takes; readers that were not shown them are told."""
        journal = self.journal
        before = max(journal.floor, journal.stored)
        journal.forget_oldest(self.keep)
        if journal.floor > before:
            if self.dropped and self.dropped[-1] == before:
                self.dropped.pop()
            self.dropped.append(journal.floor)

    def doubt(self) -> None:
        """Drop the events, as the store has gone back; each reader is told which of those that it was shown are gone.

        Of a turn that ran, readers still get the end. Later events have higher numbers than all so far.
        """
        journal = self.journal
        newest = journal.after(journal.last_seq - 1) if journal.pending else ()
        end = next((each for each in newest if isinstance(each.event, TERMINAL)), None)
        journal.forget(journal.last_seq)
        for reader in tuple(self._readers):
            reader.doubt(end)

    def close(self) -> None:
        """Let every reader end after the last published event."""
        self.closed = True
        self._notify_all()

    def read(self, cursor: int = 0) -> "LogReader":
        """Return a new reader of the events above a seq."""
        reader = LogReader(self, cursor)
        self._readers.append(reader)
        return reader

    def leave(self, reader: "LogReader") -> None:
        """Forget a reader. Idempotent."""
        if reader in self._readers:
            self._readers.remove(reader)
            if not self._readers:
                self.journal.forget(self.journal.stored)
            self.on_left()

    def _notify_all(self) -> None:
        for reader in tuple(self._readers):
            reader.notify(None)


def notify_nobody(_event: Event | None) -> None:
    """Do nothing: the notification of a reader that needs none."""


@define(eq=False)
class LogReader(AsyncIterator[Envelope]):
    """A place in a session's log: the `EventReader` of `warren.service`.

    A slow reader misses nothing that the journal or the store has, and holds at most one page.

    Attributes:
        log: the log.
        cursor: the last seq that was taken.
        notify: see EventReader.
        find_lost: looks for the turn whose beginning the reader saw elsewhere, as long as it may be lost; else None.
        rest: the events that come before those of the store, which no store has; None if there are none.
    """

    log: EventLog
    cursor: int
    notify: Notify = notify_nobody
    find_lost: FindLost | None = None
    rest: Journal | None = None
    _ready: deque[Envelope] = attrs.field(factory=deque)
    _doubts: int = 0  # how often the store went back since the place was known to be in it
    _end: Envelope | None = None

    @property
    def session_id(self) -> str:
        """See EventReader."""
        return self.log.session_id

    @property
    def newest(self) -> int:
        """See EventReader."""
        return self.log.last_seq

    @property
    def settling(self) -> bool:
        """See EventReader."""
        return self.log.settling

    @property
    def over(self) -> bool:
        """See EventReader."""
        return self.log.closed and not (self._ready or self._doubts) and self.cursor >= self.log.last_seq

    def doubt(self, end: Envelope | None = None) -> None:
        """Look in the store which events that were taken are gone there, before more are taken.

        Args:
            end: the end of a turn whose earlier events are gone, to be taken after the marker.
        """
        self._doubts += 1
        self._end = end or self._end
        self.notify(None)

    def take(self) -> list[Envelope] | None:
        """See EventReader."""
        if self._ready:
            page = list(self._ready)
            self._ready.clear()
            return page
        if self._doubts:
            return None
        journal = self.log.journal
        if self.cursor >= journal.last_seq:
            return []
        if self.cursor < journal.floor or self.find_lost is not None:  # a lost turn ends before all later events
            return self._take_rest()
        page = journal.after(self.cursor)
        self.cursor = page[-1].seq if page else journal.last_seq
        return page

    def _take_rest(self) -> list[Envelope] | None:
        """Return the next events that are neither in the journal nor in the store; None if there are none."""
        rest = self.rest
        if rest is None or self.find_lost is not None:
            return None
        gap = [self._gap(rest.floor)] if self.cursor < rest.floor else []
        page = rest.after(self.cursor)
        if page:
            self.cursor = page[-1].seq
        else:
            self.rest = None
        return [*gap, *page] or None

    def _gap(self, up_to: int) -> Envelope:
        """Go on behind events that no log has any more; return a marker, which repeats the last seq that was taken."""
        cursor, self.cursor = self.cursor, up_to
        return Envelope(self.log.session_id, cursor, utc_now(), StreamTruncated(up_to - cursor, cursor))

    async def load(self) -> list[Envelope]:
        """See EventReader."""
        try:
            if self._doubts:
                return await self._settled()
            end = None if self.find_lost is None else await self._end_of_lost_turn(self.find_lost)
            page = await self._stored() if end is None else [end]
            waits = self.find_lost is not None and not page  # nobody can tell before another process has the session
        except StoreError as exc:
            if not (exc.cause == "lease_lost" or exc.retryable):
                raise
            page, waits = [], True  # the store comes back: no event is gone, and no reader has to be broken off
        if waits:
            await trio.sleep(PAUSE)
        return page

    async def _end_of_lost_turn(self, find: FindLost) -> Envelope | None:
        """Return the end of a turn whose beginning this reader saw, if its process died before it stored the turn."""
        session_id, cursor = self.log.session_id, self.cursor
        lost = await find(session_id, cursor)
        if cursor != self.cursor or (lost is not None and not lost.final):
            return None
        self.find_lost = None
        if lost is None or lost.ended:
            return None
        self.cursor = lost.last
        problem = "the process ended during the turn: nothing of the turn was stored"
        return Envelope(session_id, lost.last, utc_now(), RunFailed(session_id, problem, "crash"))

    async def _stored(self) -> list[Envelope]:
        """Return the next events of the store."""
        floor = self.log.floor
        return self._loaded(await self.log.read_stored(self.log.session_id, self.cursor), floor)

    def _loaded(self, stored: LogPage, floor: int) -> list[Envelope]:
        """Go on behind a page that was read from the store when the log began above `floor`."""
        dropped, page = self.log.dropped, list[Envelope]()
        gone = floor if stored.gone is None else stored.gone
        if gone > self.cursor:
            page.append(self._gap(gone))
        if not dropped or self.cursor >= dropped[-1]:
            page += stored.events
        else:
            for each in stored.events:
                page += self._dropped_below(each.first_seq or each.seq)
                page.append(each)
                self.cursor = each.seq
            if not stored.events:
                page += self._dropped_below(floor + 1)
        self.cursor = stored.events[-1].seq if stored.events else max(self.cursor, floor)
        return page

    def _dropped_below(self, seq: int) -> list[Envelope]:
        """Go on behind the events below a number that were dropped and that no store has; return their markers."""
        return [self._gap(last) for last in self.log.dropped if self.cursor < last < seq]

    async def _settled(self) -> list[Envelope]:
        """Return a marker for the events that were taken and are gone, and the end of their turn if it is not taken."""
        log, cursor, doubts, end, page = self.log, self.cursor, self._doubts, self._end, list[Envelope]()
        stored = newest = await log.last_stored(log.session_id, cursor)
        if end is not None and end.seq > cursor:
            newest = await log.last_stored(log.session_id, end.seq)
        if (cursor, doubts) != (self.cursor, self._doubts):  # it was moved, or the store has gone back once more
            return page
        self._doubts, self._end = 0, None
        if stored is None:
            log.close()
        first = (stored or 0) + 1
        if cursor >= first:
            page.append(Envelope(log.session_id, cursor, utc_now(), SessionMoved(first, cursor)))
        if end is not None and (newest or 0) <= cursor < end.seq:  # else it has stored events to read first
            page.append(end)
            self.cursor = end.seq
        return page

    def another(self) -> "LogReader":
        """See EventReader."""
        reader = self.log.read(self.cursor)
        reader.find_lost, reader.rest = self.find_lost, self.rest
        if self._doubts:
            reader.doubt(self._end)
        return reader

    def close(self) -> None:
        """See EventReader."""
        self.notify = notify_nobody
        self.log.leave(self)

    async def __anext__(self) -> Envelope:
        while not self._ready:
            page = self.take()
            if page is None:
                page = await self.load()
            elif len(page) > 1:  # this reader is behind, and may read for long without waiting for an event
                self._ready.extend(page)
                await trio.lowlevel.checkpoint()
                continue
            elif not page:
                if self.over:
                    raise StopAsyncIteration
                await self._wait()
            self._ready.extend(page)
        return self._ready.popleft()

    async def _wait(self) -> None:
        news = trio.Event()
        self.notify = lambda _event: news.set()
        await news.wait()
