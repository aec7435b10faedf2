"""The tables of a PostgreSQL store: who may create them, and which are refused."""

import psycopg
import pytest

from tests.storage.conformance.faults import every, postgres_opened
from tests.storage.samples import turn
from tests.support.postgres import database, name_in, needs_postgres, server
from warren.config import PostgresConfig
from warren.errors import StoreError
from warren.storage.postgres import PostgresStore
from warren.storage.postgres.schema import VERSION


async def test_an_empty_database_gets_its_tables() -> None:
    """By several programs that open it at the same moment, and once."""
    needs_postgres()
    with database() as url:
        server().run(name_in(url), "DROP SCHEMA warren CASCADE")
        async with postgres_opened(url, timeout=20.0) as one, postgres_opened(url) as two:
            await every(one, turn("a"))
            assert await two.record("a") == turn("a").record
        assert server().run(name_in(url), "SELECT version FROM warren.meta") == [(VERSION,)]


async def test_tables_of_a_newer_version_are_refused() -> None:
    """The error names both versions, and nothing is changed."""
    with database() as url:
        server().run(name_in(url), "UPDATE warren.meta SET version = 99")
        with pytest.raises(StoreError, match=f"version 99, this program knows up to {VERSION}") as raised:
            await PostgresStore.open(PostgresConfig(url))
        assert (raised.value.cause, raised.value.retryable) == ("newer_schema", False)
        assert server().run(name_in(url), "SELECT version FROM warren.meta") == [(99,)]


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
            with pytest.raises(StoreError, match="open the store once with a role that may"):
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
        assert tables == (11,)
