"""The doctor on a store in PostgreSQL: its findings about the rows, the holders and the server."""

from collections.abc import Iterator
from functools import partial

import attrs
import psycopg
import pytest

from tests.storage.conformance.faults import every, postgres_opened
from tests.storage.files import blob, with_file
from tests.storage.samples import NOW, entry, kept, moved, step, turn, updated, wait
from tests.support.postgres import Server, database, fill, name_in, needs_postgres, server
from tests.support.waiting import until
from warren.base.errors import StoreError
from warren.conversation.memory import MemoryConfig, MemoryEntry
from warren.conversation.peers import Peer
from warren.reports.reports import Finding
from warren.settings.config import PostgresConfig
from warren.storage.maintenance.postgres.connecting import connected
from warren.storage.maintenance.postgres.doctor import MANY_DEAD, examine, fix
from warren.storage.memory.postgres import PostgresMemory
from warren.storage.operations import Archive, Attach, Claim, Claimed, Delete, Erased, Lease, Release
from warren.storage.postgres import PostgresStore
from warren.storage.postgres.guard import guard_of
from warren.storage.queries import SessionList, WaitingSessions

LESS = """
    DELETE FROM warren.memory_postings WHERE entry = 2
        AND term = (SELECT max(term) FROM warren.memory_postings WHERE entry = 2)
"""
OF_TESTS = {"durability", "autovacuum"}
"""Findings about the server of the tests: it may lose everything."""


@pytest.fixture(scope="module")
def durable() -> Iterator[str]:
    """Start a server with the settings of its makers; return the address of an empty store."""
    needs_postgres()
    own = Server.make(durable=True)
    try:
        fill(own, "postgres")
        yield own.url("postgres")
    finally:
        own.remove()


async def examined(url: str, *, full: bool = False) -> list[Finding]:
    """Return what the doctor finds besides the settings of the tests' server."""
    async with connected(PostgresConfig(url)) as db:
        await guard_of(db)  # as the first opening does
    report = await examine(PostgresConfig(url), full=full)
    return [finding for finding in report.findings if finding.check not in OF_TESTS]


async def test_a_healthy_store(durable: str) -> None:
    """It has no findings while it is used, and each fact is right."""
    async with postgres_opened(durable, lease=60.0) as store:
        await every(store, turn("a"), turn("a", 1), turn("b"), turn("c"), turn("d"))
        await every(store, Archive("c"), Delete("d"))
        report = await examine(PostgresConfig(durable), full=True)
        facts = report.store
        found = [finding for finding in report.findings if finding.check != "erasures"]
        assert (found, report.healthy) == ([], True)
        assert (facts.sessions, facts.archived, facts.deleted, facts.erasures_due) == (2, 1, 1, 1)
        assert (facts.messages, facts.events) == (8, 12)
        assert (facts.synchronous_commit, facts.standbys, facts.clock_ahead) == ("on", 0, 0.0)
        assert facts.bytes > 0
        assert facts.server[:2].isdigit()
        (holder,) = report.holders
        assert (holder.alive, holder.sessions) == (True, 3)


async def test_a_server_that_may_lose_turns_is_a_problem() -> None:
    """Each setting has its own finding, and goes with the setting."""
    with database() as url:
        report = await examine(PostgresConfig(url))
        lines = [finding.message for finding in report.findings]
        assert not report.healthy
        for text in ("synchronous_commit is off", "fsync is off", "full_page_writes is off", "autovacuum is off"):
            assert any(line.startswith(text) for line in lines), text
        server().run(name_in(url), f"ALTER DATABASE {name_in(url)} SET synchronous_commit = 'on'")
        report = await examine(PostgresConfig(url))
        assert not any("synchronous_commit" in finding.message for finding in report.findings)


RELEASED = (Release("a", Lease(1)), Release("b", Lease(1)))
DAMAGE = {
    "transcript": "DELETE FROM warren.messages WHERE position = 1 AND session = (SELECT min(key) FROM warren.sessions)",
    "head": "UPDATE warren.sessions SET head = 99 WHERE session_id = 'a'",
    "events": "UPDATE warren.sessions SET last_seq = 1 WHERE session_id = 'a'",
}


