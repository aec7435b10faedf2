"""`warren acp` as a process: how it ends, and that nothing but protocol is on its stdout."""

import json
import signal
from pathlib import Path
from typing import Any

from tests.transport.cli.process import SLOW, Cli, Ended, Running, one_line


def send(running: Running, method: str, **params: object) -> None:
    """Write a request under the id 1."""
    assert running.process.stdin is not None
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    running.process.stdin.write(line.encode() + b"\n")
    running.process.stdin.flush()


def prompting(cli: Cli) -> Running:
    """Start an agent whose model is in the middle of an answer."""
    running = cli.start("acp", "--model", cli.script(SLOW), "--store", "kept")
    send(running, "session/new", cwd="/work", mcpServers=[])
    opened = running.read_until("available_commands_update")
    session_id = json.loads(opened.splitlines()[0])["result"]["sessionId"]
    send(running, "session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": "go"}])
    running.read_until("half ")
    return running


def last_of(ended: Ended) -> Any:
    """Return the last message of a process that ended well and wrote nothing but protocol."""
    assert (ended.code, ended.err) == (0, "")
    return [json.loads(line) for line in ended.out.splitlines()][-1]


def test_sigterm_is_a_clean_end(cli: Cli) -> None:
    """The prompt that runs is answered with the error of a server that ends, and is stored for the next process."""
    running = prompting(cli)
    running.signal(signal.SIGTERM)
    assert running.process.wait(timeout=20) == 0  # reading its output to the end would close its input first
    error = last_of(running.end())["error"]["data"]
    assert (error["code"], error["details"]["cause"]) == ("AGENT_ERROR", "shutting_down")
    assert "user:\ngo" in cli.run("sessions", "show", "last", "--store", "kept").out


def test_the_end_of_the_input_is_a_clean_end(cli: Cli) -> None:
    """A client that closes stdin cancels its prompt."""
    assert last_of(prompting(cli).end())["result"]["stopReason"] == "cancelled"


def test_a_client_that_is_gone_is_the_end(cli: Cli) -> None:
    """When nobody reads stdout any more, the agent ends by itself and in order."""
    running = prompting(cli)
    assert running.process.stdout is not None
    running.process.stdout.close()
    running.process.stdout = None
    send(running, "initialize", protocolVersion=1)
    assert running.process.wait(timeout=20) == 0
    assert "half" in cli.run("sessions", "show", "last", "--store", "kept").out


def test_a_store_that_cannot_be_had_is_one_line(cli: Cli, tmp_path: Path) -> None:
    """The agent says why it does not start on stderr alone, with the exit code of the error."""
    (tmp_path / "file").write_text("in the way")
    assert "SESSION_STORE_ERROR" in one_line(cli.run("acp", "--store", "file"), 1)
