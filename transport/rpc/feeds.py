"""The events of one client: one place in the log of each session, for its turns and its subscription alike."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import attrs
import trio

from warren import codec
from warren.errors import CapacityExceededError, SessionNotFoundError, WarrenError
from warren.events import TERMINAL, Envelope, Event, StreamTruncated
from warren.service import EventReader, SessionService
from warren.transport.rpc.dialect import Dialect
from warren.transport.rpc.methods import RunTurn
from warren.transport.rpc.outbox import Outbox
from warren.values import define
from warren.views import TurnResult

logger: Final = logging.getLogger(__name__)


@define(eq=False)
class _Feed:
    """The events of one session for one client: a `Source` of the outbox that reads the log as the client reads.

    If the client subscribes, all events are sent. If not, only those of the client's own turns are: each from its first
    event to the next terminal one.

    Attributes:
        feeds: all feeds of the client.
        reader: the position in the log.
        leave: closes the reader, or ends the subscription that holds it.
        subscribed: whether the client subscribes.
        sent: seq of the last event that was sent or skipped.
        own: the first seq of each own turn whose terminal event was not sent yet.
        queued: whether the feed is in the outbox.
        loading: whether a page is being read from the store.
        closed: whether nothing more is read.
        page: events that were taken from the reader and not sent yet.
        last_words: messages that are sent behind the last event.
    """

    feeds: "Feeds"
    reader: EventReader
    leave: Callable[[], None]
    sent: int
    subscribed: bool = False
    own: deque[int] = attrs.field(factory=deque)
    queued: bool = False
    loading: bool = False
    closed: bool = False
    page: deque[Envelope] = attrs.field(factory=deque)
    last_words: list[bytes] = attrs.field(factory=list)

    def look(self, event: Event | None = None) -> None:
        """Put the feed into the outbox, which asks it for messages when the client has read the earlier ones."""
        if self.feeds.outbox.closed:
            self.close()
        elif isinstance(event, TERMINAL) and self.own:
            pass  # the reply follows at once, so that both are sent in one piece
        elif not (self.queued or self.loading):
            self.queued = True
            self.feeds.outbox.add(self)

    def frames(self) -> Iterator[bytes]:
        """Yield the messages of a page. If there is more, the feed queues again, behind the messages of others."""
        self.queued = False
        if not self.page:
            self._take()
        while self.page:
            yield from self._next()
        yield from self.last_words
        self.last_words.clear()
        self._go_on()

    def begin(self, first: int) -> None:
        """Send an own turn that has published its first event."""
        self.own.append(first)
        self.look()

    async def deliver(self, last: int) -> None:
        """Return when a reply that is put into the outbox now is sent behind an event of an own turn.

        If the client keeps up, or if few pages are held for it, this does not wait: the rest of the turn is taken from
        the log, and is sent before the reply. If not, this waits until the client has read up to the event.
        """
        outbox = self.feeds.outbox
        if not self.page:
            self._take()
        if self.page and self.page[-1].seq >= last and (not outbox.stalled or self.feeds.may_hold()):
            self.look()
            return
        self.look()
        while not (self.closed or outbox.closed or self.sent >= last or not self.own or self.own[0] > last):
            await self.feeds.moved.park()
        self._ended(last)
        self.release()

    def switch(self, reader: EventReader, leave: Callable[[], None], after_seq: int | None) -> None:
        """Read from now on for a subscription, above `after_seq`; None continues after the events that were taken."""
        self.leave()
        if after_seq is not None:
            self.sent = after_seq
            self.page.clear()
        elif self.own or self.page:
            reader.cursor = self.reader.cursor
        self.reader, self.leave, self.subscribed = reader, leave, True
        reader.notify = self.look

    def close(self) -> None:
        """Stop reading. Events that were taken are still sent."""
        if not self.closed:
            self.closed = True
            self.leave()
            self.feeds.forget(self)

    def break_off(self) -> None:
        """Report missing events, and end. Their number is unknown, so the marker says one."""
        marker = StreamTruncated(1, self.sent)
        dialect, session_id = self.feeds.dialect, self.reader.session_id
        self.last_words += dialect.frames(Envelope(session_id, self.sent, datetime.now(UTC), marker))
        self.end()

    def end(self) -> None:
        """End, without a request of the client, which is told if it subscribes."""
        if self.subscribed:
            self.last_words += self.feeds.dialect.ended(self.reader.session_id)
        self.close()
        self.look()

    def release(self) -> None:
        """Stop reading, unless the client subscribes or has a turn that is not sent yet."""
        if not (self.subscribed or self.own):
            self.page.clear()
            self.close()

    def _next(self) -> Sequence[bytes]:
        """Return the messages of the next event of the page; none if the client does not get the event."""
        envelope = self.page.popleft()
        last, event = envelope.seq, envelope.event
        if isinstance(event, StreamTruncated):  # it stands for the events that are missing
            last = event.before + event.dropped
        self.sent = last
        wanted = self.subscribed or (self.own and self.own[0] <= last)
        if isinstance(event, TERMINAL):
            self._ended(last)
        return self.feeds.dialect.frames(envelope) if wanted else ()

    def _take(self) -> None:
        """Take the next page that is in memory, if there is one."""
        if self.closed or self.loading:
            return
        if not self.subscribed and self.own:  # skip the events of other callers' turns
            self.reader.cursor = max(self.reader.cursor, self.own[0] - 1)
        page = self.reader.take()
        if page is None:
            self.loading = True
            self.feeds.load(self)
        else:
            self.page.extend(page)

    def _go_on(self) -> None:
        self.release()
        if not self.closed:
            self._take()
            if self.page:
                self.look()
            elif self.reader.over:
                self.loading = True
                self.feeds.finish(self)

    def _ended(self, last: int) -> None:
        """Forget the own turns that have begun up to a terminal event: they were sent whole."""
        while self.own and self.own[0] <= last:
            self.own.popleft()


@define(eq=False)
class Feeds:
    """The events of one client, for as long as it is connected.

    This is the part of a `warren.transport.rpc.methods.Caller` that is about events. Each session has one reader, for
    all turns of the client and for its subscription, and no log is read ahead of the client. If a subscription ends
    with its session or by a failure, a message behind its last event says so.

    Attributes:
        service: the sessions.
        outbox: takes the messages.
        dialect: the form of events.
        moved: tasks parked here are woken whenever the outbox was emptied.
        tasks: the nursery that holds subscriptions and reads pages from the store.
        max_subscriptions: sessions that the client may subscribe to.
    """

    service: SessionService
    outbox: Outbox
    dialect: Dialect
    moved: trio.lowlevel.ParkingLot
    tasks: trio.Nursery
    max_subscriptions: int
    _feeds: dict[str, _Feed] = attrs.field(factory=dict, init=False)
    _entering: int = attrs.field(default=0, init=False)
    _closed: bool = attrs.field(default=False, init=False)
    _ended: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    async def drain(self) -> None:
        """Return when no subscription is left. Requests that run a turn wait for the turn's events themselves."""
        while any(feed.subscribed for feed in self._feeds.values()) and not self.outbox.closed:
            await self._ended.park()

    def close(self) -> None:
        """Stop reading. Events that were published so far and are in memory are still sent."""
        self._closed = True
        for feed in tuple(self._feeds.values()):
            if not feed.page:
                feed.page.extend(feed.reader.take() or ())
            feed.close()
            feed.look()

    async def stream(self, run: RunTurn) -> TurnResult:
        """Run a turn whose events go to the client; return, or raise, when the reply can be put behind the last event.

        If this is cancelled, the turn goes on, and its later events are not sent.
        """
        own: list[tuple[_Feed, EventReader]] = []
        try:
            result = await run(lambda reader: self._begin(reader, own))
        except Exception as exc:
            for feed, reader in own:
                await feed.deliver(_last_seq(exc) or reader.newest)
            raise
        for feed, reader in own:
            await feed.deliver(result.last_seq or reader.newest)
        return result

    def _begin(self, reader: EventReader, own: list[tuple[_Feed, EventReader]]) -> None:
        if self._closed:
            reader.close()
            return
        first, feed = reader.cursor + 1, self._feeds.get(reader.session_id)
        if feed is None:
            feed = self._feeds[reader.session_id] = _Feed(self, reader, reader.close, reader.cursor)
            reader.notify = feed.look
        else:
            reader.close()  # the session is read already
        feed.begin(first)
        own.append((feed, reader))

    async def subscribe(self, session_id: str, after_seq: int | None) -> None:
        """Send the client a session's events above `after_seq`, or from now on if it is None.

        An existing subscription is moved to `after_seq`, or left alone if that is None.

        Raises:
            CapacityExceededError: if the client has `max_subscriptions` subscriptions.
            WarrenError: the errors of `SessionService.subscribe`.
        """
        feed = self._feeds.get(session_id)
        there = feed is not None and feed.subscribed
        if not there:
            self._check_room()
        elif after_seq is None:
            return
        self._entering += not there
        try:
            reader, scope = await self.tasks.start(self._hold, session_id, after_seq)
        finally:
            self._entering -= not there
        feed = self._feeds.get(session_id)
        if feed is None:
            feed = self._feeds[session_id] = _Feed(self, reader, _nothing, reader.cursor)
        feed.switch(reader, scope.cancel, after_seq)
        self.tasks.start_soon(_start, feed)

    async def _hold(
        self,
        session_id: str,
        after_seq: int | None,
        *,
        task_status: trio.TaskStatus[tuple[EventReader, trio.CancelScope]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Keep a subscription open until its scope is cancelled. Errors before its beginning go to the caller."""
        with trio.CancelScope() as scope:
            async with self.service.subscribe(session_id, after_seq=after_seq) as reader:
                task_status.started((reader, scope))
                await trio.sleep_forever()

    def unsubscribe(self, session_id: str) -> bool:
        """End a subscription; return whether there was one. The rest of own turns is still sent."""
        feed = self._feeds.get(session_id)
        if feed is None or not feed.subscribed:
            return False
        feed.subscribed = False
        feed.release()
        return True

    def _check_room(self) -> None:
        taken = sum(feed.subscribed for feed in self._feeds.values()) + self._entering
        if taken >= self.max_subscriptions:
            problem = f"this connection has {taken} subscriptions, which is the limit: end one first"
            raise CapacityExceededError(problem, cause="max_subscriptions")

    def may_hold(self) -> bool:
        """Return whether the pages that were taken from logs are few and small enough to wait for the client."""
        pages = [envelope for feed in self._feeds.values() for envelope in feed.page]
        return (
            len(pages) <= self.outbox.capacity
            and sum(codec.weight(each.event) for each in pages) <= self.outbox.max_bytes
        )

    def forget(self, feed: _Feed) -> None:
        """Remove a feed that has stopped reading."""
        session_id = feed.reader.session_id
        if self._feeds.get(session_id) is feed:
            del self._feeds[session_id]
        self._ended.unpark_all()
        self.moved.unpark_all()

    def load(self, feed: _Feed) -> None:
        """Read a page from the store for a feed, which is `loading` until it has the page."""
        self.tasks.start_soon(self._load, feed, feed.reader)

    async def _load(self, feed: _Feed, reader: EventReader) -> None:
        page: list[Envelope] | None = None
        try:
            page = await reader.load()
        except Exception:
            logger.exception("session %s: its events cannot be read", reader.session_id)
        feed.loading = False
        if feed.reader is reader and not feed.closed:
            if page is None:
                feed.break_off()
                return
            feed.page.extend(page)
        feed.look()

    def finish(self, feed: _Feed) -> None:
        """End a feed whose log has ended; the feed is `loading` until the reason is known."""
        self.tasks.start_soon(self._finish, feed, feed.reader)

    async def _finish(self, feed: _Feed, reader: EventReader) -> None:
        over: bool | None = None
        try:
            over = feed.subscribed and await session_over(self.service, reader.session_id)
        except Exception:
            logger.exception("session %s: cannot find out why its log has ended", reader.session_id)
        feed.loading = False
        if feed.reader is not reader or feed.closed:
            feed.look()
        elif over is None:
            feed.break_off()
        elif over:
            feed.end()
        else:
            feed.close()


async def session_over(service: SessionService, session_id: str) -> bool:
    """Return whether a session was archived or deleted. If not, its log has ended with the runtime."""
    try:
        state = (await service.read(session_id)).state
    except WarrenError as exc:
        return isinstance(exc, SessionNotFoundError)
    return state.lifecycle == "archived"


def _nothing() -> None:
    """Do nothing."""


async def _start(feed: _Feed) -> None:
    """Begin to send after a pass of the event loop, so that the reply to `session/subscribe` goes first."""
    feed.look()


def _last_seq(exc: Exception) -> Any:
    return (exc.details or {}).get("last_seq") if isinstance(exc, WarrenError) else None
