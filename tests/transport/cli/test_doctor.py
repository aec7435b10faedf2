"""`warren doctor` and `warren doctor prune` as a user meets them: real processes, a real store."""

import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any, Final

import apsw
import click
import pytest
import trio

from tests.storage.filled import filled
from tests.storage.samples import NOW, opened, turn, written
from tests.support.memories import memory_in, remembered
from tests.transport.cli.filling import HERE, turns
from tests.transport.cli.process import LIMIT, Cli, one_line
from tests.transport.cli.serving import connected, serve
from tests.transport.cli.terminals import Terminal
from warren.base.errors import InvalidParamsError
from warren.conversation.memory import MemoryEntry
from warren.settings.config import StoreConfig
from warren.storage.maintenance.doctor import examine
from warren.storage.operations import Archive, Lease, Release
from warren.storage.queries import StoredHistory
from warren.transport.cli.app import cli as commands
from warren.transport.cli.settings.file import read_config

VERSIONS: Final = Path(__file__).parents[2] / "storage" / "versions"
FILE: Final = Path("store") / "sessions.sqlite3"


def examined(cli: Cli, *args: str, code: int = 0) -> Any:
    """Return what the doctor says, as JSON."""
    ended = cli.run("doctor", *HERE, "--output", "json", *args)
    assert (ended.code, ended.err) == (code, "")
    return ended.data


def change(cli: Cli, *statements: str) -> None:
    """Change the store behind its back."""
    db = apsw.Connection(str(cli.folder / FILE))
    db.set_busy_timeout(int(LIMIT * 1000))
    for statement in statements:
        db.execute(statement)
    db.close()


# -- doctor


async def test_beside_a_running_gateway(cli: Cli) -> None:
    """It reports on a store in use and names who uses it; one that was killed is a notice, and a fix frees its own."""
    running, url = serve(cli, *HERE)
    async with connected(url) as client:
        session = (await client.call("session/create", prompt="hello"))["session_id"]
        report = await trio.to_thread.run_sync(examined, cli)
        assert (report["healthy"], report["findings"]) == (True, [])
        assert (report["store"]["sessions"], report["store"]["messages"], report["store"]["events"]) == (1, 2, 6)
        (holder,) = report["holders"]
        assert (holder["alive"], holder["sessions"]) == (True, 1)
        assert f"(process {running.process.pid} on " in holder["name"]
        assert (await client.call("turn/start", session_id=session, prompt="again"))["text"] == "again"
        running.process.kill()
        running.end()
    report = examined(cli)
    assert ([each["check"] for each in report["findings"]], report["healthy"]) == (["leases"], True)
    report = examined(cli, "--fix")
    assert (report["fixed"], report["holders"]) == (["freed 1 sessions of processes that are dead"], [])


async def test_the_report(cli: Cli) -> None:
    """For a person it is a line a fact, then what was found, then a word; the exit code is 0."""
    await filled(cli.folder)
    memory = await memory_in(cli.folder / "store" / "memory")()
    await memory.index([MemoryEntry("a", 1, 1, "text", NOW)])
    await memory.aclose()
    ended = cli.run("doctor", "--full", *HERE)
    names = [line.partition(":")[0] for line in ended.out.splitlines()]
    assert (ended.code, ended.err) == (0, "")
    facts = ["store", "schema", "file", "log", "disk", "integrity", "sessions", "rows", "memory", "index", "healthy"]
    assert names == facts
    assert re.search(
        r"^integrity: +ok, every page and index\nsessions: +1 open, 0 archived, 0 deleted$", ended.out, re.MULTILINE
    )
    assert re.search(r"^memory: +1 texts, .*\nindex: +none, as it needs none$", ended.out, re.MULTILINE)


