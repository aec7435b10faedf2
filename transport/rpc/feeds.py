"""What one client is told of each session: its own turns and its subscriptions, in order and nothing twice."""

import contextlib
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Final

import attrs
import trio

from warren.errors import CapacityExceededError, SessionNotFoundError, WarrenError
from warren.events import Envelope, StreamTruncated
from warren.service import OnEvent, SessionService
from warren.views import TurnResult

PATIENCE: Final = 10.0
HELD: Final = 10_000

logger: Final = logging.getLogger(__name__)


@attrs.define(eq=False)
class _Subscription:
    """One subscription at work: events are let out once `go` is set, until `scope` is cancelled."""

    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    go: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False)
class _Feed:
    """One session as one client sees it.

    The events of the client's own turns go out at once. Where there is a subscription too, they are held until it
    brings them: so each goes out once, in the log's order, and none is lost where the subscription ends.

    Attributes:
        session_id: the session.
        put: sends an envelope to the client.
        turns: own turns that run or ask to; those that wait for another one may do so for long.
        heard: those of them that have told something.
        newest: seq of the newest event of these.
        delivered: seq of the last event the subscription brought or passed over.
        subscription: the one at work.
        switching: subscriptions that are about to begin.
        held: events of own turns that the subscription has not brought yet.
    """

    session_id: str
    put: Callable[[Envelope], None]
    turns: int = 0
    heard: int = 0
    newest: int | None = None
    delivered: int = 0
    subscription: _Subscription | None = None
    switching: int = 0
    held: deque[Envelope] = attrs.field(factory=lambda: deque(maxlen=HELD))
    _waiting: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    @property
    def idle(self) -> bool:
        """Whether nothing needs it any more."""
        return not self.turns and not self.switching and self.subscription is None

    def direct(self, envelope: Envelope) -> None:
        """Take an event of an own turn; one that a prompt of the client's has entered tells it once more."""
        if self.newest is not None and envelope.seq <= self.newest:
            return
        self.newest = envelope.seq
        if self.subscription is None and not self.switching:
            self.put(envelope)
        else:
            self.held.append(envelope)

    def relay(self, source: _Subscription, envelope: Envelope) -> None:
        """Take an event of a subscription; one that was replaced meanwhile is not heard."""
        if source is not self.subscription:
            return
        if isinstance(envelope.event, StreamTruncated):
            self._relay_gap(envelope, envelope.event)
        else:
            self.put(envelope)
            self._passed(envelope.seq)

    def begin(self, subscription: _Subscription, after_seq: int | None) -> None:
        """Let a subscription take over from the one before it."""
        if self.subscription is not None:
            self.subscription.scope.cancel()
        self.subscription = subscription
        self._passed(after_seq or 0)
        subscription.go.set()

    def end(self, subscription: _Subscription) -> None:
        """Take note that a subscription brings nothing more."""
        if subscription is self.subscription:
            self.subscription = None
            self.release()

    @contextlib.contextmanager
    def switch(self) -> Iterator[None]:
        """Hold the events of own turns while a subscription begins."""
        self.switching += 1
        try:
            yield
        finally:
            self.switching -= 1
            self.release()

    def release(self) -> None:
        """Send what is held, unless a subscription brings it."""
        if self.subscription is None and not self.switching:
            while self.held:
                self.put(self.held.popleft())
        self._move()

    def position(self) -> int | None:
        """Return after which event a subscription has to begin so that nothing of an own turn is lost or doubled.

        None where no own turn has told anything yet: then it begins with the next event.
        """
        if self.held:
            return (self.held[0].first_seq or self.held[0].seq) - 1
        return self.newest

    async def settle(self) -> None:
        """Return once nothing is held: the subscription has brought what own turns made, or brings nothing at all."""
        while self.held:
            with trio.move_on_after(math.inf if self.switching else PATIENCE) as patience:
                await self._waiting.park()
            if patience.cancelled_caught:
                logger.warning("session %s: its subscription does not bring a turn's last events", self.session_id)
                return

    def leave(self, *, heard: bool) -> None:
        """Take note that an own turn ended."""
        self.turns -= 1
        self.heard -= heard
        if not self.heard:
            self.newest = None
        self._move()

    def _relay_gap(self, envelope: Envelope, gap: StreamTruncated) -> None:
        """Fill a gap with what own turns told of it, where that is all that is missing; else tell of it."""
        last = gap.before + gap.dropped
        known = [held for held in self.held if held.seq <= last]
        for missing in known if len(known) == gap.dropped else [envelope]:
            self.put(missing)
        self._passed(last)

    def _passed(self, seq: int) -> None:
        """Forget what is held up to an event that went out, or never will."""
        self.delivered = seq
        while self.held and self.held[0].seq <= seq:
            self.held.popleft()
        self._move()

    def _move(self) -> None:
        self._waiting.unpark_all()


@attrs.define(eq=False)
class _Turn:
    """One own turn; a new session's id is known from its first event on."""

    find: Callable[[str], _Feed]
    feed: _Feed | None = None
    heard: bool = False

    def on_event(self, envelope: Envelope) -> None:
        feed = self.feed or self.enter(envelope.session_id)
        if not self.heard:
            self.heard = True
            feed.heard += 1
        feed.direct(envelope)

    def enter(self, session_id: str) -> _Feed:
        self.feed = feed = self.find(session_id)
        feed.turns += 1
        return feed

    async def settle(self) -> None:
        if self.feed is not None:
            await self.feed.settle()


