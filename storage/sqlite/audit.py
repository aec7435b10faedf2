"""The audit with SQL: entries are added in the transaction of their action, and read in the order of their times."""
# ruff: noqa: S608 - only constants of this package and counts become part of the SQL

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import apsw

from warren.reports.audit import AuditEntry, AuditPage
from warren.storage.auditing import COLUMNS, page_of, row_of
from warren.storage.operations import Audit
from warren.storage.queries import AuditEntries
from warren.storage.rows import microseconds
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.lease import Holder
from warren.storage.sqlite.reading import Reading

_ADD: Final = f"INSERT INTO audit ({COLUMNS}) VALUES ({','.join('?' * len(COLUMNS.split(',')))})"
_TRIGGERS: Final = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'audit'"
_AFTER: Final = "(at, number) > (?, ?)"


def audit(operation: Audit, db: apsw.Connection, _holder: Holder) -> None:
    """Add entries."""
    add(db, operation.entries)


def add(db: apsw.Connection, entries: Iterable[AuditEntry | None]) -> None:
    """Add entries, inside a transaction; None is none."""
    for entry in entries:
        if entry is not None:
            db.execute(_ADD, row_of(entry))


@contextmanager
def removable(db: apsw.Connection) -> Iterator[None]:
    """Let entries be removed within the block, which is inside a transaction: retention and repairs do so."""
    triggers: list[Any] = db.execute(_TRIGGERS).fetchall()
    for name, _ in triggers:
        db.execute(f"DROP TRIGGER {name}")
    yield
    for _, definition in triggers:
        db.execute(definition)


def page(at: Reading, query: AuditEntries) -> AuditPage:
    """Return a part of the audit of a tenant, or of all."""
    wanted = query.wanted
    conditions = {
        "tenant = ?": query.tenant,
        "at >= ?": None if wanted.since is None else microseconds(wanted.since),
        "at < ?": None if wanted.until is None else microseconds(wanted.until),
        "action = ?": wanted.action,
        "session_id = ?": wanted.session_id,
    }
    given = {condition: value for condition, value in conditions.items() if value is not None}
    values: list[Any] = list(given.values())
    where = list(given)
    if wanted.after is not None:
        where.append(_AFTER)
        values += wanted.after
    sql = f"SELECT number, {raw(COLUMNS)} FROM audit WHERE {' AND '.join(where) or 'true'}"
    rows: list[Any] = at.db.execute(f"{sql} ORDER BY at, number LIMIT ?", (*values, wanted.limit)).fetchall()
    return page_of(rows, wanted)
