"""Retention: one read plans the removal of old rows, many short transactions do it beside running processes."""
# ruff: noqa: S608 - only constants of this module become part of the SQL

import time
from collections import deque
from collections.abc import Callable
from contextlib import closing, nullcontext
from datetime import datetime
from functools import partial
from typing import Any, Final

import apsw
import attrs

from warren.base.errors import LeasedError, StoreError, WarrenError
from warren.base.retention import Retention
from warren.base.values import define, frozen
from warren.conversation.memory import Progress
from warren.settings.config import StoreConfig
from warren.storage.maintenance import plans
from warren.storage.maintenance.damage import readable_session, sessions_in
from warren.storage.maintenance.files import log_size, reading, rivals
from warren.storage.operations import Audit, Delete
from warren.storage.queries import ANY_TENANT, SessionRow
from warren.storage.rows import ARCHIVED, DELETED, INSTRUCTS, shown
from warren.storage.sqlite import queries
from warren.storage.sqlite.audit import removable
from warren.storage.sqlite.columns import NEXT_CHANGE, raw
from warren.storage.sqlite.file import FILE_NAME, SESSION_STORE, open_writer
from warren.storage.sqlite.lease import Holder
from warren.storage.sqlite.writer import SqliteOperation, Writer

Rest = Callable[[float], None]
PATIENCE_MS: Final = 20
"""Milliseconds of one wait for readers of the log: no process can write meanwhile."""
ATTEMPTS: Final = 50
# A time that is damaged is no reason to remove something. By its type: see `checks.ORPHANED`.
_IS_YOUNG: Final = f"(typeof({{0}}) <> 'integer' OR {{0}} >= ?1 OR {{0}} < {plans.EARLIEST})"
# In both, `edge` is the first row that stays. The process that goes on with an open turn needs its messages and events.
_SUPERSEDED: Final = f"""
    WITH held AS (
        SELECT key, max(1, messages_from) AS low, head FROM {{sessions}}
        WHERE turn IS NULL AND state <> {DELETED} AND typeof(head) = 'integer' AND head > max(1, messages_from)
    ), due AS (
        SELECT key, low, coalesce((
            SELECT position FROM messages
            WHERE session = key AND position >= low AND position < head AND {_IS_YOUNG.format("created_at")}
            ORDER BY position LIMIT 1
        ), head) AS edge FROM held
    )
    SELECT key, edge, count(*), sum(octet_length(body)) FROM due
    JOIN messages ON session = key AND position >= low AND position < edge AND NOT {INSTRUCTS}
    GROUP BY key ORDER BY key
"""
_OLD_EVENTS: Final = f"""
    WITH due AS (
        SELECT key, coalesce((
            SELECT seq FROM events
            WHERE session = key AND typeof(seq) = 'integer' AND {_IS_YOUNG.format("timestamp")} ORDER BY seq LIMIT 1
        ), last_seq + 1) AS edge FROM {{sessions}} WHERE turn IS NULL AND state <> {DELETED}
    )
    SELECT key, edge, count(*), sum(octet_length(body)) FROM due
    JOIN events ON session = key AND typeof(seq) = 'integer' AND seq < edge GROUP BY key ORDER BY key
"""
_OLD_ARCHIVES: Final = f"SELECT key, {raw('holder')} FROM {{sessions}} WHERE state = {ARCHIVED} AND updated_at < ?"
_WHOLE: Final[dict[plans.Table, str]] = {
    "messages": f"""
        SELECT message_count + 0, count(*), sum(octet_length(body)) FROM sessions
        JOIN messages ON session = key AND position > 0 AND NOT {INSTRUCTS} WHERE key = ?
    """,
    "events": """
        SELECT last_seq + 1, count(*), sum(octet_length(body)) FROM sessions
        JOIN events ON session = key AND typeof(seq) = 'integer' WHERE key = ?
    """,
}
_KEY: Final = (
    f"SELECT key, iif(state = {ARCHIVED}, ?2, min(head, ?2)) FROM sessions WHERE session_id = ?1 AND state <> 2"
)
_DROP: Final = {
    "messages": f"""
        DELETE FROM messages WHERE rowid IN (
            SELECT rowid FROM messages
            WHERE session = ? AND position > 0 AND position < ? AND NOT {INSTRUCTS} ORDER BY position LIMIT ?
        ) RETURNING position + 1, created_at
    """,
    "events": """
        DELETE FROM events WHERE rowid IN (
            SELECT rowid FROM events
            WHERE session = ? AND typeof(seq) = 'integer' AND seq < ? ORDER BY seq LIMIT ?
        ) RETURNING seq, NULL
    """,
}
# What calls of these messages have waited for: nobody repeats an answer to one that is so old.
_DROP_WAITS: Final = "DELETE FROM waits WHERE session = ? AND state = 'settled' AND since < ?"
_MARK: Final = {
    "messages": "UPDATE sessions SET messages_from = max(messages_from, ?) WHERE key = ?",
    "events": "UPDATE sessions SET events_after = max(events_after, ?) WHERE key = ?",
}
_OLD_ENTRIES: Final = "SELECT count(*) FROM audit WHERE at < ?"
_OLD_USAGE: Final = "SELECT count(*) FROM usage WHERE hour < ?"
_DROP_OLD: Final = {
    "audit": """
        DELETE FROM audit WHERE number IN (SELECT number FROM audit WHERE at < ? ORDER BY at LIMIT ?) RETURNING 1
    """,
    "usage": "DELETE FROM usage WHERE rowid IN (SELECT rowid FROM usage WHERE hour < ? LIMIT ?) RETURNING 1",
}
_CHANGED: Final = f"UPDATE sessions SET change = {NEXT_CHANGE} WHERE key = ?"


