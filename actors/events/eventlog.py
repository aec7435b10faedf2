"""The event log of a session: it numbers events, keeps them until they are stored, and serves readers at their pace."""

import logging
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from warren.base.errors import StoreError
from warren.base.values import define, frozen, value
from warren.calls.streams import EventReader, OnBegin, OnEvent
from warren.conversation.events import (
    DELTAS,
    TERMINAL,
    Envelope,
    Event,
    ReasoningDelta,
    RunFailed,
    SessionMoved,
    StreamTruncated,
    TextDelta,
    sealed,
)
from warren.conversation.log_rows import Deltas, LogItem, size_of

if TYPE_CHECKING:
    from warren.storage.results import Lost

R = TypeVar("R")
logger: Final = logging.getLogger("warren.session")

PAGE: Final = 256
"""Envelopes that a reader gets at once."""
TEXT: Final = 256 * 1024
"""Characters of deltas that a reader gets at once: they are copied for it."""
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


@value
class Rest:
    """The newest events of a log that no store takes any more, for the readers that have seen the ones before.

    Attributes:
        floor: the seq of the last event before them.
        runs: the events.
    """

    floor: int
    runs: Sequence[LogItem]


@define(eq=False)
class Trouble:
    """The troubles that a reader has to be told of before the next events.

    Attributes:
        find_lost: looks for the turn whose beginning the reader saw elsewhere, as long as it may be lost; else None.
        rest: the events that come before those of the store, which no store has; None if there are none.
        doubts: how often the store went back since the place was known to be in it.
        end: the end of a turn whose earlier events are gone with the store; None if there is none.
    """

    find_lost: FindLost | None = None
    rest: Rest | None = None
    doubts: int = 0
    end: Envelope | None = None


