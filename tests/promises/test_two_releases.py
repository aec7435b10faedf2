"""A rolling update for real: this release and the next one on one database, up to the end of the older one.

The next release is a copy of the package with scripts of its own: a table gets another name, with a view for programs
that know the old one, and a large table gets an index.
"""

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from tests.conftest import ROOT
from tests.promises.talking import Talk, until_more
from tests.support.postgres import database, name_in, server
from tests.transport.cli.process import Cli, Ended, one_line
from tests.transport.cli.serving import connected, serve
from warren.base.version import VERSION
from warren.calls.facade import SessionService
from warren.settings.config import Config, PostgresConfig
from warren.storage.postgres.schema import SCHEMA
from warren.transport.embed import open_supervisor

NEXT_VERSION = "99.0.0"
RENAMED = SCHEMA.version + 1
INDEXED = SCHEMA.version + 2
SCRIPTS = {
    f"schema_{RENAMED}.sql": """
        ALTER TABLE warren.erasures RENAME TO purges;
        CREATE VIEW warren.erasures AS SELECT session_id FROM warren.purges
    """,
    f"schema_{INDEXED}.sql": "CREATE INDEX CONCURRENTLY events_times ON warren.events (timestamp)",
    f"contract_{RENAMED}.sql": "DROP VIEW warren.erasures",
}


@attrs.frozen
class NextRelease:
    """The programs of the next release, on one store."""

    cli: Cli
    url: str
    env: dict[str, str]

    async def migrate(self, *flags: str) -> Ended:
        """Run its `warren store migrate`."""
        command = partial(self.cli.run, "store", "migrate", *flags, "--store", self.url, env=self.env)
        return await trio.to_thread.run_sync(command)


@pytest.fixture
def following(cli: Cli) -> Iterator[NextRelease]:
    """Make the next release, and a database with the tables of this one."""
    package = cli.folder / "next" / "warren"
    shutil.copytree(ROOT / "src" / "warren", package)
    _edit(package / "base" / "version.py", VERSION, NEXT_VERSION)
    for name in ("queries.py", "operations.py"):
        _edit(package / "storage" / "postgres" / name, "warren.erasures", "warren.purges")
    for name, sql in SCRIPTS.items():
        (package / "storage" / "postgres" / name).write_text(sql)
    with database() as url:
        yield NextRelease(cli, url, {"PYTHONPATH": str(package.parent)})


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@asynccontextmanager
async def this_release(url: str) -> AsyncIterator[SessionService]:
    """Open the store with the release under test; its process is this one."""
    async with open_supervisor(Config(store=PostgresConfig(url, lease=60.0)), environ={}) as service:
        yield service


async def test_a_rolling_update(following: NextRelease) -> None:
    """The older release takes turns before, while and after the newer one expands the tables; then it has to end."""
    url, cli = following.url, following.cli
    store = ("--store", url)
    async with this_release(url) as older:
        shared, dropped = [(await older.create_session("1")).session_id for _ in range(2)]
        talk = Talk((await older.create_session("0")).session_id)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(talk.go_on, older)
            await until_more([talk], 2)
            migrated = await following.migrate()
            assert migrated.out.endswith(f": version {SCHEMA.version} before, {INDEXED} now\n"), migrated
            await until_more([talk], 2)
            talk.ends = True
        await talk.check(older)
        gateway, address = serve(cli, *store, env=following.env)
        async with connected(address) as newer:
            for prompt in range(2, 6, 2):
                await newer.call("turn/start", session_id=shared, prompt=str(prompt))
                await older.start_turn(shared, str(prompt + 1))
            assert (await newer.call("session/delete", session_id=talk.session_id))["deleted"]
            await older.delete(dropped)
            refused = one_line(await following.migrate("--contract"), 1)
            assert f"process {os.getpid()}" in refused
            assert "nothing is removed" in refused
            seen = cli.run("store", "status", *store, "--output", "json").data
            assert (seen["state"], seen["version"], seen["release"]) == ("newer", INDEXED, NEXT_VERSION)
            assert sorted(each["version"] for each in seen["programs"]) == [SCHEMA.version, INDEXED]
    async with this_release(url) as older:
        await older.start_turn(shared, "6")
    async with connected(address) as newer:
        contracted = await following.migrate("--contract")
        assert contracted.out.endswith(f"contracted: programs have to know version {RENAMED}\n"), contracted
        refused = one_line(cli.run("run", "hello", *store), 1)
        assert f"need a program that knows version {RENAMED} (Warren {NEXT_VERSION} changed them last)" in refused
        await newer.call("turn/start", session_id=shared, prompt="7")
        page = await newer.call("session/history", session_id=shared)
        said = [each["message"]["content"] for each in page["messages"] if each["message"]["role"] == "user"]
        assert said == ["1", "2", "3", "4", "5", "6", "7"]
        listed = await newer.call("session/list")
        assert [each["session_id"] for each in listed["sessions"]] == [shared]
        gateway.process.terminate()
        await trio.to_thread.run_sync(gateway.end)
    tables = "SELECT to_regclass('warren.erasures') IS NULL, (SELECT count(*) FROM warren.purges)"
    assert server().run(name_in(url), tables) == [(True, 2)]
    valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'warren.events_times'::regclass"
    assert server().run(name_in(url), valid) == [(True,)]
