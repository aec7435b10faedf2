"""Rows of a file that cannot be read: the findings about them, and the rows without a number."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import apsw

from warren.base.principals import TENANT
from warren.conversation import codec
from warren.reports.reports import Finding
from warren.storage.maintenance.checks import BESIDE, EMPTY, UNREADABLE_INPUT, asked, orphaned
from warren.storage.maintenance.damage import BadRow, scan
from warren.storage.rows import MAX_NUMBER, bytes_in, shown, text_in
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.inbox import damaged

NAMED: Final = 5
"""Problems of one table that are told one by one."""


def unreadable(db: apsw.Connection) -> Iterator[Finding]:
    """Yield the findings about what cannot be read; the rows of a table have one together. Raises apsw.Error."""
    yield from _unreadable_rows(db)
    yield from UNREADABLE_INPUT.of_sessions(each.session_id for each in damaged(db))
    for check, sql in asked(BESIDE, "sqlite"):
        yield from check.found(db.execute(sql).fetchall(), shown)
    bad = Counter(table for table, _ in unreadable_keys(db))
    for table in sorted(bad):
        yield Finding(table, f"{bad[table]} rows of {table} cannot be read", fixable=True)


def _unreadable_rows(db: apsw.Connection) -> Iterator[Finding]:
    found: dict[str, list[BadRow]] = {}
    for row in scan(db):
        found.setdefault(row.table, []).append(row)
    for table, rows in found.items():
        told = "; ".join(f"row {row.rowid}: {row.problem}" for row in rows[:NAMED])
        more = f"; and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
        ids = tuple(dict.fromkeys(row.session_id for row in rows if row.session_id is not None))
        check = "record" if table == "sessions" else table
        count = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
        yield Finding(check, f"{count} of {table} cannot be read: {told}{more}", fixable=True, sessions=ids)


def unreadable_keys(db: apsw.Connection) -> list[tuple[str, str]]:
    """Return the rows without a number that cannot be read: the table, and a condition that finds the row."""
    found: list[tuple[str, str]] = []
    for (key,) in db.execute(f"SELECT {raw('session_id')} FROM erasures"):
        if not _is_text(key):
            found.append(("erasures", _at(session_id=key)))
    for tenant, key, session, params in db.execute(f"SELECT {raw('tenant, key, session, params')} FROM creations"):
        if not (is_tenant(tenant) and _is_text(key) and type(session) is int and _are_texts(params)):
            found.append(("creations", _at(tenant=tenant, key=key)))
    values = raw("media_type, name, holder")
    # Rows without a session or without bytes are orphans.
    sound = f"NOT {orphaned('sqlite', 'attachments')} AND NOT {EMPTY['sqlite']}"
    for session, blob, media_type, name, holder in db.execute(
        f"SELECT session, blob, {values} FROM attachments WHERE {sound}"
    ):
        by_process = holder is None or (type(holder) is int and 0 <= holder <= MAX_NUMBER)
        if not (_is_text(media_type) and (name is None or _is_text(name)) and by_process):
            found.append(("attachments", f"session = {session} AND blob = {blob}"))
    return found


def _at(**key: Any) -> str:
    """Return the condition for a row with these columns as they are read; a damaged one may fit other damaged rows."""
    return " AND ".join(
        f"CAST({name} AS BLOB) = x'{value.hex()}'" if isinstance(value, bytes) else f"typeof({name}) <> 'text'"
        for name, value in key.items()
    )


def is_tenant(value: Any) -> bool:
    """Return whether a column, as it is read, is the name of a tenant."""
    return _is_text(value) and TENANT.fullmatch(text_in(value, "")) is not None


def _is_text(value: Any) -> bool:
    try:
        text_in(value, "")
    except ValueError:
        return False
    return True


def _are_texts(value: Any) -> bool:
    try:
        codec.decode_stored(dict[str, str], bytes_in(value, ""))
    except ValueError:
        return False
    return True