@define(eq=False)
class EventLog:
    """The events of one session, from the moment they are published until every reader and the store have them.

    A turn publishes, readers read, and neither ever waits for the other. The log holds the newest events in memory, the
    *tail*; the store holds the rest. Three numbers say what is where::

        1 ......... floor ......... stored ......... last_seq
        store only  | store and tail | tail only      |

    * `emit` gives an event the next number and the time, appends it to the tail and calls `notify` of every reader that
      has read all before it. It never blocks. A turn with a fence publishes through its `Guard`, which may hold events
      back.
    * A commit stores `unstored(terminal)`: everything above `stored`, with the terminal event that follows. That one is
      numbered by `stamp` before the commit and shown by `publish` after it: nobody sees the end of a turn that the
      store has not taken. `committed` then drops the events that no reader is about to read.
    * `read` returns a reader. It takes the events above its cursor from the tail, or loads them from the store if they
      are below `floor`: a reader that keeps up never asks the store, and one that does not costs no memory.
    * If the store refuses a commit, the events stay, up to `keep`; `trim` drops older ones, and readers are told.

    Adjacent deltas of one kind share an entry of the tail (`Deltas`), and a reader that is behind gets them merged.
    Numbers only rise, but not always by one: a takeover skips some.

    The log outlives the session's actor, so that readers survive a crash and an eviction. `begin` goes on from what the
    store has then, `doubt` handles a store that has gone back to an earlier state, `pass_over` another process that has
    gone on with the session. In each case a reader is told what it was shown in vain, by SessionMoved or
    StreamTruncated, and gets the end of the turn that it saw begin.

    A caller that wants the events of a turn puts a `Beginning` into its request, and gets a reader with the first event
    that the turn publishes. One that comes later, as its prompt repeats that of the turn, gets a reader of all of them
    by `tell_begun`: those before may be in the store alone.

    There is no checkpoint in any method but those of readers: a turn counts on it between `stamp` and `publish`, and
    readers count on it between a look at the tail and the move of their cursor.

    Attributes:
        session_id: the session.
        read_stored: reads events that are no longer in the tail.
        last_stored: tells which events the store has.
        keep: the number of newest events that stay while the store refuses them.
        on_left: called with the session when a reader has left.
        closed: whether the session is gone; readers end then.
        bound: events up to this seq may have been published by another process.
        last_seq: the last number given out to an event that was published.
        floor: the seq of the newest event that is not in the tail (0 at the start): it is in the store, or lost.
        stored: the seq of the newest event in the store. The tail may have events up to it for readers close behind.
        beginning: the slots of those who get a reader with the next event: a turn is about to begin for them.
        recorder: gets each event when it is published: the trace of the running turn; None if that has none.
        settling: whether the newest turn has published all but its terminal event, and is being stored.
        dropped: the last number of each run of events that was dropped because no store took it, in order.
    """

    session_id: str
    read_stored: ReadLog
    last_stored: LastStored
    keep: int
    on_left: Callable[[str], object] = lambda _session_id: None
    closed: bool = False
    bound: int = 0
    last_seq: int = attrs.field(default=0, init=False)
    floor: int = attrs.field(default=0, init=False)
    stored: int = attrs.field(default=0, init=False)
    beginning: "list[Beginning]" = attrs.field(factory=list, init=False)
    recorder: Callable[[Envelope], None] | None = attrs.field(default=None, init=False)
    settling: bool = attrs.field(default=False, init=False)
    dropped: list[int] = attrs.field(factory=list, init=False)
    _runs: list[LogItem] = attrs.field(factory=list, init=False, repr=False)
    _readers: dict[EventReader, Trouble | None] = attrs.field(factory=dict, init=False)

    # -- publishing

    def stamp(self, event: Event) -> Envelope:
        """Return the event with the next number and the time, without publishing it."""
        return sealed(self.session_id, self.last_seq + 1, datetime.now(UTC), event)

    def emit(self, event: Event) -> int:
        """Publish the next event and return its number."""
        before = self.last_seq
        self.last_seq = seq = before + 1
        if isinstance(event, DELTAS):
            self._add_delta(event, seq, datetime.now(UTC))
        else:
            self._runs.append(sealed(self.session_id, seq, datetime.now(UTC), event))
        if self._readers or self.beginning or self.recorder is not None:
            self._tell(event, before)
        return seq

    def publish(self, envelope: Envelope) -> None:
        """Append the next event, whose seq is above `last_seq`, and notify each reader that has read all before it."""
        event, before = envelope.event, self.last_seq
        self.last_seq = envelope.seq
        if isinstance(event, DELTAS) and envelope.first_seq is None:
            self._add_delta(event, envelope.seq, envelope.timestamp)
        else:
            self._runs.append(envelope)
        self._tell(event, before)

    def _add_delta(self, event: TextDelta | ReasoningDelta, seq: int, at: datetime) -> None:
        """Append a delta to the newest entry if that has those just before it."""
        runs = self._runs
        run = runs[-1] if runs else None
        if isinstance(run, Deltas) and run.kind is type(event) and run.seq + 1 == seq and run.seq > self.stored:
            run.seq = seq  # only without a gap: a piece is found by its seq
            run.timestamps.append(at)
            run.pieces.append(event.delta)
        else:
            runs.append(Deltas(self.session_id, seq, seq, type(event), [at], [event.delta]))

    def _tell(self, event: Event, before: int) -> None:
        """Show the newest event to everybody who follows: `before` is the number of the one before it."""
        if self.recorder is not None:
            newest = self._runs[-1]
            if isinstance(newest, Deltas):
                newest = Envelope(self.session_id, newest.seq, newest.timestamps[-1], event)
            self.recorder(newest)
        for reader in tuple(self._readers):
            if reader.cursor >= before:
                reader.notify(event)
        if self.beginning:
            self.tell_begun(before)

    def tell_begun(self, cursor: int) -> None:
        """Give each caller that waits for the events of the turn a reader of those above a number."""
        begun = self.beginning[:]
        self.beginning.clear()
        for each in begun:
            each.fill(self, cursor)

    # -- the store

    @property
    def pending(self) -> bool:
        """Whether the log has events that were published and that no store has."""
        return bool(self._runs) and self._runs[-1].seq > self.stored

    def unstored(self, terminal: Envelope | None = None) -> tuple[LogItem, ...]:
        """Return the events that the store does not have yet, with a terminal event that is not published yet.

        `row_of` makes rows of the log of them.
        """
        new = self._runs if self.floor >= self.stored else self._runs[self._above(self.stored) :]
        return tuple(new) if terminal is None else (*new, terminal)

    def committed(self, up_to: int | None = None) -> None:
        """Forget the events that are in the store now, except those that a reader is about to read.

        A reader that keeps up reads the last events of a turn just after they are stored. To read them from the store
        would cost a query for each turn. A reader that is further behind reads from the store.

        Args:
            up_to: the seq of the newest event of the commit; None if none was published while that was under way.
        """
        newest = self.last_seq if up_to is None else up_to
        if not self._readers:
            self.forget(newest)
            return
        before, self.stored = self.stored, newest
        unread = [each.cursor for each in self._readers if each.cursor >= self.floor]
        self.forget(max(before, min(unread, default=self.stored)))
        if sum([len(run.encoded or b"") if isinstance(run, Envelope) else run.size for run in self._runs]) > TAIL:
            self.forget(self.stored)

    def forget(self, up_to: int) -> None:
        """Drop the events up to `up_to` from the tail: they are in the store now."""
        del self._runs[: len(self._runs) if up_to >= self.last_seq else self._above(up_to)]
        self.floor = max(self.floor, up_to)
        self.stored = max(self.stored, up_to)

    def forget_oldest(self, keep: int) -> None:
        """Drop all but the newest `keep` entries of the tail, whether or not the store has them."""
        oldest = len(self._runs) - keep
        if oldest > 0:
            self.floor = self._runs[oldest - 1].seq
            del self._runs[:oldest]

    def trim(self) -> None:
        """Forget the oldest events beyond `keep`, which no store takes; readers that were not shown them are told."""
        before = max(self.floor, self.stored)
        self.forget_oldest(self.keep)
        if self.floor > before:
            if self.dropped and self.dropped[-1] == before:
                self.dropped.pop()
            self.dropped.append(self.floor)

    # -- what breaks the order of events

    def begin(self, record_seq: int) -> None:
        """Go on from the store, which has everything up to `record_seq`; new events are numbered above it.

        If another process has gone on meanwhile, readers get its events from the store. Before these a reader that has
        read on to events which no store takes any more gets the rest of them, with the end of the turn that it saw.
        """
        if self.pending and record_seq > self.stored:
            self.pass_over(record_seq, self.stored)
        self.forget(record_seq)
        self.start_above(record_seq)
        self._notify_all()

    def start_above(self, seq: int) -> None:
        """Give the next event a number above `seq`. Events up to `seq` that are not in the tail are in the store."""
        if seq > self.last_seq:
            self.last_seq = seq
            self.floor = self.floor if self._runs else seq

    def pass_over(self, up_to: int, shown: int) -> None:
        """Forget the events up to a number, which no store may take any more: another process has gone on above them.

        Args:
            up_to: the number.
            shown: a reader that has taken the events up to this number gets the rest of them.
        """
        rest = Rest(max(self.floor, self.stored), self.unstored())
        for reader in self._readers:
            if reader.cursor >= shown and not _parts_at(rest.runs, reader.cursor):
                self._trouble_of(reader).rest = rest
        self.forget(up_to)

    def doubt(self) -> None:
        """Drop the events, as the store has gone back; each reader is told which of those that it was shown are gone.

        Of a turn that ran, readers still get the end. Later events have higher numbers than all so far.
        """
        newest = page_of(self._runs, self.last_seq - 1) if self.pending else ()
        end = next((each for each in newest if isinstance(each.event, TERMINAL)), None)
        self.forget(self.last_seq)
        for reader in tuple(self._readers):
            self.doubt_place(reader, end)

    def doubt_place(self, reader: EventReader, end: Envelope | None = None) -> None:
        """Have a reader look in the store which events that it took are gone there, before it takes more.

        Args:
            reader: the reader.
            end: the end of a turn whose earlier events are gone, to be taken after the marker.
        """
        trouble = self._trouble_of(reader)
        trouble.doubts += 1
        trouble.end = end or trouble.end
        reader.notify(None)

    def expect_lost(self, reader: EventReader, find: FindLost) -> None:
        """Have a reader told of the end of a turn that it saw begin elsewhere, once `find` knows that it is lost."""
        self._trouble_of(reader).find_lost = find

    def close(self) -> None:
        """Let every reader end after the last published event."""
        self.closed = True
        self._notify_all()

    # -- reading

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
        return any(each is not None and each.find_lost is not None for each in self._readers.values())

    @property
    def subscriptions(self) -> int:
        """The number of readers."""
        return len(self._readers)

    @property
    def size(self) -> int:
        """About how many bytes the tail has."""
        return sum(map(size_of, self._runs))

    def has(self, seq: int) -> bool:
        """Return whether the event with a number is in the tail. The numbers have gaps."""
        index = self._above(seq - 1)
        run = self._runs[index] if index < len(self._runs) else None
        return run is not None and (run.first_seq or run.seq) <= seq

    def parts_at(self, seq: int) -> bool:
        """Return whether a number is in the middle of deltas that came merged: they cannot be parted there."""
        return _parts_at(self._runs, seq)

    @property
    def newest(self) -> int:
        return self.last_seq

    def read(self, cursor: int = 0) -> EventReader:
        """Return a new reader of the events above a seq."""
        reader = EventReader(self, cursor)
        self._readers[reader] = None
        return reader

    def another(self, reader: EventReader) -> EventReader:
        other, trouble = self.read(reader.cursor), self._readers.get(reader)
        self._readers[other] = None if trouble is None else attrs.evolve(trouble)
        return other

    def leave(self, reader: EventReader) -> None:
        if reader in self._readers:
            del self._readers[reader]
            if not self._readers:
                self.forget(self.stored)
            self.on_left(self.session_id)

    def news(self) -> trio.Event:
        return trio.Event()

    def is_behind(self, reader: EventReader) -> bool:
        trouble = self._readers.get(reader)
        return reader.cursor < self.last_seq or (trouble is not None and trouble.doubts > 0)

    def take(self, reader: EventReader) -> list[Envelope] | None:
        trouble = self._readers.get(reader)
        if trouble is not None and trouble.doubts:
            return None
        if reader.cursor >= self.last_seq:
            return []
        # A lost turn ends before all later events: those wait until `load` knows.
        if reader.cursor < self.floor or (trouble is not None and trouble.find_lost is not None):
            return None if trouble is None else self._take_rest(reader, trouble)
        page = page_of(self._runs, reader.cursor)
        reader.cursor = page[-1].seq if page else self.last_seq
        return page

    def _take_rest(self, reader: EventReader, trouble: Trouble) -> list[Envelope] | None:
        """Return the next events that are neither in the tail nor in the store; None if there are none."""
        rest = trouble.rest
        if rest is None or trouble.find_lost is not None:
            return None
        gap = [self._gap(reader, rest.floor)] if reader.cursor < rest.floor else []
        page = page_of(rest.runs, reader.cursor)
        if page:
            reader.cursor = page[-1].seq
        else:
            trouble.rest = None
        return [*gap, *page] or None

    def _gap(self, reader: EventReader, up_to: int) -> Envelope:
        """Go on behind events that no log has any more; return a marker, which repeats the last seq that was taken."""
        cursor, reader.cursor = reader.cursor, up_to
        return Envelope(self.session_id, cursor, utc_now(), StreamTruncated(up_to - cursor, cursor))

    async def load(self, reader: EventReader) -> list[Envelope]:
        trouble = self._readers.get(reader) or Trouble()
        try:
            if trouble.doubts:
                return await self._settled(reader, trouble)
            end = None if trouble.find_lost is None else await self._end_of_lost_turn(reader, trouble)
            page = await self._stored(reader) if end is None else [end]
            waits = trouble.find_lost is not None and not page  # nobody can tell before another process has the session
        except StoreError as exc:
            if not (exc.cause == "lease_lost" or exc.retryable):
                raise
            page, waits = [], True  # the store comes back: no event is gone, and no reader has to be broken off
        if waits:
            await trio.sleep(PAUSE)
        return page

    async def _end_of_lost_turn(self, reader: EventReader, trouble: Trouble) -> Envelope | None:
        """Return the end of a turn whose beginning a reader saw, if its process died before it stored the turn."""
        cursor, find = reader.cursor, trouble.find_lost
        lost = None if find is None else await find(self.session_id, cursor)
        if cursor != reader.cursor or (lost is not None and not lost.final):
            return None
        trouble.find_lost = None
        if lost is None or lost.ended:
            return None
        reader.cursor = lost.last
        problem = "the process ended during the turn: nothing of the turn was stored"
        return Envelope(self.session_id, lost.last, utc_now(), RunFailed(self.session_id, problem, "crash"))

    async def _stored(self, reader: EventReader) -> list[Envelope]:
        """Return the next events of the store."""
        floor = self.floor
        return self._loaded(reader, await self.read_stored(self.session_id, reader.cursor), floor)

    def _loaded(self, reader: EventReader, stored: LogPage, floor: int) -> list[Envelope]:
        """Go on behind a page that was read from the store when the log began above `floor`."""
        dropped, page = self.dropped, list[Envelope]()
        gone = floor if stored.gone is None else stored.gone
        if gone > reader.cursor:
            page.append(self._gap(reader, gone))
        if not dropped or reader.cursor >= dropped[-1]:
            page += stored.events
        else:
            for each in stored.events:
                page += self._dropped_below(reader, each.first_seq or each.seq)
                page.append(each)
                reader.cursor = each.seq
            if not stored.events:
                page += self._dropped_below(reader, floor + 1)
        reader.cursor = stored.events[-1].seq if stored.events else max(reader.cursor, floor)
        return page

    def _dropped_below(self, reader: EventReader, seq: int) -> list[Envelope]:
        """Go on behind the events below a number that were dropped and that no store has; return their markers."""
        return [self._gap(reader, last) for last in self.dropped if reader.cursor < last < seq]

    async def _settled(self, reader: EventReader, trouble: Trouble) -> list[Envelope]:
        """Return a marker for the events that were taken and are gone, and the end of their turn if it is not taken."""
        cursor, doubts, end, page = reader.cursor, trouble.doubts, trouble.end, list[Envelope]()
        stored = newest = await self.last_stored(self.session_id, cursor)
        if end is not None and end.seq > cursor:
            newest = await self.last_stored(self.session_id, end.seq)
        if (cursor, doubts) != (reader.cursor, trouble.doubts):  # it was moved, or the store has gone back once more
            return page
        trouble.doubts, trouble.end = 0, None
        if stored is None:
            self.close()
        first = (stored or 0) + 1
        if cursor >= first:
            page.append(Envelope(self.session_id, cursor, utc_now(), SessionMoved(first, cursor)))
        if end is not None and (newest or 0) <= cursor < end.seq:  # else it has stored events to read first
            page.append(end)
            reader.cursor = end.seq
        return page

    def _trouble_of(self, reader: EventReader) -> Trouble:
        trouble = self._readers[reader] = self._readers.get(reader) or Trouble()
        return trouble

    def _notify_all(self) -> None:
        for reader in tuple(self._readers):
            reader.notify(None)

    def _above(self, seq: int) -> int:
        """Return the index of the first entry that ends above a number."""
        return bisect_right(self._runs, seq, key=_last_of)


