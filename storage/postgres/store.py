"""The PostgreSQL store as the rest of the runtime sees it: async, safe to call from any task."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Self, TypeVar

from psycopg import errors

from warren.base.errors import WarrenError
from warren.base.nodes import Announcement
from warren.settings.config import PostgresConfig
from warren.storage.membership import SecretOf, now
from warren.storage.operations import Operation
from warren.storage.postgres import nodes, queries
from warren.storage.postgres.driver import Connection, LostError
from warren.storage.postgres.faults import of_opening, translate
from warren.storage.postgres.lease import PROVED, RENEWALS, Holder
from warren.storage.postgres.pool import Readers
from warren.storage.postgres.writer import Writer
from warren.storage.queries import Query
from warren.storage.refusals import closed

R = TypeVar("R")
GROUP: Final = 25
"""Ends of turns that are stored together. The event loop makes their statement, and all their callers wake up together:
with a hundred it is late by twice as much."""


class PostgresStore:
    """Sessions, messages and events in one PostgreSQL database. Made by `open`, ended by `aclose`.

    Writes go through one connection, one group at a time. Reads have connections of their own and wait for no write. A
    connection that breaks is replaced; calls wait for that as long as the settings allow. For the methods see
    `warren.storage.Store`.

    Attributes:
        me: the holder of the leases under which this process writes.
        read_fault: the error of the newest read; None if it succeeded.
    """

    def __init__(self, writer: Writer, readers: Readers) -> None:
        self.me: Holder = writer.holder
        self._writer = writer
        self._readers = readers
        self._closed = False
        self.read_fault: WarrenError | None = None
        writer.became_another = readers.drop

    @classmethod
    async def open(cls, config: PostgresConfig, *, holder: Holder | None = None) -> Self:
        """Open the store; create its tables, or bring them up to this version.

        Args:
            config: the address and the settings.
            holder: holds the leases; give the former one if this process opens the store again, and it keeps them.

        Raises StoreError with `cause` "unreachable", "newer_schema", "permission", "cannot_open" and so on.
        """
        writer = Writer(config, holder or Holder.of(config))
        try:
            await writer.open()
        except (LostError, errors.Error) as exc:
            raise of_opening(exc, config) from None
        return cls(writer, Readers(config))

    @property
    def group(self) -> int:
        return GROUP

    @property
    def lease(self) -> float:
        return self.me.seconds

    @property
    def proof(self) -> float:
        return self.me.grace * PROVED

    @property
    def patience(self) -> float:
        return self._writer.config.timeout

    @property
    def renewal(self) -> float:
        return self.me.seconds / RENEWALS

    @property
    def key(self) -> int | None:
        return self.me.key

    @property
    def noted(self) -> int:
        return self.me.hooks.noted

    @property
    def clock_ahead(self) -> float | None:
        return self.me.clock_ahead

    def now(self) -> datetime:
        return now() + timedelta(seconds=self.me.clock_ahead or 0.0)

    @property
    def lapses(self) -> int:
        return self.me.lapses

    @property
    def went_back(self) -> int:
        return self.me.went_back

    async def aclose(self, *, leave: bool = True) -> None:
        """Close the pools; with `leave` false the holder stays alive for the next opening by this process."""
        self._closed = True
        self._readers.close()
        await self._writer.close(leave=leave)

    async def write(self, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        """Apply the operations in one transaction and return the result or the error of each, in order.

        If one fails, each is applied in a transaction of its own, so that only the faulty ones fail. An operation that
        failed changed nothing. Never raises for a fault of the database. Cannot be cancelled: on return the results
        are committed, as durable as the server's `synchronous_commit`.

        If the connection is lost, the call waits for another one; operations that were stored before are not stored
        twice. Errors are SessionNotFoundError, and StoreError with `cause` "conflict", "locked", "unreachable",
        "disk_full", "unstorable" and so on; "outcome_unknown" if the server did not come back in time to tell it.
        """
        return await self._writer.write(operations)

    async def renew(self, announcement: Announcement | None = None) -> bool:
        try:
            return await self._writer.renew(announcement)
        except (LostError, errors.Error) as exc:
            raise translate(exc) from exc

    async def read(self, query: Query[R]) -> R:
        return await self._read(lambda db: queries.answer(db, self.me, self._writer.guard, query))

    async def ask_to_drain(self, name: str) -> bool:
        return await self._read(partial(nodes.ask_to_drain, name=name))

    async def secret(self, of: SecretOf = "nodes") -> bytes:
        return await self._read(partial(nodes.secret, of=of))

    async def version_of_others(self) -> int:
        return await self._read(partial(nodes.version_of_others, me=self.me.key))

    async def _read(self, query: Callable[[Connection], Awaitable[R]]) -> R:
        if self._closed:
            raise closed()
        try:
            if not self._writer.settled:  # what is read must not change by a commit that is still under way
                await self._writer.settle()
            found = await self._readers.run(query)
        except (LostError, errors.Error) as exc:
            self.read_fault = translate(exc)
            raise self.read_fault from exc
        self.read_fault = None
        return found
