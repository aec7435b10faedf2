"""The checks of a store's rows: one table for both homes with SQL, and one question each."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeVar

import attrs

from warren.base.principals import TENANT
from warren.base.values import frozen
from warren.reports.ledger import COUNTS
from warren.reports.reports import Finding, StoreFacts
from warren.storage.ledger import HOUR
from warren.storage.maintenance.plans import EARLIEST
from warren.storage.rows import ARCHIVED, DELETED, INSTRUCTS, MAX_NUMBER, OPEN, microseconds
from warren.storage.sqlite.columns import raw

Facts = TypeVar("Facts", bound=StoreFacts)
Home = Literal["sqlite", "postgres"]


def both(sql: str) -> Mapping[Home, str]:
    """Return SQL for both homes, which differ in a few names."""
    states = {"open": OPEN, "archived": ARCHIVED, "deleted": DELETED}
    return {
        "sqlite": sql.format(t="main.", most="max", least="min", row="rowid", instructs=INSTRUCTS, **states),
        "postgres": sql.format(t="warren.", most="greatest", least="least", row="key", instructs=INSTRUCTS, **states),
    }


ROWS: Final = both("""
    SELECT 'sessions', count(*) FROM {t}sessions WHERE state = {open}
    UNION ALL SELECT 'archived', count(*) FROM {t}sessions WHERE state = {archived}
    UNION ALL SELECT 'deleted', count(*) FROM {t}sessions WHERE state = {deleted}
    UNION ALL SELECT 'messages', count(*) FROM {t}messages
    UNION ALL SELECT 'events', count(*) FROM {t}events
    UNION ALL SELECT 'files', count(*) FROM {t}blobs
    UNION ALL SELECT 'file_bytes', CAST(coalesce(sum(octet_length(body)), 0) AS bigint) FROM {t}blobs
    UNION ALL SELECT 'waits', count(*) FROM {t}waits WHERE state = 'waiting'
    UNION ALL SELECT 'erasures_due', count(*) FROM {t}erasures