@frozen
class Drop(SqliteOperation[int]):
    """Remove a session's oldest messages but the first and instructions, or its oldest events; return how many went.

    With messages go the settled waits that began before the newest of them. The holder of the lease goes on
    undisturbed: a summary stands for these messages in the model's context.

    Attributes:
        session_id: the session.
        table: the table of the rows.
        edge: rows from here on stay; messages that a model may see stay anyhow, unless the session is archived.
        limit: how many go at most.
        last: whether followers of the store are to look at the session again after it.
    """

    session_id: str
    table: plans.Table
    edge: int
    limit: int
    last: bool = True

    def apply(self, db: apsw.Connection, holder: Holder) -> int:  # noqa: ARG002 - no lease is needed
        """Remove the rows, and note the last one that is gone."""
        key, edge = db.execute(_KEY, (self.session_id, self.edge)).get or (None, 0)
        edge = edge if self.table == "messages" else self.edge
        gone: list[Any] = db.execute(_DROP[self.table], (key, edge, self.limit)).fetchall()
        if gone:
            db.execute(_MARK[self.table], (max(place for place, _ in gone), key))
            times = [added for _, added in gone if type(added) is int]
            db.execute(_DROP_WAITS, (key, max(times, default=0)))
        if gone and self.last:
            db.execute(_CHANGED, (key,))
        return len(gone)


@frozen
class DropOld(SqliteOperation[int]):
    """Remove entries of the audit, the oldest ones, or rows of the ledger, from before a time; return how many went."""

    table: str
    before: int
    limit: int
    session_id: str = ""

    def apply(self, db: apsw.Connection, holder: Holder) -> int:  # noqa: ARG002 - no lease is needed
        """Remove the rows."""
        with removable(db) if self.table == "audit" else nullcontext():
            return len(db.execute(_DROP_OLD[self.table], (self.before, self.limit)).fetchall())


