"""A store that is brought back to a moment from a base backup and the archived log, as the page says."""

import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.lowlevel

from tests.docs.snippets import DOCS, blocks
from tests.storage.conformance.faults import postgres_opened
from tests.storage.samples import turn
from tests.support.postgres import Server, fill, needs_postgres, own
from tests.support.waiting import wait_until
from tests.transport.cli.process import Cli
from warren.settings.config import PostgresConfig
from warren.storage.maintenance.postgres.doctor import examine
from warren.storage.operations import Claim, Claimed, Delete
from warren.storage.queries import ANY_TENANT, SessionRow, StoredMessages

MOMENT = "2026-03-01 12:00:00+00"
"""The moment that the page goes back to."""


def page(*words: str) -> list[str]:
    """Return the lines of the block of the page with these words."""
    (block,) = [each.text for each in blocks(DOCS / "postgres.md") if all(word in each.text for word in words)]
    return block.splitlines()


def setting(line: str) -> tuple[str, str]:
    """Return the name and the value of a line of postgresql.conf."""
    name, _, value = line.partition(" = ")
    return name, value.strip("'")


@pytest.fixture
def original() -> Iterator[Server]:
    """Start a server that archives its log as the page says."""
    needs_postgres()

    def archiving(folder: Path) -> tuple[str, ...]:
        (folder / "archive").mkdir()
        own(folder / "archive")
        lines = [line.replace("/srv/archive", str(folder / "archive")) for line in page("archive_command")]
        return tuple(part for name, value in map(setting, lines) for part in ("-c", f"{name}={value}"))

    server = Server.make(durable=True, more=archiving)
    server.run("postgres", "CREATE DATABASE warren")
    fill(server, "warren")
    yield server
    server.remove()


def back_up(original: Server, base: Path) -> None:
    """Take a base backup by the command of the page, as the user of the server."""
    (line,) = page("pg_basebackup")
    command = line.replace("/srv/base", str(base)).replace("postgresql://owner@db.example.com", original.url(""))
    user: dict[str, Any] = (
        {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    )
    environ = {**os.environ, "PATH": f"{original.programs}:{os.environ['PATH']}"}
    done = subprocess.run(
        command.split(), cwd=original.folder, env=environ, capture_output=True, text=True, check=False, **user
    )
    assert done.returncode == 0, done.stderr


def recovered(original: Server, base: Path, moment: str) -> Server:
    """Start a server on the base backup that goes on to a moment; the archive is all that is left of the original."""
    lines = [
        line.replace("/srv/archive", str(original.folder / "archive")).replace(MOMENT, moment)
        for line in page("restore_command")
    ]
    flags = tuple(part for name, value in map(setting, lines) for part in ("-c", f"{name}={value}"))
    (base / "recovery.signal").touch()
    own(base / "recovery.signal")
    restored = Server(base.parent, flags, original.programs, port=5433)
    restored.start()
    wait_until(lambda: restored.run("postgres", "SELECT pg_is_in_recovery()") == [(False,)], 60.0)
    return restored


@pytest.mark.soak
@pytest.mark.time_limit(300)
async def test_a_store_goes_back_to_a_moment(original: Server, cli: Cli) -> None:
    """It has every turn that was confirmed before, and nothing that came later; the doctor finds nothing."""
    place = original.folder / "restored"
    place.mkdir()
    own(place)
    begun = cli.run("run", "hello", "--store", original.url("warren"), "--output", "json").data["session_id"]
    confirmed = 0
    async with postgres_opened(original.url("warren"), timeout=20.0, lease=2.0) as store:
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                nonlocal confirmed
                while True:
                    assert await store.write([turn("a", confirmed)]) == [None]
                    confirmed += 1
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(write)
            await trio.to_thread.run_sync(back_up, original, place / "data")
            before = confirmed
            while confirmed < before + 50:  # noqa: ASYNC110 - a count, not a moment
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        assert before > 0
        ((moment,),) = original.run("warren", "SELECT clock_timestamp()::text")
        assert await store.write([turn("later")]) == [None]
        assert await store.write([Delete("a")]) == [None]
    ((segment,),) = original.run("postgres", "SELECT pg_walfile_name(pg_switch_wal())")
    wait_until((original.folder / "archive" / segment).exists, 60.0)
    original.kill()
    restored = await trio.to_thread.run_sync(recovered, original, place / "data", moment)
    try:
        url = restored.url("warren")
        examined = cli.run("doctor", "--full", "--store", url, "--output", "json")
        assert (examined.code, examined.data["healthy"]) == (0, True), examined.out
        assert (await examine(PostgresConfig(url), full=True)).healthy
        await trio.sleep(0.6)  # the holder of that moment is dead: that is known after a fourth of its lease
        async with postgres_opened(url, timeout=20.0) as copy:
            (claimed,) = await copy.write([Claim("a")])
            assert isinstance(claimed, Claimed)
            assert claimed.record.turns == confirmed
            assert len(list((await copy.read(StoredMessages("a", limit=100_000)))[0])) == 2 * confirmed
            assert await copy.read(SessionRow("later", ANY_TENANT)) is None
            assert await copy.write([attrs.evolve(turn("a", confirmed), lease=claimed.lease)]) == [None]
        assert cli.run("resume", begun, "again", "--store", url).out == "again\n"
    finally:
        restored.stop()
