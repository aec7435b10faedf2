"""Sessions of other nodes that are followed here: one subscription over the link serves all of their followers."""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from warren.actors.events.eventlog import EventLog, LastStored, ReadLog
from warren.base.errors import AgentError, WarrenError, of_body
from warren.base.values import define
from warren.calls.streams import EventReader
from warren.conversation.events import Envelope, SessionMoved, StreamTruncated
from warren.storage.queries import Holders
from warren.transport.client.readers import RemoteLog
from warren.transport.client.service import RemoteService

if TYPE_CHECKING:
    from warren.storage.results import Held
    from warren.storage.store import Store

HELD: Final = 1_000

logger: Final = logging.getLogger(__name__)

Place = Callable[[EventLog, EventReader, int], Awaitable[None]]
"""Moves the reader of a new subscription to the event after which it begins."""


@define(eq=False)
class ForeignLog(EventLog):
    """The log of a session that another node has. It is filled from there; older events are read from the store.

    Attributes:
        overtaken: the last event that is no longer here of those that no store takes, since a third node has gone on.
    """

    overtaken: int = 0

    def take(self, reader: EventReader) -> list[Envelope] | None:
        return None if self.parts_at(reader.cursor) else super().take(reader)

    def publish(self, envelope: Envelope) -> None:
        """Hand an event of the session's node to the readers; after a gap each subscribes anew, to get the marker.

        If the store has gone back, each reader looks there which of its events are gone.
        """
        event = envelope.event
        if isinstance(event, SessionMoved):
            self.doubt()
        elif not isinstance(event, StreamTruncated):
            super().publish(envelope)
        elif event.before + event.dropped > self.last_seq:  # else a later subscription has repeated the marker
            self.forget_oldest(0)
            self.start_above(event.before + event.dropped)
            self._notify_all()

    def trim(self) -> None:
        """Drop old events without a word to the readers: the session's node has them, or will store them."""
        self.forget_oldest(self.keep)

    def covers(self, seq: int) -> bool:
        """Return whether a reader that has the events up to a number can go on here without a gap."""
        return (seq >= self.floor or self.floor <= self.stored) and not self.parts_at(seq)

    async def _stored(self, reader: EventReader) -> list[Envelope]:
        """Raise AgentError if neither this log nor the store has the next events: their node does, or they are lost."""
        cursor, floor = reader.cursor, self.floor
        elsewhere = self.stored < floor > cursor  # before the read: they may be stored just after it
        stored = await self.read_stored(self.session_id, cursor)
        follows = any((each.first_seq or each.seq) <= cursor + 1 for each in stored.events[:1])
        overtaken = cursor < self.overtaken and not follows  # whoever finds the session tells of the end of its turn
        if overtaken or (not stored.events and (elsewhere or self.parts_at(cursor))):
            raise AgentError("only the session's node has its next events", cause="not_owner", retryable=True)
        return self._loaded(reader, stored, floor)


@define(eq=False)
class _Following:
    """The subscription of a session at the node that has it.

    Attributes:
        log: takes its events, for the followers here.
        remote: the client of that node, for the first of the followers: all of them are callers of one tenant.
        opened: set when the subscription has begun, or has failed.
        upstream: the subscription.
        failure: the error if it could not begin.
        scope: cancelled when the last follower has left.
    """

    log: ForeignLog
    remote: RemoteService
    opened: trio.Event = attrs.field(factory=trio.Event)
    upstream: RemoteLog | None = None
    failure: WarrenError | None = None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    async def run(self, last_stored: Callable[[str], Awaitable[int]]) -> None:
        """Fill the log, until its last reader has left or the node has the session no more."""
        log = self.log
        try:
            with self.scope:
                # The node has all events above this number, and the store all others.
                log.begin(await last_stored(log.session_id))
                self.upstream = await self.remote.follow(log.session_id, after_seq=log.last_seq)
                self.opened.set()
                async for envelope in self.upstream.reader:
                    for each in (envelope, *(self.upstream.reader.take() or ())):
                        log.publish(each)
                    log.trim()
                    await trio.lowlevel.checkpoint()
        except WarrenError as exc:
            logger.info("session %s is no longer followed at its node: %s", log.session_id, exc)
            self.failure = exc
        except Exception:  # an answer that cannot be read: its readers follow the session again
            logger.exception("session %s is no longer followed at its node", log.session_id)
            self.failure = AgentError("the session's node cannot be understood", cause="unreachable", retryable=True)
        finally:
            if self.upstream is not None:
                self.upstream.reader.close()
            log.close()
            self.opened.set()

    async def begun(self) -> RemoteLog:
        """Return the subscription once it has begun. Raises WarrenError if it could not."""
        await self.opened.wait()
        if self.upstream is None:
            failure = self.failure or AgentError("the session is not followed", cause="unreachable", retryable=True)
            raise of_body(failure.body())  # an error of its own for each follower
        return self.upstream


