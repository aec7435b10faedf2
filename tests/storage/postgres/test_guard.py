"""Row-level security: the role that reads for callers sees one tenant, also if a query has lost its own condition."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import psycopg
import pytest
from psycopg import errors, sql

from tests.storage.conformance.faults import every, postgres_opened
from tests.storage.conformance.homes import done, put
from tests.storage.files import blob
from tests.storage.memory.samples import entries
from tests.storage.postgres.plans import BIG, MANY, Recorder
from tests.storage.samples import NOW, turn
from tests.storage.tenants import of_tenant, seen
from tests.support.postgres import database, name_in, server
from warren.conversation.memory import MemoryConfig
from warren.reports.audit import AuditEntry
from warren.settings.config import PostgresConfig
from warren.storage.maintenance.postgres.doctor import examine
from warren.storage.memory.postgres import PostgresMemory
from warren.storage.operations import Attach, Audit
from warren.storage.postgres.driver import Connection
from warren.storage.postgres.guard import TABLES, Guarded, guard_of
from warren.storage.postgres.lease import Holder
from warren.storage.postgres.queries import QUERIES
from warren.storage.postgres.reading import Reading
from warren.storage.queries import (
    ANY_TENANT,
    Children,
    CreatedUnder,
    HasSession,
    LostEvents,
    PeerNamed,
    Query,
    SessionHolder,
    SessionList,
    SessionRow,
    StoredHistory,
    WaitingInputs,
)

ALL_TABLES = "SELECT tablename::text FROM pg_tables WHERE schemaname = 'warren' ORDER BY 1"
COMPACTED = """
    INSERT INTO warren.compactions (session, step, created_at, head, messages_before, messages_after, summary,
        summary_tokens) SELECT key, 1, 0, 1, 2, 1, session_id, 1 FROM warren.sessions
"""
CALLED = """
    INSERT INTO warren.calls (session, place, call_id, state, body)
    SELECT key, 0, session_id, 'begun', '{}' FROM warren.sessions
"""
WAITED = """
    INSERT INTO warren.waits (session, tenant, reason, wait_id, state, since, until, body)
    SELECT key, tenant, 'approval', session_id, 'waiting', 0, 0, '{}' FROM warren.sessions
"""
SCHEDULED = """
    INSERT INTO warren.schedules (id, tenant, body) SELECT session_id, tenant, '{}' FROM warren.sessions;
    INSERT INTO warren.schedule_runs (schedule, due, tenant, body)
    SELECT key, 0, tenant, '{}' FROM warren.schedules
"""
TRIGGERED = """
    INSERT INTO warren.triggers (id, tenant, secret, body) SELECT session_id, tenant, '', '{}' FROM warren.sessions;
    INSERT INTO warren.trigger_deliveries (trigger_key, delivery, at, state, tenant, body)
    SELECT key, '', 0, 'skipped', tenant, '{}' FROM warren.triggers
"""
HOOKED = """
    INSERT INTO warren.webhooks (id, tenant, paused, body) SELECT session_id, tenant, 0, '{}' FROM warren.sessions;
    INSERT INTO warren.deliveries (id, webhook, tenant, session, type, created_at, state, attempts, body)
    SELECT session_id, session_id, tenant, key, 'turn.failed', 0, 'dead', 1, '{}' FROM warren.sessions
"""
AGENTS = """
    INSERT INTO warren.agents (tenant, name, version, created_at, body)
    SELECT tenant, 'desk', '', 0, '{}' FROM warren.sessions