""")
"""A query for the facts of a store that are counts, by their names."""


def counted(facts: Facts, rows: Iterable[Any]) -> Facts:
    """Return the facts with the rows of `ROWS`."""
    return attrs.evolve(facts, **dict(rows))


@frozen
class Check:
    """One question: the sessions that its query returns are not as they should be.

    Attributes:
        name: the subject, in one word.
        sentence: the problem, for a person; `{}` is the number of sessions, with their noun.
        sql: a query for their ids, of each home that asks by a query; a function may find ids, too.
        fixable: whether `fix` puts it right.
        full: whether only a full examination asks.
        level: see Finding.
        noun: the noun for the sessions.
    """

    name: str
    sentence: str
    sql: Mapping[Home, str] = attrs.field(factory=dict)
    fixable: bool = attrs.field(default=False, kw_only=True)
    full: bool = attrs.field(default=False, kw_only=True)
    level: Literal["problem", "notice"] = attrs.field(default="problem", kw_only=True)
    noun: str = attrs.field(default="session", kw_only=True)

    def query(self, home: Home) -> str:
        """Return the query with an id that every driver can read, however damaged it is."""
        if home == "postgres":
            return f"SELECT session_id FROM ({self.sql[home]}) AS found ORDER BY 1"
        return f"SELECT {raw('session_id')} FROM ({self.sql[home]})"

    def found(self, rows: Iterable[Sequence[Any]], read: Callable[[Any], str]) -> Iterator[Finding]:
        """Yield the finding about the rows of the query, if there are any; `read` makes an id of a column."""
        yield from self.of_sessions(read(row[0]) for row in rows)

    def of_sessions(self, ids: Iterable[str], *, fixable: bool | None = None) -> Iterator[Finding]:
        """Yield the finding about sessions, if there are any; `fixable` is for a home that repairs it."""
        sessions = tuple(dict.fromkeys(ids))
        if sessions:
            many = f"{len(sessions)} {self.noun}{'' if len(sessions) == 1 else 's'}"
            can = self.fixable if fixable is None else fixable
            yield Finding(self.name, self.sentence.format(many), self.level, can, sessions)


@frozen
class RowCheck(Check):
    """One question about rows: its query returns one row, which fills the sentence and begins with their number."""

    def query(self, home: Home) -> str:
        """Return the query."""
        return self.sql[home]

    def found(self, rows: Iterable[Sequence[Any]], read: Callable[[Any], str]) -> Iterator[Finding]:  # noqa: ARG002 - no ids
        """Yield the finding, if the number is not 0."""
        for row in rows:
            if row[0]:
                yield Finding(self.name, self.sentence.format(*row), self.level, self.fixable)


def asked(checks: Iterable[Check], home: Home, *, full: bool = False) -> Iterator[tuple[Check, str]]:
    """Yield the checks that a home makes by queries, and their queries."""
    for check in checks:
        if home in check.sql and (full or not check.full):
            yield check, check.query(home)


def _counted(table: str, conditions: Mapping[Home, str]) -> Mapping[Home, str]:
    prefix = {"sqlite": "main.", "postgres": "warren."}
    return {home: f"SELECT count(*) FROM {prefix[home]}{table} WHERE {where}" for home, where in conditions.items()}


TABLES: Final[Mapping[Home, Sequence[str]]] = {
    "sqlite": ("messages", "events", "compactions", "labels", "inbox", "calls", "waits", "deliveries", "attachments"),
    "postgres": (
        "messages",
        "events",
        "compactions",
        "inbox",
        "calls",
        "waits",
        "deliveries",
        "creations",
        "requests",
        "attachments",
    ),
}
"""Tables with rows that belong to sessions."""


def orphaned(home: Home, table: str) -> str:
    """Return the condition for rows of a table that belong to no session."""
    if home == "postgres":  # the row of a creation stays when its session is deleted
        kept = "" if table == "creations" else f" WHERE state <> {DELETED}"
        return f"session NOT IN (SELECT key FROM warren.sessions{kept})"
    # By its type: SQLite takes for granted that a column that must not be NULL never is.
    known = f"SELECT key FROM sessions WHERE state IS NOT {DELETED}"
    return f"(typeof(session) <> 'integer' OR session NOT IN ({known}))"


def _orphans() -> Iterator[Check]:
    for table in dict.fromkeys((*TABLES["sqlite"], *TABLES["postgres"])):
        conditions = {home: orphaned(home, table) for home, tables in TABLES.items() if table in tables}
        sentence = f"{{}} rows of {table} belong to no session"
        yield RowCheck("orphans", sentence, _counted(table, conditions), fixable=True)


SETTLED: Final = "session IN (SELECT key FROM {t}sessions WHERE turn IS NULL)"
"""The condition for the state of a tool call without an open turn."""
OVER: Final = f"""
    state <> 'settled' AND ((reason <> 'background' AND session IN (SELECT key FROM {{t}}sessions WHERE turn IS NULL))
        OR session IN (SELECT key FROM {{t}}sessions WHERE state = {ARCHIVED}))
"""
"""The condition for a wait that is not settled, and whose turn or session has ended."""
TENANT_OF_WAITS: Final = """
    UPDATE {t}waits SET tenant = (SELECT s.tenant FROM {t}sessions s WHERE s.key = session)
    WHERE tenant <> (SELECT s.tenant FROM {t}sessions s WHERE s.key = session)
