"""The actors' way to the store: an actor that commits in groups, or a direct call if the store is in memory."""

import contextlib
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar, cast

import attrs
import trio

from warren.actors.events.eventlog import utc_now
from warren.actors.events.fence import Fence
from warren.actors.observe.metrics import Writes
from warren.actors.protocol import Write
from warren.actors.resources.node import LocalNode
from warren.actors.resources.owner import Owner
from warren.actors.supervision import Restarts, background
from warren.base.errors import StoreError, WarrenError
from warren.base.nodes import Node
from warren.base.values import define
from warren.mailbox import Mail
from warren.reports.health import StoreHealth
from warren.reports.statistics import StorageStatistics
from warren.settings.config import NodeConfig
from warren.storage.operations import (
    Claim,
    Claimed,
    DeclineHandover,
    Lease,
    LeaseHeld,
    Operation,
    Release,
    RequestHandover,
)
from warren.storage.queries import ANY_TENANT, HandoverAnswer, Holders, Query, SessionHolder
from warren.storage.refusals import went_back

if TYPE_CHECKING:
    from warren.storage.ephemeral import EphemeralStore
    from warren.storage.store import Store

R = TypeVar("R")
OpenStore = Callable[[], Awaitable["Store"]]
HAND_OVER_TIMEOUT: Final = 2.0
"""Seconds within which the holder of a session has to answer a request for it; a process that hangs does not answer."""
ANSWER_POLL: Final = 0.02
"""Seconds between two looks for the answer."""
MOST_GROUPS: Final = 4
"""Groups into which the operations that wait are cut, if the store prefers smaller ones than all of them."""
WENT_BACK: Final = """\
the store has gone back to an earlier state, as by a standby without the newest changes or the restore of a backup: \
what came later is lost; the sessions in memory are dropped and read anew, and turns that run fail"""
logger: Final = logging.getLogger("warren.storage")


class Storage(Protocol):
    """The store of a runtime, as its actors write and read it.

    Attributes:
        durable: whether the rows are elsewhere than in this process: sessions outlive it, and the eviction of an idle
            session frees its memory.
        on_noted: called each time that commits of this process have written deliveries to webhooks.
    """

    durable: ClassVar[bool]
    on_noted: Callable[[], None]

    @property
    def node(self) -> LocalNode | None:
        """This process as a node on the store; None if it serves its sessions alone."""

    @property
    def fence(self) -> Fence | None:
        """The proof of the leases of this process; None if no other process can take a session over."""

    @property
    def lapses(self) -> int:
        """How often this process renewed its leases too late: a session has to claim again after each such lapse."""

    @property
    def went_back_at(self) -> datetime | None:
        """The time at which the store was last found to have gone back; None if it has not."""

    @property
    def fault(self) -> StoreError | None:
        """The error of the newest write, if the store itself was at fault; None if all is well, as far as is known."""

    @property
    def stalled(self) -> bool:
        """Whether a commit would have to wait for the store now, as far as is known."""

    def now(self) -> datetime:
        """Return the time by the clock of the store (UTC)."""

    async def reader(self) -> "Store":
        """Return the store itself. Raises StoreError(cause="closed") at the end of the runtime."""

    async def read(self, query: Query[R]) -> R:
        """Return the store's answer to a query. Raises StoreError."""

    async def claim(self, session_id: str) -> Claimed | LeaseHeld | None:
        """Take a session's lease; see `Claim`. Raises StoreError."""

    async def ask_for(self, session_id: str) -> bool:
        """Ask the process that has a session to hand it over; return whether the session is free now.

        An idle session is handed over within half a second, a session that runs a turn is not. A node does not ask
        another node for a session: it forwards the work there.

        Raises SessionNotFoundError and StoreError.
        """

    async def has_lease(self, session_id: str, lease: Lease) -> bool:
        """Return whether this process has had a session since it took a lease, by the store. Raises StoreError."""

    async def rival(self, session_id: str) -> Node | None:
        """Return the other process that has a session by the store; None if there is none. Raises StoreError."""

    def release(self, session_id: str, lease: Lease) -> None:
        """Put a session's lease back. Never waits; the store retries until the lease is back."""

    def decline(self, session_id: str) -> None:
        """Refuse to hand a session over. Never waits."""

    async def write(self, operation: Operation[R]) -> R:
        """Commit one operation and return its result. Cannot be cancelled, so the caller always learns the outcome.

        Raises the operation's WarrenError, or StoreError if the store fails; then nothing of the operation was written,
        except after a StoreError that is `unknown`.
        """

    async def write_or_find(self, operation: Operation[R], find: Callable[["Store"], Awaitable[R | None]]) -> R:
        """Do as `write`; if the outcome is unknown, return the result that `find` reads in the store."""

    async def after_crash(self, error: StoreError, find: Callable[["Store"], Awaitable[R | None]]) -> R | None:
        """Return the result that `find` reads in the store if `error` leaves a write's outcome unknown; else None."""

    @property
    def answers(self) -> bool:
        """Whether the store has taken a write within the last seconds, or need not have; nothing is asked of it."""

    def health(self) -> StoreHealth | None:
        """Return the health of writes and reads; None for a store that cannot fail. Never waits."""

    def statistics(self) -> StorageStatistics | None:
        """Return the figures of the writes; None for a store without a queue. Never waits."""

    @property
    def writes(self) -> Writes | None:
        """The measurements of the writes; None for a store without a queue."""


