"""The registry: all that this process has of a session, by the session's id."""

from collections.abc import Callable, Iterator
from typing import Final

import attrs
import trio

from warren.actors.events import eventlog
from warren.actors.events.eventlog import EventLog, LogPage, ReadLog
from warren.actors.resources.storage import Storage
from warren.actors.session.actor import SessionActor
from warren.actors.shared import NO_HOST_OBJECTS, HostObjects
from warren.base.values import define
from warren.conversation.log_rows import envelopes
from warren.conversation.open_turn import OpenTurn
from warren.storage.queries import LastStored, StoredEvents

REPLAY_PAGE: Final = 500
"""Events that are read from the store at once."""


@define(eq=False)
class Handle:
    """All that this process has of one session.

    Attributes:
        log: its event stream.
        host_objects: its tools, its compactor and its hooks, which no store can hold.
        actor: None while it is not live.
        scope: cancelled to end the actor by force; None until the actor has begun.
        left: the open turn as the last actor put it back, if it could not store that; the next actor takes it.
    """

    log: EventLog
    host_objects: HostObjects = NO_HOST_OBJECTS
    actor: SessionActor | None = None
    scope: trio.CancelScope | None = None
    left: OpenTurn | None = None

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.log.session_id

    @property
    def unsure(self) -> bool:
        """Whether a reader or a caller waits here for the end of a turn that may have ended elsewhere."""
        return self.log.unsure or (self.actor is not None and self.actor.left_behind)

    @property
    def needed(self) -> bool:
        """Whether there is something here that a new actor could not get from the store."""
        return self.log.needed or bool(self.host_objects) or self.left is not None


@define(eq=False)
class Registry:
    """The handles of the sessions that live in this process, are watched here, or have something that no store has.

    Attributes:
        storage: has the events of logs that are no longer in memory.
        event_log: events that a log keeps while the store does not take them.
    """

    storage: Storage
    event_log: int
    _handles: dict[str, Handle] = attrs.field(factory=dict)
    # All logs share these.
    _of_logs: tuple[ReadLog, eventlog.LastStored, int, Callable[[str], None]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._of_logs = self.read_log, self.last_stored, self.event_log, self.release

    def __iter__(self) -> Iterator[Handle]:
        return iter(self._handles.values())

    def __len__(self) -> int:
        return len(self._handles)

    def handle(self, session_id: str) -> Handle:
        """Return a session's handle, made if there is none."""
        handle = self._handles.get(session_id)
        if handle is None:
            handle = self._handles[session_id] = Handle(EventLog(session_id, *self._of_logs))
        return handle

    def find(self, session_id: str) -> SessionActor | None:
        """Return the actor of a live session; the actor may still be loading."""
        handle = self._handles.get(session_id)
        return None if handle is None else handle.actor

    def host_objects_of(self, session_id: str) -> HostObjects:
        """Return the tools, the compactor and the hooks that only this session has."""
        handle = self._handles.get(session_id)
        return NO_HOST_OBJECTS if handle is None else handle.host_objects

    def lend(self, session_id: str, fork_id: str) -> None:
        """Give a fork the tools, the compactor and the hooks of its original, which no store can hold."""
        host_objects = self.host_objects_of(session_id)
        if host_objects:
            self.handle(fork_id).host_objects = host_objects

    def release(self, session_id: str) -> None:
        """Forget a session unless something of it is needed here."""
        handle = self._handles.get(session_id)
        if handle is not None and handle.actor is None and (handle.log.closed or not handle.needed):
            del self._handles[session_id]

    def watched_elsewhere(self) -> dict[str, int]:
        """Return the sessions that are watched here and that only others can write, each with its last event here."""
        logs = [handle.log for handle in self if handle.actor is None or not handle.actor.current]
        return {log.session_id: log.last_seq for log in logs if log.watched}

    async def read_log(self, session_id: str, after_seq: int) -> LogPage:
        """Return a page of a session's stored events above a number. Raises StoreError."""
        page = await self.storage.read(StoredEvents(session_id, after_seq, REPLAY_PAGE))
        return LogPage(list(envelopes(session_id, page.rows, after_seq)), page.gone)

    async def last_stored(self, session_id: str, up_to: int) -> int | None:
        """Return the number of a session's last stored event up to a number. Raises StoreError."""
        return await self.storage.read(LastStored(session_id, up_to))
