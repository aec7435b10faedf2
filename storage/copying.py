"""The copy of a store into another one of any kind: all rows, in steps that outlive a kill, compared in the end.

Each home of sessions can be read as a whole (`Source`) and filled as a whole (`Target`), as rows of the tables below.
They have the same columns and values in every home: keys and numbers stay as they are, a text is that of its caller. Of
a lease only the fact is left that its holder has not put it back. A place that is filled may have an audit of its own,
about clients that were refused and tokens that were made: copied entries follow it, with numbers above.
"""

import hashlib
from collections.abc import Sequence
from typing import Final, Protocol

import attrs
import trio

from warren.base.errors import StoreError
from warren.base.values import frozen
from warren.conversation import codec
from warren.conversation.memory import Progress
from warren.storage import auditing
from warren.storage.ledger import COLUMNS as COLUMNS_OF_LEDGER
from warren.storage.ledger import KEY
from warren.storage.rows import AGENT, CALL, COLUMNS, COMPACTION, DELIVERY, POST, SCHEDULE, TRIGGER, WAIT, WEBHOOK

Value = int | str | None
Row = tuple[Value, ...]
Position = tuple[int | str, ...]
PAGE_ROWS: Final = 2_000
PAGE_BYTES: Final = 4 * 1024 * 1024
"""The rows of one step, and the length of their texts from which on a step ends."""
_MASK: Final = (1 << 128) - 1


@frozen
class Table:
    """One of the tables that every home has.

    Attributes:
        name: its name.
        columns: its columns, in the order of the values of a row.
        bulk: the column with the longest texts.
    """

    name: str
    columns: tuple[str, ...]
    bulk: str


def _table(name: str, columns: str, bulk: str) -> Table:
    return Table(name, tuple(each.strip() for each in columns.split(",")), bulk)


# `unreleased` is 1 for a session whose holder has not put it back: its newest event numbers may have been shown. The
# body of a blob is hexadecimal.
TABLES: Final = (
    _table(
        "sessions",
        f"key, {COLUMNS}, peer, delegated_by, agent, unreleased, epoch, messages_from, events_after",
        "details",
    ),
    _table("messages", "session, position, created_at, body", "body"),
    _table("compactions", f"session, key, {COMPACTION}", "summary"),
    _table("events", "session, seq, first_seq, timestamp, body, cuts", "body"),
    _table("inbox", "session, number, id, key, starts, notice, body, outcome, not_before", "body"),
    _table("creations", "tenant, key, session, params", "params"),
    _table("erasures", "session_id", "session_id"),
    _table("usage", f"{KEY}, {COLUMNS_OF_LEDGER}", "model"),
    _table("blobs", "key, tenant, sha256, body", "body"),
    _table("attachments", "session, blob, media_type, name", "media_type"),
    AUDIT := _table("audit", f"number, {auditing.COLUMNS}", "details"),
    _table("calls", f"session, {CALL}", "body"),
    _table("waits", f"key, session, tenant, {WAIT}", "body"),
    _table("schedules", f"key, session, {SCHEDULE}", "body"),
    _table("schedule_runs", "schedule, due, tenant, session, body", "body"),
    _table("triggers", f"key, session, {TRIGGER}", "body"),
    _table("trigger_deliveries", f"trigger_key, tenant, session, {DELIVERY}", "body"),
    _table("webhooks", f"key, session, {WEBHOOK}", "body"),
    _table("deliveries", f"key, session, {POST}", "body"),
    _table("agents", f"key, {AGENT}", "body"),
)

# The texts of a memory; `terms` are hexadecimal. All else that searches need is made of them, the
# vectors when the memory is opened with its embedder the next time.
MEMORY: Final = (
    _table("memory_sessions", "key, session_id, entries, forgotten, unsettled_since, tenant", "session_id"),
    _table("memory_entries", "id, session, position, turn, created_at, terms, content", "content"),
    _table("memory_tombstones", "session, position, turn", "turn"),
)


@frozen
class Page:
    """Some rows of a table, and the position after them, which means something to their home alone."""

    rows: Sequence[Row]
    after: Position


@frozen
class Mark:
    """How far a copy is; it is stored in the copy, in the transaction that adds the rows.

    Attributes:
        source: the identity of the source.
        table: the number of the table that is being copied, among those of the copy.
        after: the position in it; None at its beginning.
        rows: all rows so far.
        entries: the number of the newest entry that the place had in its audit before.
    """

    source: str
    table: int = 0
    after: Position | None = None
    rows: int = 0
    entries: int = 0

    def encoded(self) -> str:
        """Return it as a text."""
        return codec.encode([self.source, self.table, self.after, self.rows, self.entries]).decode()

    @classmethod
    def decoded(cls, text: str) -> "Mark":
        """Return the mark of a text that `encoded` has made. Raises ValueError."""
        source, table, after, rows, entries = codec.parse(text)
        return cls(source, table, None if after is None else tuple(after), rows, entries)


def renumbered(table: Table, rows: Sequence[Row], by: int) -> Sequence[Row]:
    """Return rows with numbers that are higher by a number if they are entries of the audit, and others as they are."""
    if table is not AUDIT or not by:
        return rows
    return [(int(number or 0) + by, *rest) for number, *rest in rows]


