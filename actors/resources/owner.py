"""An actor that owns one resource and opens it anew after a crash: the common part of the storage and memory actors."""

import contextlib
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

import attrs
import trio

from warren.actors.supervision import Restarts, first_error, supervise, supervised_nursery
from warren.base.errors import StoreError, WarrenError
from warren.base.values import define
from warren.mailbox import Mail, Mailbox, MailboxClosedError

T = TypeVar("T")
MAILBOX_CAPACITY: Final = 100_000
FIRST_REST: Final = 1.0
LONGEST_REST: Final = 60.0
"""Seconds for which an optional actor rests at first and at most; the time doubles until it has done something."""
logger: Final = logging.getLogger("warren.supervision")


@define(eq=False)
class Owner(ABC, Generic[T]):
    """Handles all mail that waits as one batch.

    After a crash the senders of the current batch get StoreError(cause="crash"), whose outcome is unknown. The crashed
    resource is closed before a new one is opened, so two openings never work on one file.

    An actor that crashes too often ends the runtime, unless the runtime works without it: then it rests, for longer and
    longer times, refuses what comes meanwhile, and begins again.

    Attributes:
        name: the resource's name in errors and in the log.
        optional: whether the runtime works without it.
        mailbox: takes the requests for changes.
        last_crash: the last crash; None once a request has succeeded since, or the resource was there for a minute.
        resting: whether the actor rests.
    """

    name: ClassVar[str]
    optional: ClassVar[bool] = False
    _open: Callable[[], Awaitable[T]]
    _resource: T | None = None
    mailbox: Mailbox = attrs.field(factory=lambda: Mailbox(MAILBOX_CAPACITY))
    _crashed: T | None = None
    _opened: trio.Event = attrs.field(factory=trio.Event)
    _batch: list[Mail[Any]] = attrs.field(factory=list)
    _crash: str | None = attrs.field(default=None, init=False)
    _crashed_at: float = attrs.field(default=-math.inf, init=False)
    resting: bool = attrs.field(default=False, init=False)
    _pause: float = attrs.field(default=FIRST_REST, init=False)

    @property
    def last_crash(self) -> str | None:
        return self._crash if self._resource is None or trio.current_time() < self._crashed_at + LONGEST_REST else None

    @abstractmethod
    async def _handle(self, resource: T, batch: list[Mail[Any]]) -> None:
        """Do the work of a batch, and answer each message."""

    @abstractmethod
    async def _close(self, resource: T, *, crashed: bool) -> None:
        """Close a resource for good."""

    async def reader(self) -> T:
        """Return the resource, for reads beside the mailbox. If the actor is restarting, wait for the new resource.

        Raises StoreError(cause="closed") once the actor has ended, StoreError(cause="unreachable") while it rests.
        """
        while self._resource is None:
            if self.mailbox.statistics().closed:
                raise self._closed()
            if self.resting:
                raise self._away()
            await self._opened.wait()
        return self._resource

    async def run(self, restarts: Restarts) -> None:
        """Serve until the mailbox is closed and empty, through restarts; then close the resource."""
        # Shielded: a cancelled runtime first stores the turns that have ended. `running` closes the mailbox.
        with trio.CancelScope(shield=True):
            try:
                rest = self._rest if self.optional else None
                await supervise(self.name, self._serve, restarts, self._on_crash, rest)
            finally:
                self.mailbox.abandon(self._closed)
                for mail in self._batch:  # left over by a KeyboardInterrupt: their senders cannot be cancelled
                    mail.refuse(self._closed())
                self._opened.set()
                for resource in (self._crashed, self._resource):
                    if resource is not None:
                        await self._close(resource, crashed=False)
                self._resource = None

    async def _serve(self) -> None:
        crashed, self._crashed = self._crashed, None
        if crashed is not None:
            await self._close(crashed, crashed=True)
        if self._resource is None:
            self._resource = await self._open()
        self._opened.set()
        while True:
            try:
                self._batch = await self.mailbox.receive()
            except MailboxClosedError:
                return
            await self._handle(self._resource, self._batch)
            self._batch = []
            self._crash, self._pause = None, FIRST_REST

    async def _rest(self) -> bool:
        """Refuse all requests for a while; return False if the mailbox was closed: nobody needs the resource again."""
        seconds, self._pause = self._pause, min(2 * self._pause, LONGEST_REST)
        logger.error("the %s crashed too often: it rests for %g s, the runtime goes on without it", self.name, seconds)
        self.resting = True
        self._opened.set()  # those who wait for it go on
        with trio.move_on_after(seconds) as scope, contextlib.suppress(MailboxClosedError):
            while True:
                for mail in await self.mailbox.receive():
                    mail.refuse(self._away())
        self.resting, self._opened = False, trio.Event()
        return scope.cancelled_caught

    def _on_crash(self, crash: Exception) -> None:
        self._crash, self._crashed_at = f"it crashed: {first_error(crash)!r}", trio.current_time()
        batch, self._batch = self._batch, []
        for mail in batch:
            mail.refuse(StoreError(f"the {self.name} actor crashed; the outcome of this is unknown", cause="crash"))
        self._crashed, self._resource = self._resource, None
        if self._opened.is_set():  # a second crash before the opening leaves the event for the readers that wait
            self._opened = trio.Event()

    def _away(self) -> StoreError:
        return StoreError(f"the {self.name} is not there now: {self._crash}", cause="unreachable")

    def _closed(self) -> WarrenError:
        return StoreError(f"the {self.name} is closed", cause="closed", retryable=False)

    @asynccontextmanager
    async def running(self, restarts: Restarts) -> AsyncIterator[Self]:
        """Open the resource and run the actor. At the end of the block the mail that waits is handled first."""
        self._resource = await self._open()
        async with supervised_nursery() as nursery:
            nursery.start_soon(self.run, restarts)
            try:
                yield self
            finally:
                self.mailbox.close(self._closed)
