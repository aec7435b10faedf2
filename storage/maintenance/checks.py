"""Checks of the rows of a store against one another; each check is one query."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections.abc import Iterator
from typing import Any, Final

import apsw

from warren.base.principals import TENANT
from warren.base.values import frozen
from warren.conversation import codec
from warren.reports.reports import Finding
from warren.storage.maintenance.attached import EMPTY, examine_files
from warren.storage.maintenance.damage import BadRow, scan
from warren.storage.rows import DELETED, MAX_NUMBER, OPEN, shown, text_in
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.inbox import damaged

TABLES: Final = ("messages", "events", "compactions", "labels", "inbox", "attachments")
"""Tables with rows that belong to sessions."""
# By its type: SQLite takes for granted that a column that must not be NULL never is.
ORPHANED: Final = f"""
    (typeof(session) <> 'integer' OR session NOT IN (SELECT key FROM sessions WHERE state IS NOT {DELETED}))
"""
MISLABELLED: Final = f"""
    SELECT session_id FROM sessions WHERE state <> {DELETED} AND json_valid(sessions.labels) AND (
        (SELECT count(*) FROM labels WHERE session = key) <> (SELECT count(*) FROM json_each(sessions.labels))
        OR EXISTS (
            SELECT 1 FROM json_each(sessions.labels) AS label WHERE NOT EXISTS (
                SELECT 1 FROM labels WHERE session = sessions.key AND name = label.key AND value = label.value
            )
        )
    )
