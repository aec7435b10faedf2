"""The SQLite store as the rest of the runtime sees it: async, safe to call from any task."""

import builtins
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar

import apsw
import trio

from warren.config import StoreConfig
from warren.creation import Created
from warren.errors import WarrenError
from warren.inputs import Numbered
from warren.records import EventRow, MessageRow, SessionRecord
from warren.storage.operations import Operation
from warren.storage.results import Context, News, Replay, Rows, StoredPage, StoredSession
from warren.storage.runner import Runner, thread_runner
from warren.storage.sqlite import queries
from warren.storage.sqlite.file import FILE_NAME, SESSION_STORE, open_reader, open_writer
from warren.storage.sqlite.handover import handed_over, news
from warren.storage.sqlite.inbox import named, sessions_that_wait, waiting, was_told
from warren.storage.sqlite.lease import Holder
from warren.storage.sqlite.pool import Pool
from warren.storage.sqlite.rows import corrupt
from warren.storage.sqlite.writer import Writer

R = TypeVar("R")


class SqliteStore:
    """Sessions, messages and events in one SQLite file. Made by `open`, ended by `aclose`.

    Writes go through one connection, one group at a time. Reads have connections of their own, each call sees one
    state of the file, and none waits for a write. Every read raises StoreError where the file cannot be read; its
    `cause` says why: "locked", "io_error", "corrupt", "closed" and so on.

    Attributes:
        holder: whose leases this process writes under.
        read_fault: what the newest read failed with; None if it succeeded.
    """

    def __init__(self, writer: Writer, readers: Sequence[apsw.Connection], runner: Runner) -> None:
        self.holder: Holder = writer.holder
        self._writing = Pool([writer], runner)
        self._reading = Pool(readers, runner)
        self._closing = trio.Lock()
        self.read_fault: WarrenError | None = None

    @classmethod
    async def open(cls, config: StoreConfig, *, holder: Holder | None = None, runner: Runner = thread_runner) -> Self:
        """Open the store in the folder `config.path`; create it, or bring it up to this version, where needed.

        `holder` holds the leases of what is written; a process that opens the store again goes on with the one it has.
        A folder and a file that are created are for their owner alone. Cannot be cancelled.

        Raises StoreError; its `cause` says why: "newer_schema", "not_a_store", "not_a_database", "corrupt",
        "permission", "cannot_open", "read_only", "locked", "disk_full" and so on.
        """
        with trio.CancelScope(shield=True):
            writer, readers = await runner(partial(_connect, config, holder or Holder.of(config)))
        return cls(writer, readers, runner)

    @property
    def lease(self) -> float:
        """Seconds for which this process has what it has, unless it renews."""
        return self.holder.seconds

    @property
    def lapses(self) -> int:
        """How often this process renewed its leases too late, so that others may have taken its sessions over."""
        return self.holder.lapses

    async def aclose(self, *, leave: bool = True) -> None:
        """Let what runs end, close. Idempotent, cannot be cancelled.

        The holder leaves: sessions whose leases it has not put back count as those of a process that died. `leave` is
        false where it goes on with another opening.

        Calls that come later fail with StoreError(cause="closed").
        """
        with trio.CancelScope(shield=True):
            async with self._closing:
                await self._reading.run_on_all(apsw.Connection.close)
                await self._writing.run_on_all(partial(Writer.close, leave=leave))

    async def write(self, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        """Apply the operations in one transaction and return what each came to, in order: its result or its error.

        Where one fails, each is applied in a transaction of its own, so that only those fail that are at fault. An
        operation that failed changed nothing. Never raises for a fault of the database; cannot be cancelled: what it
        returns is what the file holds, on the disk (by the `synchronous` of the config).

        The errors are SessionNotFoundError and StoreError, whose `cause` is "conflict", "locked" (after the config's
        `busy_timeout`), "disk_full", "io_error", "corrupt", "read_only", "unstorable" and so on.
        """
        with trio.CancelScope(shield=True):
            outcomes = await self._writing.run(lambda writer: writer.write(operations))
        return outcomes  # noqa: RET504 - inside the scope, mypy would miss a return

    async def load(self, session_id: str) -> StoredSession | None:
        """Return what a session's actor begins with; None for a session that is not here or was deleted."""
        return await self._read(partial(queries.load, session_id=session_id, me=self.holder.key))

    async def renew(self) -> None:
        """Keep the leases that this process has. Raises StoreError."""
        with trio.CancelScope(shield=True):
            await self._writing.run(Writer.renew)

    async def erasures(self) -> Rows[str]:
        """Return the deleted sessions of which something may be left elsewhere."""
        return await self._read(queries.erasures)

    async def inbox(self, session_id: str) -> Rows[Numbered]:
        """Return what waits to be said to a session, in order."""
        return await self._read(partial(waiting, session_id=session_id))

    async def sessions_that_wait(self) -> builtins.list[str]:
        """Return the sessions for which something waits that begins a turn, and that no other living process has."""
        return await self._read(partial(sessions_that_wait, holder=self.holder))

    async def version_of_others(self) -> int:
        """Return a number that is another one after every commit of another process, and after no commit of this one.

        It means something only beside other numbers of this same opening.
        """
        try:
            with trio.CancelScope(shield=True):
                version = await self._writing.run(Writer.version_of_others)
        except apsw.Error as exc:
            raise SESSION_STORE.fault(exc) from exc
        return version

    async def news(self, watched: Sequence[str], inbox_after: int) -> News:
        """Return what other processes may have changed that concerns this one; see `News`."""
        return await self._read(partial(news, me=self.holder.key, watched=watched, inbox_after=inbox_after))

    async def handed_over(self, session_id: str) -> bool | None:
        """Return whether a session that was asked for is free now; None as long as there is no answer."""
        return await self._read(partial(handed_over, session_id=session_id, me=self.holder.key))

    async def was_told(self, session_id: str, input_id: str, source: str, beginning: str) -> bool:
        """Tell whether a peer's input waits for a session, or is in its conversation as a text that begins so."""
        query = partial(was_told, session_id=session_id, input_id=input_id, source=source, beginning=beginning)
        return await self._read(query)

    async def named(self, peer: str) -> str | None:
        """Return the session that has a name among its peers."""
        return await self._read(partial(named, peer=peer))

    async def context(self, session_id: str, head: int, count: int) -> Context:
        """Return what the model sees of a session of `count` messages whose head stands at position `head`."""
        return await self._read(partial(queries.context, session_id=session_id, head=head, count=count))

    async def record(self, session_id: str) -> SessionRecord | None:
        """Return a session's record; None for a session that is not here or was deleted."""
        return await self._read(partial(queries.record, session_id=session_id))

    async def creation(self, key: str) -> Created | None:
        """Return the session that was created under an idempotency key, also if it was deleted since."""
        return await self._read(partial(queries.creation, key=key))

    async def list(
        self,
        *,
        offset: int = 0,
        limit: int = 50,
        labels: Mapping[str, str] | None = None,
        include_archived: bool = False,
    ) -> Rows[SessionRecord]:
        """Return a page of the sessions that carry all of `labels`: newest `updated_at` first, then by id.

        A damaged row takes a place of the page, and is named beside it.

        It costs what the page and `offset` do, whatever the sessions' histories; `labels` that few of many sessions
        carry make it look at all of them, in an index.
        """
        query = partial(queries.listing, offset=offset, limit=limit, labels=labels or {})
        return await self._read(partial(query, include_archived=include_archived))

    async def history(self, session_id: str, *, offset: int = 0, limit: int = 100) -> StoredPage:
        """Return the messages at the `limit` positions from `offset` on, and the compactions whose head is there.

        Positions do not change when retention removes messages: a page of positions that are gone is empty.
        """
        return await self._read(partial(queries.history, session_id=session_id, offset=offset, limit=limit))

    async def messages(self, session_id: str, *, offset: int = 0, limit: int = 100) -> tuple[Rows[MessageRow], int]:
        """Return the messages at the `limit` positions from `offset` on that are there, and how many the session has.

        None and 0 for a session that is not here or was deleted.
        """
        return await self._read(partial(queries.messages, session_id=session_id, offset=offset, limit=limit))

    async def replay(self, session_id: str, *, after_seq: int = 0, limit: int = 1000) -> Replay:
        """Return what `events` does, together with how much of the log is no longer kept."""
        return await self._read(partial(queries.replay, session_id=session_id, after_seq=after_seq, limit=limit))

    async def lost(self, session_id: str, seq: int) -> int | None:
        """Return up to which number events are lost that followed an event, None if none are.

        Events are lost that a process has shown and did not live to store.
        """
        return await self._read(partial(queries.lost, session_id=session_id, seq=seq, me=self.holder))

    async def events(self, session_id: str, *, after_seq: int = 0, limit: int = 1000) -> builtins.list[EventRow]:
        """Return the rows of the event log that end above `after_seq`, in order.

        A row of merged deltas may begin at or below `after_seq`: `warren.journal.envelopes` cuts it.
        """
        return await self._read(partial(queries.events, session_id=session_id, after_seq=after_seq, limit=limit))

    async def _read(self, query: Callable[[apsw.Connection], R]) -> R:
        try:
            found = await self._reading.run(query)
        except apsw.Error as exc:
            self.read_fault = SESSION_STORE.fault(exc)
            raise self.read_fault from exc
        except ValueError as exc:  # a row that nothing can be read without
            raise corrupt("a row", exc) from exc
        self.read_fault = None
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
