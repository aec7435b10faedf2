"""`warren copy` as a user meets it: real processes, real stores, `kill -9`."""

import contextlib
import signal
import time
from collections.abc import Callable

import apsw
import attrs
import pytest
import trio

from tests.storage.samples import opened, turn, updated, written
from tests.support.memories import memory_in, remembered
from tests.support.postgres import database, name_in, server
from tests.transport.cli.process import Cli, one_line
from tests.transport.cli.serving import connected, serve
from tests.transport.cli.terminals import Terminal
from warren.base.errors import SessionNotFoundError
from warren.conversation.memory import MemoryEntry
from warren.conversation.records import EventRow
from warren.storage.sqlite.file import FILE_NAME


def show(cli: Cli, store: str, *ids: str) -> list[str]:
    """Return what the command line shows of sessions, byte for byte."""
    found = [cli.run("sessions", "show", each, "--store", store, "--limit", "1000").out for each in ids]
    return [*found, cli.run("sessions", "list", "--store", store, "--output", "json").out]


async def test_from_a_file_to_a_database_and_back(cli: Cli) -> None:
    """A gateway on the copy goes on with the sessions; the history is the same, byte for byte."""
    with database() as url:
        script = cli.script({"text": "an answer with ünicode"})
        gateway, where = serve(cli, "--store", "here", "--model", script)
        async with connected(where) as client:
            ids = [(await client.call("session/create", prompt=f"say {n}"))["session_id"] for n in range(3)]
            for each in ids:
                await client.call("turn/start", session_id=each, prompt="go on")
            refused = await trio.to_thread.run_sync(cli.run, "copy", "here", url)
            assert "a process uses the store in here" in one_line(refused, 1)
            await client.call("session/archive", session_id=ids[2])
        gateway.signal(signal.SIGTERM)
        gateway.end()
        expected = show(cli, "here", ids[0])
        done = cli.run("copy", "here", url)
        assert (done.code, done.err) == (0, "")
        assert done.out.endswith(": 3 sessions, 12 messages, 36 events\n")
        assert show(cli, url, ids[0]) == expected
        gateway, where = serve(cli, "--store", url, "--model", script)
        async with connected(where) as client:
            await client.call("session/resume", session_id=ids[0])
            result = await client.call("turn/start", session_id=ids[0], prompt="and on")
            assert result["text"] == "an answer with ünicode"
        async with connected(where) as client:
            await client.call("session/subscribe", session_id=ids[0], after_seq=0)
            while len(client.events) < 12:
                await client.receive()
            seqs = [each["seq"] for each in client.events]
            assert seqs == sorted(set(seqs))
            assert seqs[0] == 1
        gateway.signal(signal.SIGTERM)
        gateway.end()
        expected = show(cli, url, ids[0])
        back = cli.run("copy", url, "back", "--output", "json").data
        assert (back["rows"]["sessions"], back["rows"]["messages"], back["memory"]) == (3, 14, None)
        assert len(back["digest"]) == 32
        assert show(cli, "back", ids[0]) == expected
        assert cli.run("resume", ids[1], "once more", "--store", "back").out == "an answer with ünicode\n"


@attrs.frozen
class Copy:
    """A copy under way: how far it is, as its place says."""

    mark: Callable[[], object]

    def moved_on(self, since: object) -> bool:
        with contextlib.suppress(apsw.Error):
            return self.mark() not in (None, since)
        return False


@pytest.mark.parametrize("way", ["to a database", "to a file"])
async def test_a_copy_that_is_killed_goes_on(cli: Cli, way: str) -> None:
    """`kill -9` at any moment leaves no store there; the same command goes on, and the copy is whole."""
    async with opened(cli.folder) as store:
        long = turn("long")
        at, body = long.record.updated_at, b'{"type":"turn_started","turn_number":0}'
        rows = tuple(EventRow(seq, seq, at, body) for seq in range(1, 9_001))
        await written(store, attrs.evolve(updated(long, last_seq=9_000), events=rows), turn("other"))
    with database() as url:
        here, there = "store", url
        if way == "to a file":
            assert cli.run("copy", here, there).code == 0
            here, there = url, "copied"
        name, file = name_in(url), cli.folder / "copied" / FILE_NAME

        def mark() -> object:
            if there == url:
                return server().run(name, "SELECT copying FROM warren.meta")[0][0]
            with contextlib.closing(apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)) as db:
                return db.execute("SELECT mark FROM copying").get

        copy, seen, kills = Copy(mark), None, 0
        while kills < 2:
            running = cli.start("copy", here, there)
            while running.process.poll() is None and not copy.moved_on(seen):
                time.sleep(0.001)  # noqa: ASYNC251 - nothing else runs here
            running.signal(signal.SIGKILL)
            if running.end().code == 0:
                break
            kills += 1
            seen = mark()
            assert "an unfinished copy of a store" in one_line(cli.run("sessions", "list", "--store", there), 1)
        assert kills
        done = cli.run("copy", here, there, "--output", "json")
        assert (done.data["rows"]["sessions"], done.data["rows"]["events"]) == (2, 9_003)
        assert show(cli, there, "long", "other") == show(cli, here, "long", "other")


