"""The watcher of the store: it notices the changes of other processes, and work that no process does."""

import contextlib
import math
import random
from typing import TYPE_CHECKING, Final

import trio

from warren.actors.protocol import Loaded, TakeOver
from warren.actors.supervisor.supervisor import Supervisor
from warren.base.errors import StoreError, WarrenError
from warren.base.values import define
from warren.storage.queries import (
    ANY_TENANT,
    LivingNodes,
    NextDelivery,
    NextDue,
    NextWake,
    OpenTurns,
    PendingDeliveries,
    SleepingTurns,
    StoreNews,
    WaitingSessions,
)

if TYPE_CHECKING:
    from warren.storage.store import Store

INTERVAL: Final = 0.5
"""Seconds between two looks for changes."""
SHORTEST_PAUSE: Final = 0.05
"""Seconds at least between two looks for work: what is due within them is found by one."""
LONGEST_PAUSE: Final = 1.0
"""Seconds at most between two looks at the living processes: so much later than its death the work of one goes on."""


@define(eq=False)
class StoreWatcher:
    """Looks at the store again and again. A look costs next to nothing while no other process writes."""

    _supervisor: Supervisor
    _store: "Store | None" = None
    _version: int = 0
    _inbox_to: int = 0
    _key: int | None = None  # this process in the store: it has another one after the store has gone back

    async def watch_loop(self) -> None:
        """Hand sessions over that other processes ask for, and show the changes that others have made, for ever."""
        while True:
            with contextlib.suppress(StoreError):  # the next look finds the same
                await self._look(await self._supervisor.shared.storage.reader())
            await trio.sleep(INTERVAL)

    async def recover_loop(self) -> None:
        """Wake sessions for which something waits and that no process has, for ever.

        That is an input, or a reader or a caller that may have to be told of the end of a turn that was lost, or that
        another process has taken over. The sessions are of processes that died, or of this one, if their actors crashed
        or left with work undone. To find them costs more the more inputs wait, so they are looked for when a process
        has gone, when something is due, and else once in a lease. Turns that are parked, or wait, are counted then;
        parked ones more often as long as there are any.
        """
        pause, due, living = LONGEST_PAUSE, -math.inf, frozenset[int]()
        supervisor = self._supervisor
        while True:
            with contextlib.suppress(StoreError):  # the next look finds the same
                storage = supervisor.shared.storage
                store, now = await storage.reader(), trio.current_time()
                pause = min(store.renewal, LONGEST_PAUSE) if storage.durable else store.lease
                keys = frozenset(node.key for node in await store.read(LivingNodes()))
                if now >= due or not living <= keys:
                    due = -math.inf  # until it has succeeded
                    await self._recover(store, others=len(keys) > 1)
                    due = now + store.lease
                elif supervisor.parked_turns:
                    await self._count_parked(store)
                living = keys
            await trio.sleep(SHORTEST_PAUSE)
            with trio.move_on_after(max(0, pause - SHORTEST_PAUSE)):
                await supervisor.waking.wait(supervisor.shared.storage.now)
                due = -math.inf

    async def _recover(self, store: "Store", *, others: bool) -> None:
        self._supervisor.waiting_turns = await store.read(SleepingTurns())
        node = self._supervisor.shared.storage.node
        if node is not None and node.draining:
            await self._count_parked(store)
            return
        # First: what is due between the two reads is found by both.
        self._supervisor.waking.set(await store.read(NextWake()))
        found = list((await store.read(WaitingSessions())).items())
        if found or self._supervisor.parked_turns:  # those with parked turns are among them
            await self._count_parked(store)
        self._supervisor.alarm.set(await store.read(NextDue()))
        self._supervisor.deliveries.set(await store.read(NextDelivery()))
        self._supervisor.pending_deliveries = await store.read(PendingDeliveries())
        if others:  # each of them finds the same sessions: in another order they claim others first
            random.shuffle(found)
        await self._supervisor.recover(dict(found))
        for session_id in [handle.session_id for handle in self._supervisor.registry if handle.unsure]:
            with contextlib.suppress(WarrenError):
                self._supervisor.mailbox(session_id).tell(TakeOver())

    async def _count_parked(self, store: "Store") -> None:
        self._supervisor.parked_turns = sum((await store.read(OpenTurns(ANY_TENANT))).values())

    async def _look(self, store: "Store") -> None:
        version = await store.version_of_others()
        if self._store is store and self._version == version and self._key == store.key:
            return
        if self._key not in (None, store.key):
            self._inbox_to = 0
        self._key = store.key
        # The logs are listed before the store is read: a subscription that comes later reads a later state, and a
        # commit after that state changes the version once more.
        watched = self._supervisor.registry.watched_elsewhere()
        news = await store.read(StoreNews(list(watched), self._inbox_to))
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
