"""Examines a store in a database beside the processes that use it, and makes the repairs that are safe."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any, Final

from warren.base.errors import WarrenError
from warren.base.values import frozen
from warren.conversation import codec
from warren.reports.health import clock_fault
from warren.reports.reports import DatabaseFacts, Finding, HolderFacts, Report, about_dead
from warren.settings.config import PostgresConfig
from warren.storage.maintenance.checks import CHECKS, LABELS, PEERS, ROWS, TABLES, counted, orphaned
from warren.storage.maintenance.postgres.attached import examine_files, fix_files
from warren.storage.maintenance.postgres.connecting import be_patient, connected, existing, findings_of
from warren.storage.maintenance.postgres.memory import MEMORY, fix_memory
from warren.storage.maintenance.postgres.retention import SIZE
from warren.storage.maintenance.postgres.turns import examine_turns, fix_turns
from warren.storage.membership import node_of, status_of
from warren.storage.operations import Claim, Claimed, Release
from warren.storage.postgres import PostgresStore
from warren.storage.postgres.commit import marks_of
from warren.storage.postgres.driver import Connection, array, unescaped
from warren.storage.postgres.guard import absence
from warren.storage.postgres.lease import ALIVE, ahead
from warren.storage.postgres.reading import snapshot
from warren.storage.postgres.schema import SCHEMA, State, prepare
from warren.storage.rows import DELETED, OPEN, time_in

MANY_DEAD: Final = 100_000
"""Dead rows of a table from which on they are worth a word, if they are also half as many as the living ones."""
FAR_BEHIND: Final = 64 << 20
"""Bytes of the log that a standby or a slot may be behind."""
PAGE: Final = 500
_SERVER: Final = """
    SELECT current_setting('server_version'), current_setting('synchronous_commit'), current_setting('fsync'),
        current_setting('full_page_writes'), current_setting('autovacuum'),
        current_setting('synchronous_standby_names'), pg_is_in_recovery(),
        (SELECT extversion FROM pg_extension WHERE extname = 'vector'),
        coalesce((SELECT sum(n_dead_tup) FROM pg_stat_user_tables WHERE schemaname = 'warren'), 0)::int8
"""
_CLOCK: Final = "SELECT extract(epoch FROM clock_timestamp())::float8"
_DEAD_ROWS: Final = f"""
    SELECT relname::text, n_dead_tup, n_live_tup FROM pg_stat_user_tables
    WHERE schemaname = 'warren' AND n_dead_tup >= {MANY_DEAD} AND n_dead_tup > n_live_tup / 2 ORDER BY relname
"""
_SLOTS: Final = """
    SELECT slot_name::text, coalesce(wal_status, 'reserved'), coalesce(CASE WHEN pg_is_in_recovery() THEN 0
        ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) END, 0)::int8 AS behind, active
    FROM pg_replication_slots WHERE NOT temporary
        AND (NOT active OR wal_status IN ('unreserved', 'lost')) ORDER BY slot_name
"""
# A role without the rights of pg_monitor sees the standbys, but not how far they are.
_STANDBYS: Final = """
    SELECT application_name, sync_state, CASE WHEN pg_is_in_recovery() THEN NULL
        ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::int8 END
    FROM pg_stat_replication ORDER BY application_name, pid
"""
_MEMORY_THERE: Final = "SELECT to_regclass('warren.memory_entries') IS NOT NULL"
_REMEMBERS: Final = "SELECT EXISTS (SELECT FROM warren.memory_entries)"
_HOLDERS: Final = f"""
    SELECT key, name, (extract(epoch FROM expires_at) * 1000000)::int8, alive, status, array(
        SELECT session_id::text FROM warren.sessions s WHERE s.holder = holders.key AND state <> {DELETED} ORDER BY 1
    ) FROM (SELECT h.key, h.name, h.expires_at, h.status, {ALIVE} AS alive FROM warren.holders h) AS holders
    UNION ALL SELECT holder, NULL, NULL, false, '', array_agg(session_id::text ORDER BY session_id) FROM warren.sessions
        WHERE state <> {DELETED} AND holder IS NOT NULL AND holder NOT IN (SELECT key FROM warren.holders)
        GROUP BY holder
    ORDER BY 1
