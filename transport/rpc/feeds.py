"""What one client is told of each session: its own turns and its subscriptions, in order and nothing twice."""

import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Final

import attrs
import trio

from warren.errors import CapacityExceededError, SessionNotFoundError, WarrenError
from warren.events import Envelope, StreamTruncated
from warren.service import OnEvent, SessionService
from warren.transport.rpc.outbox import Outbox, Over
from warren.views import TurnResult

logger: Final = logging.getLogger(__name__)


@attrs.define(eq=False)
class _Reader:
    """Reads a session's log for the client: events are let out once `go` is set, until `scope` is cancelled.

    Attributes:
        subscribed: whether the client asked for it; another one ends once it has brought what is owed.
    """

    subscribed: bool
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    go: trio.Event = attrs.field(factory=trio.Event)


@attrs.define
class _Span:
    """Numbers of a log, from the first to the last."""

    first: int
    last: int


@attrs.define(eq=False)
class _Feed:
    """One session as one client sees it.

    The events of the client's own turns go out at once while the client keeps up. All others are read from the log:
    those of a subscription, and those of own turns that found no room, were told while a reader was at work, or while
    one was about to begin. Such events of own turns are owed: the reader brings them.

    Attributes:
        session_id: the session.
        outbox: takes what is sent to the client.
        catch_up: begins to read what is owed.
        turns: own turns that run or ask to; those that wait for another one may do so for long.
        heard: those of them that have told something.
        newest: seq of the newest event of these.
        delivered: seq of the last event that the reader brought or passed over.
        reader: the one at work.
        switching: subscriptions that are about to begin.
        owed: the events of own turns that a reader has to bring.
    """

    session_id: str
    outbox: Outbox
    catch_up: "Callable[[_Feed], None]"
    turns: int = 0
    heard: int = 0
    newest: int | None = None
    delivered: int = 0
    reader: _Reader | None = None
    switching: int = 0
    owed: deque[_Span] = attrs.field(factory=deque)
    _moved: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    @property
    def subscribed(self) -> bool:
        """Whether the client follows the session."""
        return self.reader is not None and self.reader.subscribed

    @property
    def idle(self) -> bool:
        """Whether nothing needs it any more."""
        return not self.turns and not self.switching and self.reader is None

    def direct(self, envelope: Envelope) -> None:
        """Take an event of an own turn; one that a prompt of the client's has entered tells it once more."""
        if self.newest is not None and envelope.seq <= self.newest:
            return
        self.newest = envelope.seq
        if envelope.seq <= self.delivered:  # a terminal event is in the store before it is told
            return
        if self.reader is None and not self.switching and self.outbox.room:
            self.outbox.event(envelope)
        else:
            self._owe(envelope.first_seq or envelope.seq, envelope.seq)
            self.release()

    def relay(self, source: _Reader, envelope: Envelope) -> None:
        """Take what a reader brings; one that was replaced meanwhile is not heard."""
        if source is not self.reader:
            return
        last = envelope.seq
        if isinstance(envelope.event, StreamTruncated):
            last = envelope.event.before + envelope.event.dropped
        if source.subscribed or (self.owed and self.owed[0].first <= last):
            self.outbox.event(envelope)
        self._passed(last)
        if not source.subscribed and not self.owed:
            self.reader = None  # at once: what an own turn tells next goes out directly

    def begin(self, reader: _Reader, after_seq: int | None) -> None:
        """Let a subscription take over from the reader before it."""
        if self.reader is not None:
            self.reader.scope.cancel()
        self.reader = reader
        self._passed(after_seq or 0)
        reader.go.set()

    def end(self, reader: _Reader) -> None:
        """Take note that a reader brings nothing more."""
        if reader is self.reader:
            self.reader = None
            self.release()

    def give_up(self) -> None:
        """Take note that what is owed cannot be read."""
        self.owed.clear()
        self._moved.unpark_all()

    @contextlib.contextmanager
    def switch(self) -> Iterator[None]:
        """Have the events of own turns owed while a subscription begins."""
        self.switching += 1
        try:
            yield
        finally:
            self.switching -= 1
            self.release()

    def release(self) -> None:
        """Have what is owed read, unless somebody reads already or is about to."""
        if self.owed and self.reader is None and not self.switching:
            self.catch_up(self)

    def position(self) -> int | None:
        """Return after which event a subscription has to begin so that nothing of an own turn is lost or doubled.

        None if no own turn has told anything yet: then it begins with the next event.
        """
        return self.owed[0].first - 1 if self.owed else self.newest

    async def settle(self) -> None:
        """Return once the client has been sent what own turns have told so far."""
        last = self.newest or 0
        while self.owed and self.owed[0].first <= last:
            await self._moved.park()

    def leave(self, *, heard: bool) -> None:
        """Take note that an own turn ended."""
        self.turns -= 1
        self.heard -= heard
        if not self.heard:
            self.newest = None

    def _owe(self, first: int, last: int) -> None:
        if self.owed and self.owed[-1].last + 1 == first:
            self.owed[-1].last = last
        else:
            self.owed.append(_Span(first, last))

    def _passed(self, seq: int) -> None:
        """Take note that nothing up to an event is owed any more."""
        self.delivered = seq
        while self.owed and self.owed[0].last <= seq:
            self.owed.popleft()
        if self.owed and self.owed[0].first <= seq:
            self.owed[0].first = seq + 1
        self._moved.unpark_all()


