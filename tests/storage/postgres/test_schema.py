"""The tables of a PostgreSQL store: who may create them, and which are refused."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version

import attrs
import psycopg
import pytest
import trio
from psycopg import errors

from tests.storage.conformance.faults import every, postgres_opened
from tests.storage.memory.samples import SubjectEmbedder, entries, opened
from tests.storage.samples import kept, step, turn, wait
from tests.support.postgres import (
    Server,
    database,
    database_with_vectors,
    name_in,
    needs_postgres,
    server,
    server_with_vectors,
)
from warren.base.errors import StoreError
from warren.settings.config import PostgresConfig
from warren.storage.maintenance.plans import Plan, Share
from warren.storage.maintenance.postgres.doctor import fix
from warren.storage.maintenance.postgres.migration import look, migrate, part_of
from warren.storage.maintenance.postgres.retention import prune
from warren.storage.postgres import PostgresStore
from warren.storage.postgres.driver import Connection
from warren.storage.postgres.lease import OLDER
from warren.storage.postgres.schema import SCHEMA, State, contract, expand, state_of
from warren.storage.queries import ANY_TENANT, OpenWaits, SessionRow, WaitingSessions


async def test_an_empty_database_gets_its_tables() -> None:
    """By several programs that open it at the same moment, and once."""
    needs_postgres()
    with database() as url:
        server().run(name_in(url), "DROP SCHEMA warren CASCADE")
        async with postgres_opened(url, timeout=20.0) as one, postgres_opened(url) as two:
            await every(one, turn("a"))
            assert await two.read(SessionRow("a", ANY_TENANT)) == turn("a").record
        assert server().run(name_in(url), "SELECT version FROM warren.meta") == [(SCHEMA.version,)]


# What the next two releases make of the tables: the first one adds a column, the second one drops another.
NEXT = attrs.evolve(
    SCHEMA,
    expansions=(*SCHEMA.expansions, "ALTER TABLE warren.sessions ADD later text NOT NULL DEFAULT 'new'"),
)
AFTER = attrs.evolve(NEXT, contractions={NEXT.version: "ALTER TABLE warren.sessions DROP COLUMN title CASCADE"})


async def test_an_older_release_goes_on_while_a_newer_one_expands_the_tables() -> None:
    """It neither stops nor loses a turn, also if it starts anew; the tables tell both versions."""
    with database() as url:
        async with postgres_opened(url) as store, administering(url) as db:
            await every(store, turn("a"))
            assert await store.read(SessionRow("a", ANY_TENANT)) == turn("a").record
            assert (await expand(db, NEXT)).version == SCHEMA.version
            await every(store, turn("a", 1), turn("b"))
            assert await store.read(SessionRow("a", ANY_TENANT)) == turn("a", 1).record
            assert server().run(name_in(url), "SELECT session_id, later FROM warren.sessions ORDER BY 1") == [
                ("a", "new"),
                ("b", "new"),
            ]
        async with postgres_opened(url) as again:
            await every(again, turn("c"))
            assert await again.read(SessionRow("a", ANY_TENANT)) == turn("a", 1).record
        found = server().run(name_in(url), "SELECT version, needs, release FROM warren.meta")
        assert found == [(NEXT.version, 1, version("warren"))]


async def test_a_turn_that_an_older_release_has_ended_is_open_no_more() -> None:
    """It does not know the state of the turn, and leaves it as it was; nobody goes on with that turn then."""
    ends = "UPDATE warren.sessions SET turns = turns + 1, message_count = message_count + 1 WHERE session_id = 'a'"
    with database() as url:
        async with postgres_opened(url) as store:
            await every(store, step("a", calls=(kept(0),)), step("b", calls=(kept(0),)))
            server().run(name_in(url), "UPDATE warren.sessions SET last_seq = last_seq + 9")
            assert list(await store.read(WaitingSessions())) == ["a", "b"]
            server().run(name_in(url), ends)
            assert list(await store.read(WaitingSessions())) == ["b"]
            assert server().run(name_in(url), "SELECT session FROM warren.calls") == [(2,)]


async def test_a_turn_with_which_an_older_release_goes_on_sleeps_no_more() -> None:
    """That release knows the state of the turn and not its time; what calls wait for is over with the turn."""
    goes_on = "UPDATE warren.sessions SET turn = turn || ' ', message_count = message_count + 1 WHERE session_id = 'a'"
    ends = "UPDATE warren.sessions SET turn = NULL, turns = turns + 1 WHERE session_id = 'b'"
    unaware = "UPDATE warren.sessions SET turns = turns + 1 WHERE session_id = 'c'"
    wakes = datetime(2126, 1, 1, tzinfo=UTC)
    with database() as url:
        async with postgres_opened(url) as store:
            asleep = [step(each, wakes=wakes) for each in "abc"]
            await every(store, *(attrs.evolve(each, waits=(wait(0), wait(1, "background"))) for each in asleep))
            server().run(name_in(url), "UPDATE warren.waits SET state = 'settled' WHERE reason = 'background'")
            assert list(await store.read(WaitingSessions())) == []
            server().run(name_in(url), goes_on)
            assert list(await store.read(WaitingSessions())) == ["a"]
            for statement in (ends, unaware):
                server().run(name_in(url), statement)
            assert server().run(name_in(url), "SELECT session_id, wakes FROM warren.sessions ORDER BY 1") == [
                ("a", None),
                ("b", None),
                ("c", None),
            ]
            assert set(await store.read(OpenWaits("abc"))) == {"a"}


async def test_the_tables_are_not_contracted_while_an_older_release_lives() -> None:
    """The program in the way is named; once it has ended, it is refused with the version that it needs."""
    with database() as url:
        async with administering(url) as db:
            await expand(db, AFTER)
            async with postgres_opened(url) as store:
                await every(store, turn("a"))
                needs, names = await contract(db, AFTER, OLDER)
                assert (needs, len(names)) == (1, 1)
                assert f"process {os.getpid()}" in names[0]
                await every(store, turn("a", 1))
            assert await contract(db, AFTER, OLDER) == (NEXT.version, ())
            assert await contract(db, AFTER, OLDER) == (NEXT.version, ())
        wanted = (
            f"version {NEXT.version} and need a program that knows version {NEXT.version} .Warren {version('warren')}"
        )
        with pytest.raises(StoreError, match=wanted) as raised:
            await PostgresStore.open(PostgresConfig(url))
        assert (raised.value.cause, raised.value.retryable) == ("newer_schema", False)
        assert f"knows up to {SCHEMA.version}: use a newer" in raised.value.message


async def test_repairs_and_retention_bring_older_tables_up_to_date() -> None:
    """As they do with a file: what they look at may not be there yet."""
    older = attrs.evolve(SCHEMA, expansions=SCHEMA.expansions[:22])
    with database() as url:
        for work in ("fix", "prune"):
            server().run(name_in(url), "DROP SCHEMA warren CASCADE")
            async with administering(url) as db:
                await expand(db, older)
            if work == "fix":
                assert await fix(PostgresConfig(url)) == ()
            else:
                planned = Plan((Share("a", "messages", 1, 1, 1),))
                assert (await prune(PostgresConfig(url), planned)).messages == 0
            async with administering(url) as db:
                assert (await state_of(db)).version == SCHEMA.version


async def test_an_operator_expands_first_and_contracts_once_the_older_release_has_ended() -> None:
    """The output of `warren store migrate` and `warren store status` between the steps."""
    with database() as url:
        config = PostgresConfig(url)
        async with postgres_opened(url, lease=60.0) as store:
            await every(store, turn("a"))
            with pytest.raises(StoreError, match=f"nothing is removed: end .*process {os.getpid()}") as raised:
                await migrate(config, AFTER, make=False, contracting=True)
            assert raised.value.cause == "leased"
            seen = await look(config, AFTER)
            assert (seen.state, seen.version, seen.needs, seen.contractible) == ("current", NEXT.version, 1, True)
            assert [each.version for each in seen.programs] == [SCHEMA.version]
            assert (await look(config)).state == "newer"
        before = await migrate(config, AFTER, make=False, contracting=True)
        assert (before.version, before.needs) == (NEXT.version, 1)
        seen = await look(config, AFTER)
        assert (seen.state, seen.needs, seen.contractible, seen.programs) == ("current", NEXT.version, False, ())
        assert (await look(config)).state == "too_new"


async def test_a_program_that_is_about_to_write_sees_that_the_tables_were_contracted() -> None:
    """Between its look at the tables and its first write it is not known to others yet."""
    with database() as url:
        async with postgres_opened(url) as store, administering(url) as db:
            await expand(db, AFTER)
            assert await contract(db, AFTER, OLDER) == (NEXT.version, ())
            (outcome,) = await store.write([turn("a")])
            assert isinstance(outcome, StoreError)
            assert (outcome.cause, outcome.retryable) == ("newer_schema", False)


async def test_new_tables_are_made_without_what_only_older_releases_use() -> None:
    """There is no older program that could use them, and no writer that an index could be built beside."""
    needs_postgres()
    with database() as url:
        server().run(name_in(url), "DROP SCHEMA warren CASCADE")
        newest = attrs.evolve(AFTER, expansions=(*AFTER.expansions, INDEX))
        async with administering(url) as db:
            assert await expand(db, newest) == State()
            assert await state_of(db) == State(newest.version, NEXT.version, version("warren"))
            assert server().run(name_in(url), VALID) == [(True,)]
            assert not await db.fetch("SELECT FROM pg_attribute WHERE attname = 'title' AND NOT attisdropped")


async def test_a_migration_waits_for_another_one_but_not_for_ever_for_a_table() -> None:
    """A statement that waits for a table keeps all later ones waiting, so it gives up soon; nothing is changed."""
    with database() as url, psycopg.connect(url) as reader:
        reader.execute("SELECT FROM warren.sessions")
        async with administering(url) as db:
            with pytest.raises(errors.LockNotAvailable):
                await expand(db, NEXT)
            assert (await state_of(db)).version == SCHEMA.version
            reader.rollback()
            await expand(db, NEXT)
            assert (await state_of(db)).version == NEXT.version


INDEX = "CREATE INDEX CONCURRENTLY events_times ON warren.events (timestamp)"
INDEXED = attrs.evolve(NEXT, expansions=(*SCHEMA.expansions, INDEX, *NEXT.expansions[-1:]))
VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('warren.events_times')"


@asynccontextmanager
async def writing(url: str) -> AsyncIterator[None]:
    """Keep a transaction open that may write events: an index of them that is built begins with waiting for it."""
    with psycopg.connect(url) as writer:
        writer.execute("LOCK TABLE warren.events IN ROW EXCLUSIVE MODE")
        yield


async def until_built(name: str, on: Server | None = None) -> None:
    """Return once an index is there, finished or not."""
    while not (on or server()).run(name, VALID):  # noqa: ASYNC110 - a server has no events
        await trio.sleep(0.01)


async def test_programs_write_while_an_index_is_built() -> None:
    """It waits for a transaction that was there before it, and nobody waits for it; then the scripts behind it run."""
    with database() as url:
        async with postgres_opened(url) as store, trio.open_nursery() as nursery:
            await every(store, turn("a"))
            async with writing(url):
                nursery.start_soon(partial(migrate, PostgresConfig(url), INDEXED, make=False))
                await until_built(name_in(url))
                await every(store, turn("a", 1), turn("b"))
                assert server().run(name_in(url), VALID) == [(False,)]
                assert (await look(PostgresConfig(url), INDEXED)).version == SCHEMA.version
        assert server().run(name_in(url), VALID) == [(True,)]
        assert server().run(name_in(url), "SELECT later FROM warren.sessions") == [("new",), ("new",)]
        assert (await look(PostgresConfig(url), INDEXED)).state == "current"


async def test_the_progress_of_an_expansion() -> None:
    """It goes from nothing to all versions; an index that is being built counts by the rows that it has seen."""
    with database() as url:
        seen: list[tuple[int, int]] = []
        before = await migrate(PostgresConfig(url), INDEXED, make=False, progress=lambda *each: seen.append(each))
        total = 100 * (INDEXED.version - before.version)
        assert (seen[0], seen[-1], seen) == ((0, total), (total, total), sorted(seen))
    phases = ("initializing", "building index: scanning table", "building index: sorting live tuples")
    assert [part_of(phase, 50, 100) for phase in phases] == [0.0, 0.25, 0.5]
    assert [part_of("index validation: scanning table", done, 100) for done in (0, 50, 110)] == [0.5, 0.75, 1.0]


async def test_an_index_that_was_left_unfinished_is_built_again() -> None:
    """A program that opens the store has no more time for it than for a statement; the next one finishes the work."""
    with database() as url:
        async with administering(url, lock_timeout=0.2) as db, writing(url):
            with pytest.raises(errors.LockNotAvailable):
                await expand(db, INDEXED)
            assert (await state_of(db)).version == SCHEMA.version
            assert server().run(name_in(url), VALID) == [(False,)]
        async with administering(url, timeout=0.5, lock_timeout=30.0) as db, writing(url):
            with pytest.raises(StoreError, match="run `warren store migrate`"):
                await expand(db, INDEXED)
            assert server().run(name_in(url), VALID) == [(False,)]
        async with administering(url) as db:
            await expand(db, INDEXED)
            assert (await state_of(db)).version == INDEXED.version
        assert server().run(name_in(url), VALID) == [(True,)]


async def test_an_index_that_is_there_is_not_built_again() -> None:
    """The connection may end between the index and the note of it."""
    with database() as url:
        server().run(name_in(url), INDEX)
        before = server().run(name_in(url), "SELECT 'warren.events_times'::regclass::oid::int8")
        async with administering(url) as db:
            await expand(db, INDEXED)
            assert (await state_of(db)).version == INDEXED.version
        assert server().run(name_in(url), "SELECT 'warren.events_times'::regclass::oid::int8") == before


async def test_programs_that_migrate_at_once_do_not_wait_for_each_other_for_ever() -> None:
    """A statement that waited for the other one's lock would be one of those that an index waits for."""
    with database() as url:
        async with trio.open_nursery() as nursery, writing(url):
            for _ in range(3):
                nursery.start_soon(partial(migrate, PostgresConfig(url), INDEXED, make=False))
            await until_built(name_in(url))
            async with administering(url, timeout=0.3) as db:
                with pytest.raises(StoreError, match="another program is changing the tables") as raised:
                    await expand(db, INDEXED)
                assert raised.value.cause == "locked"
        assert server().run(name_in(url), VALID) == [(True,)]
        assert (await look(PostgresConfig(url), INDEXED)).state == "current"