@define(eq=False)
class Fanout:
    """The subscriptions of sessions at other nodes: one a session, however many follow it here.

    A follower reads stored events from the store, and the others from a log here that the subscription fills. A log has
    no more than the running turn, and at most `keep` events of it. A follower that needs an older event of the turn, or
    one from the middle of merged deltas, has a subscription of its own until the log covers its place.

    Attributes:
        tasks: fills the logs.
        store: returns the store.
        read_stored: reads a log in the store.
        last_stored: tells which events of a log the store has.
        keep: events that the log of another node's session keeps while the store does not have them; adjacent deltas
            are one.
    """

    tasks: trio.Nursery
    store: "Callable[[], Awaitable[Store]]"
    read_stored: ReadLog
    last_stored: LastStored
    keep: int = HELD
    _followings: dict[str, _Following] = attrs.field(factory=dict)

    async def follow(self, remote: RemoteService, session_id: str, after_seq: int | None, place: Place) -> EventReader:
        """Return a reader of a session that another node has. Raises as `SessionService.subscribe`.

        Args:
            remote: the client of that node, for the caller.
            session_id: the session, which the caller may follow.
            after_seq: see `SessionService.subscribe`.
            place: see `Place`.
        """
        following = self._followings.get(session_id)
        if following is None or following.remote.links is not remote.links or following.log.closed:
            following = self._begin(remote, session_id)
        log, reader = following.log, following.log.read()  # before the wait: the last reader ends the subscription
        try:
            upstream = await following.begun()
            newest = await upstream.newest_there() if after_seq is None or after_seq > log.last_seq else log.last_seq
            if after_seq is None:
                reader.cursor = newest
                return reader
            log.bound = max(log.bound, newest)
            if after_seq <= newest and log.covers(after_seq):
                await place(log, reader, after_seq)
                return reader
        except BaseException:
            reader.close()
            raise
        reader.close()
        return (await remote.follow(session_id, after_seq=after_seq)).reader

    def _begin(self, remote: RemoteService, session_id: str) -> _Following:
        log = ForeignLog(session_id, self.read_stored, self.last_stored, self.keep)
        following = self._followings[session_id] = _Following(log, remote)
        log.on_left = partial(self._left, following)
        self.tasks.start_soon(following.run, self._last_stored)
        return following

    def _left(self, following: _Following, session_id: str) -> None:
        if not following.log.watched:
            following.scope.cancel()
            if self._followings.get(session_id) is following:
                del self._followings[session_id]

    async def _last_stored(self, session_id: str) -> int:
        held = await (await self.store()).read(Holders((session_id,)))
        return held[session_id].last_seq if session_id in held else 0

    @property
    def sessions(self) -> Collection[str]:
        """The sessions that are followed at other nodes."""
        return self._followings.keys()

    def covers(self, session_id: str, seq: int) -> bool:
        """Return whether a follower with a subscription of its own can go on at the one of all."""
        following = self._followings.get(session_id)
        return following is not None and seq <= following.log.last_seq and following.log.covers(seq)

    def stored(self, held: "Mapping[str, Held]") -> None:
        """Forget the events that the store has by now.

        A number above all events of a log may be that of another process, which has gone on after the turn was lost.
        """
        for session_id, following in self._followings.items():
            if session_id in held:
                log, last_seq = following.log, held[session_id].last_seq
                if log.pending and last_seq > log.last_seq:
                    # Another node has gone on with the session, or will be here.
                    log.overtaken = log.floor
                    log.pass_over(log.last_seq, log.floor)
                else:
                    log.forget(min(last_seq, log.last_seq))