"""


async def examine(config: PostgresConfig, *, full: bool = False) -> Report[DatabaseFacts]:
    """Examine a store. Nothing in it is changed, and processes that use it go on.

    With `full` the body of each message and event is read too. Both read all tables, in one snapshot of the database.

    Raises StoreError if there is no store that could be examined; its `cause` is "missing", "newer_schema",
    "permission" and so on.
    """
    async with connected(config, reads=True) as db:
        state = await existing(db)
        await be_patient(db)
        differs = await _clock(db)
        async with snapshot(db):
            facts, findings = await _about_server(db, config, state, differs)
            findings += [Finding("settings", text, "notice") for text in db.notices]
            if state.version >= SCHEMA.version:
                facts = counted(facts, await db.fetch(ROWS["postgres"]))
                holders, dead = await _holders(db)
                findings += [*dead, *[finding async for finding in _about_rows(db, full=full)]]
                findings += [Finding("tenants", text, "notice") for text in [await absence(db)] if text]
            else:
                holders = ()
    return Report(facts, holders, findings=tuple(sorted(findings, key=lambda finding: finding.level != "problem")))


async def fix(config: PostgresConfig) -> tuple[str, ...]:
    """Make the repairs that are safe; return sentences about them.

    Each step is one transaction. No step touches a session that a living process holds.

    Raises StoreError.
    """
    done = []
    async with connected(config) as db:
        await existing(db)
        await prepare(db)
        await be_patient(db)
        for table in TABLES["postgres"]:
            count = await db.script(f"DELETE FROM warren.{table} WHERE {orphaned('postgres', table)}")
            if count:
                done.append(f"removed {count} rows of {table} that belonged to no session")
        done += [sentence async for sentence in fix_files(db)]
        done += [sentence async for sentence in fix_turns(db)]
        labelled = await _labelled(db)
        if labelled:
            done.append(f"made {labelled} sessions findable by their labels")
        done += await fix_memory(db)
        _, dead = await _holders(db)
    freed = await _freed(config, [session_id for finding in dead for session_id in finding.sessions])
    if freed:
        done.append(f"freed {freed} sessions of processes that are dead")
    return tuple(done)


# -- the server


async def _clock(db: Connection) -> float:
    """Return by how many seconds the clock of the server is ahead of this machine's; 0 if that cannot be told."""
    sent = time.time()
    return ahead(sent, await db.value(_CLOCK), time.time())


async def _about_server(
    db: Connection, config: PostgresConfig, state: State, differs: float
) -> tuple[DatabaseFacts, list[Finding]]:
    (row,) = await db.fetch(_SERVER)
    server, commit, fsync, pages, autovacuum, standby_names, recovering, vector, dead_rows = row
    standbys = await db.fetch(_STANDBYS)
    facts = DatabaseFacts(
        path=config.shown,
        version=state.version,
        bytes=await db.value(SIZE),
        server=server,
        synchronous_commit=commit,
        standbys=len(standbys),
        pgvector=vector,
        dead_rows=dead_rows,
        clock_ahead=differs,
    )
    findings = list(_about_durability(commit, fsync, pages, standby_names, len(standbys)))
    if state.version < SCHEMA.version:
        text = f"the tables have version {state.version}: `warren store migrate` brings them to {SCHEMA.version}"
        findings.append(Finding("version", f"{text}, and then their rows can be examined", "notice"))
    if recovering:
        findings.append(Finding("standby", "the server is a standby: nothing can be stored on it"))
    if autovacuum == "off":
        findings.append(Finding("autovacuum", "autovacuum is off: dead rows are never removed", "notice"))
    for table, dead, living in await db.fetch(_DEAD_ROWS):
        text = f"{dead} dead rows are in the table {table}, with {living} living ones: run VACUUM warren.{table}"
        findings.append(Finding("bloat", text, "notice"))
    for name, _, behind in standbys:
        if behind is not None and behind > FAR_BEHIND:
            findings.append(Finding("replication", f"the standby {name} is {behind >> 20} MiB behind", "notice"))
    findings += [finding for slot in await db.fetch(_SLOTS) for finding in _about_slot(*slot)]
    findings += _about_clock(differs)
    if vector is None and await db.value(_MEMORY_THERE) and await db.value(_REMEMBERS):
        text = "the extension pgvector is not in the database: the memory finds texts by their words alone"
        findings.append(Finding("pgvector", text, "notice"))
    return facts, findings


