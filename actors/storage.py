"""How the actors reach the store: through an actor that commits in groups, or directly if the store is in memory."""

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar, cast

import attrs
import trio

from warren.actors.owner import Owner
from warren.actors.protocol import Write
from warren.actors.supervision import Restarts, supervised_nursery
from warren.actors.vitals import Writes
from warren.errors import StoreError, WarrenError
from warren.health import StoreHealth
from warren.mailbox import Mail
from warren.storage import Claim, Claimed, Decline, Held, Lease, Operation, Release, Request
from warren.storage.ephemeral import EphemeralStore

if TYPE_CHECKING:
    from warren.storage import Store

R = TypeVar("R")
OpenStore = Callable[[], Awaitable["Store"]]
HAND_OVER: Final = 2.0
"""Seconds within which a process has to answer that is asked for a session; one that hangs does not."""
ASK_AGAIN: Final = 0.02
"""Seconds between two looks for the answer."""
RENEWALS: Final = 3
"""How often a lease is renewed in its time."""
logger: Final = logging.getLogger("warren.storage")


class Storage(Protocol):
    """The store of a runtime, as its actors write and read it.

    Attributes:
        frees_memory: whether a session that leaves memory makes room there, as its rows are elsewhere.
    """

    frees_memory: ClassVar[bool]

    @property
    def lapses(self) -> int:
        """How often this process was late to renew: leases from before have to be asked for again."""

    async def reader(self) -> "Store":
        """Return the store, for reading. Raises StoreError at the end."""

    async def claim(self, session_id: str) -> Claimed | Held | None:
        """Take a session's lease: see `Claim`. Raises StoreError."""

    async def ask_for(self, session_id: str) -> bool:
        """Ask the process that has a session to hand it over; return whether it is free now.

        Raises SessionNotFoundError, StoreError.
        """

    def release(self, session_id: str, lease: Lease) -> None:
        """Put a session's lease back, without waiting."""

    def decline(self, session_id: str) -> None:
        """Refuse to hand a session over, without waiting."""

    async def write(self, operation: Operation[R]) -> R:
        """Commit one operation. Raises its typed error; then nothing of it was written. Cannot be cancelled."""

    async def write_or_find(self, operation: Operation[R], find: Callable[["Store"], Awaitable[R | None]]) -> R:
        """Do as `write`; after a crash that leaves the outcome unknown, `find` looks in the store for it."""

    async def after_crash(self, error: StoreError, find: Callable[["Store"], Awaitable[R | None]]) -> R | None:
        """Return what `find` sees in the store if a write's error leaves its outcome unknown; None for other errors."""

    def health(self) -> StoreHealth | None:
        """Return how writing goes, None for a store that cannot fail; never waits."""


@attrs.frozen(eq=False)
class DirectStorage:
    """A store in this process's memory: each operation is applied at once, without an actor or a thread in between."""

    frees_memory: ClassVar[bool] = False
    lapses: ClassVar[int] = 0
    _store: EphemeralStore

    async def reader(self) -> "Store":
        """See Storage."""
        return self._store

    async def claim(self, session_id: str) -> Claimed | Held | None:
        """See Storage."""
        return self._store.apply(Claim(session_id))

    async def ask_for(self, session_id: str) -> bool:
        """See Storage."""
        return not self._store.apply(Request(session_id))

    def release(self, session_id: str, lease: Lease) -> None:
        """See Storage."""
        self._store.apply(Release(session_id, lease))

    def decline(self, session_id: str) -> None:
        """See Storage: nobody asks."""

    async def write(self, operation: Operation[R]) -> R:
        """See Storage."""
        return self._store.apply(operation)

    async def write_or_find(self, operation: Operation[R], find: Callable[["Store"], Awaitable[R | None]]) -> R:  # noqa: ARG002 - the outcome is never unknown
        """See Storage."""
        return self._store.apply(operation)

    async def after_crash(self, error: StoreError, find: Callable[["Store"], Awaitable[R | None]]) -> R | None:  # noqa: ARG002 - as above
        """See Storage."""
        return None

    def health(self) -> StoreHealth | None:
        """See Storage."""
        return None


