"""A runtime whose PostgreSQL server is hit while turns run: they wait or fail for now, and go on by themselves."""

import contextlib
import os
import pwd
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest
import trio

from tests.promises.processes import soon
from tests.promises.talking import Talk, until_more
from tests.support.postgres import Server, database, name_in, needs_postgres, server
from tests.support.waiting import until
from warren.settings.config import Config, PostgresConfig
from warren.transport.embed import open_supervisor

END_ALL = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'warren: %%'
"""


@asynccontextmanager
async def talking(url: str) -> AsyncIterator[list[Talk]]:
    """Open a runtime in which some sessions run turns for the block; check them afterwards."""
    config = Config(store=PostgresConfig(url, timeout=20.0, lease=60.0))
    async with open_supervisor(config, environ={}) as service:
        talks = [Talk((await service.create_session("0")).session_id) for _ in range(4)]
        async with trio.open_nursery() as nursery:
            for each in talks:
                nursery.start_soon(each.go_on, service)
            yield talks
            for each in talks:
                each.ends = True
        for each in talks:
            await soon(partial(service.start_turn, each.session_id, "at last"))
            each.answered.append("at last")
            await each.check(service)
        assert service.health().status == "ok"


async def hit(times: int, url: str, blow: Callable[[], object]) -> None:
    """Let turns run, and hit their server again and again."""
    async with talking(url) as talks:
        for _ in range(times):
            await until_more(talks, 2)
            await trio.to_thread.run_sync(blow)
        await until_more(talks, 2)


@pytest.mark.parametrize("times", [5, pytest.param(200, marks=pytest.mark.soak)])
@pytest.mark.time_limit(600)
async def test_connections_that_are_ended_again_and_again(times: int) -> None:
    """`pg_terminate_backend` of all connections at once, while turns are stored."""
    with database() as url:
        await hit(times, url, lambda: server().run(name_in(url), END_ALL))


@pytest.mark.parametrize("times", [1, pytest.param(30, marks=pytest.mark.soak)])
@pytest.mark.time_limit(600)
async def test_a_server_that_is_killed_and_restarted_under_load(times: int) -> None:
    """`kill -9` of the server with recovery, and a restart in good order, one after the other."""
    needs_postgres()
    own = Server.make(durable=True)
    try:
        own.run("postgres", "CREATE DATABASE load")
        blows = [own.kill, own.stop] * times

        def blow() -> None:
            blows.pop()()
            own.start()

        await hit(times, own.url("load"), blow)
    finally:
        own.remove()


def mount(*arguments: str) -> bool:
    """Run `mount`; return whether this user may do so."""
    return subprocess.run(["mount", *arguments], check=False, capture_output=True).returncode == 0  # noqa: S607


def fill(database_name: str) -> None:
    """Fill the disk of a database; the last rows do not fit."""
    rows = "INSERT INTO public.ballast SELECT repeat('x', 1000) FROM generate_series(1, 200)"
    with contextlib.suppress(psycopg.errors.DiskFull):
        while True:
            server().run(database_name, rows)


@contextmanager
def small_disk() -> Iterator[Path]:
    """Mount a small disk in memory below the server's folder; the test is left out if this user may not."""
    needs_postgres()
    folder = server().folder / "small"
    folder.mkdir()
    if os.geteuid() or not mount("-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)):
        pytest.skip("only a user who may mount a disk can fill one")
    try:
        shutil.chown(folder, "nobody", pwd.getpwnam("nobody").pw_gid)
        server().run("postgres", f"CREATE TABLESPACE small LOCATION '{folder}'")
        server().run("postgres", "CREATE DATABASE small TABLESPACE small STRATEGY FILE_COPY")
        yield folder
    finally:
        server().drop("small")
        server().run("postgres", "DROP TABLESPACE IF EXISTS small")
        subprocess.run(["umount", str(folder)], check=True)  # noqa: S607


async def test_a_tablespace_that_is_full() -> None:
    """Turns fail with `disk_full` and may be retried; when there is room again all go on without a restart."""
    with small_disk() as folder:
        async with talking(server().url("small")) as talks:
            await until_more(talks, 2)
            server().run("small", "CREATE TABLE public.ballast (text text)")
            await trio.to_thread.run_sync(fill, "small")
            await until(lambda: all(each.failed for each in talks))
            causes = {error.cause for each in talks for error in each.failed}
            assert mount("-o", "remount,size=200m", str(folder))
            await until_more(talks, 2)
        assert causes == {"disk_full"}