def _about_durability(commit: str, fsync: str, pages: str, standby_names: str, standbys: int) -> Iterator[Finding]:
    if commit == "off":
        text = "synchronous_commit is off: a crash of the server loses turns that were confirmed"
        yield Finding("durability", text)
    for name, value in (("fsync", fsync), ("full_page_writes", pages)):
        if value == "off":
            yield Finding("durability", f"{name} is off: a crash of the server's machine damages the database")
    if standbys and not standby_names:
        text = "synchronous_standby_names is empty: a promotion of a standby loses turns that were confirmed"
        yield Finding("durability", text, "notice")


def _about_slot(name: str, status: str, behind: int, active: bool) -> Iterator[Finding]:  # noqa: FBT001 - private
    if status in ("unreserved", "lost"):
        text = f"the replication slot {name} has lost the log that its standby needs: make the standby anew"
        yield Finding("replication", text)
    elif not active:
        text = f"nothing reads the replication slot {name}, so the server keeps {behind >> 20} MiB of its log"
        yield Finding("replication", text, "problem" if behind > FAR_BEHIND else "notice")


def _about_clock(differs: float, of: str = "this machine's") -> Iterator[Finding]:
    fault = clock_fault(differs, of)
    if fault is not None:
        yield Finding("clock", f"{fault}; leases go by the server's", "notice")


# -- the rows


async def _holders(db: Connection) -> tuple[tuple[HolderFacts, ...], list[Finding]]:
    """Return the holders of sessions, and the findings about dead ones and about the clocks of living ones."""
    facts, left, findings = [], [], list[Finding]()
    for key, name, expires_at, alive, status, sessions in await db.fetch(_HOLDERS):
        until = None if expires_at is None else time_in(expires_at, "expires_at")
        facts.append(HolderFacts(None if name is None else unescaped(name), alive, until, len(sessions)))
        left += [] if alive else [unescaped(each) for each in sessions]
        if alive:
            node = node_of(key, unescaped(name), status)
            findings += _about_clock(status_of(status).clock_ahead, f"that of {node.name}")
    findings += about_dead(facts, left)
    return tuple(facts), findings


async def _about_rows(db: Connection, *, full: bool) -> AsyncIterator[Finding]:
    async for finding in examine_files(db, full=full):
        yield finding
    async for finding in examine_turns(db):
        yield finding
    async for finding in findings_of(db, (*CHECKS, *MEMORY), full=full):
        yield finding
    misnamed = await _misnamed(db)
    for finding in LABELS.of_sessions(each.session_id for each in misnamed if each.marks is not None):
        yield finding
    for finding in PEERS.of_sessions(each.session_id for each in misnamed if each.peer):
        yield finding
    for each in _READABLE if full else ():
        found = await _unreadable(db, each)
        if found is not None:
            yield found


@frozen
class _Bodies:
    """Texts that a codec has to be able to read.

    Attributes:
        table: the table.
        column: its column with the texts.
        key: the column that, with `of`, is the key of a row.
        read: the codec.
        of: the column in front of it in the key.
        session: the column with the key of the session; None if it has none.
    """

    table: str
    column: str
    key: str
    read: Callable[[str], object]
    of: str = "session"
    session: str | None = "session"


def _any(text: str) -> object:
    return codec.decode_stored(dict[str, Any], text)


