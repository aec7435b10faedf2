"""The SQLite store as the rest of the runtime sees it: async, safe to call from any task."""

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self, TypeVar

import apsw
import trio

from warren.base.errors import StoreError, WarrenError
from warren.base.nodes import Announcement
from warren.settings.config import StoreConfig
from warren.storage.membership import SecretOf
from warren.storage.operations import Operation
from warren.storage.queries import Query
from warren.storage.refusals import closed
from warren.storage.rows import corrupt
from warren.storage.runner import Runner, thread_runner
from warren.storage.sqlite import queries
from warren.storage.sqlite.database import answer
from warren.storage.sqlite.file import FILE_NAME, SESSION_STORE, open_reader, open_writer
from warren.storage.sqlite.lease import PROVED, RENEWALS, Holder
from warren.storage.sqlite.pool import SqlitePool
from warren.storage.sqlite.replacement import abandon
from warren.storage.sqlite.writer import Writer

R = TypeVar("R")


class SqliteStore:
    """Sessions, messages and events in one SQLite file. Made by `open`, ended by `aclose`.

    Writes go through one connection, one group at a time. Reads have connections of their own and wait for no write.
    For the methods see `warren.storage.Store`.

    Attributes:
        me: the holder of the leases under which this process writes.
        read_fault: the error of the newest read; None if it succeeded.
    """

    def __init__(self, config: StoreConfig, writer: Writer, readers: Sequence[apsw.Connection], runner: Runner) -> None:
        self.me: Holder = writer.holder
        self._check_file = writer.check_file
        self._config = config
        self._writing = SqlitePool([writer], runner)
        self._reading = SqlitePool(readers, runner)
        self._opened_at = self.me.went_back  # how often the store had gone back when it was opened
        self._closing = trio.Lock()
        self.read_fault: WarrenError | None = None

    @classmethod
    async def open(cls, config: StoreConfig, *, holder: Holder | None = None, runner: Runner = thread_runner) -> Self:
        """Open the store in the folder `config.path`; create it, or migrate it to this version.

        A new folder and a new file are for their owner alone.

        Args:
            config: the folder and the settings.
            holder: holds the leases; give the former one if this process opens the store again, and it keeps them.
            runner: runs the blocking calls.

        Raises StoreError with `cause` "newer_schema", "not_a_store", "not_a_database", "corrupt",
        "permission", "cannot_open", "read_only", "locked", "disk_full" and so on.
        """
        writer, readers = await runner(partial(_connect, config, holder or Holder.of(config)))
        return cls(config, writer, readers, runner)

    @property
    def group(self) -> int:
        """No bound: a group is applied in a thread, so a larger one costs less and delays no task."""
        return sys.maxsize

    @property
    def lease(self) -> float:
        return self.me.seconds

    @property
    def proof(self) -> float:
        return self.me.seconds * PROVED

    @property
    def patience(self) -> float:
        """The whole lease: renewals come more often, so a process that was paused does not give up too early."""
        return self.me.seconds

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
    def clock_ahead(self) -> None:
        return

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.me.clock(), UTC)

    @property
    def lapses(self) -> int:
        return self.me.lapses

    @property
    def went_back(self) -> int:
        return self.me.went_back

    async def aclose(self, *, leave: bool = True) -> None:
        """Close the connections; with `leave` false the holder stays alive for the next opening by this process."""
        # Shielded: the runtime may end by cancellation, and an open file would keep its leases until they lapse.
        with trio.CancelScope(shield=True):
            async with self._closing:
                await self._reading.run_on_all(apsw.Connection.close)
                await self._writing.run_on_all(partial(Writer.close, leave=leave))

    async def write(self, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        """Apply the operations in one transaction and return the result or the error of each, in order.

        If one fails, each is applied in a transaction of its own, so that only the faulty ones fail. An operation that
        failed changed nothing. Never raises for a fault of the database. Cannot be cancelled: on return the results
        are on the disk, as durable as the `synchronous` of the config.

        Errors are SessionNotFoundError, and StoreError with `cause` "conflict", "locked" (after the config's
        `busy_timeout`), "disk_full", "io_error", "corrupt", "read_only", "unstorable" and so on.
        """
        try:
            return await self._on_writer(lambda writer: writer.write(operations))
        except StoreError as exc:  # the store has gone back, and its file is not there
            return [
                StoreError(exc.message, session_id=each.session_id, cause=exc.cause, retryable=exc.retryable)
                for each in operations
            ]

    async def _on_writer(self, function: Callable[[Writer], R]) -> R:
        # Shielded: each operation of a group that waits for the writer has a caller, who needs its outcome.
        with trio.CancelScope(shield=True):
            await self._reopen()
            result = await self._writing.run(function)
        return result  # noqa: RET504 - inside the scope, mypy would miss a return

    async def _reopen(self) -> None:
        """Open the file that is there now, if the store has gone back. Raises StoreError if it cannot be used."""
        if self._opened_at == self.me.went_back:
            return
        async with self._closing:
            if self._opened_at == self.me.went_back:
                return
            now = self.me.went_back
            try:
                # First: SQLite shares the state of a file among the connections of a process.
                await self._reading.run_on_all(abandon)
                await self._writing.run(partial(Writer.reopen, config=self._config))
                await self._reading.replace(lambda: open_reader(self._config))
            except (apsw.Error, OSError) as exc:
                fault = SESSION_STORE.fault(exc, path=self._config.path / FILE_NAME)
                raise StoreError(fault.message, cause="cannot_open", retryable=True) from exc
            self._opened_at = now

    async def renew(self, announcement: Announcement | None = None) -> bool:
        return await self._on_writer(lambda writer: writer.renew(announcement))

    async def ask_to_drain(self, name: str) -> bool:
        return await self._on_writer(lambda writer: writer.ask_to_drain(name))

    async def secret(self, of: SecretOf = "nodes") -> bytes:
        return await self._on_writer(partial(Writer.secret, of=of))

    async def version_of_others(self) -> int:
        try:
            return await self._on_writer(Writer.version_of_others)
        except apsw.Error as exc:
            raise SESSION_STORE.fault(exc) from exc

    async def read(self, query: Query[R]) -> R:
        try:
            await self._reopen()
            found = await self._reading.run(partial(self._answer, query))
        except apsw.ConnectionClosedError as exc:
            raise closed() from exc
        except apsw.Error as exc:
            self.read_fault = SESSION_STORE.fault(exc)
            raise self.read_fault from exc
        except ValueError as exc:  # a row that nothing can be read without
            raise corrupt("a row", exc) from exc
        except StoreError as exc:
            self.read_fault = exc if exc.cause == "newer_schema" else None  # others are of one row
            if exc.cause == "lease_lost":
                await self._on_writer(Writer.look_back)
            raise
        self.read_fault = None
        return found

    def _answer(self, query: Query[R], db: apsw.Connection) -> R:
        """Return the answer to a query. Raises StoreError if the file was replaced meanwhile."""
        try:
            found = answer(SESSION_STORE, partial(queries.answer, me=self.me, query=query), db)
        except apsw.ConnectionClosedError:  # by `aclose`, which removes the log
            raise
        except (apsw.Error, StoreError):
            self._check_file()
            raise
        self._check_file()
        return found


def _connect(config: StoreConfig, holder: Holder) -> tuple[Writer, list[apsw.Connection]]:
    opened: list[apsw.Connection] = []
    try:
        opened.append(open_writer(config))
        opened.extend(open_reader(config) for _ in range(config.readers))
    except (apsw.Error, OSError) as exc:
        for db in opened:
            db.close()
        raise SESSION_STORE.fault(exc, path=config.path / FILE_NAME) from exc
    return Writer(opened[0], holder), opened[1:]