@define(eq=False)
class DirectStorage:
    """A store in this process's memory: each operation is applied at once, without an actor or a thread in between.

    Attributes:
        on_noted: see Storage.
    """

    durable: ClassVar[bool] = False
    node: ClassVar[LocalNode | None] = None
    fence: ClassVar[Fence | None] = None
    lapses: ClassVar[int] = 0
    went_back_at: ClassVar[datetime | None] = None
    fault: ClassVar[StoreError | None] = None
    stalled: ClassVar[bool] = False
    writes: ClassVar[Writes | None] = None
    answers: ClassVar[bool] = True
    _store: "EphemeralStore"
    on_noted: Callable[[], None] = lambda: None

    async def reader(self) -> "Store":
        return self._store

    async def read(self, query: Query[R]) -> R:
        return await self._store.read(query)

    async def claim(self, session_id: str) -> Claimed | LeaseHeld | None:
        return self._store.apply(Claim(session_id))

    async def ask_for(self, session_id: str) -> bool:
        return not self._store.apply(RequestHandover(session_id))

    async def has_lease(self, session_id: str, lease: Lease) -> bool:  # noqa: ARG002 - no other process could have it
        return True

    async def rival(self, session_id: str) -> None:
        """Return None: no other process can hold the session."""

    def release(self, session_id: str, lease: Lease) -> None:
        self._store.apply(Release(session_id, lease))

    def decline(self, session_id: str) -> None:
        """Do nothing: no other process can ask for the session."""

    async def write(self, operation: Operation[R]) -> R:
        noted = self._store.noted
        result = self._store.apply(operation)
        if self._store.noted != noted:
            self.on_noted()
        return result

    async def write_or_find(self, operation: Operation[R], find: Callable[["Store"], Awaitable[R | None]]) -> R:  # noqa: ARG002 - the outcome is never unknown
        return self._store.apply(operation)

    def now(self) -> datetime:
        return self._store.now()

    async def after_crash(self, error: StoreError, find: Callable[["Store"], Awaitable[R | None]]) -> R | None:  # noqa: ARG002 - as above
        return None

    def health(self) -> StoreHealth | None:
        return None

    def statistics(self) -> StorageStatistics | None:
        return None