_READABLE: Final = (
    _Bodies("sessions", "details", "key", _any, of="key", session="key"),
    _Bodies("messages", "body", "position", codec.decode_message),
    _Bodies("events", "body", "seq", _any),
    _Bodies("waits", "body", "key", _any),
    _Bodies("schedules", "body", "key", _any, of="key"),
    _Bodies("schedule_runs", "body", "due", _any, of="schedule"),
    _Bodies("triggers", "body", "key", _any, of="key"),
    _Bodies("trigger_deliveries", "body", "at", _any, of="trigger_key"),
    _Bodies("webhooks", "body", "key", _any, of="key"),
    _Bodies("agents", "body", "key", _any, of="key", session=None),
)


async def _unreadable(db: Connection, bodies: _Bodies) -> Finding | None:
    """Read all texts of a column, page by page; return the finding about those that cannot be read."""
    name = "NULL"
    if bodies.session is not None:
        name = f"(SELECT session_id FROM warren.sessions s WHERE s.key = t.{bodies.session})"
    query = f"""
        SELECT {bodies.of}, {bodies.key}, {bodies.column}, {name}
        FROM warren.{bodies.table} t WHERE ({bodies.of}, {bodies.key}) > ($1::int8, $2::int8)
        ORDER BY {bodies.of}, {bodies.key} LIMIT {PAGE}
    """
    after, bad, count, problem = (-1, -1), dict[str, None](), 0, ""
    while rows := await db.fetch(query, *after):
        for _, key, text, name in rows:
            try:
                bodies.read(text)
            except ValueError as exc:
                count += 1
                problem = problem or f"row {key}: {exc}"
                bad[unescaped(name or "")] = None
        after = rows[-1][:2]
    if not count:
        return None
    text = f"{count} rows of {bodies.table} cannot be read: {problem}"
    return Finding(bodies.table, text, sessions=tuple(bad))


@frozen
class _Misnamed:
    """A session that is not found by its labels, or by its name among its peers; `marks` are as they should be."""

    key: int
    session_id: str
    labels: str
    marks: list[str] | None
    peer: bool


_NAMED: Final = f"""
    SELECT key, session_id, state, labels, marks, peer, details FROM warren.sessions
    WHERE key > $1::int8 AND state <> {DELETED} AND (
        labels <> '{{}}' OR marks <> '{{}}' OR peer IS NOT NULL OR strpos(details, '"peer":{{') > 0
    ) ORDER BY key LIMIT {PAGE}
"""


async def _misnamed(db: Connection) -> list[_Misnamed]:
    """Return the sessions with rows that differ from their records; unreadable records are left to `full`."""
    found, after = list[_Misnamed](), -1
    while rows := await db.fetch(_NAMED, after):
        for key, session_id, state, labels, marks, peer, details in rows:
            after = key
            try:
                wanted = marks_of(_any(labels))
                name = (codec.decode_stored(dict[str, Any], details).get("peer") or {}).get("name")
            except (ValueError, AttributeError):
                continue
            wrong = sorted(marks) != sorted(wanted)
            if wrong or (state == OPEN and peer != name):
                lost = state == OPEN and peer != name
                found.append(_Misnamed(key, unescaped(session_id), labels, wanted if wrong else None, lost))
    return found


# -- repairs


async def _labelled(db: Connection) -> int:
    """Make sessions findable by their labels; return how many. A change of the labels meanwhile wins."""
    done = 0
    for each in await _misnamed(db):
        if each.marks is not None:
            again = "UPDATE warren.sessions SET marks = $2::text[] WHERE key = $1::int8 AND labels = $3 RETURNING 1"
            done += len(await db.fetch(again, each.key, array(each.marks), each.labels))
    return done


async def _freed(config: PostgresConfig, sessions: list[str]) -> int:
    """Claim and release sessions of dead processes; return how many there were."""
    if not sessions:
        return 0
    freed = 0
    async with aclosing(await PostgresStore.open(config)) as store:
        for session_id in sessions:
            (claimed,) = await store.write([Claim(session_id)])
            if isinstance(claimed, WarrenError):
                raise claimed
            if isinstance(claimed, Claimed):
                await store.write([Release(session_id, claimed.lease)])
                freed += 1
    return freed
