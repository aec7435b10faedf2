"""The watcher of the store: it notices the changes of other processes, and work that no process does."""

import contextlib
from typing import TYPE_CHECKING, Final

import trio

from warren.actors.protocol import Loaded
from warren.actors.supervisor.supervisor import Supervisor
from warren.errors import StoreError, WarrenError
from warren.values import define

if TYPE_CHECKING:
    from warren.storage import Store

INTERVAL: Final = 0.5
"""Seconds between two looks for changes."""
FIRST_RECOVERY: Final = 15.0
"""Seconds to the second look for work, if the store cannot be asked for the time of a lease."""


@define(eq=False)
class StoreWatcher:
    """Looks at the store again and again. A look costs next to nothing while no other process writes."""

    _supervisor: Supervisor
    _store: "Store | None" = None
    _version: int = 0
    _inbox_to: int = 0

    async def watch_loop(self) -> None:
        """Hand sessions over that other processes ask for, and show the changes that others have made, for ever."""
        while True:
            with contextlib.suppress(StoreError):  # the next look finds the same
                await self._look(await self._supervisor.shared.storage.reader())
            await trio.sleep(INTERVAL)

    async def recover_loop(self) -> None:
        """Wake sessions for which something waits and that no process has, for ever.

        They are of processes that died, or of this one, if their actors crashed or left with work undone.
        """
        pause = FIRST_RECOVERY
        while True:
            with contextlib.suppress(StoreError):  # the next look finds the same
                store = await self._supervisor.shared.storage.reader()
                pause = store.lease
                await self._supervisor.recover(await store.sessions_that_wait())
            await trio.sleep(pause)

    async def _look(self, store: "Store") -> None:
        version = await store.version_of_others()
        if self._store is store and self._version == version:
            return
        # The logs are listed before the store is read: a subscription that comes later reads a later state, and a
        # commit after that state changes the version once more.
        watched = self._supervisor.registry.watched_elsewhere()
        news = await store.news(list(watched), self._inbox_to)
        for session_id, numbered in news.arrived:
            with contextlib.suppress(WarrenError):  # the session ends, and its next actor finds the input in the store
                self._supervisor.inboxes.found(session_id, numbered)
        for session_id in news.wanted:
            self._supervisor.hand_over(session_id)
        for session_id, shown in watched.items():
            last_seq = news.last_seqs.get(session_id)
            if last_seq is None or last_seq > shown:
                with contextlib.suppress(WarrenError):
                    # Its actor loads the stored state; then subscriptions read on from there, or end with the session.
                    self._supervisor.revive(session_id).mailbox.tell(Loaded())
        self._inbox_to, self._store, self._version = news.inbox_to, store, version
