"""What has to hold among the rows of a store; each check is one question to SQLite."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections.abc import Iterator
from typing import Final

import apsw
import attrs

from warren.errors import StoreError
from warren.storage.inbox import damaged
from warren.storage.maintenance.report import Finding
from warren.storage.rows import COLUMNS, DELETED, OPEN, row_to_record

TABLES: Final = ("messages", "events", "compactions", "labels", "inbox")
"""What belongs to a session."""
ORPHANED: Final = f"session NOT IN (SELECT key FROM sessions WHERE state <> {DELETED})"
MISLABELLED: Final = f"""
    SELECT session_id FROM sessions WHERE state <> {DELETED} AND json_valid(sessions.labels) AND (
        (SELECT count(*) FROM labels WHERE session = key) <> (SELECT count(*) FROM json_each(sessions.labels))
        OR EXISTS (
            SELECT 1 FROM json_each(sessions.labels) AS said WHERE NOT EXISTS (
                SELECT 1 FROM labels WHERE session = sessions.key AND name = said.key AND value = said.value
            )
        )
    )
"""


@attrs.frozen
class Check:
    """One question: the sessions that it returns are not as they should be.

    Attributes:
        name: of the check.
        message: what is the matter with them.
        query: returns their ids.
        fixable: whether that can be put right.
    """

    name: str
    message: str
    query: str
    fixable: bool = False

    def findings(self, db: apsw.Connection) -> Iterator[Finding]:
        """Yield what is found, if something is. Raises apsw.Error."""
        ids = tuple(row[0] for row in db.execute(self.query))
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
        "what the model sees is not all there, or no summary stands for what it does not see",
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
    *(
        Check(
            table,
            f"{table} are stored that are no JSON",
            f"""
            SELECT session_id FROM sessions
            WHERE EXISTS (SELECT 1 FROM {table} WHERE session = sessions.key AND NOT json_valid(body))
            """,
        )
        for table in ("messages", "events")
    ),
)


def examine_rows(db: apsw.Connection, *, full: bool) -> Iterator[Finding]:
    """Yield what does not hold among the rows of a file that SQLite finds whole. Raises apsw.Error."""
    for table in TABLES:
        orphans = db.execute(f"SELECT count(*) FROM {table} WHERE {ORPHANED}").get
        if orphans:
            yield Finding("orphans", f"{orphans} rows of {table} belong to no session", fixable=True)
    yield from _unreadable(db)
    yield from _unreadable_inputs(db)
    for check in (*CHECKS, *(THOROUGH if full else ())):
        yield from check.findings(db)


def _unreadable(db: apsw.Connection) -> Iterator[Finding]:
    unreadable = []
    for row in db.execute(f"SELECT {COLUMNS} FROM sessions WHERE state <> {DELETED}"):
        try:
            row_to_record(row)
        except StoreError:
            unreadable.append(row[0])
    if unreadable:
        problem = "its record cannot be read; it can only be deleted, or restored from a backup"
        yield Finding("record", f"{_many(len(unreadable))}: {problem}", sessions=tuple(unreadable))


def _unreadable_inputs(db: apsw.Connection) -> Iterator[Finding]:
    ids = tuple(dict.fromkeys(each.session_id for each in damaged(db)))
    if ids:
        problem = "something waits to be said to it that cannot be read; its next turn passes it over"
        yield Finding("inbox", f"{_many(len(ids))}: {problem}", fixable=True, sessions=ids)


def _many(count: int) -> str:
    return "1 session" if count == 1 else f"{count} sessions"