@pytest.mark.parametrize("check", DAMAGE)
async def test_rows_that_do_not_fit_are_found(check: str) -> None:
    """The finding names the session; it is no repair that could be made."""
    with database() as url:
        async with postgres_opened(url) as store:
            await every(store, moved(turn("a"), entry(1, 1)), turn("b"), *RELEASED)
        assert await examined(url, full=True) == []
        server().run(name_in(url), DAMAGE[check])
        (finding,) = await examined(url)
        assert (finding.check, finding.level, finding.sessions, finding.fixable) == (check, "problem", ("a",), False)


TURNS = {
    "turns": "UPDATE warren.sessions SET turn = '{}' WHERE session_id = 'a'",
    "turns: without its prompt": "UPDATE warren.sessions SET message_count = 0, turn = turn || ' ' WHERE key = 1",
    "turns: a call": "UPDATE warren.calls SET state = 'lost' WHERE session = 1",
    "calls": "UPDATE warren.sessions SET turn = NULL WHERE session_id = 'a'",
}


@pytest.mark.parametrize("what", TURNS)
async def test_open_turns_that_cannot_go_on_are_found_and_end(what: str) -> None:
    """The session is named; a repair leaves it without the turn, unless a process that lives has it."""
    with database() as url:
        async with postgres_opened(url, lease=60.0) as store:
            await every(store, step("a", calls=(kept(0),)), step("b", calls=(kept(0),)))
            assert await examined(url, full=True) == []
            server().run(name_in(url), TURNS[what])
            (finding,) = (each for each in await examined(url) if each.check != "transcript")
            check = what.partition(":")[0]
            assert (finding.check, finding.sessions, finding.fixable) == (check, ("a",), True)
            if check == "turns":
                left = "left 1 open turns alone that cannot be read: a process that lives holds their sessions"
                assert await fix(PostgresConfig(url)) == (left,)
            await every(store, *RELEASED)
        done = (
            "ended 1 open turns that cannot be read"
            if check == "turns"
            else "removed 1 rows of calls without an open turn"
        )
        assert await fix(PostgresConfig(url)) == (done,)
        assert [each for each in await examined(url, full=True) if each.check != "transcript"] == []
        async with postgres_opened(url) as store:
            assert list(await store.read(WaitingSessions())) == ["b"]
            (claimed,) = await store.write([Claim("a")])
            assert isinstance(claimed, Claimed)
            assert (claimed.record.turn, claimed.record.turn_open, claimed.calls) == (None, True, ())


WAITS = {
    "turns: a wait": ("UPDATE warren.waits SET reason = 'lost' WHERE wait_id = 'call-0'", "ended 1 open turns"),
    "waits": ("UPDATE warren.sessions SET turn = NULL, wakes = NULL", "settled 1 waits"),
    "waits: listed elsewhere": ("UPDATE warren.waits SET tenant = 'x'", "listed 2 waits"),
}


@pytest.mark.parametrize("what", WAITS)
async def test_waits_that_are_not_as_they_should_be_are_found_and_mended(what: str) -> None:
    """One that cannot be read ends its turn; others are settled, or listed for their own tenant."""
    statement, sentence = WAITS[what]
    with database() as url:
        async with postgres_opened(url) as store:
            await every(store, attrs.evolve(step("a"), waits=(wait(0), wait(1, "background"))), RELEASED[0])
        assert await examined(url, full=True) == []
        assert (await examine(PostgresConfig(url))).store.waits == 2
        server().run(name_in(url), statement)
        (finding,) = await examined(url)
        assert (finding.check, finding.sessions, finding.fixable) == (what.partition(":")[0], ("a",), True)
        (done,) = await fix(PostgresConfig(url))
        assert done.startswith(sentence)
        assert await examined(url, full=True) == []
        async with postgres_opened(url) as store:
            (claimed,) = await store.write([Claim("a")])
            assert isinstance(claimed, Claimed)
            left = ["call-0", "call-1"] if "elsewhere" in what else ["call-1"]
            assert [each.wait_id for each in claimed.waits] == left
            assert (claimed.record.turn is None) == ("elsewhere" not in what)