@attrs.define(eq=False)
class StorageActor(Owner["Store"]):
    """Owns the store. Reads go past its mailbox, to connections of their own: they never wait for a commit."""

    name: ClassVar[str] = "storage"
    frees_memory: ClassVar[bool] = True
    _writes: Writes = attrs.field(factory=Writes)
    _releases: dict[str, Release] = attrs.field(factory=dict)
    _lapses: int = 0

    @property
    def lapses(self) -> int:
        """How often this process was late to renew: leases from before have to be asked for again."""
        return self._lapses

    async def claim(self, session_id: str) -> Claimed | Held | None:
        """Take a session's lease: see `Claim`."""
        self._releases.pop(session_id, None)
        return await self.write(Claim(session_id))

    async def ask_for(self, session_id: str) -> bool:
        """Ask the process that has a session to hand it over; return whether it is free now.

        An idle session is handed over within half a second; one that is at work is not. Raises SessionNotFoundError,
        StoreError.
        """
        if not await self.write(Request(session_id)):
            return True
        end = trio.current_time() + HAND_OVER
        answer = None
        while answer is None and trio.current_time() < end:
            await trio.sleep(ASK_AGAIN)
            answer = await (await self.reader()).handed_over(session_id)
        return answer is True

    def release(self, session_id: str, lease: Lease) -> None:
        """Put a session's lease back, without waiting; what the store cannot do now is tried again."""
        self._releases[session_id] = Release(session_id, lease)
        self._tell_release(self._releases[session_id])

    def decline(self, session_id: str) -> None:
        """Refuse to hand a session over, without waiting."""
        with contextlib.suppress(WarrenError):
            self.mailbox.tell(Write(Decline(session_id)))

    def _tell_release(self, release: Release) -> None:
        with contextlib.suppress(WarrenError):  # closed: then all leases end
            self.mailbox.tell(Write(release))

    async def write(self, operation: Operation[R]) -> R:
        """Commit one operation together with what else waits. Raises its typed error; then nothing of it was written.

        Cannot be cancelled: whoever writes learns what came of it.
        """
        result: R = await self.mailbox.post(Write(operation)).wait_settled()
        return result

    async def write_or_find(self, operation: Operation[R], find: Callable[["Store"], Awaitable[R | None]]) -> R:
        """Do as `write`; where this actor crashed before it could say, `find` looks in the store what came of it."""
        try:
            return await self.write(operation)
        except StoreError as exc:
            found = await self.after_crash(exc, find)
            if found is None:
                raise
            return found

    async def after_crash(self, error: StoreError, find: Callable[["Store"], Awaitable[R | None]]) -> R | None:
        """Return what `find` sees in the store, where a write's error is this actor's crash; None where it is another.

        By then the store that crashed is closed, and nothing of it is still under way: what can be read is the truth.
        """
        if error.cause == "crash":
            with contextlib.suppress(StoreError), trio.CancelScope(shield=True):
                return await find(await self.reader())
        return None

    async def _take(self, owned: "Store", batch: list[Mail[Any]]) -> None:
        outcomes: list[Any] = []
        self._writes.began()
        try:
            outcomes = await owned.write([cast("Write", mail.message).operation for mail in batch])
        finally:
            self._writes.ended(outcomes)
        for mail, result in zip(batch, outcomes, strict=True):
            if isinstance(result, WarrenError):
                mail.refuse(result)
            else:
                mail.answer(result)
                self._settle(cast("Write", mail.message).operation)

    def _settle(self, operation: Operation[Any]) -> None:
        if self._releases.get(operation.session_id) is operation:
            del self._releases[operation.session_id]

    async def _close(self, owned: "Store", *, crashed: bool) -> None:
        await owned.aclose(leave=not crashed)

    def health(self) -> StoreHealth:
        """Return how writing goes; never waits."""
        return self._writes.health(None if self._owned is None else self._owned.read_fault)

    async def keep_leases(self) -> None:
        """Tell other processes again and again that this one lives; it shows whether the store can be written, too."""
        while True:
            await trio.sleep((await self.reader()).lease / RENEWALS)
            for release in list(self._releases.values()):
                self._tell_release(release)
            try:
                store = await self.reader()
                await store.renew()
                self._lapses = store.lapses
            except StoreError as exc:
                self._writes.failed(exc)
                logger.warning("the leases could not be renewed: %s", exc)
            else:
                self._writes.probed()


@asynccontextmanager
async def storing(open_it: OpenStore, restarts: Restarts) -> AsyncIterator[StorageActor]:
    """Open the store, run its actor and keep its leases; on leaving, what waits is done first."""
    async with StorageActor.running(open_it, restarts) as actor, supervised_nursery() as nursery:
        nursery.start_soon(actor.keep_leases)
        try:
            yield actor
        finally:
            nursery.cancel_scope.cancel()