def plan(config: StoreConfig, retention: Retention, now: datetime) -> plans.Plan:
    """Return the plan for the time `now`; nothing is changed. Raises StoreError as `reading` does."""
    with reading(config) as db:
        archived = _due_archives(db, Holder.of(config), retention.archived, now)
        whole = [_whole(db, table, key) for key in archived for table in _WHOLE]
        parts = [*_due(db, "messages", retention.superseded, now), *_due(db, "events", retention.events, now)]
        due = [*(each for each in parts if each.key not in archived), *(each for each in whole if each.rows)]
        # A row with a value that the schema does not allow cannot be written either.
        ids = {key: readable_session(db, key) for key in dict.fromkeys([*(each.key for each in due), *archived])}
        damaged = [key for key, session_id in ids.items() if session_id is None]
        named = [
            shown(db.execute(f"SELECT {raw('session_id')} FROM sessions WHERE key = ?", (key,)).get) for key in damaged
        ]
        before = plans.EARLIEST if retention.audit is None else plans.stored_cut(retention.audit, now)
        # A file of an older version has none: the removal will migrate it.
        entries: int = db.execute(_OLD_ENTRIES, (before,)).get if db.table_exists(None, "audit") else 0
        hour = plans.stored_hour(retention.usage, now)
        usage: int = db.execute(_OLD_USAGE, (hour,)).get if db.table_exists(None, "usage") else 0
    shares = [
        plans.Share(known, each.table, each.edge, each.rows, each.size) for each in due if (known := ids[each.key])
    ]
    sessions = tuple(known for key in archived if (known := ids[key]))
    return plans.Plan(tuple(shares), sessions, tuple(named), entries, before, usage, hour)


def prune(
    config: StoreConfig, planned: plans.Plan, progress: Progress | None = None, rest: Rest = time.sleep
) -> plans.Pruned:
    """Remove the planned rows and sessions, and return the free pages to the disk; `progress` follows each transaction.

    It works beside a running gateway: each transaction is short, and `rest` (seconds) leaves room for others between
    two. If it is interrupted, the finished transactions stay, and the next call does the rest.

    Raises StoreError.
    """
    before, _ = sizes_of(config)
    with (
        SESSION_STORE.faults(config.path / FILE_NAME),
        closing(Writer(db := open_writer(config), Holder.of(config))) as writer,
    ):
        pruning = Pruning(writer, deque(planned.shares), progress, rest)
        pruning.remove_rows()
        deleted = tuple(session_id for session_id in planned.sessions if pruning.delete(db, session_id))
        if planned.entries:
            writer.write([Audit((planned.prune_entry(),))])
        entries = pruning.remove(planned.entries, partial(DropOld, "audit", planned.entries_before))
        usage = pruning.remove(planned.usage, partial(DropOld, "usage", planned.usage_before))
        _give_back(db, rest)
    gone, (after, log) = pruning.gone, sizes_of(config)
    return plans.Pruned(gone["messages"], gone["events"], deleted, before, after, planned.damaged, entries, usage, log)


@define
class Pruning:
    """Removes rows, as many at a time as take `TARGET` seconds.

    Attributes:
        gone: rows removed, by table.
    """

    _writer: Writer
    _left: deque[plans.Share]
    _progress: Progress | None
    _rest: Rest
    _pace: plans.BatchSize = attrs.field(factory=lambda: plans.BatchSize(200))
    gone: dict[plans.Table, int] = attrs.field(factory=lambda: {"messages": 0, "events": 0})

    def remove_rows(self) -> None:
        """Remove all rows that are planned. Raises StoreError."""
        total = sum(share.rows for share in self._left)
        while self._left:
            operations = self._next(self._pace.amount)
            began = time.monotonic()
            counts = [_value(outcome) for outcome in self._writer.write(operations)]
            for operation, count in zip(operations, counts, strict=True):
                self.gone[operation.table] += count
            if self._progress is not None:
                self._progress(sum(self.gone.values()), total)
            self._rest(self._pace.took(time.monotonic() - began))

    def remove(self, planned: int, drop: Callable[[int], SqliteOperation[int]]) -> int:
        """Remove up to this number of rows, in operations of a bounded size; return how many. Raises StoreError."""
        removed = 0
        while removed < planned:
            began = time.monotonic()
            (outcome,) = self._writer.write([drop(self._pace.amount)])
            if not _value(outcome):
                break
            removed += _value(outcome)
            self._rest(self._pace.took(time.monotonic() - began))
        return removed

    def delete(self, db: apsw.Connection, session_id: str) -> bool:
        """Delete an archived session, unless a process has taken it meanwhile; return whether it is gone."""
        found = queries.answer(db, self._writer.holder, SessionRow(session_id, ANY_TENANT))
        entry = None if found is None else plans.deletion(session_id, found.tenant)
        (outcome,) = self._writer.write([Delete(session_id, entry)])
        if isinstance(outcome, LeasedError):
            return False
        _value(outcome)
        return True

    def _next(self, amount: int) -> list[Drop]:
        """Take the next rows off the plan."""
        operations = []
        while self._left and amount > 0:
            share = self._left.popleft()
            count = min(amount, share.rows)
            operations.append(Drop(share.session_id, share.table, share.edge, count, last=count == share.rows))
            amount -= count
            if count < share.rows:
                self._left.appendleft(attrs.evolve(share, rows=share.rows - count))
        return operations


