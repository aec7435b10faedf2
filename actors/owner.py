"""An actor that owns one thing, opened anew after a crash: what storage and memory have in common."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

import attrs
import trio

from warren.actors.supervision import Restarts, supervise, supervised_nursery
from warren.errors import StoreError, WarrenError
from warren.mailbox import Mail, Mailbox, MailboxClosedError

T = TypeVar("T")
MAY_WAIT: Final = 100_000


@attrs.define(eq=False)
class Owner(ABC, Generic[T]):
    """Takes whatever waits in its mailbox as one batch; a crash refuses the batch in hand and opens the thing anew.

    Attributes:
        name: what errors and the log call it.
        mailbox: where changes are asked of it.
    """

    name: ClassVar[str]
    _open: Callable[[], Awaitable[T]]
    _owned: T | None
    mailbox: Mailbox = attrs.field(factory=lambda: Mailbox(MAY_WAIT))
    _stale: T | None = None
    _restarted: trio.Event = attrs.field(factory=trio.Event)
    _batch: list[Mail[Any]] = attrs.field(factory=list)

    @abstractmethod
    async def _take(self, owned: T, batch: list[Mail[Any]]) -> None:
        """Do what the messages ask for, and answer each."""

    @abstractmethod
    async def _close(self, owned: T, *, crashed: bool) -> None:
        """Close the thing for good."""

    async def reader(self) -> T:
        """Return the thing, for reading beside the mailbox; waits while a crashed actor restarts.

        Raises StoreError at the end.
        """
        while self._owned is None:
            if self.mailbox.statistics().closed:
                raise self._closed()
            await self._restarted.wait()
        return self._owned

    async def run(self, restarts: Restarts) -> None:
        """Serve until the mailbox is closed and empty, through restarts; then close the thing."""
        with trio.CancelScope(shield=True):
            try:
                await supervise(self.name, self._serve, restarts, self._crash)
            finally:
                self.mailbox.abandon(self._closed)
                for mail in self._batch:  # in hand when a KeyboardInterrupt came: its sender cannot be cancelled
                    mail.refuse(self._closed())
                self._restarted.set()
                for thing in (self._stale, self._owned):
                    if thing is not None:
                        await self._close(thing, crashed=False)

    async def _serve(self) -> None:
        stale, self._stale = self._stale, None
        if stale is not None:
            await self._close(stale, crashed=True)
        if self._owned is None:
            self._owned = await self._open()
        self._restarted.set()
        while True:
            try:
                self._batch = await self.mailbox.receive()
            except MailboxClosedError:
                return
            await self._take(self._owned, self._batch)
            self._batch = []

    def _crash(self) -> None:
        batch, self._batch = self._batch, []
        for mail in batch:
            mail.refuse(StoreError(f"the {self.name} actor crashed; what waited was not confirmed", cause="crash"))
        self._stale, self._owned = self._owned, None
        if self._restarted.is_set():  # a restart that crashes again keeps those waiting
            self._restarted = trio.Event()

    def _closed(self) -> WarrenError:
        return StoreError(f"the {self.name} is closed", cause="closed", retryable=False)

    @classmethod
    @asynccontextmanager
    async def running(cls, open_it: Callable[[], Awaitable[T]], restarts: Restarts) -> AsyncIterator[Self]:
        """Open the thing and run its actor; on leaving, what waits is done first."""
        actor = cls(open_it, await open_it())
        async with supervised_nursery() as nursery:
            nursery.start_soon(actor.run, restarts)
            try:
                yield actor
            finally:
                actor.mailbox.close(actor._closed)
