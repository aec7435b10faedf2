"""`warren mcp` as a process, driven by the official client as any host program does it."""

import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.transport.cli.process import SLOW, WITHOUT, Cli, Running, clean_environ, one_line, without_extra
from tests.transport.mcp.clients import Program, using
from tests.transport.mcp.turning import under_way

HELLO: Final = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


@asynccontextmanager
async def host(folder: Path, *args: str, mode: str = "legacy") -> AsyncIterator[Program]:
    """Start a server as a host program does; what it writes to stderr is to be nothing."""
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "warren", "mcp", *args], env=clean_environ(), cwd=folder
    )
    errors = folder / "stderr"
    with errors.open("w") as stderr:
        async with using(stdio_client(server, stderr), mode) as program:
            yield program
    assert errors.read_text() == ""


def started(cli: Cli, *args: str) -> Running:
    """Start a server and shake hands with it."""
    running = cli.start("mcp", *args)
    ask(running, "initialize", HELLO)
    running.read_until('"id":"initialize"')
    return running


def ask(running: Running, method: str, params: Any) -> None:
    """Write a request whose id is its method."""
    assert running.process.stdin is not None
    line = json.dumps({"jsonrpc": "2.0", "id": method, "method": method, "params": params})
    running.process.stdin.write(f"{line}\n".encode())
    running.process.stdin.flush()


def talk(running: Running) -> None:
    """Start a turn that takes long and wait until it has said something."""
    arguments = {"name": "warren_run", "arguments": {"prompt": "talk"}, "_meta": {"progressToken": 1}}
    ask(running, "tools/call", arguments)
    running.read_until('"half "')


async def test_a_session_goes_on_in_the_next_process(tmp_path: Path) -> None:
    """A session that one process has stored is resumed by the next one under the same id, with its history."""
    async with host(tmp_path, "--store", "kept") as program:
        session_id = (await program.ask("warren_run", watch=True, prompt="one"))["session_id"]
        assert program.told[-1] == "run completed"
    async with host(tmp_path, "--store", "kept", mode="auto") as program:
        assert (await program.ask("warren_resume", session_id=session_id, prompt="two"))["text"] == "two"
        messages = (await program.ask("warren_history", session_id=session_id))["messages"]
    assert [item["message"]["role"] for item in messages] == ["user", "assistant"] * 2
    assert (tmp_path / "kept").is_dir()


async def test_a_killed_process_has_lost_no_finished_turn(cli: Cli) -> None:
    """After kill -9 in mid-turn, the finished turn is there and the session runs the next one."""
    first = started(cli, "--store", "kept", "-m", cli.script({"text": "one"}, SLOW))
    ask(first, "tools/call", {"name": "warren_run", "arguments": {"prompt": "hi"}})
    answer = json.loads(first.read_until('"id":"tools/call"').splitlines()[-1])
    session_id = answer["result"]["structuredContent"]["session_id"]
    again = {"session_id": session_id, "prompt": "more"}
    ask(first, "tools/call", {"name": "warren_resume", "arguments": again, "_meta": {"progressToken": 1}})
    first.read_until('"half "')
    first.signal(signal.SIGKILL)
    assert first.end().code == -signal.SIGKILL
    async with host(cli.folder, "--store", "kept") as program:
        messages = (await program.ask("warren_history", session_id=session_id))["messages"]
        assert [item["message"]["role"] for item in messages[:2]] == ["user", "assistant"]
        assert (await program.ask("warren_resume", **again, model="echo"))["text"] == "more"


async def test_a_cancelled_call_is_stored_as_such(cli: Cli) -> None:
    """The official client's cancel reaches the model's turn in the other process, which then takes the next one."""
    async with host(cli.folder, "--store", "kept", "-m", cli.script(SLOW, {"text": "whole"})) as program:
        async with under_way(program, "warren_run", prompt="talk") as scope:
            await program.hear("half ")
            scope.cancel()
        session_id = program.events[0]["session_id"]
        while (await program.ask("warren_read", session_id=session_id))["state"]["is_active"]:
            pass
        assert (await program.ask("warren_resume", session_id=session_id, prompt="again"))["text"] == "whole"


@pytest.mark.parametrize("how", ["end", "SIGTERM"])
def test_it_ends_in_order_with_a_turn_under_way(cli: Cli, how: str) -> None:
    """The end of stdin and signals end it with code 0 and nothing on stderr; the turn is stored, and goes on later."""
    running = started(cli, "--store", "kept", "-m", cli.script(SLOW))
    talk(running)
    if how != "end":
        running.signal(signal.Signals[how])
    ended = running.end(b"" if how == "end" else None)
    assert (ended.code, ended.err) == (0, "")
    answer = json.loads(ended.out.splitlines()[-1])["result"]["structuredContent"]
    assert (answer["code"], answer["details"]["cause"]) == ("AGENT_ERROR", "shutting_down")
    assert "the turn is stored as far as it has come, and goes on" in answer["message"]
    shown = cli.run("sessions", "show", "last", "--store", "kept").out
    assert "half " not in shown
    assert "cancelled" not in shown


def test_requests_in_a_pipe_are_answered(cli: Cli) -> None:
    """The lines that a shell writes into the command come back as answers, one a line, and nothing else does."""
    call = {"name": "warren_run", "arguments": {"prompt": "hi"}}
    requests = [("initialize", HELLO), ("tools/list", {}), ("tools/call", call)]
    lines = [
        {"jsonrpc": "2.0", "id": number, "method": name, "params": it} for number, (name, it) in enumerate(requests)
    ]
    ended = cli.run("mcp", "--memory", stdin="".join(json.dumps(line) + "\n" for line in lines).encode())
    assert (ended.code, ended.err) == (0, "")
    assert "warren_memory_search" in ended.out
    assert sorted(json.loads(line)["id"] for line in ended.out.splitlines()) == [0, 1, 2]
    assert (cli.folder / ".rkat").is_dir()


def test_without_its_extra_it_says_what_to_install(cli: Cli) -> None:
    """One line names the extra."""
    line = one_line(cli.run("mcp", python=("-c", WITHOUT, "mcp")), 1)
    assert "pip install 'warren[mcp]'" in line


def test_a_store_without_its_extra_is_refused(cli: Cli) -> None:
    """A server that could not keep what it is told to keep does not start."""
    line = "Session persistence is disabled (build without 'session-store').\n"
    without_extra(cli.run("mcp", "--store", "kept", python=("-c", WITHOUT, "apsw")), line, "session-store")