class Whole(Protocol):
    """A store as one whole, used by nobody else. Its methods raise StoreError.

    Attributes:
        name: its place, for people.
        identity: tells it from all other stores.
    """

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> str: ...

    async def count(self, table: Table) -> int:
        """Return how many rows a table has."""

    async def page(self, table: Table, after: Position | None) -> Page:
        """Return the rows that follow a position, None for the first ones; no rows if there are no more."""


class Source(Whole, Protocol):
    """A store that is copied: as long as it is open, it does not change."""

    async def last_input(self) -> int:
        """Return the highest number that an input of an inbox has had; 0 if there was none."""

    async def remembers(self) -> bool:
        """Return whether it has a memory."""

    async def secret(self) -> bytes | None:
        """Return the secret of its completion tokens; None if it has none, or a damaged one."""


class Target(Whole, Protocol):
    """A store that becomes a copy. Until `finish` it cannot be opened as a store."""

    async def begin(self, source: str) -> Mark:
        """Begin the copy of a source, or go on with it.

        Raises StoreError with `cause` "exists" if something else than an unfinished copy of that source is there.
        """

    async def add(self, table: Table, rows: Sequence[Row], before: Mark, after: Mark) -> None:
        """Add rows, none perhaps, and store how far the copy is then: both or none.

        Raises StoreError with `cause` "conflict" if the copy is not as far as `before` says: another process writes it.
        """

    async def finish(self, last_input: int, secret: bytes | None) -> None:
        """Make a store of it. Inputs of inboxes get numbers above `last_input`, completion tokens have the `secret`."""


@frozen
class Copied:
    """The result of a copy: how many rows each table has, and a digest of all of them."""

    rows: dict[str, int]
    digest: str


class Memory(Protocol):
    """A memory that is no part of its store's database. Its methods raise StoreError.

    Rows are put into it before its store notes how far the copy is. After a kill in between they are put again, which
    changes nothing.
    """

    async def count(self, table: Table) -> int: ...

    async def page(self, table: Table, after: Position | None) -> Page: ...

    async def put(self, table: Table, rows: Sequence[Row]) -> None:
        """Add rows, all or none. Those that are there already are left alone."""

    async def finish(self) -> None:
        """Count the rows anew, for searches."""


async def copy(
    source: Source, target: Target, progress: Progress | None = None, *, tables: Sequence[Table] = TABLES
) -> Copied:
    """Copy a store, or go on with a copy that was interrupted; then compare both, row by row.

    Args:
        source: the store.
        target: its copy; it is not finished, and the caller does that.
        progress: is called with the rows that are done and the rows in all: each is copied, and compared.
        tables: the tables to copy, the same ones in each attempt.

    Raises StoreError, with `cause` "conflict" if the copy differs from its source.
    """
    mark = await target.begin(source.identity)
    total = 2 * sum([await source.count(table) for table in tables])
    report = _Report(progress, total, mark.rows)
    for number in range(mark.table, len(tables)):
        after = mark.after if number == mark.table else None
        while rows := (page := await source.page(tables[number], after)).rows:
            after = page.after
            before, mark = mark, attrs.evolve(mark, table=number, after=after, rows=mark.rows + len(rows))
            await target.add(tables[number], rows, before, mark)
            report.add(len(rows))
    return await _compared(source, target, tables, report)


class _Report:
    """Counts rows, for a caller that wants to show them."""

    def __init__(self, progress: Progress | None, total: int, done: int) -> None:
        self._progress = progress
        self._total = total
        self._done = done

    def add(self, rows: int) -> None:
        self._done += rows
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)


# -- comparing


async def _compared(source: Source, target: Target, tables: Sequence[Table], report: _Report) -> Copied:
    counts, whole = dict[str, int](), 0
    for table in tables:
        found: list[tuple[int, int]] = [(0, 0), (0, 0)]

        async def read(at: int, store: Whole, wanted: Table = table, into: list[tuple[int, int]] = found) -> None:
            into[at] = await _digest(store, wanted, report if at == 0 else None)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, 0, source)
            nursery.start_soon(read, 1, target)
        (expected, digest), (there, other) = found
        if (expected, digest) != (there, other):
            problem = f"the table {table.name} of the copy has {there} rows, that of {source.name} has {expected}"
            if expected == there:
                problem = f"the table {table.name} of the copy has rows that are not as in {source.name}"
            advice = f"one of the stores was written meanwhile: remove what is at {target.name}, and copy again"
            raise StoreError(f"{problem}: {advice}", cause="conflict", retryable=False)
        counts[table.name] = expected
        whole = whole * 31 + digest & _MASK
    return Copied(counts, f"{whole:032x}")


async def _digest(store: Whole, table: Table, report: _Report | None) -> tuple[int, int]:
    """Return how many rows a table has, and a digest that does not depend on their order: each home has its own."""
    count, digest, after = 0, 0, None
    while rows := (page := await store.page(table, after)).rows:
        after = page.after
        for row in rows:
            digest += int.from_bytes(hashlib.blake2b(repr(row).encode(), digest_size=16).digest(), "big")
        count += len(rows)
        if report is not None:
            report.add(len(rows))
        await trio.lowlevel.checkpoint()
    return count, digest & _MASK