async def test_bodies_that_cannot_be_read_are_found_by_a_full_examination() -> None:
    """And events that overlap."""
    with database() as url:
        async with postgres_opened(url) as store:
            await every(store, turn("a"), turn("b"), *RELEASED)
        server().run(name_in(url), "UPDATE warren.messages SET body = '{\"type\": 1}' WHERE position = 1")
        server().run(name_in(url), "UPDATE warren.events SET body = '[' WHERE seq = 2")
        server().run(name_in(url), "UPDATE warren.events SET first_seq = 2 WHERE seq = 3")
        assert await examined(url) == []
        found = {(finding.check, finding.sessions) for finding in await examined(url, full=True)}
        assert found == {("messages", ("a", "b")), ("events", ("a", "b"))}


async def test_rows_of_no_session_are_removed() -> None:
    """Those of sessions stay."""
    with database() as url:
        async with postgres_opened(url) as store:
            await every(store, turn("a"), RELEASED[0])
        server().run(name_in(url), "INSERT INTO warren.messages VALUES (99, 0, 0, '{}'), (99, 1, 0, '{}')")
        (finding,) = await examined(url)
        assert (finding.message, finding.fixable) == ("2 rows of messages belong to no session", True)
        assert await fix(PostgresConfig(url)) == ("removed 2 rows of messages that belonged to no session",)
        assert await examined(url, full=True) == []
        assert server().run(name_in(url), "SELECT count(*) FROM warren.messages") == [(2,)]


async def test_files_are_compared_with_the_messages_that_name_them() -> None:
    """Rows and bytes of nobody go, a file is given back if its bytes are there, and lost ones are named."""
    with database() as url:
        async with postgres_opened(url) as store:
            await every(store, turn("a"), Attach("a", (blob(),)), with_file(turn("a", 1), blob()), RELEASED[0])
        assert await examined(url, full=True) == []
        run = partial(server().run, name_in(url))
        run("UPDATE warren.attachments SET blob = 99")
        run("INSERT INTO warren.blobs (tenant, sha256, body) VALUES ('default', 'x', '')")
        told = {(each.check, each.sessions, each.fixable) for each in await examined(url)}
        assert told == {("orphans", (), True), ("files", ("a",), True)}
        assert await fix(PostgresConfig(url)) == (
            "removed 1 rows of attachments that had no bytes",
            "gave sessions 1 files back that their messages name",
            "removed 1 rows of blobs that belonged to no session",
        )
        assert await examined(url, full=True) == []
        run("UPDATE warren.blobs SET body = '\\x00'")
        assert [(each.check, each.sessions) for each in await examined(url, full=True)] == [("files", ("a",))]
        run("DELETE FROM warren.blobs; DELETE FROM warren.attachments")
        assert [(each.sessions, each.fixable) for each in await examined(url)] == [(("a",), False)]


async def test_rows_of_the_ledger_are_looked_at() -> None:
    """One that a report could not read, or that no turn can have made, is a problem."""
    with database() as url:
        async with postgres_opened(url) as store:
            await every(store, turn("a"), RELEASED[0])
        assert await examined(url) == []
        for change in (
            "UPDATE warren.usage SET priced = 'NaN'",
            "UPDATE warren.usage SET priced = 0, input_tokens = -1",
            "UPDATE warren.usage SET input_tokens = 1, hour = hour + 1",
        ):
            server().run(name_in(url), change)
            (finding,) = await examined(url)
            assert (finding.check, finding.level, finding.fixable) == ("usage", "problem", False)
            assert finding.message.startswith("1 rows of the table usage cannot be right, one of the tenant 'default'")


