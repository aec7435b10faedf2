"""A copy of a store by the tools of PostgreSQL, taken while the store is used, and a store made of the copy."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from tests.docs.snippets import DOCS, blocks
from tests.storage.conformance.faults import postgres_opened
from tests.storage.samples import NOW, turn
from tests.support.postgres import Server, fill, needs_postgres
from tests.transport.cli.process import Cli
from warren.conversation.inputs import Input
from warren.settings.config import PostgresConfig
from warren.storage.maintenance.postgres.doctor import examine
from warren.storage.operations import Claim, Claimed, Enqueue, Enqueued
from warren.storage.queries import StoredMessages

SHOWN = "postgresql://owner@db.example.com"


@pytest.fixture
def own() -> Iterator[Server]:
    """Start a server with the settings of its makers."""
    needs_postgres()
    server = Server.make(durable=True)
    server.run("postgres", "CREATE DATABASE warren")
    fill(server, "warren")
    yield server
    server.remove()


def commands(own: Server, folder: Path) -> list[list[str]]:
    """Return the commands of the page, for the server of the test: the dump, and those that make a store of it."""
    (block,) = [each.text for each in blocks(DOCS / "postgres.md") if "pg_dump -Fc" in each.text]
    for name in ("warren", "copy"):
        block = block.replace(f"{SHOWN}/{name}", own.url(name))
    return [line.split() for line in block.replace("warren.dump", str(folder / "dump")).splitlines()]


def run(command: list[str], own: Server) -> None:
    """Run a program of the server."""
    environ = {
        **os.environ,
        "PGHOST": str(own.folder),
        "PGUSER": "warren",
        "PATH": f"{own.programs}:{os.environ['PATH']}",
    }
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


async def test_a_dump_of_a_store_that_is_used_makes_a_sound_store(own: Server, cli: Cli, tmp_path: Path) -> None:
    """It has every turn that was confirmed before it began; the doctor finds nothing, and the sessions go on."""
    dump, *restoring = commands(own, tmp_path)
    assert (dump[0], [command[0] for command in restoring]) == ("pg_dump", ["createdb", "pg_restore", "warren"])
    begun = cli.run("run", "hello", "--store", own.url("warren"), "--output", "json").data["session_id"]
    confirmed = 0
    async with postgres_opened(own.url("warren"), timeout=20.0, lease=2.0) as store:
        (added,) = await store.write([turn("waits")])
        assert added is None
        (queued,) = await store.write([Enqueue("waits", Input("id", "queue", "later", NOW), 10)])
        assert isinstance(queued, Enqueued)
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                nonlocal confirmed
                while True:
                    assert await store.write([turn("a", confirmed)]) == [None]
                    confirmed += 1
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(write)
            while confirmed < 20:  # noqa: ASYNC110 - a count, not a moment
                await trio.sleep(0.01)
            before = confirmed
            await trio.to_thread.run_sync(run, dump, own)
            assert confirmed > before  # nobody waited for the dump
            nursery.cancel_scope.cancel()
    for command in restoring[:-1]:
        await trio.to_thread.run_sync(run, command, own)
    url = restoring[-1][-1]
    examined = cli.run(*restoring[-1][1:], "--output", "json")
    assert (examined.code, examined.data["healthy"]) == (0, True)
    assert (await examine(PostgresConfig(url), full=True)).healthy
    await trio.sleep(0.6)  # the holder of the copy is dead: that is known after a fourth of its lease
    async with postgres_opened(url, timeout=20.0) as copy:
        (claimed,) = await copy.write([Claim("a")])
        assert isinstance(claimed, Claimed)
        assert before <= claimed.record.turns <= confirmed
        assert len(list((await copy.read(StoredMessages("a", limit=10_000)))[0])) == 2 * claimed.record.turns
        (waiting,) = await copy.write([Claim("waits")])
        assert isinstance(waiting, Claimed)
        assert [each.input.text for each in waiting.inbox] == ["later"]
    assert cli.run("resume", begun, "again", "--store", url).out == "again\n"
