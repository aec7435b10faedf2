"""The readers of what goes on in sessions: events of one session, changes of the list of all."""

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from warren.conversation.events import Envelope, Event
from warren.conversation.views import SessionChanges

Notify = Callable[[Event | None], None]
"""Called when there is something to read: with the event, or None if the log has ended or moved on elsewhere."""


class EventReader(Protocol):
    """A place in a session's event log: its owner reads on whenever it likes, and nobody waits for it.

    `async for` yields events until the session is archived or deleted, or the runtime ends. A surface that has no task
    to wait in sets `notify`, and then calls `take` and `load` until it has read everything.

    Attributes:
        cursor: the last seq that was taken; setting it moves the reader.
        notify: called, on the event loop, with the next event that is published once all before it were taken, and
            with None if the log ends. It must neither block nor raise.
    """

    cursor: int
    notify: Notify

    @property
    def session_id(self) -> str:
        """The session."""
        ...

    @property
    def newest(self) -> int:
        """The last seq that was published."""
        ...

    @property
    def settling(self) -> bool:
        """Whether the newest turn has published all but its terminal event, and is being stored, or has ended."""
        ...

    @property
    def over(self) -> bool:
        """Whether there will be no more: the log has ended, and everything was taken."""
        ...

    def take(self) -> list[Envelope] | None:
        """Take the next events that are in memory, at most a page, adjacent deltas as one.

        Returns an empty list if everything was taken, None if the next events are no longer in memory: `load` does it.
        """
        ...

    async def load(self) -> list[Envelope]:
        """Take the next page of events from the store, with a marker for those that are kept nowhere.

        It waits for a store that cannot be reached just now, and may return an empty list meanwhile.

        Raises:
            StoreError: if the store cannot be read, and that does not pass by itself.
        """
        ...

    def another(self) -> "EventReader":
        """Return a new reader at the same place."""
        ...

    def close(self) -> None:
        """Give the place up. Idempotent."""
        ...

    def __aiter__(self) -> AsyncIterator[Envelope]: ...

    async def __anext__(self) -> Envelope: ...


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