def can_shrink(db: apsw.Connection) -> bool:
    """Tell whether the file can give room back piece by piece; those made by the first version cannot."""
    return bool(db.pragma("auto_vacuum") == 2)  # noqa: PLR2004 - SQLite's number for INCREMENTAL


def sizes_of(config: StoreConfig) -> tuple[int, int]:
    """Return the bytes of a store's file with its write-ahead log, and those of the log. Raises StoreError."""
    path = config.path / FILE_NAME
    with SESSION_STORE.faults(path):
        log = log_size(path)
        return path.stat().st_size + log, log


def rewrite(config: StoreConfig, rest: Rest = time.sleep) -> None:
    """Write the file anew, without free room; from then on it can give room back piece by piece.

    It needs as much room again on the disk, and no process can write meanwhile.

    Raises StoreError(cause="leased") if a living process may write sessions.
    """
    with (
        SESSION_STORE.faults(config.path / FILE_NAME),
        closing(Writer(db := open_writer(config), me := Holder.of(config))),
    ):
        others = list(rivals(db, me).values())
        if others:
            problem = f"{others[0]} uses the store: rewriting it would keep that from storing anything"
            raise StoreError(problem, cause="leased", details={"holder": others[0]})
        db.pragma("auto_vacuum", "INCREMENTAL")
        db.execute("VACUUM")
        _shorten(db, rest)


@frozen
class _Due:
    """A share of the session with this key."""

    key: int
    table: plans.Table
    edge: int
    rows: int
    size: int


def _due(db: apsw.Connection, table: plans.Table, age: float | None, now: datetime) -> list[_Due]:
    if age is None:
        return []
    query = (_SUPERSEDED if table == "messages" else _OLD_EVENTS).format(sessions=sessions_in(db))
    found = db.execute(query, (plans.stored_cut(age, now),))
    return [_Due(key, table, edge, rows, size) for key, edge, rows, size in found]


def _due_archives(db: apsw.Connection, me: Holder, age: float | None, now: datetime) -> dict[int, None]:
    if age is None:
        return {}
    query = _OLD_ARCHIVES.format(sessions=sessions_in(db))
    found: list[Any] = db.execute(query, (plans.stored_cut(age, now),)).fetchall()
    return {key: None for key, holder in found if holder is None or me.rival(db, holder) is None}


def _whole(db: apsw.Connection, table: plans.Table, key: int) -> _Due:
    edge, rows, size = db.execute(_WHOLE[table], (key,)).get
    return _Due(key, table, edge or 0, rows, size or 0)


def _value(outcome: int | WarrenError | None) -> int:
    if isinstance(outcome, WarrenError):
        raise outcome
    return outcome or 0


def _give_back(db: apsw.Connection, rest: Rest) -> None:
    """Return free pages to the disk, a few at a time; pages that become free meanwhile wait for the next call."""
    pace, left = plans.BatchSize(200), db.pragma("freelist_count") if can_shrink(db) else 0
    while left > 0:
        began = time.monotonic()
        db.execute(f"PRAGMA incremental_vacuum({pace.amount})").fetchall()
        left = min(left - pace.amount, db.pragma("freelist_count"))
        rest(pace.took(time.monotonic() - began))
    _shorten(db, rest)


def _shorten(db: apsw.Connection, rest: Rest) -> None:
    """Move the log into the file, which cuts the file's end off, unless other processes use it all the time."""
    db.set_busy_timeout(PATIENCE_MS)
    for _ in range(ATTEMPTS):
        try:
            db.wal_checkpoint(None, apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.BusyError:
            rest(plans.ROOM)
        else:
            return
