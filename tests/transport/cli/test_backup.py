"""`warren backup` and `warren restore` as a user meets them: real processes, a real store."""

import os
import re
import stat
from pathlib import Path

import pytest
import trio

from tests.storage.samples import NOW, opened, turn, written
from tests.support.memories import memory_in, remembered
from tests.transport.cli.filling import HERE, turns
from tests.transport.cli.process import Cli, one_line
from tests.transport.cli.serving import connected, serve
from tests.transport.cli.terminals import Terminal
from warren.conversation import codec
from warren.conversation.memory import MemoryEntry
from warren.conversation.messages import UserMessage
from warren.settings.config import StoreConfig
from warren.storage.maintenance.backup import restore
from warren.storage.maintenance.doctor import examine
from warren.storage.operations import Lease, Release
from warren.storage.queries import StoredMessages


async def filled(path: Path) -> None:
    """Store a session and something that is remembered."""
    async with opened(path) as store:
        await written(store, turn("a"), Release("a", Lease(1)))
    memory = await memory_in(path / "store" / "memory")()
    await memory.index([MemoryEntry("a", 1, 1, "the doors are blue", NOW)])
    await memory.aclose()


def names(folder: Path) -> list[str]:
    """Return what is in a folder."""
    return sorted(each.name for each in folder.iterdir())


async def test_there_and_back(cli: Cli) -> None:
    """A copy is made, nothing is replaced unasked, and a new store goes on where the old one was."""
    await filled(cli.folder)
    ended = cli.run("backup", "b.sqlite3", *HERE)
    assert (ended.code, ended.err) == (0, "")
    expected = r"b\.sqlite3: 1 sessions, \d+ bytes\nb\.memory\.sqlite3: the memory\n"
    assert re.fullmatch(expected, ended.out)
    assert names(cli.folder) == ["b.memory.sqlite3", "b.sqlite3", "store"]
    assert stat.S_IMODE((cli.folder / "b.sqlite3").stat().st_mode) == 0o600
    assert one_line(cli.run("backup", "b.sqlite3", *HERE), 1) == (
        "Error: b.sqlite3 exists; --force replaces it [SESSION_STORE_ERROR]\n"
    )
    data = cli.run("restore", "b.sqlite3", "--store", "new", "--output", "json").data
    assert (data["file"], data["sessions"], data["memory"]) == ("new/sessions.sqlite3", 1, "new/memory/memory.sqlite3")
    assert remembered(cli.folder / "new" / "memory") == {("a", 1): "the doors are blue"}
    assert cli.run("resume", "a", "more", "--store", "new").out == "more\n"
    assert examine(StoreConfig(cli.folder / "new"), full=True).healthy
    assert "exists; --force replaces it" in one_line(cli.run("restore", "b.sqlite3", "--store", "new"), 1)
    assert cli.run("restore", "b.sqlite3", "--store", "new", "--force").code == 0
    assert examine(StoreConfig(cli.folder / "new")).store.messages == 2


async def test_beside_a_running_gateway(cli: Cli) -> None:
    """Turns go on while it copies; every turn that was answered before it is in the copy; no live store is replaced."""
    _, url = serve(cli, *HERE)
    async with connected(url) as client:
        session = (await client.call("session/create", prompt="hello"))["session_id"]
        for _ in range(20):
            await client.call("turn/start", session_id=session, prompt="before")
        backup = cli.start("backup", "b", *HERE)
        took = await turns(client, session, backup.process)
        assert (backup.end().code, len(took) > 0) == (0, True)
        refused = await trio.to_thread.run_sync(cli.run, "restore", "b", *HERE, "--force")
        assert "a process uses the store in store: end it first" in one_line(refused, 1)
        assert (await client.call("turn/start", session_id=session, prompt="after"))["text"] == "after"
        there = await client.call("session/read", session_id=session)
    restore(cli.folder / "b", StoreConfig(cli.folder / "new" / "store"))
    async with opened(cli.folder / "new") as store:
        rows, total = await store.read(StoredMessages(session, limit=1000))
    said = [codec.decode_message(row.body) for row in rows]
    prompts = [message.content for message in said if isinstance(message, UserMessage)]
    assert prompts[:21] == ["hello", *["before"] * 20]
    assert set(prompts[21:]) <= {"go on"}
    assert 42 <= total == 2 * len(prompts) < there["state"]["message_count"]


async def test_the_store_of_a_gateway_is_not_replaced(cli: Cli) -> None:
    """The name of the live database is refused with --force too, and the gateway's turns outlast a kill."""
    gateway, url = serve(cli, *HERE)
    async with connected(url) as client:
        session = (await client.call("session/create", prompt="hello"))["session_id"]
        refused = await trio.to_thread.run_sync(cli.run, "backup", "store/sessions.sqlite3", "--force", *HERE)
        assert "store/sessions.sqlite3 belongs to a store" in one_line(refused, 1)
        await client.call("turn/start", session_id=session, prompt="more")
        gateway.process.kill()
    assert examine(StoreConfig(cli.folder / "store"), full=True).store.messages == 4


def test_mistakes(cli: Cli) -> None:
    """Each is one line with exit code 1, and nothing is made."""
    assert "there is no store at store" in one_line(cli.run("backup", "b", *HERE), 1)
    assert "there is no file b" in one_line(cli.run("restore", "b", *HERE), 1)
    (cli.folder / "b").write_text("a text\n" * 1000)
    assert "b: the session store's file is not a database" in one_line(cli.run("restore", "b", *HERE), 1)
    assert names(cli.folder) == ["b"]


@pytest.mark.parametrize("target", [".", "", "folder", "pipe"])
async def test_only_plain_files_are_replaced(cli: Cli, target: str) -> None:
    """A folder or a device in the place of the copy is refused by its name, with --force too, and stays what it is."""
    await filled(cli.folder)
    (cli.folder / "folder").mkdir()
    os.mkfifo(cli.folder / "pipe")
    line = one_line(cli.run("backup", target, "--force", *HERE), 2)
    assert line == f"Error: file: {target or '.'} is not a plain file [INVALID_PARAMS]\n"
    assert names(cli.folder) == ["folder", "pipe", "store"]
    assert (cli.folder / "pipe").is_fifo()
    assert (cli.folder / "folder").is_dir()


async def test_a_bar_on_a_terminal(cli: Cli, terminal: Terminal) -> None:
    """Whoever waits sees how far it is."""
    await filled(cli.folder)
    terminal.start("backup", "b", *HERE)
    shown = terminal.read_until(": the memory\r\n")
    assert "copying" in shown
    assert "100%" in shown
