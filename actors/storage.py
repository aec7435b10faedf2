"""The storage actor: takes whatever waits in its mailbox and commits it as one group."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import attrs
import trio

from warren.actors.protocol import Write
from warren.actors.supervision import Restarts, supervise, supervised_nursery
from warren.errors import StoreError, WarrenError
from warren.mailbox import Mail, Mailbox, MailboxClosedError
from warren.storage import Operation

if TYPE_CHECKING:
    from warren.storage import Store

R = TypeVar("R")
OpenStore = Callable[[], Awaitable["Store"]]
WAITING_WRITES: Final = 100_000


@attrs.define(eq=False)
class StorageActor:
    """Owns the store. Reads go past its mailbox, to connections of their own: they never wait for a commit.

    Attributes:
        last_error: what the newest failed write said; None while writes succeed.
        shown_unstored: set by whoever has shown events that will not be stored any more: the file then says so.
    """

    _open_store: OpenStore
    _store: "Store | None"
    last_error: str | None = None
    shown_unstored: bool = False
    _stale: "Store | None" = None
    _restarted: trio.Event = attrs.field(factory=trio.Event)
    _mailbox: Mailbox = attrs.field(factory=lambda: Mailbox(WAITING_WRITES))
    _batch: list[Mail[Any]] = attrs.field(factory=list)

    async def reader(self) -> "Store":
        """Return the open store, for reading; waits while a crashed actor restarts. Raises StoreError at the end."""
        while self._store is None:
            if self._mailbox.statistics().closed:
                raise _closed()
            await self._restarted.wait()
        return self._store

    async def write(self, operation: Operation[R]) -> R:
        """Commit one operation together with what else waits. Raises its typed error; then nothing of it was written.

        Cannot be cancelled: whoever writes learns what came of it.
        """
        result: R = await self._mailbox.post(Write(operation)).wait_settled()
        return result

    async def run(self, restarts: Restarts) -> None:
        """Serve until the mailbox is closed and empty, through restarts; then close the store."""
        with trio.CancelScope(shield=True):
            try:
                await supervise("storage", self._serve, restarts, self._crash)
            finally:
                self._mailbox.abandon(_closed)
                self._restarted.set()
                if self._store is not None:
                    await self._store.aclose(clean=not self.shown_unstored)

    def close(self) -> None:
        """Refuse new writes; those that wait are still committed."""
        self._mailbox.close(_closed)

    async def _serve(self) -> None:
        stale, self._stale = self._stale, None
        if stale is not None:
            await stale.aclose(clean=False)
        if self._store is None:
            self._store = await self._open_store()
        self._restarted.set()
        while True:
            try:
                self._batch = await self._mailbox.receive()
            except MailboxClosedError:
                return
            operations = [cast("Write", mail.message).operation for mail in self._batch]
            self._answer(await self._store.write(operations))

    def _answer(self, outcomes: list[Any]) -> None:
        self.last_error = None
        for mail, result in zip(self._batch, outcomes, strict=True):
            if isinstance(result, StoreError):
                self.last_error = result.message
            if isinstance(result, WarrenError):
                mail.refuse(result)
            else:
                mail.answer(result)
        self._batch = []

    def _crash(self) -> None:
        batch, self._batch = self._batch, []
        for mail in batch:
            mail.refuse(_crashed())
        self._stale, self._store = self._store, None
        if self._restarted.is_set():  # a restart that crashes again keeps those waiting
            self._restarted = trio.Event()


@asynccontextmanager
async def open_storage(open_store: OpenStore, restarts: Restarts) -> AsyncIterator[StorageActor]:
    """Open the store and run its actor; on leaving, what waits is committed first."""
    actor = StorageActor(open_store, await open_store())
    async with supervised_nursery() as nursery:
        nursery.start_soon(actor.run, restarts)
        try:
            yield actor
        finally:
            actor.close()


def _closed() -> WarrenError:
    return StoreError("the store is closed", cause="closed", retryable=False)


def _crashed() -> WarrenError:
    return StoreError("the storage actor crashed; what waited was not confirmed", cause="crash")
