"""The audit with SQL: entries are added in the transaction of their action, and read in the order of their times."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections.abc import Sequence
from typing import Any, Final

from warren.reports.audit import AuditEntry, AuditPage
from warren.storage.auditing import COLUMNS, page_of, row_of
from warren.storage.operations import Audit
from warren.storage.postgres.driver import Connection, Value, array, escaped, unescaped
from warren.storage.postgres.lease import Holder
from warren.storage.postgres.reading import Reading
from warren.storage.queries import AuditEntries
from warren.storage.rows import microseconds

TYPES: Final = ("int8", *("text",) * (len(COLUMNS.split(",")) - 1))
"""The types of the columns of an entry."""
_GIVEN: Final = ", ".join(f"${at}::{kind}[]" for at, kind in enumerate(TYPES, start=1))
_ADD: Final = f"""
    INSERT INTO warren.audit ({COLUMNS}) SELECT {COLUMNS} FROM unnest({_GIVEN}) WITH ORDINALITY
    AS given ({COLUMNS}, place) ORDER BY place
"""
_PAGE: Final = f"""
    SELECT number, {COLUMNS} FROM warren.audit
    WHERE ($1::text IS NULL OR tenant = $1) AND at >= $2::int8 AND at < $3::int8 AND (at, number) > ($4::int8, $5::int8)
        AND ($6::text IS NULL OR action = $6) AND ($7::text IS NULL OR session_id = $7)
    ORDER BY at, number LIMIT $8::int8
"""
_FIRST: Final = -(2**63)
_LAST: Final = 2**63 - 1


def values_of(entry: AuditEntry) -> tuple[Value, ...]:
    """Return the values of `COLUMNS` of an entry, as this home keeps texts."""
    return tuple(escaped(each) if isinstance(each, str) else each for each in row_of(entry))


def columns(rows: Sequence[tuple[Value, ...]]) -> list[str]:
    """Return the arrays of rows of `values_of`, of which there is at least one."""
    return [array(column) for column in zip(*rows, strict=True)]


async def audit(operation: Audit, db: Connection, _holder: Holder) -> None:
    """Add entries."""
    await add(db, operation.entries)


async def add(db: Connection, entries: Sequence[AuditEntry | None]) -> None:
    """Add entries, inside a transaction; None is none. Raises as `Connection.fetch`."""
    rows = [values_of(entry) for entry in entries if entry is not None]
    if rows:
        await db.fetch(_ADD, *columns(rows))


async def page(at: Reading, query: AuditEntries) -> AuditPage:
    """Return a part of the audit of a tenant, or of all. Raises as `Connection.fetch`."""
    wanted = query.wanted
    since = _FIRST if wanted.since is None else microseconds(wanted.since)
    until = _LAST if wanted.until is None else microseconds(wanted.until)
    session_id = None if wanted.session_id is None else escaped(wanted.session_id)
    after = wanted.after or (_FIRST, _FIRST)
    rows = await at.db.fetch(_PAGE, query.tenant, since, until, *after, wanted.action, session_id, wanted.limit)
    return page_of([_plain(row) for row in rows], wanted)


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(unescaped(each) if isinstance(each, str) else each for each in row)
