"""What a runtime does for other processes on its store: hand idle sessions over, and notice what they have changed."""

import contextlib
from typing import TYPE_CHECKING, Final

import attrs
import trio

from warren.actors.protocol import Loaded
from warren.actors.supervisor.supervisor import Supervisor
from warren.errors import StoreError, WarrenError

if TYPE_CHECKING:
    from warren.storage import Store

INTERVAL: Final = 0.5
"""Seconds between two looks whether another process has written into the store."""


@attrs.define(eq=False)
class Neighbours:
    """Looks at the store again and again. A look costs next to nothing while no other process writes."""

    _supervisor: Supervisor
    _store: "Store | None" = None
    _version: int = 0
    _inbox_to: int = 0

    async def watch(self) -> None:
        """Look for ever."""
        while True:
            with contextlib.suppress(StoreError):  # the next look finds the same
                await self._look(await self._supervisor.shared.storage.reader())
            await trio.sleep(INTERVAL)

    async def _look(self, store: "Store") -> None:
        version = await store.version_of_others()
        if self._store is store and self._version == version:
            return
        # The logs are listed before the store is read: a subscription that comes later reads a later state, and a
        # commit after that state changes the version once more.
        watched = self._supervisor.watched_elsewhere()
        news = await store.news(list(watched), self._inbox_to)
        for session_id, numbered in news.arrived:
            with contextlib.suppress(WarrenError):  # the session ends, and leaves its inbox to whoever revives it
                self._supervisor.comms.found(session_id, numbered)
        for session_id in news.wanted:
            self._supervisor.hand_over(session_id)
        for session_id, shown in watched.items():
            last_seq = news.last_seqs.get(session_id)
            if last_seq is None or last_seq > shown:
                with contextlib.suppress(WarrenError):
                    # It loads what is stored; then its subscriptions read on from there, or end with the session.
                    self._supervisor.revive(session_id).mailbox.tell(Loaded())
        self._inbox_to, self._store, self._version = news.inbox_to, store, version
