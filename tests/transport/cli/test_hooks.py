"""Hooks of a configuration file and of `--hooks-file`, in commands and at a server with two tenants."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.actors.hooks.scripts import script
from tests.transport.cli.process import Cli, one_line

WRITES = {"tool_calls": [{"name": "write_file", "args": {"path": "a.txt", "content": "hi"}}]}
DONE = {"text": "done"}
GUARD = "echo 'not this file' >&2; exit 2"


def project(cli: Cli, answer: str, event: str = "PreToolUse") -> str:
    """Make a project with a hook and a folder beside it to work in; return the path of its settings."""
    folder = cli.folder / "project" / ".claude"
    script(folder, answer, "guard.sh")
    handler = {"type": "command", "command": '"$CLAUDE_PROJECT_DIR"/.claude/guard.sh', "timeout": 20}
    hooks = {"hooks": {event: [{"matcher": "Write|Edit", "hooks": [handler]}]}}
    (folder / "settings.json").write_text(json.dumps(hooks))
    (cli.folder / "work").mkdir()
    return "project/.claude/settings.json"


def results(cli: Cli, *args: str) -> list[str]:
    """Return the results of the tool calls of the newest session."""
    shown = cli.run("sessions", "show", "last", "--output", "json", *args).data
    messages = [each["message"] for each in shown["messages"]]
    return [result["content"] for each in messages for result in each.get("results", ())]


def test_a_file_of_hooks(cli: Cli) -> None:
    """Guards `warren run`: the tool has not run, and the model was told why."""
    path = project(cli, GUARD)
    ran = cli.run("run", "write", "--model", cli.script(WRITES, DONE), "--root", "work", "--hooks-file", path)
    assert (ran.code, ran.out) == (0, "done\n")
    assert results(cli) == ["not run: not this file"]
    assert not (cli.folder / "work" / "a.txt").exists()


def test_hooks_of_the_configuration_file(cli: Cli) -> None:
    """Tables of their own and files; `config show` has both."""
    path = project(cli, "exit 0")
    script(cli.folder, "exit 2", "guard.sh")
    (cli.folder / "config.toml").write_text(
        f'hooks_files = ["{path}"]\n'
        '[[hooks]]\nevent = "PreToolUse"\nmatcher = "Write"\ncommand = "$PWD/../guard.sh"\ntimeout = "20s"\n'
        '[tools]\nroot = "work"\n'
    )
    ran = cli.run("run", "write", "--model", cli.script(WRITES, DONE), "--config", "config.toml")
    assert ran.code == 0
    assert results(cli, "--config", "config.toml") == ["not run: a hook blocks it, without a reason"]
    shown = cli.run("config", "show", "--config", "config.toml").out
    assert f'hooks_files\t["{path}"]\tfile config.toml' in shown
    assert "hooks[0]\tPreToolUse hook $PWD/../guard.sh\tfile config.toml" in shown


def test_a_file_that_sessions_can_write_is_refused(cli: Cli) -> None:
    """By its path: else a session could make hooks of its own."""
    path = project(cli, "exit 0")
    model = cli.script(WRITES, DONE)
    found = one_line(cli.run("run", "write", "--model", model, "--root", "project", "--hooks-file", path), 2)
    assert "hooks_files[0]" in found
    assert "is in the folder that sessions can write" in found


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ('event = "Stop"', "hooks[0].command: is required, or url (config.toml:"),
        ('event = "Other"\ncommand = "x"', "hooks[0].event"),
        ('event = "Stop"\ncommand = "x"\ntimeout = "soon"', "hooks[0].timeout"),
        ('event = "Stop"\ncomand = "x"', "hooks[0].comand"),
    ],
)
def test_bad_tables(cli: Cli, table: str, problem: str) -> None:
    """Are refused with the field, the file and the line."""
    (cli.folder / "config.toml").write_text(f"[[hooks]]\n{table}\n")
    found = one_line(cli.run("run", "hi", "--model", "echo", "--config", "config.toml"), 2)
    assert problem in found
    assert "config.toml:1" in found


def test_a_server_has_its_own_hooks(cli: Cli) -> None:
    """A command that uses a server cannot bring any."""
    found = cli.run("run", "hi", "--server", "ws://127.0.0.1:1", "--hooks-file", "x.json")
    assert found.code == 2
    assert "--hooks-file" in found.err


def test_two_tenants_of_a_server(cli: Cli) -> None:
    """A hook of one of them does not guard the other; no request can name hooks."""
    cli.script({"text": "hello"})
    (cli.folder / "config.toml").write_text(
        '[[hooks]]\nevent = "UserPromptSubmit"\ncommand = "echo not at acme >&2; exit 2"\ntenants = ["acme"]\n'
    )
    tokens = {
        tenant: cli.run("token", "new", "ci", "--token-file", "tokens", "--tenant", tenant).out.strip()
        for tenant in ("acme", "globex")
    }
    serving = cli.start(
        *("serve", "--port", "0", "--token-file", "tokens", "--config", "config.toml"),
        *("--model", "scripted:script.json"),
    )
    server = serving.read_until("\n").split()[-1].replace("http", "ws")
    said = {
        tenant: cli.run("run", "hi", "--server", server, env={"WARREN_TOKEN": token})
        for tenant, token in tokens.items()
    }
    assert (said["globex"].code, said["globex"].out) == (0, "hello\n")
    assert said["acme"].code != 0
    assert "not at acme" in said["acme"].err
    assert cli.run("sessions", "list", "--server", server, env={"WARREN_TOKEN": tokens["acme"]}).code == 0
    os.kill(serving.process.pid, signal.SIGTERM)
    assert serving.end().code == 0


def test_a_hook_of_a_command_that_is_interrupted(cli: Cli) -> None:
    """Ctrl-C ends the hook's processes with the turn."""
    path = project(cli, 'echo $$ > "$CLAUDE_PROJECT_DIR/pid"; sleep 1000')
    running = cli.start(*("run", "write", "--model", cli.script(WRITES, DONE), "--root", "work", "--hooks-file", path))
    pid = cli.folder / "project" / "pid"
    while not (pid.exists() and pid.read_text().strip()):
        assert running.process.poll() is None
    os.kill(running.process.pid, signal.SIGINT)
    running.end()
    stat = Path(f"/proc/{pid.read_text().strip()}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
