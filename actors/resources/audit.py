"""The auditor: adds entries to the audit about actions that are no change of the store, and keeps refusals few.

An entry about a change of the store is written with the change, see `warren.storage.operations`. All others wait here
for a moment and are stored together, so that no caller waits for them.
"""

import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from warren.actors.events.eventlog import utc_now
from warren.actors.resources.storage import Storage
from warren.actors.supervision import background
from warren.base.errors import WarrenError
from warren.base.principals import Principal
from warren.base.values import define
from warren.conversation import codec
from warren.reports.audit import Action, AuditEntry, By, by_of, calling_from
from warren.storage.operations import Audit

WINDOW: Final = 60.0
"""Seconds for which refusals are counted."""
MOST_OF_SOURCE: Final = 5
MOST_REFUSALS: Final = 60
"""Refusals of one principal, or of one address that nobody knows, and of a whole tenant, with an entry in a window."""
MOST_WAITING: Final = 10_000
"""Entries that wait for a store that refuses them; further ones are in the log alone."""
MOST_AT_ONCE: Final = 500
"""Entries of one operation."""
PAUSE: Final = 1.0
"""Seconds after which a store that has refused entries is asked again."""
PATIENCE: Final = 2.0
"""Seconds that a reader of the audit waits for entries that are not stored yet."""
logger: Final = logging.getLogger("warren.audit")


@define(eq=False)
class Refusals:
    """The refusals of one tenant in one window.

    Attributes:
        ends: the end of the window.
        suppressed: refusals that have no entry.
        last: the newest one of them.
    """

    ends: float
    suppressed: int = 0
    last: AuditEntry | None = None
    _admitted: dict[tuple[By | None, str], int] = attrs.field(factory=dict)  # it has as many keys as there are entries
    _count: int = 0

    def admits(self, entry: AuditEntry) -> bool:
        """Count a refusal; return whether it gets an entry."""
        source = entry.by, entry.who or entry.source or ""
        if self._count >= MOST_REFUSALS or self._admitted.get(source, 0) >= MOST_OF_SOURCE:
            self.suppressed += 1
            self.last = entry
            return False
        self._admitted[source] = self._admitted.get(source, 0) + 1
        self._count += 1
        return True

    def summary(self) -> AuditEntry | None:
        """Return an entry that stands for all refusals without one; None if there are none."""
        if self.last is None:
            return None
        return attrs.evolve(self.last, details={**self.last.details, "suppressed": str(self.suppressed)})


@define(eq=False)
class Auditor:
    """Writes entries of the audit. `auditing` makes it.

    Attributes:
        lost: entries that are in the log alone, as too many waited for the store.
    """

    _storage: Storage
    lost: int = 0
    _waiting: list[AuditEntry] = attrs.field(factory=list)
    _refusals: dict[str | None, Refusals] = attrs.field(factory=dict)  # by tenant
    _reads: dict[tuple[object, ...], float] = attrs.field(factory=dict)  # the time of the newest entry about each
    _work: trio.Event = attrs.field(factory=trio.Event)
    _done: trio.Event = attrs.field(factory=trio.Event)
    _refused_before: bool = False  # by the store, which the log says once

    @property
    def waiting(self) -> int:
        """Entries that are not stored yet."""
        return len(self._waiting)

    def entry(self, principal: Principal, action: Action, session_id: str | None = None, **details: str) -> AuditEntry:
        """Return the entry of an action of a principal, which is done now."""
        return AuditEntry(
            at=utc_now(),
            action=action,
            who=principal.name,
            tenant=principal.tenant,
            by=by_of(principal),
            session_id=session_id,
            node=self._node_name,
            source=calling_from.get(),
            details=details,
        )

    @property
    def _node_name(self) -> str | None:
        node = self._storage.node
        return None if node is None else node.name

    def note(self, entry: AuditEntry) -> None:
        """Add an entry soon. Never waits. Of many refusals or reads within a minute most have none."""
        entry = attrs.evolve(entry, node=self._node_name, source=calling_from.get())
        if entry.action == "read" and entry.outcome == "done" and not self._is_new(entry):
            return
        if entry.outcome == "done" or self._refused(entry):
            self.add(entry)

    def _is_new(self, entry: AuditEntry) -> bool:
        """Return whether nobody has noted the same read within a window: an operator may look every second."""
        now, what = trio.current_time(), (entry.tenant, entry.who, entry.source, *entry.details.items())
        if self._reads.get(what, -math.inf) > now - WINDOW:
            return False
        if len(self._reads) >= MOST_WAITING:
            self._reads.clear()
        self._reads[what] = now
        return True

    def _refused(self, entry: AuditEntry) -> bool:
        found = self._refusals.get(entry.tenant)
        if found is None:
            found = self._refusals[entry.tenant] = Refusals(trio.current_time() + WINDOW)
        admits = found.admits(entry)
        if found.suppressed == 1:
            self._work.set()  # the end of the window has to be waited for
        return admits

    def add(self, entry: AuditEntry) -> None:
        """Add an entry of `entry` soon, as it is. Never waits."""
        if len(self._waiting) >= MOST_WAITING:
            self.lost += 1
            logger.error("an entry of the audit cannot be stored: %s", codec.encode(entry).decode())
            return
        self._waiting.append(entry)
        self._work.set()

    async def settle(self) -> None:
        """Return when all entries so far are stored, or after a while if the store does not take them."""
        with trio.move_on_after(PATIENCE):
            while self._waiting:
                await self._done.wait()

    async def run(self) -> None:
        """Store entries until cancelled."""
        while True:
            with trio.move_on_at(min((each.ends for each in self._refusals.values()), default=math.inf)):
                await self._work.wait()
            self._work = trio.Event()
            self._end_windows(trio.current_time())
            while self._waiting:
                if not await self.store():
                    await trio.sleep(PAUSE)

    def _end_windows(self, now: float) -> None:
        for tenant, refusals in tuple(self._refusals.items()):
            if now >= refusals.ends:
                del self._refusals[tenant]
                summary = refusals.summary()
                if summary is not None:
                    self.add(summary)

    async def store(self) -> bool:
        """Store the entries that wait; return whether the store has taken them."""
        entries = tuple(self._waiting[:MOST_AT_ONCE])
        try:
            # A write that is cancelled may be done, and the end would do it once more.
            with trio.CancelScope(shield=True):
                await self._storage.write(Audit(entries))
        except WarrenError as exc:
            # After a crash they may be stored: an entry that is there twice is better than none.
            if not self._refused_before:
                logger.warning("entries of the audit wait for the store: %s", exc)
            self._refused_before = True
            return False
        self._refused_before = False
        del self._waiting[: len(entries)]
        done, self._done = self._done, trio.Event()
        done.set()
        return True

    async def finish(self) -> None:
        """Store all entries that wait, with the counts of refusals; log those that the store does not take."""
        self._end_windows(math.inf)
        while self._waiting and await self.store():
            pass
        for entry in self._waiting:
            logger.error("an entry of the audit cannot be stored: %s", codec.encode(entry).decode())


@asynccontextmanager
async def auditing(storage: Storage) -> AsyncIterator[Auditor]:
    """Run the auditor for a body; at its end all entries that wait are stored."""
    auditor = Auditor(storage)
    try:
        async with background(auditor.run):
            yield auditor
    finally:
        # Shielded: the nursery may end by cancellation, and the entries that wait are kept nowhere else.
        with trio.CancelScope(shield=True):
            await auditor.finish()
