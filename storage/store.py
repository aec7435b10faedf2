"""The interface of a store: a home of sessions, their messages, their events and their inboxes."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

from warren.base.errors import WarrenError
from warren.base.nodes import Announcement
from warren.storage.membership import SecretOf
from warren.storage.operations import Operation
from warren.storage.queries import Query

R = TypeVar("R")


class Store(Protocol):
    """Sessions as the actors store and read them; safe to call from any task.

    Each call sees one state of the store, and none waits for a write. Every read raises StoreError if the store cannot
    be read; its `cause` says why: "locked", "io_error", "corrupt", "closed" and so on.
    """

    @property
    def group(self) -> int:
        """Operations that one call of `write` should have, if not many more wait; it applies more as well."""

    @property
    def lease(self) -> float:
        """Seconds for which this process keeps its sessions unless it calls `renew`."""

    @property
    def proof(self) -> float:
        """Seconds for which a renewal proves that this process has its leases, from the moment in which it was sent."""

    @property
    def patience(self) -> float:
        """Seconds that a turn waits for a store that is away, or takes no write."""

    @property
    def renewal(self) -> float:
        """Seconds between two renewals of the leases."""

    @property
    def key(self) -> int | None:
        """The number of this process in the store; None before it is registered there."""

    @property
    def lapses(self) -> int:
        """How often this process renewed its leases too late, so that others may have taken its sessions over."""

    @property
    def went_back(self) -> int:
        """How often the store was found to have gone back: a standby without the newest changes, or a backup.

        Each time this process has died as a holder, and nothing that it knows of the store counts any more. Writes of
        that moment fail with StoreError(cause="lease_lost"), and changed nothing.
        """

    @property
    def noted(self) -> int:
        """A number that rises as commits of this process write deliveries to webhooks."""

    @property
    def clock_ahead(self) -> float | None:
        """Seconds by which the store's clock is ahead of this machine's, by the newest renewal; None if it has none."""

    def now(self) -> datetime:
        """Return the time by the store's clock (UTC), as far as this process knows it: all deadlines are by that."""

    @property
    def read_fault(self) -> WarrenError | None:
        """The error of the newest read; None if it succeeded."""

    async def aclose(self, *, leave: bool = True) -> None:
        """Let running calls end, close. Idempotent, cannot be cancelled.

        With `leave` the sessions that this process still has become free for other processes. Calls that come later
        fail with StoreError(cause="closed").
        """

    async def write(self, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        """Apply the operations and return the result or the error of each, in order.

        An operation that failed changed nothing, and does not keep the others from succeeding. Never raises for a fault
        of the store; cannot be cancelled.
        """

    async def renew(self, announcement: Announcement | None = None) -> bool:
        """Keep the leases that this process has; return whether this node was asked to drain. Raises StoreError.

        Before its first write a process is not registered in the store. It has no leases then, so this does nothing,
        unless there is an announcement: then it is registered.

        Args:
            announcement: what this process says of itself as a node; None leaves what it has said before.
        """

    async def read(self, query: Query[R]) -> R:
        """Return the answer to a query. Raises StoreError if the store cannot be read."""

    async def ask_to_drain(self, name: str) -> bool:
        """Ask all living nodes of that name to drain; return whether there is one. Raises StoreError.

        A node finds that out by its next renewal.
        """

    async def secret(self, of: SecretOf = "nodes") -> bytes:
        """Return the 32 bytes by which the nodes of this store know each other, or that sign its completion tokens.

        They are made at the first call of any process, and stay the same. Those of the tokens go along into a backup
        and into a copy, as the calls do that wait under them; those of the nodes do not, as a copy is another cluster.
        Trap: never show or log them. Raises StoreError.
        """

    async def version_of_others(self) -> int:
        """Return a number that changes with every commit of another process, and with no commit of this one.

        It means something only beside other numbers of this same opening.
        """