async def test_the_memory_goes_along_between_folders(cli: Cli) -> None:
    """With the vectors of its texts, as it is copied as a file."""
    async with opened(cli.folder) as store:
        await written(store, turn("a"))
    memory = await memory_in(cli.folder / "store" / "memory")()
    await memory.index([MemoryEntry("a", 1, 1, "the doors are blue", turn("a").record.created_at)])
    await memory.aclose()
    assert cli.run("copy", "store", "other", "--output", "json").data["memory"] == "copied"
    assert remembered(cli.folder / "other" / "memory") == {("a", 1): "the doors are blue"}
    assert cli.run("memory", "search", "blue", "--store", "other").code == 0


async def test_the_memory_goes_into_a_database_and_back(cli: Cli) -> None:
    """Killed in the middle of it, the command goes on; searches have the answers that they had, in each home."""
    async with opened(cli.folder) as store:
        await written(store, turn("a"))
    memory = await memory_in(cli.folder / "store" / "memory")()
    at = turn("a").record.created_at
    texts = [f"door {number} is {'blue' if number % 7 else 'green'} \0 and 'old'" for number in range(5_000)]
    for first in range(0, len(texts), 500):
        some = range(first, first + 500)
        await memory.index([MemoryEntry(f"s{number % 50}", number, 1, texts[number], at) for number in some])
    await memory.index([MemoryEntry("gone", 1, 1, "a secret", at)])
    await memory.forget("gone")
    await memory.aclose()

    def answers(place: str) -> list[object]:
        asked = (("blue",), ("green door 42",), ("door", "--session", "s3"), ("secret",))
        return [cli.run("memory", "search", *each, "--store", place, "--output", "json").data for each in asked]

    expected = answers("store")
    with database() as url:
        for here, there in (("store", url), (url, "back")):
            kills = 0
            while not kills:
                running = cli.start("copy", here, there)
                while running.process.poll() is None and not entries_at(there, cli):
                    time.sleep(0.001)  # noqa: ASYNC251 - nothing else runs here
                running.signal(signal.SIGKILL)
                assert running.end().code == -signal.SIGKILL, "it ended before it was killed"
                kills += 1
            assert "an unfinished copy of a store" in one_line(cli.run("sessions", "list", "--store", there), 1)
            ended = cli.run("copy", here, there, "--output", "json")
            assert ended.code == 0, ended.err
            done = ended.data
            assert (done["memory"], done["rows"]["memory_entries"], done["rows"]["memory_sessions"]) == (
                "copied",
                5_000,
                51,
            )
            assert answers(there) == expected
        again = await memory_in(cli.folder / "back" / "memory")()
        with pytest.raises(SessionNotFoundError):
            await again.index([MemoryEntry("gone", 1, 1, "a secret", at)])
        await again.aclose()
        assert cli.run("doctor", "--store", "back").code == 0
        assert remembered(cli.folder / "back" / "memory") == remembered(cli.folder / "store" / "memory")


def entries_at(place: str, cli: Cli) -> int:
    """Return how many texts of a memory are at a place."""
    if place.startswith("postgresql:"):
        return int(server().run(name_in(place), "SELECT count(*) FROM warren.memory_entries")[0][0])
    with contextlib.suppress(apsw.Error):
        file = str(cli.folder / place / "memory" / "memory.sqlite3")
        with contextlib.closing(apsw.Connection(file, flags=apsw.SQLITE_OPEN_READONLY)) as db:
            return int(db.execute("SELECT count(*) FROM entries").get)
    return 0


def test_mistakes_are_named(cli: Cli) -> None:
    """The same place twice, a place without a store, a place that is none."""
    assert cli.run("run", "hello", "--store", "here").code == 0
    assert "cannot be copied to itself" in one_line(cli.run("copy", "here", "./here/"), 2)
    assert "there is no store at nowhere" in one_line(cli.run("copy", "nowhere", "there"), 1)
    assert not (cli.folder / "there").exists()
    assert not (cli.folder / "nowhere").exists()
    assert "mysql" in cli.run("copy", "here", "mysql://x").err
    failed = cli.run("copy", "here", "postgresql://app:s3cret@127.0.0.1:1/db", "--output", "json")
    assert failed.error["details"]["cause"] == "unreachable"
    assert "app:***@127.0.0.1:1/db" in failed.err
    assert "s3cret" not in failed.out + failed.err


async def test_a_bar_on_a_terminal(cli: Cli, terminal: Terminal) -> None:
    """Whoever waits sees how far it is."""
    async with opened(cli.folder) as store:
        await written(store, turn("a"))
    terminal.start("copy", "store", "there")
    shown = terminal.read_until("3 events\r\n")
    assert "copying" in shown
    assert "100%" in shown