"""


BAD_CLUSTER: Final = "(typeof(secret) <> 'text' OR length(secret) <> 64 OR secret GLOB '*[^0-9a-f]*')"
NO_HOLDER: Final = f"(typeof(holder) <> 'integer' OR holder NOT BETWEEN 0 AND {MAX_NUMBER})"


@frozen
class Check:
    """One question: the sessions that it returns are not as they should be.

    Attributes:
        name: of the check.
        message: the problem, for a person.
        query: returns their ids.
        fixable: whether that can be put right.
    """

    name: str
    message: str
    query: str
    fixable: bool = False

    def findings(self, db: apsw.Connection) -> Iterator[Finding]:
        """Yield the finding, if there is one. Raises apsw.Error."""
        ids = tuple(shown(row[0]) for row in db.execute(f"SELECT {raw('session_id')} FROM ({self.query})"))
        if ids:
            yield Finding(self.name, f"{_many(len(ids))}: {self.message}", fixable=self.fixable, sessions=ids)


CHECKS: Final = (
    Check(
        "transcript",
        "messages are missing, or there are more than were counted",
        f"""
        SELECT session_id FROM sessions LEFT JOIN (
            SELECT session, count(*) AS found, min(position) AS first, max(position) AS last,
                min(position) FILTER (WHERE position > 0) AS second
            FROM messages GROUP BY session
        ) ON session = key
        WHERE state <> {DELETED} AND (
            coalesce(found, 0) <> message_count - max(0, messages_from - 1)
            OR coalesce(last, -1) <> iif(messages_from < message_count, message_count, min(message_count, 1)) - 1
            OR coalesce(first, 0) <> 0 OR second < messages_from
        )
        """,
    ),
    Check(
        "head",
        "messages of the model's context are missing, or the summary of earlier messages is",
        f"""
        SELECT session_id FROM sessions WHERE state <> {DELETED} AND (
            head > message_count OR (state = {OPEN} AND messages_from > max(head, 1)) OR head <> coalesce((
                SELECT compactions.head FROM compactions WHERE session = key ORDER BY compactions.rowid DESC LIMIT 1
            ), 0)
        )
        """,
    ),
    Check(
        "events",
        "its log has events with numbers above the last, or below those that are kept",
        f"""
        SELECT session_id FROM sessions WHERE state <> {DELETED} AND (
            (SELECT max(seq) FROM events WHERE session = key) > last_seq
            OR (SELECT first_seq FROM events WHERE session = key ORDER BY seq LIMIT 1) <= events_after
        )
        """,
    ),
    Check(
        "peers",
        "their peers do not find them by their names, or by others",
        f"""
        SELECT session_id FROM sessions
        WHERE state = {OPEN} AND json_valid(details) AND peer IS NOT details ->> '$.peer.name'
        """,
    ),
    Check(
        "tenants",
        "the keys that created them are of another tenant",
        """
        SELECT session_id FROM creations JOIN sessions ON sessions.key = creations.session
        WHERE creations.tenant <> sessions.tenant
        """,
    ),
    Check("labels", "they cannot be found by their labels", MISLABELLED, fixable=True),
)
THOROUGH: Final = (
    Check(
        "events",
        "events of its log overlap",
        """
        SELECT DISTINCT session_id FROM (
            SELECT session, first_seq, lag(seq) OVER (PARTITION BY session ORDER BY seq) AS before FROM events
        ) JOIN sessions ON key = session WHERE first_seq <= before
        """,
    ),
)


def examine_rows(db: apsw.Connection, *, full: bool) -> Iterator[Finding]:
    """Yield the findings in the rows of a file that SQLite finds whole. Raises apsw.Error."""
    for table in TABLES:
        orphans = db.execute(f"SELECT count(*) FROM {table} WHERE {ORPHANED}").get
        if orphans:
            yield Finding("orphans", f"{orphans} rows of {table} belong to no session", fixable=True)
    yield from unreadable(db)
    yield from examine_files(db, full=full)
    for check in (*CHECKS, *(THOROUGH if full else ())):
        yield from check.findings(db)


NAMED: Final = 5
"""Problems of one table that are told one by one."""


def unreadable(db: apsw.Connection) -> Iterator[Finding]:
    """Yield a finding for each table with unreadable rows. Raises apsw.Error."""
    yield from _unreadable_rows(db)
    yield from _unreadable_inputs(db)
    yield from _beside_sessions(db)


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
        sound = is_tenant(tenant) and _is_text(key) and type(session) is int and _is_text(params)
        if not (sound and _is_text_by_text(params)):
            found.append(("creations", _at(tenant=tenant, key=key)))
    values = raw("media_type, name, holder")
    # Rows without a session or without bytes are orphans.
    for session, blob, media_type, name, holder in db.execute(
        f"SELECT session, blob, {values} FROM attachments WHERE NOT {ORPHANED} AND NOT {EMPTY}"
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


def _is_text_by_text(value: Any) -> bool:
    try:
        codec.decode_stored(dict[str, str], value)
    except ValueError:
        return False
    return True


def _beside_sessions(db: apsw.Connection) -> Iterator[Finding]:
    requests = db.execute(f"SELECT count(*) FROM requests WHERE {NO_HOLDER}").get
    if requests:
        yield Finding("requests", f"{requests} requests for sessions name no process", fixable=True)
    if db.execute(f"SELECT count(*) FROM cluster WHERE {BAD_CLUSTER}").get:
        yield Finding("cluster", "the secret of the nodes is damaged: the next node makes a new one", fixable=True)
    bad = unreadable_keys(db)
    for table in sorted({each[0] for each in bad}):
        count = sum(each[0] == table for each in bad)
        yield Finding(table, f"{count} rows of {table} cannot be read", fixable=True)
    bad_numbers = db.execute(
        f"SELECT count(*) FROM sqlite_sequence WHERE typeof(seq) <> 'integer' OR seq NOT BETWEEN 0 AND {MAX_NUMBER}"
        f" OR typeof(name) <> 'text' OR (name <> 'inbox' AND name <> 'holders')"
    ).get
    if bad_numbers:
        yield Finding("numbers", "the numbers for inputs or processes have run out of range", fixable=True)


def _unreadable_inputs(db: apsw.Connection) -> Iterator[Finding]:
    ids = tuple(dict.fromkeys(each.session_id for each in damaged(db)))
    if ids:
        problem = "an input waits that cannot be read; the next turn skips it"
        yield Finding("inbox", f"{_many(len(ids))}: {problem}", fixable=True, sessions=ids)


def _many(count: int) -> str:
    return "1 session" if count == 1 else f"{count} sessions"
