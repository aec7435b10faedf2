"""A database that goes back under an open store: its holder dies and becomes another one, and nothing is mixed up."""
# ruff: noqa: S608 - only names of tables become part of the SQL

from typing import Any

import psycopg
import pytest
import trio

from tests.storage.conformance.faults import every, postgres_opened
from tests.storage.conformance.homes import done, put
from tests.storage.samples import NOW, causes, turn
from tests.support.postgres import database, name_in, server
from tests.support.waiting import until
from warren.base.errors import StoreError
from warren.base.nodes import Announcement
from warren.conversation.records import SessionRecord
from warren.storage.operations import Claim, Claimed, Commit, Enqueued, Lease, Release
from warren.storage.postgres import PostgresStore
from warren.storage.queries import ANY_TENANT, LivingNodes, SessionRow
from warren.storage.rows import SEQ_STRIDE

COLUMNS = """
    SELECT attname FROM pg_attribute
    WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
"""
TABLES = ("sessions", "messages", "events", "holders", "writers", "usage", "inbox")


def keep(url: str) -> None:
    """Keep the rows of a store as they are now."""
    for each in TABLES:
        server().run(name_in(url), f"CREATE TABLE public.{each} AS TABLE warren.{each}")


def put_back(url: str) -> None:
    """Let the rows be as they were kept, without a break of any connection."""
    with psycopg.connect(url) as db:
        for each in TABLES:
            columns = [row[0] for row in db.execute(COLUMNS, (f"warren.{each}",))]
            names = ", ".join(columns)
            db.execute(f"DELETE FROM warren.{each}".encode())
            taken = f"SELECT {names} FROM public.{each}"
            db.execute(f"INSERT INTO warren.{each} ({names}) OVERRIDING SYSTEM VALUE {taken}".encode())


async def test_a_group_behind_one_that_is_gone_is_refused() -> None:
    """Without a break of its connection; the next one finds the sessions as they are, with new epochs and numbers."""
    with database() as url:
        async with postgres_opened(url, timeout=20.0, lease=60.0) as store:
            await every(store, turn("a"))
            keep(url)
            await every(store, turn("a", 1))
            former = store.key
            put_back(url)
            outcomes = await store.write([turn("a", 2), put("hello", key="k")])
            assert causes(outcomes) == ["lease_lost", "lease_lost"]
            assert all(each.retryable for each in outcomes)
            assert (store.went_back, store.lapses, store.key) == (1, 1, None)
            assert await store.read(SessionRow("a", ANY_TENANT)) == turn("a").record
            assert isinstance(await done(store, put("hello", key="k")), Enqueued)
            assert store.key not in (None, former)
            claimed = await done(store, Claim("a", NOW))
            assert isinstance(claimed, Claimed)
            assert claimed.record.last_seq == 3 + SEQ_STRIDE
            assert claimed.lease.epoch > SEQ_STRIDE, "an epoch that was given out before is given out again"
            for late in (Lease(1), Lease(2), Lease(3)):
                commit = turn("a", 1)
                (refused,) = await store.write([Commit(commit.record, commit.messages, commit.events, lease=late)])
                assert refused.cause == "lease_lost"
                await done(store, Release("a", late))
            assert await done(store, Claim("a")) == claimed


async def test_the_rest_of_a_group_that_is_done_one_by_one_is_refused() -> None:
    """The store goes back in the middle of it: what comes after that follows from what is gone, too."""
    with database() as url:
        async with postgres_opened(url, timeout=20.0, lease=60.0) as store:
            await every(store, turn("a"))
            keep(url)
            await every(store, turn("a", 1))
            put_back(url)
            bad = Commit(SessionRecord("bad", NOW, NOW, "\ud800"))
            outcomes = await store.write([turn("a", 2), bad, turn("b")])
            assert causes(outcomes) == ["lease_lost"] * 3
            assert await store.read(SessionRow("b", ANY_TENANT)) is None


async def test_a_write_behind_the_renewal_that_finds_it_out_is_refused() -> None:
    """It was sent before anybody knew."""
    with database() as url:
        async with postgres_opened(url, timeout=20.0, lease=60.0) as store:
            await every(store, turn("a"))
            keep(url)
            await store.renew()
            put_back(url)
            outcomes: list[Any] = []

            async def write() -> None:
                outcomes.extend(await store.write([turn("b")]))

            assert isinstance(store, PostgresStore)
            lock = store._writer._writing  # noqa: SLF001 - the two have to wait for it in this order
            async with trio.open_nursery() as nursery, lock:
                nursery.start_soon(store.renew)
                await until(lambda: lock.statistics().tasks_waiting == 1)
                nursery.start_soon(write)
                await until(lambda: lock.statistics().tasks_waiting == 2)
            assert causes(outcomes) == ["lease_lost"]
            assert store.went_back == 1
            assert await store.read(SessionRow("b", ANY_TENANT)) is None


@pytest.mark.parametrize("node", [Announcement("north", "ws://127.0.0.1:1"), None])
async def test_an_idle_process_finds_it_out_by_its_next_renewal(node: Announcement | None) -> None:
    """Though it has written nothing that is gone but its renewals; a node is registered again at once."""
    with database() as url:
        async with postgres_opened(url, timeout=20.0, lease=60.0) as store:
            await every(store, turn("a"))
            await store.renew(node)
            keep(url)
            await store.renew(node)
            put_back(url)
            former = store.key
            await store.renew(node)
            assert store.went_back == 1
            assert store.key != former
            assert [each.name for each in await store.read(LivingNodes())] == (["north"] if node else [])


async def test_a_row_that_is_gone_is_another_life() -> None:
    """A backup of the time before this process came does not have it."""
    with database() as url:
        keep(url)
        async with postgres_opened(url, timeout=20.0, lease=60.0) as store:
            await every(store, turn("a"))
            put_back(url)
            await store.renew()
            assert store.went_back == 1
            assert await store.read(SessionRow("a", ANY_TENANT)) is None
            assert await store.write([turn("b")]) == [None]


async def test_a_database_without_tables_is_not_given_new_ones() -> None:
    """They are on their way: the process waits for them, and fails for now."""
    with database() as url:
        async with postgres_opened(url, timeout=0.3, lease=60.0) as store:
            await every(store, turn("a"))
            server().run(name_in(url), "ALTER SCHEMA warren RENAME TO away")
            server().run(
                name_in(url),
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE"
                " datname = current_database() AND pid <> pg_backend_pid()",
            )
            (refused,) = await store.write([turn("a", 1)])
            assert (refused.cause, refused.retryable) in {("unreachable", True), ("outcome_unknown", False)}
            with pytest.raises(StoreError) as raised:
                await store.read(SessionRow("a", ANY_TENANT))
            assert (raised.value.cause, raised.value.retryable) == ("unreachable", True)
            assert server().run(name_in(url), "SELECT to_regnamespace('warren') IS NULL") == [(True,)]
            server().run(name_in(url), "ALTER SCHEMA away RENAME TO warren")
            assert await store.write([turn("a", 1)]) == [None]
            assert store.went_back == 0