class Feeds:
    """The events of one client, for as long as it is connected.

    The part of a `warren.transport.rpc.methods.Caller` that is about events. Its subscriptions run in `tasks`;
    cancelling that ends them all. Of one that ends by itself, with its session or by a failure, `over` is told behind
    its last event.
    """

    def __init__(
        self,
        service: SessionService,
        put: Callable[[Envelope], None],
        tasks: trio.Nursery,
        max_subscriptions: int,
        over: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._service = service
        self._put = put
        self._over = over
        self._tasks = tasks
        self._max_subscriptions = max_subscriptions
        self._feeds: dict[str, _Feed] = {}
        self._ended = trio.lowlevel.ParkingLot()

    async def settle(self) -> None:
        """Return once no subscription is left."""
        while any(feed.subscription is not None for feed in self._feeds.values()):
            await self._ended.park()

    async def stream(self, session_id: str | None, run: Callable[[OnEvent], Awaitable[TurnResult]]) -> TurnResult:
        """Run a turn whose events go to the client; returns or raises after the last of them was handed over.

        Cancelling it leaves the turn running, unheard.
        """
        turn = _Turn(self._find)
        if session_id is not None:
            turn.enter(session_id)
        try:
            result = await run(turn.on_event)
            await turn.settle()
        except Exception:
            await turn.settle()
            raise
        finally:
            if turn.feed is not None:
                turn.feed.leave(heard=turn.heard)
                self._forget(turn.feed)
        return result

    async def subscribe(self, session_id: str, after_seq: int | None) -> None:
        """Send the client a session's events; a subscription that it has goes on from `after_seq`.

        None changes nothing where there is a subscription already. Raises CapacityExceededError for one too many, and
        what the service raises.
        """
        feed = self._find(session_id)
        try:
            if feed.subscription is None:
                self._check_room()
            elif after_seq is None:
                return
            with feed.switch():
                await self._switch(feed, after_seq)
        finally:
            self._forget(feed)

    async def _switch(self, feed: _Feed, after_seq: int | None) -> None:
        start = feed.position() if after_seq is None else after_seq
        subscription = await self._tasks.start(self._pump, feed, start)
        if start is None and feed.held:
            # An own turn began meanwhile: where the subscription stands in it is not known, where the turn began is.
            subscription.scope.cancel()
            start = feed.position()
            subscription = await self._tasks.start(self._pump, feed, start)
        feed.begin(subscription, start)

    def unsubscribe(self, session_id: str) -> bool:
        """Stop a subscription; return whether there was one. What it owed of own turns is sent at once."""
        feed = self._feeds.get(session_id)
        if feed is None or feed.subscription is None:
            return False
        feed.subscription.scope.cancel()
        feed.end(feed.subscription)
        self._forget(feed)
        return True

    def _find(self, session_id: str) -> _Feed:
        return self._feeds.setdefault(session_id, _Feed(session_id, self._put))

    def _forget(self, feed: _Feed) -> None:
        if feed.idle and self._feeds.get(feed.session_id) is feed:
            del self._feeds[feed.session_id]

    def _check_room(self) -> None:
        taken = sum(feed.subscription is not None or feed.switching for feed in self._feeds.values())
        if taken >= self._max_subscriptions:
            raise CapacityExceededError(
                f"this connection has {taken} subscriptions, as many as it may", cause="max_subscriptions"
            )

    async def _pump(
        self,
        feed: _Feed,
        after_seq: int | None,
        *,
        task_status: trio.TaskStatus[_Subscription] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Hand a subscription's events over, until it ends; errors before its first event are the caller's."""
        subscription = _Subscription()
        begun = False
        try:
            with subscription.scope:
                async with self._service.subscribe(feed.session_id, after_seq=after_seq) as envelopes:
                    begun = True
                    task_status.started(subscription)
                    await subscription.go.wait()
                    async for envelope in envelopes:
                        feed.relay(subscription, envelope)
                    if await session_over(self._service, feed.session_id):
                        self._run_out(feed, subscription)
        except Exception:
            if not begun:
                raise
            logger.exception("session %s: its subscription failed", feed.session_id)
            feed.relay(subscription, _lost(feed))
            self._run_out(feed, subscription)
        finally:
            feed.end(subscription)
            self._forget(feed)
            self._ended.unpark_all()

    def _run_out(self, feed: _Feed, subscription: _Subscription) -> None:
        """Say that a subscription has ended by itself, behind all that its end lets out; unless it was replaced."""
        if feed.subscription is subscription:
            feed.end(subscription)
            self._over(feed.session_id)


async def session_over(service: SessionService, session_id: str) -> bool:
    """Tell whether a session was archived or deleted: a subscription ends then, and also with the whole runtime."""
    try:
        state = (await service.read(session_id)).state
    except WarrenError as exc:
        return isinstance(exc, SessionNotFoundError)
    return state.lifecycle == "archived"


def _lost(feed: _Feed) -> Envelope:
    """Return what tells the client to subscribe again: how much is missing is not known, so it says one event."""
    marker = StreamTruncated(1, feed.delivered)
    return Envelope(feed.session_id, feed.delivered, datetime.now(UTC), marker)