async def test_a_problem_is_the_exit_code(cli: Cli) -> None:
    """Each fault is named with its session; --fix puts right what it can, says so, and the store is well."""
    async with opened(cli.folder) as store:
        await written(store, turn("a", labels={"k": "v"}), Release("a", Lease(1)))
    change(cli, "DELETE FROM labels", "INSERT INTO messages VALUES (99, 0, 0, '{}')")
    ended = cli.run("doctor", *HERE)
    assert (ended.code, ended.out.splitlines()[-4:]) == (
        1,
        [
            "problem: 1 rows of messages belong to no session (--fix)",
            "problem: 1 session: they cannot be found by their labels (--fix)",
            "  a",
            "2 problems",
        ],
    )
    fixed = cli.run("doctor", "--fix", *HERE)
    assert (fixed.code, fixed.out.splitlines()[-3:]) == (
        0,
        [
            "fixed: removed 1 rows of messages that belonged to no session",
            "fixed: made 1 sessions findable by their labels",
            "healthy",
        ],
    )
    assert cli.run("sessions", "list", *HERE, "--label", "k=v").out.startswith("a\t")


def test_what_is_no_store_of_ours(cli: Cli) -> None:
    """It is one line and exit code 1: never a traceback, and nothing is made."""
    assert "there is no store at store" in one_line(cli.run("doctor", *HERE), 1)
    assert not (cli.folder / "store").exists()
    (cli.folder / "store").mkdir()
    shutil.copy(VERSIONS / "2.sqlite3", cli.folder / FILE)
    change(cli, "PRAGMA user_version = 99")
    assert "has version 99; this Warren knows versions up to" in one_line(cli.run("doctor", *HERE), 1)


def test_a_damaged_store(cli: Cli) -> None:
    """Damage is reported, and a fix refuses to touch it."""
    (cli.folder / "store").mkdir()
    shutil.copy(VERSIONS / "2.sqlite3", cli.folder / FILE)
    with (cli.folder / FILE).open("r+b") as file:
        file.seek(5 * 4096)
        file.write(b"\xff" * 4096)
    ended = cli.run("doctor", *HERE)
    assert (ended.code, ended.err) == (1, "")
    assert "\nproblem: the file is damaged: " in ended.out
    assert "restore a backup" in one_line(cli.run("doctor", "--fix", *HERE), 1)


async def test_on_a_terminal(cli: Cli, terminal: Terminal) -> None:
    """A problem is red."""
    await filled(cli.folder)
    change(cli, "DELETE FROM messages WHERE position = 1")
    terminal.start("doctor", *HERE)
    assert "\x1b[31mproblem: 1 session: " in terminal.read_until("1 problem\r\n")


# -- prune


async def test_prune(cli: Cli) -> None:
    """Older messages go and nothing else, as the dry run said; the session goes on, and the file is smaller."""
    await filled(cli.folder, turns=200, head=390)
    async with opened(cli.folder) as store:
        before = await store.read(StoredHistory("a", "default", limit=1000))
    (cli.folder / "config.toml").write_text('[retention]\nsuperseded = "30d"\nevents = "3650d"\n')
    args = ("doctor", "prune", *HERE, "--config", "config.toml", "--events", "30d", "--output", "json")
    would = cli.run(*args, "--dry-run").data
    assert (would["messages"], would["events"], would["sessions"], would["bytes"] > 90_000) == (389, 600, [], True)
    done = cli.run(*args).data
    assert (done["messages"], done["events"], done["sessions"]) == (389, 600, [])
    assert done["bytes_after"] == (cli.folder / FILE).stat().st_size < done["bytes_before"] * 0.7
    assert examine(StoreConfig(cli.folder / "store"), full=True).findings == ()
    async with opened(cli.folder) as store:
        after = await store.read(StoredHistory("a", "default", limit=1000))
    assert after.rows == [before.rows[0], *before.rows[390:]]
    assert cli.run("resume", "a", "more", *HERE).out == "more\n"
    shown = cli.run("sessions", "show", "a", *HERE)
    assert "messages 1 to 389 are gone" in shown.err