@attrs.define(eq=False)
class _Turn:
    """One own turn; a new session's id is known from its first event on."""

    find: Callable[[str], _Feed]
    feed: _Feed | None = None
    heard: bool = False
    left: bool = False

    def on_event(self, envelope: Envelope) -> None:
        if self.left:
            return
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

    def leave(self) -> None:
        self.left = True
        if self.feed is not None:
            self.feed.leave(heard=self.heard)


class Feeds:
    """The events of one client, for as long as it is connected.

    The part of a `warren.transport.rpc.methods.Caller` that is about events. It reads the logs of sessions in `tasks`,
    each no faster than the client reads; cancelling `tasks` ends that. If a subscription ends by itself, with its
    session or by a failure, the outbox gets an `Over` behind its last event.
    """

    def __init__(
        self,
        service: SessionService,
        outbox: Outbox,
        moved: trio.lowlevel.ParkingLot,
        tasks: trio.Nursery,
        max_subscriptions: int,
    ) -> None:
        """Put events into an outbox; whoever takes from it or closes it unparks `moved`."""
        self._service = service
        self._outbox = outbox
        self._moved = moved
        self._tasks = tasks
        self._max_subscriptions = max_subscriptions
        self._feeds: dict[str, _Feed] = {}
        self._ended = trio.lowlevel.ParkingLot()

    async def settle(self) -> None:
        """Return once no log is read any more."""
        while any(feed.reader is not None for feed in self._feeds.values()):
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
            turn.leave()
            if turn.feed is not None:
                self._forget(turn.feed)
        return result

    async def subscribe(self, session_id: str, after_seq: int | None) -> None:
        """Send the client a session's events; a subscription that it has goes on from `after_seq`.

        None changes nothing if there is a subscription already. Raises CapacityExceededError for one too many, and
        what the service raises.
        """
        feed = self._find(session_id)
        try:
            if not feed.subscribed:
                self._check_room()
            elif after_seq is None:
                return
            with feed.switch():
                await self._switch(feed, after_seq)
        finally:
            self._forget(feed)

    async def _switch(self, feed: _Feed, after_seq: int | None) -> None:
        start = feed.position() if after_seq is None else after_seq
        reader = await self._tasks.start(self._follow, feed, start)
        if start is None and feed.owed:
            # An own turn began meanwhile: where the reader stands in it is not known, where the turn began is.
            reader.scope.cancel()
            start = feed.position()
            reader = await self._tasks.start(self._follow, feed, start)
        feed.begin(reader, start)

    def unsubscribe(self, session_id: str) -> bool:
        """Stop a subscription; return whether there was one. What it owes of own turns is sent all the same."""
        feed = self._feeds.get(session_id)
        if feed is None or feed.reader is None or not feed.reader.subscribed:
            return False
        feed.reader.scope.cancel()
        feed.end(feed.reader)
        self._forget(feed)
        return True

    def _find(self, session_id: str) -> _Feed:
        feed = self._feeds.get(session_id)
        if feed is None:
            feed = self._feeds[session_id] = _Feed(session_id, self._outbox, self._catch_up)
        return feed

    def _forget(self, feed: _Feed) -> None:
        if feed.idle and self._feeds.get(feed.session_id) is feed:
            del self._feeds[feed.session_id]

    def _check_room(self) -> None:
        taken = sum(feed.subscribed or feed.switching > 0 for feed in self._feeds.values())
        if taken >= self._max_subscriptions:
            raise CapacityExceededError(
                f"this connection has {taken} subscriptions, as many as it may", cause="max_subscriptions"
            )

    def _catch_up(self, feed: _Feed) -> None:
        """Begin to read what is owed to the client of its own turns."""
        if self._outbox.closed:
            feed.give_up()
            return
        feed.reader = reader = _Reader(subscribed=False)
        reader.go.set()
        feed.delivered = start = feed.owed[0].first - 1
        self._tasks.start_soon(self._bring, feed, reader, start)

    async def _bring(self, feed: _Feed, reader: _Reader, after_seq: int) -> None:
        try:
            await self._pump(feed, reader, after_seq)
        except Exception:
            logger.exception("session %s: the events of a turn cannot be read", feed.session_id)
            self._fail(feed, reader)
            feed.give_up()
        except BaseException:  # cancelled: the client is gone
            feed.give_up()
            raise
        finally:
            self._end(feed, reader)

    async def _follow(
        self,
        feed: _Feed,
        after_seq: int | None,
        *,
        task_status: trio.TaskStatus[_Reader] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Hand a subscription's events over, until it ends; errors before its first event are the caller's."""
        reader = _Reader(subscribed=True)
        begun = False

        def begin() -> None:
            nonlocal begun
            begun = True
            task_status.started(reader)

        try:
            await self._pump(feed, reader, after_seq, begin)
        except Exception:
            if not begun:
                raise
            logger.exception("session %s: its subscription failed", feed.session_id)
            self._fail(feed, reader)
            self._run_out(feed, reader)
        finally:
            self._end(feed, reader)

    async def _pump(
        self, feed: _Feed, reader: _Reader, after_seq: int | None, begun: Callable[[], None] = lambda: None
    ) -> None:
        """Read a log and hand its events over, no faster than the client reads."""
        with reader.scope:
            async with self._service.subscribe(feed.session_id, after_seq=after_seq) as envelopes:
                begun()
                await reader.go.wait()
                async for envelope in envelopes:
                    while not self._outbox.room and not self._outbox.closed:
                        await self._moved.park()
                    feed.relay(reader, envelope)
                    if feed.reader is not reader or self._outbox.closed:
                        return
                if not reader.subscribed:
                    feed.give_up()  # the log has ended before what is owed
                elif await session_over(self._service, feed.session_id):
                    self._run_out(feed, reader)

    def _fail(self, feed: _Feed, reader: _Reader) -> None:
        """Tell the client that a session's events are missing; of a reader that was replaced it hears nothing."""
        if feed.reader is reader:
            self._outbox.event(_lost(feed))

    def _end(self, feed: _Feed, reader: _Reader) -> None:
        feed.end(reader)
        self._forget(feed)
        self._ended.unpark_all()

    def _run_out(self, feed: _Feed, reader: _Reader) -> None:
        """Say that a subscription has ended by itself, behind all that it brought; unless it was replaced."""
        if feed.reader is reader:
            feed.end(reader)
            self._outbox.reply(Over(feed.session_id))


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