async def test_a_memory_makes_its_tables_while_another_program_builds_an_index() -> None:
    """The table of vectors and their graph are changes as well: they come after the index, and neither fails."""
    with database_with_vectors() as url:
        on = server_with_vectors()
        assert on is not None

        async def remember() -> None:
            async with opened(url, SubjectEmbedder(), name="subjects") as memory:
                assert await memory.index(entries(["cat dog", "car engine"])) == 2

        async with trio.open_nursery() as nursery, writing(url):
            nursery.start_soon(partial(migrate, PostgresConfig(url), INDEXED, make=False))
            await until_built(name_in(url), on)
            nursery.start_soon(remember)
            await trio.sleep(0.5)
        assert on.run(name_in(url), VALID) == [(True,)]
        assert on.run(name_in(url), "SELECT count(*) FROM warren.memory_vectors") == [(2,)]


@asynccontextmanager
async def administering(url: str, **settings: float) -> AsyncIterator[Connection]:
    """Open a connection as an operator's command does."""
    db = await Connection.open(PostgresConfig(url, **settings), "test")  # type: ignore[arg-type]
    try:
        yield db
    finally:
        db.close()


async def test_a_role_that_creates_nothing_can_use_tables_that_are_there() -> None:
    """On an empty database it gets an error that says what to do."""
    with database() as url:
        name = name_in(url)
        role = f"app_{name}"
        server().run(name, f"CREATE ROLE {role} LOGIN")
        try:
            limited = url.replace("warren@", f"{role}@")
            with pytest.raises(StoreError, match="privilege") as raised:
                async with postgres_opened(limited) as store:
                    await every(store, turn("a"))
            assert raised.value.cause == "permission"
            for grant in ("USAGE ON SCHEMA", "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA"):
                server().run(name, f"GRANT {grant} warren TO {role}")
            server().run(name, f"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA warren TO {role}")
            async with postgres_opened(limited) as store:
                await every(store, turn("a"))
                await store.renew()
            server().run(name, "DROP SCHEMA warren CASCADE")
            with pytest.raises(StoreError, match="run `warren store init` with a role that may"):
                await PostgresStore.open(PostgresConfig(limited))
        finally:
            server().run(name, f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_another_encoding_is_refused() -> None:
    """A database that cannot hold every text is none for a store."""
    needs_postgres()
    server().run("postgres", "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        with pytest.raises(StoreError, match="LATIN1") as raised:
            await PostgresStore.open(PostgresConfig(server().url("latin")))
        assert (raised.value.cause, raised.value.retryable) == ("cannot_open", False)
    finally:
        server().drop("latin")


async def test_a_malformed_address_is_not_repeated() -> None:
    """Its password could be in any part of it."""
    needs_postgres()
    with pytest.raises(StoreError) as raised:
        await PostgresStore.open(PostgresConfig("postgresql://app:se%zzcret@host/db"))
    assert "cret" not in repr(raised.value) + str(raised.value.__context__)


def test_the_tables_are_there_once() -> None:
    """The template of the tests and the migration make the same ones."""
    with database() as url, psycopg.connect(url) as db:
        tables = db.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'warren'").fetchone()
        assert tables == (32,)