async def test_prune_archived_sessions(cli: Cli) -> None:
    """They are deleted, with what is remembered of them; open ones stay."""
    await filled(cli.folder)
    await filled(cli.folder, session_id="b")
    async with opened(cli.folder) as store:
        await written(store, Archive("a"))
    folder = cli.folder / "store" / "memory"
    memory = await memory_in(folder)()
    await memory.index([MemoryEntry(session_id, 1, 1, "text", NOW) for session_id in ("a", "b")])
    await memory.aclose()
    ended = cli.run("doctor", "prune", "--archived", "30d", *HERE)
    assert ended.out.startswith("gone: 19 messages, 30 events, 1 archived sessions\nthe file: ")
    assert remembered(folder) == {("b", 1): "text"}
    assert cli.run("sessions", "list", "--all", *HERE).out.startswith("b\t")


def test_rewrite(cli: Cli) -> None:
    """A file of the first version can give its room back once it was written anew."""
    (cli.folder / "store").mkdir()
    shutil.copy(VERSIONS / "1.sqlite3", cli.folder / FILE)
    assert cli.run("doctor", "prune", "--rewrite", *HERE).code == 0
    report = examine(StoreConfig(cli.folder / "store"))
    assert (report.store.can_shrink, report.findings) == (True, ())


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("prune",), "nothing is to go: give --superseded, --events, --archived, --audit or --usage"),
        (("prune", "--events", "0"), "'0' is not a duration above 0"),
        (("prune", "--events", "a day"), "'a day' is not a duration"),
        (("prune", "--events", "1d", "--dry-run", "--rewrite"), "exclude each other"),
        (("--fix", "prune", "--events", "1d"), "give the options after prune"),
    ],
)
def test_what_cannot_be_pruned(
    args: tuple[str, ...], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake is a usage error that names it."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(click.UsageError) as caught:
        commands.main(["doctor", *args], standalone_mode=False)
    assert problem in caught.value.format_message()


@pytest.mark.parametrize("value", ["30", '"soon"', '"0"'])
def test_an_age_in_the_file_is_a_duration(tmp_path: Path, value: str) -> None:
    """Another value is refused with the path of the field."""
    (tmp_path / "c.toml").write_text(f"[retention]\nevents = {value}\n")
    with pytest.raises(InvalidParamsError) as caught:
        read_config(tmp_path / "c.toml")
    assert caught.value.path == "$.config.retention.events"


def old_events(cli: Cli) -> int:
    """Return how many events are left that are to go."""
    db = apsw.Connection(str(cli.folder / FILE), flags=apsw.SQLITE_OPEN_READONLY)
    count: int = db.execute("SELECT count(*) FROM events WHERE timestamp = 0").get
    db.close()
    return count


async def test_prune_beside_a_running_gateway(cli: Cli) -> None:
    """While much is removed, turns begin and end in its midst, not behind it; who replays is told of the gap."""
    _, url = serve(cli, *HERE)
    async with connected(url) as client:
        session = (await client.call("session/create", prompt="hello"))["session_id"]
        change(
            cli,
            "UPDATE events SET timestamp = 0; UPDATE sessions SET last_seq = 1015000",
            """
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 15000)
            INSERT INTO events SELECT 1, 1000000 + i, 1000000 + i, 0,
                '{"type":"text_complete","content":"' || hex(zeroblob(250)) || '"}', NULL FROM n
            """,
        )
        size = sum(part.stat().st_size for part in (cli.folder / FILE).parent.glob("sessions.sqlite3*"))  # and its log
        other = (await client.call("session/create", prompt="other"))["session_id"]
        args = ("doctor", "prune", *HERE, "--events", "30d", "--output", "json")
        prune = cli.start(*args)
        left = await turns(client, other, prune.process, partial(old_events, cli))
        assert json.loads(prune.end().out)["events"] == 15_006
        assert {0 < count < 15_006 for count in left} >= {True}, left
        # What is free is given back while nobody writes: the next time, where turns never left room for it.
        await trio.to_thread.run_sync(cli.run, *args)
        assert (cli.folder / FILE).stat().st_size < size / 4
        client.events.clear()
        await client.call("session/subscribe", session_id=session, after_seq=3)
        await client.event("stream_truncated")
        (gap,) = [each for each in client.events if each["event"]["type"] == "stream_truncated"]
        assert (gap["seq"], gap["event"]) == (3, {"type": "stream_truncated", "dropped": 1_014_997, "resume_after": 3})
        assert (await client.call("health"))["status"] != "failed"
