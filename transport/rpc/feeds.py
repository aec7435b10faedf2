"""The events of one client: a place in the log of each session that moves as the client reads.

A turn of the client and its subscription to the session share one place. No log is read ahead of the client.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from enum import Enum
from typing import Final

import attrs
import trio

from warren.base.errors import CapacityExceededError, SessionNotFoundError, WarrenError
from warren.base.values import define
from warren.calls.facade import RuntimeService, SessionService
from warren.calls.streams import EventReader
from warren.conversation import codec
from warren.conversation.events import TERMINAL, Envelope, Event, StreamTruncated
from warren.conversation.views import TurnResult
from warren.transport.rpc.dialect import EVENT, Dialect, missing
from warren.transport.rpc.methods import Caller, RunTurn
from warren.transport.rpc.outbox import Outbox
from warren.transport.rpc.relay import last_seq_of
from warren.transport.rpc.shares import Shares, counted

HEAD: Final = b'{"jsonrpc":"2.0","method":"%b","params":' % EVENT.encode()
"""The beginning of the notification of an event, before the envelope."""

logger: Final = logging.getLogger(__name__)


class FeedState(Enum):
    """The states of a feed. The moves between them are these, each made by one method of `SessionFeed`.

    | from | cause | to | method |
    | --- | --- | --- | --- |
    | idle | an event, an own turn or a subscription gives it something to send | queued | `look` |
    | queued | the outbox asks for messages | idle | `frames` |
    | idle | all of memory is sent, and the store has more, or knows why the log has ended | fetching | `_fetch` |
    | fetching | the store has answered | idle | `_fetched` |
    | any other | nothing more is wanted, or nothing more can be read | closed | `close` |
    """

    IDLE = "idle"
    """The feed waits for something to send, or its messages are being sent."""
    QUEUED = "queued"
    """The feed is in the outbox."""
    FETCHING = "fetching"
    """A task waits for the store. There is nothing to send until then."""
    CLOSED = "closed"
    """Nothing more is read. Events that were taken, and the last words, are still sent."""


@define(eq=False)
class SessionFeed:
    """The events of one session for one client: a `Source` of the outbox that reads the log as the client reads.

    If the client subscribes, all events are sent. If not, only those of the client's own turns are: each from its first
    event to the next terminal one.

    Attributes:
        client: the client.
        reader: the position in the log.
        leave: closes the reader, or ends the subscription that holds it.
        sent: seq of the last event that was sent or skipped.
        state: see `FeedState`.
        subscribed: whether the client subscribes.
        own: the first seq of each own turn whose terminal event was not sent yet.
        page: events that were taken from the reader and not sent yet.
        last_words: messages that are sent behind the last event.
        due: replies that wait until an event of their turn is sent.
        awaited: own turns whose caller has no result yet: `deliver` will come for them.
        finds_again: whether the client is another node, which finds the session again when the log has ended here.
    """

    client: "Feeds"
    reader: EventReader
    leave: Callable[[], None]
    sent: int
    state: FeedState = FeedState.IDLE
    subscribed: bool = False
    own: deque[int] = attrs.field(factory=deque)
    page: deque[Envelope] = attrs.field(factory=deque)
    last_words: list[bytes] = attrs.field(factory=list)
    due: int = 0
    awaited: int = 0
    finds_again: bool = False

    # -- what the client wants

    def subscribe(self, reader: EventReader, leave: Callable[[], None], after_seq: int | None) -> None:
        """Read from now on for a subscription, above `after_seq`; None continues after the events that were taken.

        The caller calls `look` when the events may be sent.
        """
        self.leave()
        if after_seq is not None:
            self.sent = after_seq
            self.page.clear()
        elif self.own or self.page:
            reader.cursor = self.reader.cursor
        self.reader, self.leave, self.subscribed = reader, leave, True
        reader.notify = self.look

    def unsubscribe(self) -> None:
        """Send no more than the rest of own turns."""
        self.subscribed = False
        self._release()

    async def deliver(self, first: int, last: int) -> None:
        """Return when a reply that is put into the outbox now is sent behind the event `last` of an own turn.

        The turn that began with the event `first` is over for its caller, even if its last event has not come: after
        the loss of its node there may be none.

        If the client keeps up, or if few pages are held for it, this does not wait: the rest of the turn is taken from
        the log, and is sent before the reply. If not, this waits until the client has read up to the event.
        """
        client = self.client
        if not self.page:
            self._take()
        there = bool(self.page) and self.page[-1].seq >= last >= first
        held = there and (not client.outbox.stalled or client.may_hold())
        self.look()
        if held:
            return
        self.due += 1
        try:
            while self._owes(last) and not client.outbox.closed:
                await client.moved.park()
        finally:
            self.due -= 1
        self._ended(max(first, last))
        self._release()

    # -- the moves

    def look(self, event: Event | None = None) -> None:
        """Put the feed into the outbox, unless it is there or waits for the store. Readers call it with each event."""
        if self.client.outbox.closed:
            self.close()
        elif self.state is FeedState.IDLE and (self.due or not (self.awaited and isinstance(event, TERMINAL))):
            # The reply follows the end of an own turn at once: `deliver` looks, so that both are sent in one piece. It
            # has looked before if the reply is of another node, and was faster than the events of the subscription.
            self.state = FeedState.QUEUED
            self.client.outbox.add(self)

    def frames(self) -> Iterator[bytes]:
        """Yield the messages of a page. If there is more, the feed queues again, behind the messages of others."""
        if self.state is FeedState.QUEUED:
            self.state = FeedState.IDLE
            if self.awaited and self.reader.settling and not (self.page or self.due):
                return  # the rest leaves with the reply: `deliver` looks once that is there
        if not self.page:
            self._take()
        frames = self.client.dialect.frames
        while self.page:
            envelope = self.page.popleft()
            last, event = envelope.seq, envelope.event
            if isinstance(event, StreamTruncated):  # it stands for the events that are missing
                last = event.before + event.dropped
            self.sent = last
            wanted = self.subscribed or (self.own and self.own[0] <= last)
            if isinstance(event, TERMINAL):
                self._ended(last)
            if wanted:
                yield from (envelope.frame or frame_of(envelope),) if frames is None else frames(envelope)
        yield from self.last_words
        self.last_words.clear()
        self._release()
        page = self._take()
        if page:
            self.look()
        elif self.state is FeedState.IDLE and (page is None or self.reader.over):
            self._fetch()

    def _fetch(self) -> None:
        self.state = FeedState.FETCHING
        self.client.tasks.start_soon(self._fetched, self.reader)

    async def _fetched(self, reader: EventReader) -> None:
        """Read a page from the store, or, behind the last event of the log, find out why the log has ended."""
        session_id, ended, over = reader.session_id, reader.over, False
        page: list[Envelope] | None = None
        try:
            if ended:
                over = self.finds_again or (self.subscribed and await session_over(self.client.service, session_id))
            page = [] if ended else await self._load(reader)
        except Exception:
            logger.exception("session %s: its events cannot be read", session_id)
        if self.state is FeedState.CLOSED:
            return
        self.state = FeedState.IDLE
        if self.reader is not reader:  # a subscription has begun meanwhile: it reads on
            self.look()
        elif page is None:
            self.break_off()
        elif not ended:
            self.page.extend(page)
            self.look()
        elif over:
            self.end()
        else:
            self.close()

    async def _load(self, reader: EventReader) -> list[Envelope]:
        """Read a page from the store, once there is room for it among those that the client has not read."""
        async with self.client.fetching:
            outbox = self.client.outbox
            while outbox.stalled and not outbox.closed and not self.client.may_hold():
                await self.client.moved.park()
            return await reader.load()

    def close(self) -> None:
        """Stop reading. Events that were taken, and the last words, are still sent."""
        if self.state is FeedState.CLOSED:
            return
        if self.state is not FeedState.QUEUED and (self.page or self.last_words):
            self.client.outbox.add(self)
        self.state = FeedState.CLOSED
        self.leave()
        self.client.forget(self)

    # -- the ends

    def hang_up(self) -> None:
        """Close the feed as the connection ends: events that are published and in memory are still sent."""
        if not self.page:
            self._take()
        self.close()

    def end(self) -> None:
        """Close the feed, without a request of the client, which is told if it subscribes."""
        if self.subscribed:
            self.last_words += self.client.dialect.ended(self.reader.session_id)
        self.close()

    def break_off(self) -> None:
        """Report missing events, and end. Their number is unknown, so the marker says one."""
        marker = Envelope(self.reader.session_id, self.sent, datetime.now(UTC), StreamTruncated(1, self.sent))
        frames = self.client.dialect.frames
        self.last_words += [frame_of(marker)] if frames is None else frames(marker)
        self.end()

    def _release(self) -> None:
        """Close the feed, unless the client subscribes or has a turn that is not sent yet."""
        if not (self.subscribed or self.own):
            self.page.clear()
            self.close()

    # -- the page

    def _take(self) -> list[Envelope] | None:
        """Take the next page that is in memory, and return it; None if the store has to be asked for it."""
        if self.state is FeedState.CLOSED or self.state is FeedState.FETCHING:
            return []
        if not self.subscribed and self.own:  # skip the events of other callers' turns
            self.reader.cursor = max(self.reader.cursor, self.own[0] - 1)
        page = self.reader.take()
        self.page.extend(page or ())
        return page

    def _owes(self, last: int) -> bool:
        """Return whether an own turn has begun up to an event, and the event is not sent yet."""
        return self.state is not FeedState.CLOSED and self.sent < last and bool(self.own) and self.own[0] <= last

    def _ended(self, last: int) -> None:
        """Forget the own turns that have begun up to a terminal event: they were sent whole."""
        while self.own and self.own[0] <= last:
            self.own.popleft()


@define(eq=False)
class Feeds(Caller):
    """A client as the reader of events, for as long as it is connected.

    Each session has one reader, for all turns of the client and for its subscription, and no log is read ahead of the
    client. If a subscription ends with its session or by a failure, a message behind its last event says so.

    Attributes:
        service: the sessions.
        outbox: takes the messages.
        dialect: the form of events.
        moved: tasks parked here are woken whenever the outbox was emptied.
        tasks: the nursery that holds subscriptions and reads pages from the store.
        max_subscriptions: sessions that the client may subscribe to.
        shares: the subscriptions of all clients; None if this one's are not counted.
        fetching: held while a page is read from the store: each is held against the room that the last one has left.
    """

    service: RuntimeService
    outbox: Outbox
    dialect: Dialect
    moved: trio.lowlevel.ParkingLot
    tasks: trio.Nursery
    max_subscriptions: int
    shares: Shares | None = None
    fetching: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _feeds: dict[str, SessionFeed] = attrs.field(factory=dict, init=False)
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
            feed.hang_up()

    async def stream(self, _session_id: str | None, run: RunTurn) -> TurnResult:
        """Run a turn whose events go to the client; return, or raise, when the reply can be put behind the last event.

        If this is cancelled, the turn goes on, and its later events are not sent.
        """
        own: list[tuple[SessionFeed, EventReader, int]] = []
        try:
            try:
                result = await run(lambda reader: self._begin(reader, own))
            finally:
                for feed, _, _ in own:
                    feed.awaited -= 1
        except Exception as exc:
            for feed, reader, first in own:
                await feed.deliver(first, last_seq_of(exc) or reader.newest)
            raise
        for feed, reader, first in own:
            await feed.deliver(first, result.last_seq or reader.newest)
        return result

    def _begin(self, reader: EventReader, own: list[tuple[SessionFeed, EventReader, int]]) -> None:
        if self._closed:
            reader.close()
            return
        first, feed = reader.cursor + 1, self._feeds.get(reader.session_id)
        if feed is None:
            feed = self._feeds[reader.session_id] = SessionFeed(self, reader, reader.close, reader.cursor)
            reader.notify = feed.look
        else:
            reader.close()  # the session is read already
        feed.own.append(first)
        feed.awaited += 1
        feed.look()
        own.append((feed, reader, first))

    async def subscribe(self, session_id: str, after_seq: int | None, service: RuntimeService | None = None) -> int:
        """Send the client a session's events above `after_seq`, or from now on if it is None.

        They come from a `service` of their own if one is given: that of the caller of another node, which finds the
        session again by itself when the log ends here.

        Return the number after which they begin. An existing subscription is moved to `after_seq`; if that is None, it
        is left alone, and the number is that of the newest event.

        Raises:
            CapacityExceededError: if the client has `max_subscriptions` subscriptions, or its principal its share.
            WarrenError: the errors of `SessionService.subscribe`.
        """
        feed = self._feeds.get(session_id)
        there = feed is not None and feed.subscribed
        if not there:
            self._check_room()
        elif after_seq is None and feed is not None:
            return feed.reader.newest
        self._entering += not there
        try:
            reader, scope = await self.tasks.start(self._hold, service or self.service, session_id, after_seq, there)
        finally:
            self._entering -= not there
        feed = self._feeds.get(session_id)
        if after_seq is None and feed is not None and feed.subscribed:  # another request was faster
            scope.cancel()
            return feed.reader.newest
        if feed is None:
            feed = self._feeds[session_id] = SessionFeed(self, reader, _nothing, reader.cursor)
        feed.subscribe(reader, scope.cancel, after_seq)
        feed.finds_again = service is not None
        first: int = reader.cursor
        self.tasks.start_soon(_start, feed)
        return first

    async def _hold(
        self,
        service: RuntimeService,
        session_id: str,
        after_seq: int | None,
        there: bool,  # noqa: FBT001 - `tasks.start` passes no keywords
        *,
        task_status: trio.TaskStatus[tuple[EventReader, trio.CancelScope]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Keep a subscription open until its scope is cancelled. Errors before its beginning go to the caller."""
        with counted(self.shares, service, instead=there), trio.CancelScope() as scope:
            async with service.subscribe(session_id, after_seq=after_seq) as reader:
                task_status.started((reader, scope))
                await trio.sleep_forever()

    def unsubscribe(self, session_id: str) -> bool:
        """End a subscription; return whether there was one. The rest of own turns is still sent."""
        feed = self._feeds.get(session_id)
        if feed is None or not feed.subscribed:
            return False
        feed.unsubscribe()
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

    def forget(self, feed: SessionFeed) -> None:
        """Remove a feed that is closed."""
        session_id = feed.reader.session_id
        if self._feeds.get(session_id) is feed:
            del self._feeds[session_id]
        if self._ended:
            self._ended.unpark_all()
        if self.moved:
            self.moved.unpark_all()


def frame_of(envelope: Envelope) -> bytes:
    """Return an event as one notification; if JSON cannot hold the event, report it as missing. Never raises.

    The notification is made once for each envelope.
    """
    frame = envelope.frame
    if frame is None:
        try:
            frame = HEAD + codec.encode_envelope(envelope) + b"}"
        except Exception:
            logger.exception("session %s: event %d cannot be encoded", envelope.session_id, envelope.seq)
            frame = HEAD + codec.encode_envelope(missing(envelope)) + b"}"
        object.__setattr__(envelope, "frame", frame)
    return frame


def _nothing() -> None:
    """Do nothing."""


async def _start(feed: SessionFeed) -> None:
    """Begin to send after a pass of the event loop, so that the reply to `session/subscribe` goes first."""
    feed.look()


async def session_over(service: SessionService, session_id: str) -> bool:
    """Return whether a session was archived or deleted, or is at another node. If not, its log has ended here only."""
    try:
        state = (await service.read(session_id)).state
    except WarrenError as exc:
        return isinstance(exc, SessionNotFoundError) or exc.cause == "not_owner"
    return state.lifecycle == "archived"
