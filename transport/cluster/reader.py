"""A place in a session's log that stays with the session when it moves from node to node."""

import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import trio

from warren.actors.events.eventlog import utc_now
from warren.base.errors import AgentError, InvalidParamsError, SessionNotFoundError, StoreError, WarrenError
from warren.base.values import frozen
from warren.calls.streams import EventReader, Notify
from warren.conversation.events import Envelope, Event, SessionMoved
from warren.transport.client.readers import RemoteReader, quiet

FIRST_PAUSE: Final = 0.05
"""Seconds between two attempts to follow a session; they double as long as no event comes, with jitter."""
LONGEST_PAUSE: Final = 1.0
logger: Final = logging.getLogger(__name__)


def _passes(error: WarrenError) -> bool:
    """Return whether a session can be followed later, or at another node.

    An AgentError is about a node that is gone or has the session no more. A node that has not found yet that the store
    has gone back, or that another node has the session, knows of fewer events than the reader was shown elsewhere.
    After a crash of the store's actor nobody knows what came of a request, but to follow may be repeated. A read that
    was on its way then finds the store closed, as it does at the end of this node, which ends all readers itself.
    """
    if isinstance(error, StoreError):
        return error.retryable or error.unknown or error.cause == "closed"
    return error.retryable or isinstance(error, AgentError | InvalidParamsError)


@frozen
class Continuation:
    """The log of a session at its next node.

    Attributes:
        reader: reads on there.
        moved: the events that were shown at the node before and that are lost; None if none are.
    """

    reader: EventReader
    moved: SessionMoved | None = None


Again = Callable[[int], Awaitable[Continuation | None]]
"""Finds the session once more, and follows it above a seq; None if there will be no more of it. Raises WarrenError."""


class MovingReader(AsyncIterator[Envelope]):
    """The `EventReader` of a node: it reads at the node that has the session, and moves if the session does.

    After a move, or if the other node cannot be reached, it follows the session again above the last event that it has
    taken: numbers only rise, so none is missed and none comes twice.

    Attributes:
        settling: see EventReader. The node of the session holds the events back itself.
    """

    settling: bool = False

    def __init__(
        self,
        session_id: str,
        cursor: int,
        again: Again,
        closed: Callable[["MovingReader"], None],
        upstream: EventReader | None = None,
    ) -> None:
        """Read on above `cursor`, by `upstream` if there is one. `closed` is called when this reader is closed."""
        self.notify: Notify = quiet
        self._session_id = session_id
        self._again = again
        self._closed = closed
        self._cursor = cursor
        self._newest = cursor if upstream is None else upstream.newest
        self._upstream: EventReader | None = None
        self._over = False
        self._pause = 0.0
        self._ready: deque[Envelope] = deque()
        if upstream is not None:
            self._attach(upstream)

    @property
    def session_id(self) -> str:
        """See EventReader."""
        return self._session_id

    @property
    def upstream(self) -> EventReader | None:
        """The reader at the session's node; None between two nodes."""
        return self._upstream

    @property
    def cursor(self) -> int:
        """See EventReader."""
        return self._cursor

    @cursor.setter
    def cursor(self, seq: int) -> None:
        if seq != self._cursor:
            self._cursor = seq
            self._ready.clear()
            if self._upstream is not None:
                self._upstream.cursor = seq

    @property
    def newest(self) -> int:
        """See EventReader."""
        return self._newest if self._upstream is None else max(self._newest, self._upstream.newest)

    @property
    def over(self) -> bool:
        """See EventReader."""
        return self._over and not self._ready

    def take(self) -> list[Envelope] | None:
        """See EventReader. None also means that the session has to be found again."""
        if self._ready:
            page = list(self._ready)
            self._ready.clear()
            return page
        upstream = self._upstream
        if upstream is None:
            return [] if self._over else None
        found = upstream.take()
        self._cursor = upstream.cursor
        if found:
            self._pause = 0.0
        elif upstream.over:
            return None
        return found

    async def load(self) -> list[Envelope]:
        """See EventReader. Waits until the session is found, for as long as a node that has died counts as living."""
        while not self._over:
            upstream = self._upstream
            # A reader that its connection has left moves too: others may follow the session at its node already.
            if upstream is None or upstream.over or (isinstance(upstream, RemoteReader) and not upstream.connected):
                await self._move()
                page = self.take()
                if page is not None:
                    return page
                continue
            try:
                page = await upstream.load()
            except WarrenError as exc:
                if not _passes(exc):
                    raise
                logger.info("session %s is followed at another node: %s", self._session_id, exc)
                self.leave()
                continue
            self._cursor = upstream.cursor
            if page:
                self._pause = 0.0
            return page
        return []

    async def _move(self) -> None:
        """Follow the session at the node that has it now, or end."""
        self._detach()
        await trio.sleep(self._pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
        self._pause = min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
        try:
            found = await self._again(self._cursor)
        except SessionNotFoundError:
            found = None
        except WarrenError as exc:
            if not _passes(exc):
                raise
            logger.info("session %s cannot be followed now: %s", self._session_id, exc)
            return
        if found is None or self._over:
            self.end()
            if found is not None:
                found.reader.close()
            return
        if found.moved is not None:
            self._ready.append(Envelope(self._session_id, self._cursor, utc_now(), found.moved))
        self._attach(found.reader)

    def leave(self) -> None:
        """Find the session again before the next event is read."""
        if self._upstream is not None:
            self._detach()
            self.notify(None)

    def end(self) -> None:
        """Let the reader end: there are no more events."""
        self._detach()
        if not self._over:
            self._over = True
            self.notify(None)

    def another(self) -> "MovingReader":
        """See EventReader."""
        return MovingReader(self._session_id, self._cursor, self._again, self._closed)

    def close(self) -> None:
        """See EventReader."""
        self.notify = quiet
        self._ready.clear()
        self.end()
        self._closed(self)

    def _attach(self, upstream: EventReader) -> None:
        self._upstream = upstream
        upstream.notify = self._hear

    def _detach(self) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            self._newest = max(self._newest, upstream.newest)
            upstream.notify = quiet
            upstream.close()

    def _hear(self, event: Event | None) -> None:
        self.notify(event)

    def __aiter__(self) -> "MovingReader":
        return self

    async def __anext__(self) -> Envelope:
        while not self._ready:
            page = self.take()
            if page is None:
                page = await self.load()
            elif not page:
                if self.over:
                    raise StopAsyncIteration
                await self._wait()
            elif len(page) > 1:  # this reader is behind, and may read for long without waiting for an event
                await trio.lowlevel.checkpoint()
            self._ready.extend(page)
        return self._ready.popleft()

    async def _wait(self) -> None:
        news = trio.Event()
        self.notify = lambda _event: news.set()
        await news.wait()