_last_of: Final = attrgetter("seq")


def page_of(runs: Sequence[LogItem], after: int) -> list[Envelope]:
    """Return the first events above a seq, at most a page, adjacent deltas merged."""
    page: list[Envelope] = []
    text, start = 0, bisect_right(runs, after, key=_last_of)
    for run in runs[start : start + PAGE]:
        if not isinstance(run, Deltas):
            page.append(run)
            continue
        for size, part in run.parts(after):
            page.append(part)
            text += size
            if text >= TEXT:
                return page
    return page


def _parts_at(runs: Sequence[LogItem], seq: int) -> bool:
    index = bisect_right(runs, seq, key=_last_of)
    run = runs[index] if index < len(runs) else None
    return isinstance(run, Envelope) and run.first_seq is not None and run.first_seq <= seq


@frozen
class Telling:
    """The `on_begin` that calls a function with each event of the turn as it is published.

    A session answers the caller of a turn after the turn's last event, so the function has had all events by then. If
    the function raises, the error is logged, and the function gets no more events of this turn.

    Attributes:
        callback: the function.
    """

    callback: OnEvent

    def __call__(self, reader: EventReader) -> None:
        """Call the function with the events so far, and with each later one."""

        def tell(_event: Event | None = None) -> None:
            for envelope in reader.take() or ():
                try:
                    self.callback(envelope)
                except Exception:  # the host's bug ends neither the session nor the turn
                    logger.exception("on_event of session %s raised: it gets no more of this turn", reader.session_id)
                    reader.close()
                    return
                if isinstance(envelope.event, TERMINAL):
                    reader.close()
                    return

        reader.notify = tell
        tell()


