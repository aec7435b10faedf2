"""The log of a session that moves from node to node."""

import logging
import random
from collections.abc import Awaitable, Callable
from typing import ClassVar, Final

import trio

from warren.base.errors import AgentError, InvalidParamsError, SessionNotFoundError, StoreError, WarrenError
from warren.calls.streams import EventReader
from warren.conversation.events import Envelope, Event
from warren.transport.client.readers import RemoteLog

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


Again = Callable[[int], Awaitable[EventReader | None]]
"""Finds the session once more, and follows it above a seq; None if there will be no more of it. Raises WarrenError."""


class MovingLog:
    """The log of a session, as its one reader gets it from the node that has the session; it moves if the session does.

    After a move, or if the other node cannot be reached, it follows the session again above the last event that was
    taken: numbers only rise, so none is missed and none comes twice.

    Attributes:
        session_id: the session.
        reader: the reader.
        settling: see EventReader. The node of the session holds the events back itself.
        upstream: the reader at the session's node; None between two nodes.
        closed: whether there will be no more of the session.
    """

    settling: ClassVar[bool] = False

    def __init__(
        self,
        session_id: str,
        cursor: int,
        again: Again,
        left: Callable[["MovingLog"], None],
        upstream: EventReader | None = None,
    ) -> None:
        """Read on above `cursor`, by `upstream` if there is one. `left` is called when the reader is closed."""
        self.session_id: str = session_id
        self.reader: EventReader = EventReader(self, cursor)
        self.upstream: EventReader | None = None
        self._again = again
        self._left = left
        self._newest = cursor
        self.closed: bool = False
        self._pause = 0.0
        if upstream is not None:
            self._attach(upstream)

    @property
    def newest(self) -> int:
        return self._newest if self.upstream is None else max(self._newest, self.upstream.newest)

    @property
    def is_alone(self) -> bool:
        """Whether it has a subscription at another node for itself."""
        return self.upstream is not None and isinstance(self.upstream.log, RemoteLog) and self.upstream.log.subscribed

    def news(self) -> trio.Event:
        return trio.Event()

    def is_behind(self, reader: EventReader) -> bool:
        del reader
        return False

    def take(self, reader: EventReader) -> list[Envelope] | None:
        """Return the next events; None also if the session has to be found again."""
        upstream = self.upstream
        if upstream is None:
            return [] if self.closed else None
        if reader.cursor != upstream.cursor:
            upstream.cursor = reader.cursor
        found = upstream.take()
        reader.cursor = upstream.cursor
        if found:
            self._pause = 0.0
        elif upstream.over:
            return None
        return found

    async def load(self, reader: EventReader) -> list[Envelope]:
        """Find the session and return its next events. Waits as long as a dead node still counts as living."""
        while not self.closed:
            upstream = self.upstream
            # A reader that its connection has left moves too: others may follow the session at its node already.
            if (
                upstream is None
                or upstream.over
                or (isinstance(upstream.log, RemoteLog) and upstream.log.place is None)
            ):
                await self._move()
                page = self.take(reader)
                if page is not None:
                    return page
                continue
            try:
                page = await upstream.load()
            except WarrenError as exc:
                if not _passes(exc):
                    raise
                logger.info("session %s is followed at another node: %s", self.session_id, exc)
                self.find_again()
                continue
            reader.cursor = upstream.cursor
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
            found = await self._again(self.reader.cursor)
        except SessionNotFoundError:
            found = None
        except WarrenError as exc:
            if not _passes(exc):
                raise
            logger.info("session %s cannot be followed now: %s", self.session_id, exc)
            return
        if found is None or self.closed:
            self.end()
            if found is not None:
                found.close()
            return
        self._attach(found)

    def find_again(self) -> None:
        """Find the session again before the next event is read."""
        if self.upstream is not None:
            self._detach()
            self.reader.notify(None)

    def end(self) -> None:
        """Let the reader end: there are no more events."""
        self._detach()
        if not self.closed:
            self.closed = True
            self.reader.notify(None)

    def another(self, reader: EventReader) -> EventReader:
        return MovingLog(self.session_id, reader.cursor, self._again, self._left).reader

    def leave(self, reader: EventReader) -> None:
        del reader
        self.end()
        self._left(self)

    def _attach(self, upstream: EventReader) -> None:
        self.upstream = upstream
        upstream.notify = self._hear

    def _detach(self) -> None:
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            self._newest = max(self._newest, upstream.newest)
            upstream.close()

    def _hear(self, event: Event | None) -> None:
        self.reader.notify(event)
