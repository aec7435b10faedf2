"""The events of one session for one client: a place in the session's log that moves as the client reads."""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from enum import Enum
from typing import Final, Protocol

import attrs
import trio

from warren.base.errors import SessionNotFoundError, WarrenError
from warren.base.values import define
from warren.calls.service import EventReader, RuntimeService, SessionService
from warren.conversation.events import TERMINAL, Envelope, Event, StreamTruncated
from warren.transport.rpc.dialect import Dialect
from warren.transport.rpc.outbox import Outbox

logger: Final = logging.getLogger(__name__)


class FeedClient(Protocol):
    """The client, as its feeds see it: see `warren.transport.rpc.feeds.Feeds`."""

    service: RuntimeService
    outbox: Outbox
    dialect: Dialect
    moved: trio.lowlevel.ParkingLot
    fetching: trio.Lock
    tasks: trio.Nursery

    def may_hold(self) -> bool:
        """Return whether the pages that were taken from logs are few and small enough to wait for the client."""
        ...

    def forget(self, feed: "SessionFeed") -> None:
        """Remove a feed that is closed."""
        ...


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
    """It waits for something to send, or its messages are being sent."""
    QUEUED = "queued"
    """It is in the outbox."""
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

    client: FeedClient
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

    def begin(self, first: int) -> None:
        """Send an own turn that has published its first event."""
        self.own.append(first)
        self.awaited += 1
        self.look()

    def answered(self) -> None:
        """Note that an own turn has a result, or has lost its caller. A result is followed by `deliver` at once."""
        self.awaited -= 1

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

        The turn that began with the event `first` is over for its caller, also if its last event has not come: if its
        node was lost, there may be none.

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
                yield from self.client.dialect.frames(envelope)
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
        self.last_words += self.client.dialect.frames(marker)
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


async def session_over(service: SessionService, session_id: str) -> bool:
    """Return whether a session was archived or deleted, or is at another node. If not, its log has ended here only."""
    try:
        state = (await service.read(session_id)).state
    except WarrenError as exc:
        return isinstance(exc, SessionNotFoundError) or exc.cause == "not_owner"
    return state.lifecycle == "archived"