"""
"""The repair of waits of another tenant than their sessions."""
EMPTY: Final[Mapping[Home, str]] = {
    "sqlite": "(typeof(blob) <> 'integer' OR blob NOT IN (SELECT key FROM blobs))",
    "postgres": "NOT EXISTS (SELECT FROM warren.blobs WHERE key = blob)",
}
"""Conditions for a file of a session without bytes."""
UNUSED: Final[Mapping[Home, str]] = {
    "sqlite": "key NOT IN (SELECT blob FROM attachments WHERE typeof(blob) = 'integer')",
    "postgres": "NOT EXISTS (SELECT FROM warren.attachments WHERE blob = key)",
}
"""Conditions for bytes that no session has."""
BAD_HOOKS: Final = f"typeof(hooks) NOT IN ('integer', 'null') OR hooks NOT BETWEEN 0 AND {MAX_NUMBER}"
BAD_HEX: Final = "{0} IS NOT NULL AND (typeof({0}) <> 'text' OR length({0}) <> 64 OR {0} GLOB '*[^0-9a-f]*')"
NO_HOLDER: Final = f"(typeof(holder) <> 'integer' OR holder NOT BETWEEN 0 AND {MAX_NUMBER})"
_BAD_NUMBER: Final = f"""
    typeof(seq) <> 'integer' OR seq NOT BETWEEN 0 AND {MAX_NUMBER}
    OR typeof(name) <> 'text' OR (name <> 'inbox' AND name <> 'holders')
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
_MISNAMED: Final = f"""
    SELECT session_id FROM sessions
    WHERE state = {OPEN} AND json_valid(details) AND peer IS NOT details ->> '$.peer.name'
"""
_DAMAGED_USAGE: Final = f"""
    SELECT count(*), min(tenant) FROM warren.usage
    WHERE tenant !~ '^({TENANT.pattern})$' OR least({", ".join(COUNTS)}) < 0
        OR priced::text IN ('NaN', 'Infinity', '-Infinity')
        OR hour % {HOUR} <> 0 OR hour NOT BETWEEN {EARLIEST} AND {microseconds(datetime.max.replace(tzinfo=UTC))}
"""
LABELS: Final = Check("labels", "{}: they cannot be found by their labels", {"sqlite": MISLABELLED}, fixable=True)
PEERS: Final = Check("peers", "{}: their peers do not find them by their names, or by others", {"sqlite": _MISNAMED})
CUT_OFF: Final = Check("files", "{}: they cannot read files that their messages name", fixable=True)
LOST: Final = Check("files", "{}: the bytes of files that their messages name are gone")
DIFFERENT: Final = Check("files", "{}: the bytes of files are not those that were attached")
UNREADABLE_TURN: Final = Check("turns", "{}: the open turn cannot be read; the next turn ends it", fixable=True)
UNREADABLE_INPUT: Final = Check("inbox", "{}: an input waits that cannot be read; the next turn skips it", fixable=True)
BESIDE: Final = (
    RowCheck(
        "requests",
        "{} requests for sessions name no process",
        {"sqlite": f"SELECT count(*) FROM requests WHERE {NO_HOLDER}"},
        fixable=True,
    ),
    RowCheck(
        "cluster",
        "the secret of the nodes is damaged: the next node makes a new one",
        {"sqlite": f"SELECT count(*) FROM cluster WHERE {BAD_HEX.format('secret')}"},
        fixable=True,
    ),
    RowCheck(
        "cluster",
        "the secret of completion tokens is damaged: no token is taken that was made before, and a new one is made",
        {"sqlite": f"SELECT count(*) FROM cluster WHERE {BAD_HEX.format('completions')}"},
        fixable=True,
    ),
    RowCheck(
        "cluster",
        "the number of the webhooks is damaged: the next change of one makes a new one",
        {"sqlite": f"SELECT count(*) FROM cluster WHERE {BAD_HOOKS}"},
        fixable=True,
    ),
    RowCheck(
        "numbers",
        "the numbers for inputs or processes have run out of range",
        {"sqlite": f"SELECT count(*) FROM sqlite_sequence WHERE {_BAD_NUMBER}"},
        fixable=True,
    ),
)
"""The checks of what a file has beside its sessions."""
CHECKS: Final = (
    *_orphans(),
    RowCheck("orphans", "{} rows of attachments have no bytes", _counted("attachments", EMPTY), fixable=True),
    RowCheck("orphans", "{} rows of blobs belong to no session", _counted("blobs", UNUSED), fixable=True),
    RowCheck(
        "erasures",
        "{} deleted sessions may still be remembered or projected until the next start",
        both("SELECT count(*) FROM {t}erasures"),
        level="notice",
    ),
    RowCheck(
        "usage",
        "{} rows of the table usage cannot be right, one of the tenant {!r}: no report is right with them",
        {"postgres": _DAMAGED_USAGE},
    ),
    Check(
        "transcript",
        "{}: messages are missing, or there are more than were counted",
        both("""
        SELECT session_id FROM {t}sessions LEFT JOIN (
            SELECT session, min(position) AS first,
                count(*) FILTER (WHERE position = 0 OR position >= messages_from) AS found,
                max(position) FILTER (WHERE position = 0 OR position >= messages_from) AS last,
                min(position) FILTER (WHERE position > 0 AND NOT {instructs}) AS second
            FROM {t}messages JOIN {t}sessions ON session = key GROUP BY session
        ) AS m ON session = key
        WHERE state <> {deleted} AND (
            coalesce(found, 0) <> message_count - {most}(0, messages_from - 1)
            OR coalesce(last, -1) <>
                CASE WHEN messages_from < message_count THEN message_count ELSE {least}(message_count, 1) END - 1
            OR coalesce(first, 0) <> 0 OR second < messages_from
        )
        """),
    ),
    Check(
        "head",
        "{}: messages of the model's context are missing, or the summary of earlier messages is",
        both("""
        SELECT session_id FROM {t}sessions s WHERE state <> {deleted} AND (
            head > message_count OR (state = {open} AND messages_from > {most}(head, 1)) OR head <> coalesce((
                SELECT c.head FROM {t}compactions c WHERE c.session = s.key ORDER BY c.{row} DESC LIMIT 1
            ), 0)
        )
        """),
    ),
    Check(
        "events",
        "{}: its log has events with numbers above the last, or below those that are kept",
        both("""
        SELECT session_id FROM {t}sessions WHERE state <> {deleted} AND (
            (SELECT max(seq) FROM {t}events WHERE session = key) > last_seq
            OR (SELECT first_seq FROM {t}events WHERE session = key ORDER BY seq LIMIT 1) <= events_after
        )
        """),
    ),
    Check(
        "calls",
        "{}: tool calls have a state without an open turn",
        both("""
        SELECT session_id FROM {t}sessions WHERE turn IS NULL AND key IN (SELECT session FROM {t}calls)
        """),
        fixable=True,
    ),
    Check(
        "waits",
        "{}: tool calls wait without an open turn",
        both(f"SELECT session_id FROM {{t}}sessions WHERE key IN (SELECT session FROM {{t}}waits WHERE {OVER})"),
        fixable=True,
    ),
    Check(
        "waits",
        "{}: what their tool calls wait for is listed for another tenant",
        both("""
        SELECT session_id FROM {t}waits w JOIN {t}sessions s ON s.key = w.session WHERE w.tenant <> s.tenant
        """),
        fixable=True,
    ),
    PEERS,
    Check(
        "tenants",
        "{}: the keys that created them are of another tenant",
        both("""
        SELECT session_id FROM {t}creations c JOIN {t}sessions s ON s.key = c.session WHERE c.tenant <> s.tenant
        """),
    ),
    Check(
        "tenants",
        "{}: they are of no tenant: nobody finds them",
        {"postgres": f"SELECT session_id FROM warren.sessions WHERE tenant !~ '^({TENANT.pattern})$'"},
    ),
    LABELS,
    Check(
        "events",
        "{}: events of its log overlap",
        both("""
        SELECT session_id FROM (
            SELECT session, first_seq, lag(seq) OVER (PARTITION BY session ORDER BY seq) AS before FROM {t}events
        ) AS e JOIN {t}sessions ON key = session WHERE first_seq <= before
        """),
        full=True,
    ),
)
"""All questions about rows that one query answers. A damaged row of SQLite is found by `unreadable`."""