@define(eq=False)
class StorageActor(Owner["Store"]):
    """Owns the store and commits all operations that wait as one group.

    Reads do not go through the mailbox: the store has connections of their own for them, so no read waits for a commit.

    If the store has gone back, all that this process has derived from it is dropped before anybody gets a result of the
    store as it is now: `on_went_back` does that, without a checkpoint, and mail that waits is refused.

    Attributes:
        node: see Storage.
        writes: see Storage.
        fence: see Storage.
        went_back_at: see Storage.
        on_went_back: called each time that the store was found to have gone back.
        on_noted: see Storage.
    """

    name: ClassVar[str] = "storage"
    durable: ClassVar[bool] = True
    node: LocalNode | None = None
    writes: Writes = attrs.field(factory=Writes)
    fence: Fence = attrs.field(factory=Fence)
    went_back_at: datetime | None = None
    on_went_back: Callable[[], None] = lambda: None
    on_noted: Callable[[], None] = lambda: None
    _went_back: int = 0
    _releases: dict[str, Release] = attrs.field(factory=dict)
    _clock: Callable[[], datetime] = utc_now  # while the store is opened anew after a crash, that of the former one

    @property
    def lapses(self) -> int:
        return self.fence.lapses

    @property
    def fault(self) -> StoreError | None:
        return self.writes.fault

    def now(self) -> datetime:
        return self._clock() if self._resource is None else self._resource.now()

    @property
    def stalled(self) -> bool:
        return self.writes.fault is not None or not self.fence.proved

    async def reader(self) -> "Store":
        """Return the store; if a read has found that it went back, first drop all that was derived from it."""
        store = await super().reader()
        self._look_back(store)
        return store

    async def read(self, query: Query[R]) -> R:
        return await (await self.reader()).read(query)

    async def claim(self, session_id: str) -> Claimed | LeaseHeld | None:
        self._releases.pop(session_id, None)  # a late retry of that release would drop the new lease
        return await self.write(Claim(session_id, self.went_back_at))

    async def ask_for(self, session_id: str) -> bool:
        if self.node is not None and await self._at_node(session_id):
            return False
        if not await self.write(RequestHandover(session_id)):
            return True
        deadline = trio.current_time() + HAND_OVER_TIMEOUT
        answer = None
        while answer is None and trio.current_time() < deadline:
            await trio.sleep(ANSWER_POLL)
            answer = await self.read(HandoverAnswer(session_id))
        return answer is True

    async def _at_node(self, session_id: str) -> bool:
        """Return whether another node has a session."""
        rival = await self.rival(session_id)
        return rival is not None and rival.address is not None

    async def has_lease(self, session_id: str, lease: Lease) -> bool:
        store = await self.reader()
        held = (await store.read(Holders((session_id,)))).get(session_id)
        return held is not None and (held.holder, held.epoch) == (store.key, lease.epoch)

    async def rival(self, session_id: str) -> Node | None:
        store = await self.reader()
        holder = await store.read(SessionHolder(session_id, ANY_TENANT))
        return None if holder is None or holder.key == store.key else holder

    def release(self, session_id: str, lease: Lease) -> None:
        self._releases[session_id] = Release(session_id, lease)
        self._post(self._releases[session_id])

    def decline(self, session_id: str) -> None:
        self._post(DeclineHandover(session_id))

    def _post(self, operation: Operation[Any]) -> None:
        with contextlib.suppress(WarrenError):  # the mailbox is closed: all leases of this process end with it
            self.mailbox.tell(Write(operation))

    async def write(self, operation: Operation[R]) -> R:
        result: R = await self.mailbox.post(Write(operation)).wait_settled()
        return result

    async def write_or_find(self, operation: Operation[R], find: Callable[["Store"], Awaitable[R | None]]) -> R:
        try:
            return await self.write(operation)
        except StoreError as exc:
            found = await self.after_crash(exc, find)
            if found is None:
                raise
            return found

    async def after_crash(self, error: StoreError, find: Callable[["Store"], Awaitable[R | None]]) -> R | None:
        # `reader` waits for the new store, which is opened after the crashed one is closed; and a store that has lost
        # its connection settles the write before it reads. So the rows that `find` reads are final.
        if error.unknown:
            # Shielded: the write may be committed, and a cancelled caller still has to act on the outcome.
            with contextlib.suppress(StoreError), trio.CancelScope(shield=True):
                return await find(await self.reader())
        return None

    async def _handle(self, resource: "Store", batch: list[Mail[Any]]) -> None:
        # The callers of a group run on while the next one is stored. If very many wait, a slow disk is the limit, and
        # not the event loop: then few large groups are faster.
        most = max(resource.group, len(batch) // MOST_GROUPS)
        before = self._went_back
        for first in range(0, len(batch), most):
            if not await self._write_group(resource, batch[first : first + most]):
                for mail in batch[first + most :]:  # they have waited with that group, and would wait as long again
                    session_id = cast("Write", mail.message).operation.session_id
                    mail.refuse(StoreError("the store cannot be reached", session_id=session_id, cause="unreachable"))
                return
            if self._went_back != before:
                _refuse(batch[first + most :])
                return

    async def _write_group(self, resource: "Store", batch: list[Mail[Any]]) -> bool:
        """Write a group and answer its senders; return whether the store could be reached."""
        if self._look_back(resource):  # a renewal has found it out, and these follow from what is gone
            _refuse(batch)
            return True
        outcomes: list[Any] = []
        key, began, noted = resource.key, self.fence.clock(), resource.noted
        self.writes.began()
        try:
            outcomes = await resource.write([cast("Write", mail.message).operation for mail in batch])
        finally:
            self.writes.ended(outcomes)
            self._look_back(resource)
            if resource.key not in (None, key):  # its leases count from here
                self.fence.renewed(began, resource.proof, resource.lapses)
        if resource.noted != noted:
            self.on_noted()
        for mail, result in zip(batch, outcomes, strict=True):
            if isinstance(result, WarrenError):
                mail.refuse(result)
            else:
                mail.answer(result)
                operation = cast("Write", mail.message).operation
                if isinstance(operation, Release) and self._releases.get(operation.session_id) is operation:
                    del self._releases[operation.session_id]  # it needs no further attempt
        return not all(isinstance(result, StoreError) and result.away for result in outcomes)

    def _look_back(self, store: "Store") -> bool:
        """Drop all that this process has derived from the store, if the store was found to have gone back."""
        if store.went_back == self._went_back:
            return False
        self._went_back, self.went_back_at = store.went_back, utc_now()
        logger.error("%s", WENT_BACK)
        # There are no leases any more; if it is registered anew, the next renewal proves them.
        self.fence.renewed(math.inf if store.key is None else -math.inf, 0.0, store.lapses)
        self._releases.clear()
        _refuse(self.mailbox.take())
        self.on_went_back()
        return True

    def _on_crash(self, crash: Exception) -> None:
        if self._resource is not None:
            self._clock = self._resource.now
        super()._on_crash(crash)

    async def _close(self, resource: "Store", *, crashed: bool) -> None:
        await resource.aclose(leave=not crashed)

    @property
    def answers(self) -> bool:
        return self._resource is not None and self.writes.answered_within(self._resource.renewal)

    def health(self) -> StoreHealth:
        store = self._resource
        return self.writes.health() if store is None else self.writes.health(store.read_fault, store.clock_ahead)

    def statistics(self) -> StorageStatistics:
        return StorageStatistics(self.mailbox.statistics().waiting, self.writes.last_ms)

    async def keep_leases(self) -> None:
        """Renew the leases of this process for ever; each renewal also probes whether the store can be written."""
        while True:
            await self._next_renewal((await self.reader()).renewal)
            for release in list(self._releases.values()):
                self._post(release)
            await self.renew()

    async def _next_renewal(self, seconds: float) -> None:
        if self.node is None:
            await trio.sleep(seconds)
        else:
            with trio.move_on_after(seconds):
                await self.node.changed.wait()
            self.node.changed = trio.Event()

    async def renew(self) -> None:
        """Renew the leases of this process once, and announce it if it is a node. Raises StoreError at the end."""
        store, sent = await self.reader(), self.fence.clock()
        before = store.went_back
        try:
            asked = await store.renew(None if self.node is None else self.node.announcement())
        except StoreError as exc:
            self.writes.failed(exc)
            self.fence.fault = exc
            logger.warning("the leases could not be renewed: %s", exc)
            return
        finally:
            self._look_back(store)
        if store.went_back != before and self.node is not None:
            await self.renew()  # other nodes should know of this one soon
            return
        if store.key is not None:
            self.fence.renewed(sent, store.proof, store.lapses)
        self.writes.probed()
        if asked and self.node is not None:
            self.node.asked.set()


def _refuse(mails: Iterable[Mail[Any]]) -> None:
    """Refuse writes that were sent before the store was found to have gone back."""
    for mail in mails:
        mail.refuse(went_back(cast("Write", mail.message).operation.session_id))


@asynccontextmanager
async def storing(
    open_it: OpenStore, restarts: Restarts, node: NodeConfig | None = None
) -> AsyncIterator[StorageActor]:
    """Open the store, run its actor and renew its leases. At the end of the block the mail that waits is stored first.

    A node is registered in the store when the block begins, unless the store could not be written just then.

    Raises StoreError if the store cannot be opened, ActorFailedError if the actor crashes too often.
    """
    storage = StorageActor(open_it)
    storage.node = None if node is None else LocalNode.of(node)
    async with storage.running(restarts) as actor:
        actor.fence.patience = (await actor.reader()).patience
        if actor.node is not None:
            await actor.renew()
        async with background(actor.keep_leases):
            yield actor