async def test_sessions_of_dead_processes_are_freed() -> None:
    """Those of a process that lives are not, and neither are those that nobody has."""
    with database() as url:
        dead = await PostgresStore.open(PostgresConfig(url))
        await every(dead, turn("a"), turn("b"), turn("free"))
        assert await dead.write([Release("free", Lease(1))]) == [None]
        key = dead.me.key
        await dead.aclose(leave=False)
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("UPDATE warren.holders SET graced_until = now(), expires_at = now() WHERE key = %s", (key,))
        async with postgres_opened(url, lease=60.0) as store:
            await every(store, turn("c"))
            (finding,) = await examined(url)
            assert (finding.check, finding.level, finding.fixable) == ("leases", "notice", True)
            assert finding.sessions == ("a", "b")
            assert finding.message.startswith("1 crashed process still has 2 sessions: ")
            assert await fix(PostgresConfig(url)) == ("freed 2 sessions of processes that are dead",)
            assert await examined(url) == []
            holders = "SELECT session_id FROM warren.sessions WHERE holder IS NOT NULL"
            assert server().run(name_in(url), holders) == [("c",)]


async def test_a_slot_that_nothing_reads_keeps_the_log() -> None:
    """The notice names it."""
    with database() as url:
        server().run("postgres", "SELECT pg_create_physical_replication_slot('idle', true)")
        try:
            (finding,) = await examined(url)
            assert (finding.check, finding.level) == ("replication", "notice")
            assert "nothing reads the replication slot idle" in finding.message
        finally:
            server().run("postgres", "SELECT pg_drop_replication_slot('idle')")


TOLD = "SELECT 1 FROM pg_stat_user_tables WHERE relname = 'creations' AND n_dead_tup > 0 AND n_live_tup = 0"


async def test_dead_rows_of_a_table_are_told() -> None:
    """With the statement that removes them."""
    with database() as url:
        name = name_in(url)
        many = "INSERT INTO warren.creations SELECT n::text, 1, '' FROM generate_series(1, %s) AS n"
        server().run(name, many, MANY_DEAD)
        server().run(name, "DELETE FROM warren.creations")
        await until(lambda: server().run(name, TOLD))
        (finding,) = await examined(url)
        assert (finding.check, finding.level) == ("bloat", "notice")
        assert finding.message.endswith("run VACUUM warren.creations")
        server().run(name, "VACUUM warren.creations")
        assert await examined(url) == []


ENTRY = """
    INSERT INTO warren.memory_entries (session, position, turn, created_at, terms, content) VALUES (1, 1, 1, 0, '', 'x')
"""


async def test_a_memory_without_pgvector_is_told() -> None:
    """A store without a memory needs no vectors."""
    columns = "session bigint, position bigint, turn bigint, created_at bigint, terms bytea, content text"
    with database() as url:
        server().run(name_in(url), f"CREATE TABLE IF NOT EXISTS warren.memory_entries ({columns})")
        assert await examined(url) == []
        server().run(name_in(url), ENTRY)
        (finding,) = [each for each in await examined(url) if each.check != "memory"]
        assert (finding.check, finding.level) == ("pgvector", "notice")


async def test_a_server_with_another_clock_or_that_cannot_be_written_is_told() -> None:
    """Both are functions of the server, which others of the same names stand in for."""
    with database() as url:
        name = name_in(url)
        assert await examined(url) == []
        replace = """
            SET allow_system_table_mods = on;
            ALTER FUNCTION pg_catalog.{0}() RENAME TO true_{0};
            CREATE FUNCTION pg_catalog.{0}() RETURNS {1} LANGUAGE sql RETURN {2}
        """
        server().run(name, replace.format("clock_timestamp", "timestamptz", "now() + '1 hour'"))
        server().run(name, replace.format("pg_is_in_recovery", "boolean", "true"))
        report = await examine(PostgresConfig(url))
        standby, clock = [finding for finding in report.findings if finding.check not in OF_TESTS]
        assert (standby.check, standby.level, clock.check, clock.level) == ("standby", "problem", "clock", "notice")
        assert "the clock of the server is 3600 s ahead of this machine's" in clock.message
        assert report.store.clock_ahead == pytest.approx(3600, abs=30)


async def test_a_database_without_a_store_is_none() -> None:
    """Nor is one whose tables are too new."""
    with database() as url:
        server().run(name_in(url), "UPDATE warren.meta SET version = 99, needs = 99")
        with pytest.raises(StoreError, match="use a newer version of Warren") as raised:
            await examine(PostgresConfig(url))
        assert raised.value.cause == "newer_schema"
        server().run(name_in(url), "DROP SCHEMA warren CASCADE")
        for work in (examine, fix):
            with pytest.raises(StoreError, match="run `warren store init`") as raised:
                await work(PostgresConfig(url))
            assert raised.value.cause == "missing"


