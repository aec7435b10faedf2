"""The watchers of the list of sessions: the sessions that have changed, each once, until its watcher reads on."""

from collections.abc import Callable, Iterator
from typing import Final

import attrs
import trio

from warren.base.values import define
from warren.calls.reading import WatchRequest
from warren.conversation.records import SessionRecord
from warren.conversation.views import SessionChanges, SessionSummary

PAUSE: Final = 0.2
"""Seconds between two batches of changes for one watcher."""
PER_SESSION: Final = 0.001
"""Seconds that each session of a batch adds to the pause after it: a busy runtime spends about a hundredth of its time
on a watcher, however many of its sessions change."""
MOST: Final = 10_000
"""Changed sessions that wait for one watcher; beyond it the watcher is told to list them."""


@define(eq=False)
class Watch:
    """The `ChangeReader` of one watcher.

    Attributes:
        wanted: the filter.
        tenant: the tenant whose sessions it is told of.
    """

    wanted: WatchRequest
    tenant: str
    _row: Callable[[SessionRecord], SessionSummary]
    # What is known of each changed session; a record becomes a row when it is read, and None is a deleted session.
    _changed: dict[str, SessionRecord | SessionSummary | None] = attrs.field(factory=dict)
    _leaving: set[str] = attrs.field(factory=set)  # those that may fit the filter no more
    _missed: bool = False
    _next: float = attrs.field(factory=trio.current_time)
    _news: trio.Event = attrs.field(factory=trio.Event)
    _ended: trio.Event = attrs.field(factory=trio.Event)

    def changed(self, session_id: str, now: SessionRecord | SessionSummary | None, *, leaves: bool) -> None:
        """Take note of a session; None is one that is deleted. Its end as archived or deleted is its last change."""
        if session_id not in self._changed:
            if len(self._changed) >= MOST:
                self._changed.clear()
                self._leaving.clear()
                self.miss()
                return
        else:
            before = self._changed[session_id]
            if before is None or (isinstance(before, SessionRecord) and before.archived):
                now = before
        self._changed[session_id] = now
        if leaves:
            self._leaving.add(session_id)
        self._news.set()

    def miss(self) -> None:
        """Take note that there were changes that nobody tells of: the watcher has to list the sessions."""
        self._missed = True
        self._news.set()

    def merge(self, changes: SessionChanges) -> None:
        """Take the changes at another node: they fit the filter already."""
        if changes.missed:
            self.miss()
        for row in changes.sessions:
            self.changed(row.session_id, row, leaves=False)
        for session_id in changes.gone:
            self.changed(session_id, None, leaves=True)

    def end(self) -> None:
        """End the iteration."""
        self._ended.set()
        self._news.set()

    def __aiter__(self) -> "Watch":
        return self

    async def __anext__(self) -> SessionChanges:
        await trio.lowlevel.checkpoint()
        while not self._ended.is_set():
            await self._news.wait()
            with trio.move_on_at(self._next):
                await self._ended.wait()
            changes = self._take()
            if changes is not None and not self._ended.is_set():
                self._next = trio.current_time() + PAUSE + PER_SESSION * len(changes.sessions)
                return changes
        raise StopAsyncIteration

    def _take(self) -> SessionChanges | None:
        """Return the changes; None if the watcher has no use for any of them."""
        changed, leaving, missed = self._changed, self._leaving, self._missed
        self._changed, self._leaving, self._missed, self._news = {}, set(), False, trio.Event()
        rows, gone = list[SessionSummary](), list[str]()
        for session_id, now in changed.items():
            row = self._row(now) if isinstance(now, SessionRecord) else now
            if row is not None and self._fits(row):
                rows.append(row)
            elif session_id in leaving:
                gone.append(session_id)
        return SessionChanges(tuple(rows), tuple(gone), missed) if rows or gone or missed else None

    def _fits(self, row: SessionSummary) -> bool:
        archived = row.lifecycle == "archived" and not self.wanted.include_archived
        return not archived and (self.wanted.labels or {}).items() <= row.labels.items()


@define(eq=False)
class Watchers:
    """All watchers of a runtime. Without any a change costs one look at an empty list."""

    _watches: list[Watch] = attrs.field(factory=list)

    def __iter__(self) -> Iterator[Watch]:
        return iter(self._watches)

    def __len__(self) -> int:
        return len(self._watches)

    def add(self, watch: Watch) -> None:
        """Tell a watcher of changes from now on."""
        self._watches.append(watch)

    def remove(self, watch: Watch) -> None:
        """Tell a watcher no more. Idempotent."""
        if watch in self._watches:
            self._watches.remove(watch)

    def changed(self, record: SessionRecord | None, *, leaves: bool = False) -> None:
        """Tell all watchers of a session; nothing is told of one that is not loaded.

        Args:
            record: the session, as far as it is known here.
            leaves: whether it may fit a filter no more that it has fitted before.
        """
        if self._watches and record is not None:
            for watch in self._watches:
                if watch.tenant == record.tenant:
                    watch.changed(record.session_id, record, leaves=leaves)

    def gone(self, session_id: str, tenant: str) -> None:
        """Tell all watchers of a tenant that a session is no more."""
        for watch in self._watches:
            if watch.tenant == tenant:
                watch.changed(session_id, None, leaves=True)

    def close(self) -> None:
        """End all of them: the runtime has ended."""
        for watch in self._watches:
            watch.end()