"""
HOLDER = "INSERT INTO warren.holders (name, version, expires_at, graced_until) VALUES ('x', 1, now(), now())"
# How a row of each table tells whose it is: the text contains the tenant.
WHOSE = {
    "sessions": "session_id",
    "creations": "tenant",
    "usage": "tenant",
    "audit": "tenant",
    "memory_sessions": "session_id",
    "memory_entries": "content",
    "messages": "(SELECT session_id FROM sessions_of WHERE key = t.session)",
    "events": "(SELECT session_id FROM sessions_of WHERE key = t.session)",
    "calls": "(SELECT session_id FROM sessions_of WHERE key = t.session)",
    "inbox": "(SELECT session_id FROM sessions_of WHERE key = t.session)",
    "compactions": "(SELECT session_id FROM sessions_of WHERE key = t.session)",
    "attachments": "(SELECT session_id FROM sessions_of WHERE key = t.session)",
    "blobs": "tenant",
    "waits": "tenant",
    "schedules": "tenant",
    "schedule_runs": "tenant",
    "triggers": "tenant",
    "trigger_deliveries": "tenant",
    "webhooks": "tenant",
    "deliveries": "tenant",
    "agents": "tenant",
}


async def fill(url: str) -> None:
    """Store rows of two tenants in all tables that callers read."""
    async with postgres_opened(url) as store:
        for tenant in ("acme", "other"):
            await every(store, of_tenant(f"of {tenant}", tenant, "scout"))
            await done(store, put("hi", session_id=f"of {tenant}"))
            await done(store, Attach(f"of {tenant}", (blob(),)))
            await done(store, Audit((AuditEntry(at=NOW, action="interrupt", who="scout", tenant=tenant),)))
    memory = await PostgresMemory.open(MemoryConfig(url=url))
    for tenant in ("acme", "other"):
        await memory.index(entries([f"door of {tenant}"], session=f"of {tenant}"), tenant=tenant)
    await memory.aclose()
    server().run(name_in(url), COMPACTED)
    server().run(name_in(url), CALLED)
    server().run(name_in(url), WAITED)
    server().run(name_in(url), SCHEDULED)
    server().run(name_in(url), TRIGGERED)
    server().run(name_in(url), HOOKED)
    server().run(name_in(url), AGENTS)
    server().run(name_in(url), HOLDER)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    """Open a connection as the login role."""
    db = await Connection.open(PostgresConfig(url), "test")
    try:
        yield db
    finally:
        db.close()


async def role_in(url: str) -> str:
    """Return the role that reads for callers."""
    async with connected(url) as db:
        role = (await guard_of(db)).role
        assert role is not None
        return role


async def test_without_a_tenant_no_table_can_be_read() -> None:
    """Whether none was ever set on the connection, or it ended with its transaction; a table without a policy too."""
    with database() as url:
        await fill(url)
        role = await role_in(url)
        tables = [name for (name,) in server().run(name_in(url), ALL_TABLES)]
        with psycopg.connect(url, autocommit=True) as db:
            for _ in ("never", "before"):
                for table in tables:
                    with db.transaction(force_rollback=True):
                        db.execute(f"SET LOCAL ROLE {role}".encode())
                        with pytest.raises(errors.InsufficientPrivilege):
                            assert db.execute(f"SELECT FROM warren.{table}".encode()).rowcount == -1, table
                with db.transaction():
                    db.execute(b"SELECT set_config('warren.tenant', 'acme', true)")


async def test_with_a_tenant_there_is_no_row_of_another_one() -> None:
    """All tables of the catalog: each has a policy and rows of both, or the role has no right to it."""
    with database() as url:
        await fill(url)
        role = await role_in(url)
        tables = [name for (name,) in server().run(name_in(url), ALL_TABLES)]
        assert set(TABLES) <= set(tables)
        assert set(TABLES) == {*WHOSE, "holders"}
        with psycopg.connect(url) as db:
            db.execute(b"CREATE TEMP TABLE sessions_of AS SELECT key, session_id FROM warren.sessions")
            db.execute(f"GRANT SELECT ON sessions_of TO {role}".encode())
            everything = {name: whose(db, name) for name in WHOSE}
            db.execute(f"SET LOCAL ROLE {role}".encode())
            db.execute(b"SELECT set_config('warren.tenant', 'acme', true)")
            for name in tables:
                if name in WHOSE:
                    found, total = whose(db, name), everything[name]
                    assert any("other" in each for each in total), name
                    assert found == [each for each in total if "acme" in each], name
                elif name not in TABLES:
                    with pytest.raises(errors.InsufficientPrivilege), db.transaction():
                        db.execute(f"SELECT FROM warren.{name}".encode())


def whose(db: "psycopg.Connection[tuple[str]]", table: str) -> list[str]:
    """Return a text for each row of a table that names the tenant of the row."""
    return sorted(each for (each,) in db.execute(f"SELECT {WHOSE[table]} FROM warren.{table} t".encode()))  # noqa: S608 - names of this module


async def test_a_query_without_its_condition_finds_only_rows_of_the_tenant() -> None:
    """The same queries as the login role find all; texts of the memory are found by their keys alone."""
    with database() as url:
        await fill(url)
        async with connected(url) as db:
            guarded = (await guard_of(db)).on(db, "acme")
            assert isinstance(guarded, Guarded)
            of_any, me = QUERIES[SessionRow], Holder("me", 15.0, key=1)
            assert await of_any(Reading(db, db, me), SessionRow("of other", ANY_TENANT)) is not None
            assert await of_any(Reading(guarded, db, me), SessionRow("of other", ANY_TENANT)) is None
            assert await of_any(Reading(guarded, db, me), SessionRow("of acme", ANY_TENANT)) is not None
            for query, mine in (
                ("SELECT session_id FROM warren.sessions", [("of acme",)]),
                ("SELECT content FROM warren.memory_entries", [("door of acme",)]),
                ("SELECT summary FROM warren.compactions", [("of acme",)]),
            ):
                assert len(await db.fetch(query)) == 2
                assert await guarded.fetch(query) == mine
            # The role and the tenant end with the call.
            assert len(await db.fetch("SELECT FROM warren.sessions")) == 2


async def test_a_call_that_fails_leaves_neither_its_role_nor_its_tenant() -> None:
    """The connection is used again."""
    with database() as url:
        await fill(url)
        async with connected(url) as db:
            guarded = (await guard_of(db)).on(db, "acme")
            for _ in range(2):
                with pytest.raises(errors.DivisionByZero):
                    await guarded.fetch_each(("SELECT 1",), ("SELECT 1 / $1::int", 0), ("SELECT 2",))
                with pytest.raises(errors.InsufficientPrivilege):
                    await guarded.fetch("SELECT FROM warren.writers")
            assert (await db.fetch("SELECT current_user, current_setting('warren.tenant', true)"))[0] == ("warren", "")
            assert await guarded.fetch("SELECT session_id FROM warren.sessions") == [("of acme",)]


READS: Final[Sequence[Query[Any]]] = [
    *(of("s5", "default") for of in (HasSession, SessionRow, SessionHolder, Children, StoredHistory, WaitingInputs)),
    LostEvents("s5", "default", 2),
    PeerNamed("default", "p"),
    CreatedUnder("default", "k"),
    *(
        SessionList("default", 9, 50, labels, include_archived)
        for labels in ({}, {"a": "b"})
        for include_archived in (False, True)
    ),
]


async def test_the_reads_of_a_tenant_come_from_indexes_behind_the_policies() -> None:
    """The newest list and all that is read of one session, whatever the parameters are."""
    with database() as url:
        role, recorder, login = await role_in(url), Recorder(), Recorder()
        at = Reading(recorder, login, Holder("me", 15.0, key=1))  # type: ignore[arg-type]
        for read in READS:
            await QUERIES[type(read)](at, read)
        with psycopg.connect(url) as db:
            db.execute(MANY.encode())
            db.execute(b"SET LOCAL plan_cache_mode = force_generic_plan")
            db.execute(b"SELECT set_config('warren.tenant', 'default', true)")
            db.execute(f"SET LOCAL ROLE {role}".encode())
            for query, values in recorder.noted:
                db.execute(f"PREPARE read AS {query}".encode())
                given = sql.SQL(", ").join(map(sql.Literal, values))
                plan = db.execute(sql.SQL("EXPLAIN EXECUTE read ({})").format(given)).fetchall()
                lines = "\n".join(line for (line,) in plan)
                assert not [each for each in BIG if f"Seq Scan on {each}" in lines], lines
                assert "updated_at DESC" not in query or "sessions_of_tenant" in lines or "ANY" in query, lines
                db.execute(b"DEALLOCATE read")


async def test_a_login_that_may_create_no_role_works_without_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """After the two lines of an operator, row-level security is there with the next opening."""
    with database() as url:
        name = name_in(url)
        login = f"owner_{name}"
        server().run(name, f"CREATE ROLE {login} LOGIN; GRANT ALL ON DATABASE {name} TO {login}")
        limited = url.replace("warren@", f"{login}@")
        try:
            server().run(name, "DROP SCHEMA warren CASCADE")
            with caplog.at_level(logging.WARNING, "warren.storage"):
                async with postgres_opened(limited) as store:
                    await every(store, of_tenant("a", "acme", "scout"))
                    assert await store.read(SessionRow("a", "acme")) is not None
                    assert await store.read(SessionRow("a", "other")) is None
            assert "tenants are kept apart by Warren's own queries alone" in caplog.text
            assert any("warren_reader_" in each.message for each in (await examine(PostgresConfig(limited))).findings)
            ((oid,),) = server().run(name, "SELECT oid::int8 FROM pg_database WHERE datname = current_database()")
            server().run(name, f"CREATE ROLE warren_reader_{oid}; GRANT warren_reader_{oid} TO {login}")
            assert await role_in(limited) == f"warren_reader_{oid}"
            async with postgres_opened(limited) as store:
                assert await store.read(SessionRow("a", "acme")) is not None
                assert await seen(store, "other", "a") == await seen(store, "other", "unknown")
            found = (await examine(PostgresConfig(limited))).findings
            assert not any("warren_reader_" in each.message for each in found)
        finally:
            server().run(name, f"DROP OWNED BY {login}; DROP ROLE {login}")


async def test_a_login_that_does_not_own_the_tables_writes_for_all_tenants() -> None:
    """It is no reader, so no policy hides a row from it, also as a member of the role that reads for callers."""
    with database() as url:
        name = name_in(url)
        role, login = await role_in(url), f"app_{name}"
        server().run(name, f"CREATE ROLE {login} LOGIN; GRANT {role} TO {login}")
        try:
            server().run(name, f"GRANT USAGE ON SCHEMA warren TO {login}")
            server().run(name, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA warren TO {login}")
            server().run(name, f"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA warren TO {login}")
            limited = url.replace("warren@", f"{login}@")
            assert await role_in(limited) == role
            async with postgres_opened(limited) as store:
                for tenant in ("acme", "other"):
                    await every(store, of_tenant(f"of {tenant}", tenant, "scout"))
                await every(store, turn("c"))
                assert (await store.read(SessionRow("of other", ANY_TENANT))) is not None
                assert [each.session_id for each in await store.read(SessionList("acme", labels={"team": "red"}))] == [
                    "of acme"
                ]
                assert await store.read(SessionRow("of other", "acme")) is None
        finally:
            server().run(name, f"DROP OWNED BY {login}; DROP ROLE {login}")
