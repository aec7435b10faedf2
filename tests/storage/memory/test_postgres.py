"""The memory in PostgreSQL: what its tables hold, several writers at once, lost connections, and no pgvector."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg
import pytest
import trio

from tests.storage.memory.samples import SubjectEmbedder, contents, entries, entry, numbered, opened, text, word
from tests.support.postgres import database, database_with_vectors
from warren.base.errors import InvalidParamsError, SessionNotFoundError
from warren.base.fields import FieldValueError
from warren.conversation.memory import CONVERSATION_END, MemoryConfig, MemoryEntry, Tail
from warren.storage.memory.postgres import PostgresMemory

TABLES = ("memory_entries", "memory_postings", "memory_vectors")


def count(url: str, table: str) -> int:
    """Return how many rows a table has."""
    with psycopg.connect(url) as db:
        row = db.execute(f"SELECT count(*) FROM warren.{table}".encode()).fetchone()  # noqa: S608 - one of TABLES
    assert row is not None
    return int(row[0])


def totals(url: str) -> tuple[int, int]:
    """Return how many entries and how many terms are counted."""
    with psycopg.connect(url) as db:
        row = db.execute("SELECT sum(entries)::int8, sum(terms)::int8 FROM warren.memory_totals").fetchone()
    assert row is not None
    return row[0], row[1]


async def test_nothing_of_a_forgotten_session_is_left() -> None:
    """Texts, postings and vectors of it are gone from every table, those of others stay."""
    with database_with_vectors() as url:
        async with opened(url, SubjectEmbedder()) as memory:
            await memory.index(numbered(3) + numbered(1, session="b"))
            assert [count(url, table) for table in TABLES] == [4, 12, 4]
            assert await memory.forget("a") == 3
            assert [count(url, table) for table in TABLES] == [1, 3, 1]
            assert totals(url) == (1, 3)
            with pytest.raises(SessionNotFoundError):
                await memory.index([entry("late", position=9)])


async def test_a_tail_replaces_and_is_settled() -> None:
    """A tail is all there is from its position on; beyond the committed messages it goes; texts by hand stay."""
    by_hand = entry("by hand", position=CONVERSATION_END + 5)
    with database() as url:
        async with opened(url) as memory:
            await memory.index([*entries(["one", "two", "three", "four"]), by_hand])
            assert await memory.index(entries(["two", "other"], first=1), Tail("a", 1)) == 1
            assert contents(await memory.search("three four")) == []
            (mark,) = await memory.unsettled()
            await memory.index(entries(["two", "newer"], first=1), Tail("a", 1))
            assert await memory.settle(mark, 0) == 0
            (mark,) = await memory.unsettled()
            assert await memory.settle(mark, 2) == 1
            assert await memory.unsettled() == []
            assert sorted(contents(await memory.search("one two other newer by hand"))) == ["by hand", "one", "two"]
            assert await memory.last_before("a", 2) == (1, 1)
            assert (await memory.stats()).entries == 3
        assert (totals(url), count(url, "memory_postings")) == ((3, 4), 4)


async def test_writers_at_once_store_each_text_once() -> None:
    """Two processes that take in the same texts of many sessions, in other orders, wait for each other and go on."""
    several = [numbered(5, session=f"s{number}") for number in range(6)]
    together: list[MemoryEntry] = [each for some in several for each in some]
    added: list[int] = []

    async def index(memory: object, given: list[MemoryEntry]) -> None:
        assert isinstance(memory, PostgresMemory)
        added.append(await memory.index(given))

    with database() as url:
        async with opened(url) as one, opened(url) as two, trio.open_nursery() as nursery:
            for memory in (one, two):
                nursery.start_soon(index, memory, together)
                nursery.start_soon(index, memory, together[::-1])
                for some in several:
                    nursery.start_soon(index, memory, some)
        assert sum(added) == len(together)
        assert (count(url, "memory_entries"), totals(url)) == (30, (30, 90))
        async with opened(url) as memory:
            assert len(await memory.search(word(3), limit=20)) == len(several)


async def test_connections_that_are_ended_lose_nothing() -> None:
    """While the server ends all connections again and again, calls go on by themselves; each text is there once."""
    with database() as url:
        ended = 0

        async def end_them() -> None:
            nonlocal ended
            while True:
                await trio.sleep(0.25)
                with psycopg.connect(url, autocommit=True) as db:
                    rows = db.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND application_name = 'warren: memory'"
                    ).fetchall()
                ended += len(rows)

        async with opened(url) as memory, trio.open_nursery() as nursery:
            nursery.start_soon(end_them)
            stored = 0
            while ended < 6:
                await memory.index([entry(text(stored), position=stored)])
                assert contents(await memory.search(word(stored))) == [text(stored)]
                stored += 1
            nursery.cancel_scope.cancel()
        assert (count(url, "memory_entries"), count(url, "memory_postings")) == (stored, 3 * stored)
        assert totals(url) == (stored, 3 * stored)


@contextmanager
def limited(url: str) -> Iterator[str]:
    """Make a role that may use the tables and create nothing; yield the address with it."""
    role = "app" + urlsplit(url).path.removeprefix("/")
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"CREATE ROLE {role} LOGIN".encode())
        db.execute(f"GRANT USAGE ON SCHEMA warren TO {role}".encode())
        db.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA warren TO {role}".encode())
        db.execute(f"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA warren TO {role}".encode())
        try:
            yield url.replace("warren@", f"{role}@")
        finally:
            db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


async def test_without_pgvector_words_alone_decide(caplog: pytest.LogCaptureFixture) -> None:
    """The log says why, and the embedder is never asked; a later opening that can have vectors makes them."""
    model = SubjectEmbedder(base=0)
    with database_with_vectors() as url:
        with limited(url) as address, caplog.at_level(logging.WARNING, "warren.memory"):
            async with opened(address, model) as memory:
                await memory.index(entries(["my cat sleeps", "an engine"]))
                assert contents(await memory.search("sleeps")) == ["my cat sleeps"]
                assert await memory.search("car") == []
                stats = await memory.stats()
                assert (stats.embedder, stats.dimensions, stats.behind) == ("bm25", 0, 0)
                assert (stats.weighs, memory.weighs) == ("words", "words")
        assert model.asked == []
        assert "the server has no pgvector" in caplog.text
        async with opened(url, model) as memory:
            assert memory.is_behind
            await memory.catch_up()
            assert contents(await memory.search("car")) == ["an engine"]
            assert (await memory.stats()).index_bytes > 0


async def test_the_plain_bag_of_words_is_refused() -> None:
    """It is an embedder of files; the error names the field, and nothing is opened."""
    with pytest.raises(InvalidParamsError, match="bag-of-words needs a memory in a folder") as raised:
        await PostgresMemory.open(MemoryConfig(url="postgresql://127.0.0.1:1/x", embedder="bag-of-words"))
    assert raised.value.path == "$.embedder"


def test_the_settings_do_not_show_a_password() -> None:
    """Nor do they take two places."""
    config = MemoryConfig(url="postgresql://app:s3cret@host/db")
    assert "s3cret" not in repr(config) + config.place
    with pytest.raises(FieldValueError, match="url"):
        MemoryConfig("folder", url="postgresql://host/db")