@define(eq=False)
class Beginning:
    """The slot in which the caller of a turn gets a reader when the turn begins; it is filled once at most.

    Attributes:
        on_begin: the caller's function; None once it was called, or is not to be called any more.
    """

    on_begin: OnBegin | None
    _told: EventReader | None = attrs.field(default=None, init=False)  # the reader of a `Telling`, which nobody closes

    def fill(self, log: EventLog, cursor: int) -> None:
        """Call the function with a reader of the events above a number: the turn has published the first of them."""
        on_begin, self.on_begin = self.on_begin, None
        if on_begin is None:
            return
        reader = log.read(cursor)
        if isinstance(on_begin, Telling):
            reader.cursor = max(cursor, log.floor)  # it cannot wait for the store: it gets those that are in memory
            self._told = reader
        try:
            on_begin(reader)
        except Exception:  # the host's bug ends neither the session nor the turn
            logger.exception("on_begin of session %s raised: it gets nothing of this turn", log.session_id)
            reader.close()

    async def of(self, turn: Awaitable[R]) -> R:
        """Wait for the turn. When it has ended for its caller, the slot is not filled any more.

        If the wait is cancelled, the turn goes on, and may even begin later. A `Telling` is called in that case, other
        functions are not.
        """
        cancelled = False
        try:
            return await turn
        except trio.Cancelled:
            cancelled = True
            raise
        finally:
            if not (cancelled and isinstance(self.on_begin, Telling)):
                self.on_begin = None
            if self._told is not None and not cancelled:  # a turn that was put back has no end that closes it
                self._told.close()
