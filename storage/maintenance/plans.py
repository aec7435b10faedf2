"""The plan of a retention and its result, as plain values, and the size of its steps."""

from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from warren.base.values import define, frozen
from warren.reports.audit import AuditEntry
from warren.storage.auditing import RETENTION
from warren.storage.rows import microseconds, moment

Table = Literal["messages", "events"]
TARGET: Final = 0.01
"""Seconds that one transaction is to take."""
ROOM: Final = 0.03
"""The least seconds between two transactions: a process that waits for the file retries within 25 ms, and gets it."""
FEWEST: Final = 20
MOST: Final = 5_000

HOUR: Final = 3_600.0
"""Seconds of an hour, which is as old as its end."""
EARLIEST: Final = microseconds(datetime.min.replace(tzinfo=UTC))


@frozen
class Share:
    """The rows of one session that may be removed.

    Attributes:
        session_id: the session.
        table: their table.
        edge: position or number of the first row that stays.
        rows: how many go.
        size: bytes of text in them.
    """

    session_id: str
    table: Table
    edge: int
    rows: int
    size: int


@frozen
class Plan:
    """The rows and sessions that may be removed.

    Attributes:
        shares: rows, session by session.
        sessions: archived sessions that go whole after their rows.
        damaged: sessions that are left alone because their rows cannot be read.
        entries: how many entries of the audit go.
        entries_before: the stored time of the first entry that stays.
        usage: how many rows of the ledger go.
        usage_before: the stored time of the first hour whose rows stay.
    """

    shares: tuple[Share, ...] = ()
    sessions: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    entries: int = 0
    entries_before: int = EARLIEST
    usage: int = 0
    usage_before: int = EARLIEST

    def prune_entry(self) -> AuditEntry:
        """Return the entry of the audit that says that older entries were removed; it is newer than all of them."""
        before = "" if self.entries_before == EARLIEST else moment(self.entries_before).isoformat()
        details = {"before": before, "entries": str(self.entries)}
        return AuditEntry(
            at=datetime.now(UTC), action="prune", who=RETENTION, tenant=None, by=RETENTION, details=details
        )

    def rows(self, table: Table) -> int:
        """Return how many rows of a table go."""
        return sum(share.rows for share in self.shares if share.table == table)

    @property
    def size(self) -> int:
        """Bytes of text that go."""
        return sum(share.size for share in self.shares)


@frozen
class Pruned:
    """The result of a removal.

    Attributes:
        messages: superseded ones, and those of archived sessions.
        events: rows of the event log; adjacent deltas share one.
        sessions: archived sessions that were deleted. Copies elsewhere, as in the memory, are due for deletion.
        bytes_before: size of the file with its write-ahead log, or of the tables, before.
        bytes_after: size after it. A file is larger than possible if a reader was in the way, until the next removal;
            tables in a database keep their size.
        damaged: sessions that were left alone because their rows cannot be read.
        entries: entries of the audit that were removed.
        usage: rows of the ledger that were removed.
        log_bytes: size of the write-ahead log, after it: above 0 if other processes read rows in it all the time.
    """

    messages: int
    events: int
    sessions: tuple[str, ...]
    bytes_before: int
    bytes_after: int
    damaged: tuple[str, ...] = ()
    entries: int = 0
    usage: int = 0
    log_bytes: int = 0


@define
class BatchSize:
    """How much to do in one transaction.

    Attributes:
        amount: rows or pages.
    """

    amount: int

    def took(self, seconds: float) -> float:
        """Learn how long the last one took; return for how long to leave the file to others."""
        factor = min(2.0, max(0.25, TARGET / max(seconds, 1e-6)))
        self.amount = round(min(MOST, max(FEWEST, self.amount * factor)))
        return max(ROOM, min(seconds, 0.1))


def deletion(session_id: str, tenant: str) -> AuditEntry:
    """Return the entry of the audit for an archived session that retention deletes."""
    return AuditEntry(
        at=datetime.now(UTC), action="delete", who=RETENTION, tenant=tenant, by=RETENTION, session_id=session_id
    )


def stored_hour(age: float | None, now: datetime) -> int:
    """Return the stored form of the first hour of the ledger that stays, at the latest the first one of today (UTC)."""
    if age is None:
        return EARLIEST
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return min(microseconds(today), stored_cut(age + HOUR, now))


def stored_cut(age: float, now: datetime) -> int:
    """Return the stored form of the time `age` seconds ago; the earliest time there is if that overflows."""
    try:
        return microseconds(now - timedelta(seconds=age))
    except OverflowError:
        return EARLIEST