async def test_a_memory_with_rows_that_do_not_fit_together() -> None:
    """Each fault is a finding; `--fix` repairs all of them, and searches find what they found before."""
    with database() as url:
        name = name_in(url)
        async with postgres_opened(url, lease=60.0) as store:
            await every(store, turn("a"), turn("gone"))
            await every(store, Delete("gone"), Erased("gone"), *(Release(each, Lease(1)) for each in ("a",)))
        memory = await PostgresMemory.open(MemoryConfig(url=url))
        texts = [f"the door number {number} is blue, blue" for number in range(6)]
        await memory.index([MemoryEntry("a", at, 1, text, NOW) for at, text in enumerate(texts)])
        expected = await memory.search("door 3")
        await memory.index([MemoryEntry("gone", 0, 1, "a secret", NOW), MemoryEntry("lost", 0, 1, "lost text", NOW)])
        faults = [finding.message for finding in await examined(url) if finding.check == "memory"]
        assert faults == ["texts of 1 deleted session are still remembered"]
        for sql in (
            "DELETE FROM warren.memory_postings WHERE entry = 1",
            LESS,
            "INSERT INTO warren.memory_postings VALUES (999, 7, 1, 1)",
            "DELETE FROM warren.memory_sessions WHERE session_id = 'lost'",
            "UPDATE warren.memory_sessions SET entries = 70 WHERE session_id = 'a'",
            "UPDATE warren.memory_totals SET terms = terms + 5 WHERE slot = 3",
        ):
            server().run(name, sql)
        found = [finding for finding in await examined(url) if finding.check == "memory"]
        assert [finding.message for finding in found] == [
            "1 texts of the memory belong to no session",
            "words of 1 texts that are gone are left in the memory",
            "2 texts of the memory cannot be found by all of their words",
            "texts of 1 deleted session are still remembered",
            "the memory's counts of its texts are wrong, and so, slightly, are the weights of words",
        ]
        assert all(finding.fixable for finding in found)
        assert found[3].sessions == ("gone",)
        assert await fix(PostgresConfig(url)) == (
            "forgot the texts of 1 deleted sessions",
            "removed 1 texts of the memory that belonged to no session",
            "made the words and the counts of the memory anew from its texts",
        )
        assert [finding for finding in await examined(url) if finding.check == "memory"] == []
        assert await fix(PostgresConfig(url)) == ()
        assert await memory.search("door 3") == expected
        assert await memory.search("secret") == []
        await memory.aclose()


async def test_labels_and_names_that_find_nothing() -> None:
    """Both are findings; labels are repaired, also of a session that is used, and a name is left as it is."""
    with database() as url:
        async with postgres_opened(url, lease=60.0) as store:
            await every(store, turn("a", labels={"k": "v"}), turn("b"), updated(turn("p"), peer=Peer("scout")))
            assert [each.check for each in await examined(url) if each.check in ("labels", "peers")] == []
            server().run(name_in(url), "UPDATE warren.sessions SET marks = '{}' WHERE session_id = 'a'")
            server().run(
                name_in(url), "UPDATE warren.sessions SET marks = ARRAY['[\"x\",\"y\"]'] WHERE session_id = 'b'"
            )
            server().run(name_in(url), "UPDATE warren.sessions SET peer = 'other' WHERE session_id = 'p'")
            found = {each.check: each for each in await examined(url)}
            assert (found["labels"].sessions, found["labels"].fixable) == (("a", "b"), True)
            assert (found["peers"].sessions, found["peers"].fixable) == (("p",), False)
            assert not list(await store.read(SessionList("default", labels={"k": "v"})))
            assert await fix(PostgresConfig(url)) == ("made 2 sessions findable by their labels",)
            assert [each.session_id for each in await store.read(SessionList("default", labels={"k": "v"}))] == ["a"]
            assert not list(await store.read(SessionList("default", labels={"x": "y"})))
            assert "labels" not in {each.check for each in await examined(url)}
