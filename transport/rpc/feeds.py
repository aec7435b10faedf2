"""The events of one client: one place in the log of each session, for its turns and its subscription alike."""

from typing import Any

import attrs
import trio

from warren.base.errors import CapacityExceededError, WarrenError
from warren.base.values import define
from warren.calls.service import EventReader, RuntimeService
from warren.conversation import codec
from warren.conversation.views import TurnResult
from warren.transport.rpc.dialect import Dialect
from warren.transport.rpc.endpoint import wake
from warren.transport.rpc.feed import SessionFeed
from warren.transport.rpc.methods import RunTurn
from warren.transport.rpc.outbox import Outbox
from warren.transport.rpc.shares import Shares, counted


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

    async def stream(self, run: RunTurn) -> TurnResult:
        """Run a turn whose events go to the client; return, or raise, when the reply can be put behind the last event.

        If this is cancelled, the turn goes on, and its later events are not sent.
        """
        own: list[tuple[SessionFeed, EventReader, int]] = []
        try:
            result = await self._run(run, own)
        except Exception as exc:
            for feed, reader, first in own:
                await feed.deliver(first, _last_seq(exc) or reader.newest)
            raise
        for feed, reader, first in own:
            await feed.deliver(first, result.last_seq or reader.newest)
        return result

    async def _run(self, run: RunTurn, own: list[tuple[SessionFeed, EventReader, int]]) -> TurnResult:
        try:
            return await run(lambda reader: self._begin(reader, own))
        finally:
            for feed, _, _ in own:
                feed.answered()

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
        feed.begin(first)
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
        wake(self._ended)
        wake(self.moved)


def _nothing() -> None:
    """Do nothing."""


async def _start(feed: SessionFeed) -> None:
    """Begin to send after a pass of the event loop, so that the reply to `session/subscribe` goes first."""
    feed.look()


def _last_seq(exc: Exception) -> Any:
    return (exc.details or {}).get("last_seq") if isinstance(exc, WarrenError) else None
