"""The readers of what goes on in sessions: events of one session, changes of the list of all."""

from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Protocol, cast

import attrs

from warren.base.values import define
from warren.conversation.events import Envelope, Event
from warren.conversation.views import SessionChanges

Notify = Callable[[Event | None], None]
"""Called when there is something to read: with the event, or None if the log has ended or moved on elsewhere."""


class News(Protocol):
    """An event of the event loop's library."""

    def set(self) -> None:
        """Wake everybody who waits."""

    async def wait(self) -> object:
        """Wait until it is set; a checkpoint if it is."""


class Log(Protocol):
    """The source of a reader: a log in this process, one at a server, or one that moves with its session.

    The methods do the work of the `EventReader` methods with the same names. Each gets the reader. The log
    moves the reader's cursor as it hands events out, and calls its `notify`. If the owner of the reader has moved the
    cursor, the next call finds it.
    """

    @property
    def session_id(self) -> str:
        """The session."""

    @property
    def newest(self) -> int: ...

    @property
    def settling(self) -> bool: ...

    @property
    def closed(self) -> bool:
        """Whether the log will have no more events than now."""

    def is_behind(self, reader: "EventReader") -> bool:
        """Return whether a reader of a closed log has not taken all events."""

    def take(self, reader: "EventReader") -> list[Envelope] | None: ...

    async def load(self, reader: "EventReader") -> list[Envelope]: ...

    def another(self, reader: "EventReader") -> "EventReader": ...

    def leave(self, reader: "EventReader") -> None:
        """Forget a reader. Idempotent."""

    def news(self) -> News:
        """Return an event to wait for."""


def notify_nobody(_event: Event | None) -> None:
    """Do nothing: the notification of a reader that needs none."""


@define(eq=False)
class EventReader(AsyncIterator[Envelope]):
    """A place in a session's event log: its owner reads on whenever it likes, and nobody waits for it.

    `async for` yields events until the session is archived or deleted, or the runtime ends. A surface that has no task
    to wait in sets `notify`, and then calls `take` and `load` until it has read everything. A slow reader misses
    nothing that is in memory or in the store, and holds at most one page.

    Attributes:
        log: the log.
        cursor: the last seq that was taken; setting it moves the reader.
        notify: called, on the event loop, with the next event that is published once all before it were taken, and
            with None if the log ends. It must neither block nor raise.
        session_id: the session.
        last: the number of the event behind which the iteration ends, if `take` has come so far; None: with the log.
    """

    log: Log
    cursor: int
    notify: Notify = notify_nobody
    last: int | None = attrs.field(default=None, init=False)
    session_id: str = attrs.field(
        default=attrs.Factory(lambda self: cast("EventReader", self).log.session_id, takes_self=True), init=False
    )
    _ready: deque[Envelope] = attrs.field(factory=deque, init=False)
    _news: News | None = attrs.field(default=None, init=False)

    @property
    def newest(self) -> int:
        """The last seq that was published."""
        return self.log.newest

    @property
    def settling(self) -> bool:
        """Whether the newest turn has published all but its terminal event, and is being stored, or has ended."""
        return self.log.settling

    @property
    def over(self) -> bool:
        """Whether there will be no more: the log has ended, and everything was taken."""
        return self.log.closed and not self._ready and not self.log.is_behind(self)

    def take(self) -> list[Envelope] | None:
        """Take the next events that are in memory, at most a page, adjacent deltas as one.

        Returns an empty list if everything was taken, None if the next events are not in memory: `load` gets them.
        """
        if self._ready:
            page = list(self._ready)
            self._ready.clear()
            return page
        return self.log.take(self)

    async def load(self) -> list[Envelope]:
        """Take the next page of events from the store or the server, with a marker for those that are kept nowhere.

        It waits for a store, a server or a node that cannot be reached just now, and may return an empty list
        meanwhile.

        Raises:
            StoreError: if the store cannot be read, and that does not pass by itself.
            WarrenError: if the server refuses.
        """
        return await self.log.load(self)

    def show_first(self, envelope: Envelope) -> None:
        """Have an event taken before those of the log."""
        self._ready.append(envelope)

    def another(self) -> "EventReader":
        """Return a new reader at the same place."""
        return self.log.another(self)

    def close(self) -> None:
        """Give the place up. Idempotent."""
        self.notify = notify_nobody
        self._ready.clear()
        self.log.leave(self)
        if self._news is not None:
            self._news.set()

    async def __anext__(self) -> Envelope:
        while not self._ready:
            if self.last is not None and self.cursor >= self.last:
                raise StopAsyncIteration
            page = self.take()
            if page is None:
                page = await self.load()
            elif not page:
                if self.over:
                    raise StopAsyncIteration
                await self._wait()
            elif len(page) > 1:  # this reader is behind, and may read for long without waiting for an event
                (passed := self.log.news()).set()
                await passed.wait()
            self._ready.extend(page)
        return self._ready.popleft()

    async def _wait(self) -> None:
        news = self._news = self.log.news()
        self.notify = lambda _event: news.set()
        await news.wait()


class ChangeReader(Protocol):
    """The changes of sessions, for one watcher: its owner reads on whenever it likes, and nobody waits for it.

    `async for` yields `SessionChanges` until the runtime ends. Changes that come while nobody reads are merged.
    """

    def __aiter__(self) -> "AsyncIterator[SessionChanges]": ...

    async def __anext__(self) -> SessionChanges: ...


OnEvent = Callable[[Envelope], None]
"""Called with each event of a turn, in order, on the event loop: it must not block. If it raises, that is logged."""
OnBegin = Callable[[EventReader], None]
"""Called once, on the event loop, when a turn publishes its first event: it gets a reader before that event.

The reader goes on after the turn, until it is closed. The function must not block. If it raises, that is logged.
"""
