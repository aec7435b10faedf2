"""Connections that are busy or have high numbers: nothing waits for another connection, and no group is refused."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
import trio

from tests.storage.conformance.faults import every, postgres_opened
from tests.storage.samples import causes, turn
from tests.support.postgres import database, name_in, server
from tests.support.waiting import until
from warren.settings.config import PostgresConfig
from warren.storage.postgres.driver import Connection
from warren.storage.queries import ANY_TENANT, SessionRow, StoredMessages

WAITS_FOR_LOCK = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
FIRST_FREE = 1100
"""Above the highest file descriptor that `select` can wait for."""


@contextmanager
def many_open_files() -> Iterator[None]:
    """Let the next socket have a file descriptor of `FIRST_FREE` or more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * FIRST_FREE:
        pytest.skip(f"the system allows {hard} open files")
    opened = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * FIRST_FREE), hard))
    try:
        while opened[-1] < FIRST_FREE:
            opened.append(os.dup(opened[0]))
        yield
    finally:
        for each in opened:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_process_with_many_open_files_stores_large_turns() -> None:
    """A turn that fills the buffer of the socket is sent in parts, also if the socket has a high number."""
    with database() as url, many_open_files():
        async with postgres_opened(url, timeout=20.0, lease=60.0) as store:
            large = turn("a", text="x" * 8_000_000)
            assert causes(await store.write([large])) == ["ok"]
            assert (await store.read(StoredMessages("a")))[0][1].body == large.messages[1].body


async def test_a_read_does_not_wait_for_a_commit() -> None:
    """While a commit waits for the lock of another program, reads return the rows that are there."""
    with database() as url:
        async with postgres_opened(url, timeout=20.0, lock_timeout=15.0, lease=60.0) as store:
            await every(store, turn("a"))
            outcomes: list[object] = []

            async def write() -> None:
                outcomes.extend(await store.write([turn("a", 1)]))

            with psycopg.connect(url) as other:
                other.execute("SELECT 1 FROM warren.sessions FOR UPDATE")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(write)
                    await until(lambda: server().run(name_in(url), WAITS_FOR_LOCK))
                    with trio.fail_after(5):
                        stored = await store.read(SessionRow("a", ANY_TENANT))
                    assert stored == turn("a").record
                    assert not outcomes
                    other.rollback()
            assert causes(outcomes) == ["ok"]


async def test_a_process_that_hangs_in_a_transaction_gives_its_locks_back() -> None:
    """Others cannot take a session over while its row is locked: the server ends the transaction before the lease."""
    with database() as url:
        config = PostgresConfig(url, lease=2.0, lock_timeout=10.0)
        async with postgres_opened(url) as store:
            assert causes(await store.write([turn("a")])) == ["ok"]
        hung, other = await Connection.open(config, "hung"), await Connection.open(config, "other")
        try:
            locks = "SELECT key FROM warren.sessions FOR UPDATE"
            assert await hung.script(f"BEGIN; {locks}") == 1
            with trio.fail_after(8):
                assert await other.script(f"BEGIN; {locks}") == 1
        finally:
            hung.close()
            other.close()
