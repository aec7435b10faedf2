"""Tools on the command line, as its user has them: options, files with MCP servers, and what is left of a process."""

import json
import os
import re
import signal
import sys
import time
from typing import Any

import httpx
import pytest

from tests.actors.tools.mcp.world import HERE, exists, pids
from tests.actors.tools.shells import alive, marked
from tests.support.waiting import wait_until
from tests.transport.cli.process import LIMIT, WITHOUT, Cli, Running, one_line

SQUARE = {"tool_calls": [{"name": "square", "args": {"n": 7}}]}
SKILL = "---\nname: baking\ndescription: How to bake bread.\n---\nKnead for ten minutes."


def calling(cli: Cli, *calls: tuple[str, dict[str, Any]]) -> str:
    """Return a model that makes calls in one step and then says `done`."""
    step = {"tool_calls": [{"name": name, "args": args} for name, args in calls]}
    return cli.script(step, {"text": "done"})


def mcp_file(cli: Cli, **servers: Any) -> str:
    """Write the file that clients of MCP have in common; return its name."""
    (cli.folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    return "mcp.json"


def bare(cli: Cli, *flags: str, name: str = "bare") -> dict[str, Any]:
    """Return what such a file says of a server of the tests."""
    return {"command": sys.executable, "args": ["-S", str(HERE / "bare.py"), str(cli.folder), name, *flags]}


def shown(cli: Cli) -> str:
    """Return the transcript of the last session."""
    return cli.run("sessions", "show", "last").out


def test_files_of_a_folder(cli: Cli) -> None:
    """With --root the model writes a file there, and none beside it."""
    (cli.folder / "work").mkdir()
    outside = {"path": "../escaped.txt", "content": "no"}
    model = calling(cli, ("write_file", {"path": "note.txt", "content": "yes"}), ("write_file", outside))
    assert cli.run("run", "-m", model, "--root", "work", "go").out == "done\n"
    assert (cli.folder / "work" / "note.txt").read_text() == "yes"
    assert not (cli.folder / "escaped.txt").exists()


def test_commands(cli: Cli) -> None:
    """With --shell it runs commands, without our keys; without it there is no such tool."""
    model = calling(cli, ("shell", {"command": "echo $((6*7)) $OPENAI_API_KEY > out.txt"}))
    assert cli.run("run", "-m", model, "--root", ".", "go").code == 0
    assert not (cli.folder / "out.txt").exists()
    assert "shell" in shown(cli)
    cli.run("run", "-m", model, "--root", ".", "--shell", "go", env={"OPENAI_API_KEY": "sk-secret"})
    assert (cli.folder / "out.txt").read_text() == "42\n"


def test_tools_that_are_there_but_off(cli: Cli) -> None:
    """--no-builtins offers nothing of what --root opens; --builtins does, and the clock without a folder."""
    model = calling(cli, ("datetime_now", {}))
    for options, works in ((("--root", ".", "--no-builtins"), False), (("--builtins",), True), ((), False)):
        assert cli.run("run", "-m", model, *options, "go").code == 0
        assert ("[ok] 20" in shown(cli)) == works


def test_skills(cli: Cli) -> None:
    """The model is told of those in a folder, and loads one."""
    (cli.folder / "skills").mkdir()
    (cli.folder / "skills" / "baking.md").write_text(SKILL)
    cli.run("run", "-m", calling(cli, ("load_skill", {"name": "baking"})), "--skills", "skills", "go")
    assert "- baking: How to bake bread." in shown(cli)
    assert "[ok] Knead for ten minutes." in shown(cli)


def test_the_configuration_file(cli: Cli) -> None:
    """The tables say the same as the options and more, and are shown; secrets of servers are not."""
    (cli.folder / ".rkat").mkdir()
    server = {**bare(cli), "env": {"KEY": "${SECRET}"}}
    (cli.folder / ".rkat" / "config.toml").write_text(
        f'[tools]\nroot = "."\nwritable = false\nshell_timeout = "5s"\nfetch_allow = ["10.0.0.0/8"]\n'
        f"[mcp_servers.bare]\ncommand = {json.dumps(server['command'])}\nargs = {json.dumps(server['args'])}\n"
        'env = { KEY = "${SECRET}" }\ncall_timeout = "10s"\n'
    )
    model = calling(cli, ("write_file", {"path": "note.txt", "content": "no"}), ("square", {"n": 7}))
    assert cli.run("run", "-m", model, "go", env={"SECRET": "s3cret"}).out == "done\n"
    assert not (cli.folder / "note.txt").exists()
    assert "[ok] 49" in shown(cli)
    rows = cli.run("config", "show", "--output", "json").data["settings"]
    found = {row["name"]: (row.get("value"), row["source"]) for row in rows}
    assert found["tools.root"] == (".", "file")
    assert found["tools.writable"] == (False, "file")
    assert found["tools.shell_timeout"] == (5, "file")
    assert found["tools.env"] == ([], "default")
    assert found["mcp_servers.bare"] == (" ".join([server["command"], *server["args"]]), "file")
    assert "KEY" not in json.dumps(rows)
    problem = one_line(cli.run("run", "go"), 2)
    assert "config.mcp_servers.bare.env.KEY: the environment has no SECRET" in problem


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("[tools]\nroot = 5\n", "config.tools.root"),
        ("[tools]\nshell_timeout = 'soon'\n", "config.tools.shell_timeout"),
        ("[tools]\nfetch_allow = ['10.0.0.0/99']\nbuiltins = true\n", "tools.fetch_allow"),
        ("[tools]\nsheel = true\n", "config.tools"),
        ("[tools]\nshell = true\n", "root"),
        ("[mcp_servers.a]\nurl = 'ftp://x'\n", "config.mcp_servers.a.url"),
        ("[mcp_servers.a]\n", "config.mcp_servers.a.command"),
        ("[mcp_servers.'a b']\ncommand = 'x'\n", "config.mcp_servers.a b.name"),
        ("[mcp_servers.a]\ncommand = 'x'\narg = ['y']\n", "config.mcp_servers.a"),
        ("[mcp_servers.a]\ncommand = 'x'\nrestart = 'retry'\n", "config.mcp_servers.a.restart: must be one of replay"),
        (
            "[mcp_servers.a]\ncommand = 'x'\ntool_restart = { put = 'retry' }\n",
            "config.mcp_servers.a.tool_restart.put: must be one of replay",
        ),
    ],
)
def test_a_bad_file(cli: Cli, text: str, path: str) -> None:
    """One line names the field, and no turn begins."""
    (cli.folder / "bad.toml").write_text(text)
    line = one_line(cli.run("run", "--config", "bad.toml", "go"), 2)
    assert line.startswith(f"Error: {path}"), line


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("{", "mcp_config: mcp.json"),
        ("{}", "mcp_config.mcpServers"),
        ('{"mcpServers": {"a": []}}', "mcp_config.mcpServers.a"),
        (
            '{"mcpServers": {"a": {"command": "x", "type": "sse"}}}',
            "mcp_config.mcpServers.a.type: must be stdio or http",
        ),
        ('{"mcpServers": {"a": {"command": ["x"]}}}', "mcp_config.mcpServers.a.command"),
        ('{"mcpServers": {"a": {"command": "x", "arg": []}}}', "mcp_config.mcpServers.a"),
        ('{"mcpServers": {"a": {"command": "x", "restart": 1}}}', "mcp_config.mcpServers.a.restart"),
        ('{"mcpServers": {"a": {"url": "http://x", "command": "x"}}}', "mcp_config.mcpServers.a.url"),
        ('{"mcpServers": {"a": {"url": "http://${NONE}/"}}}', "mcp_config.mcpServers.a.url: the environment has no"),
    ],
)
def test_a_bad_list_of_servers(cli: Cli, text: str, path: str) -> None:
    """The same for the JSON file."""
    (cli.folder / "mcp.json").write_text(text)
    assert one_line(cli.run("run", "--mcp-config", "mcp.json", "go"), 2).startswith(f"Error: {path}")


def test_what_others_write_into_the_list(cli: Cli) -> None:
    """A server that is disabled is not started; what other programs note of one does no harm."""
    used = {**bare(cli), "type": "stdio", "autoApprove": ["square"], "timeout": 60, "env": {"A": "${NONE:-b}"}}
    name = mcp_file(cli, used=used, unused={**bare(cli, name="unused"), "disabled": True})
    cli.run("run", "-m", cli.script(SQUARE, {"text": "done"}), "--mcp-config", name, "go")
    assert "[ok] 49" in shown(cli)
    assert pids(cli.folder, "unused") == []
    assert not any(exists(pid) for pid in pids(cli.folder, "bare"))


@pytest.mark.parametrize(("module", "option"), [("re2", "--root"), ("yaml", "--skills")])
def test_a_missing_extra(cli: Cli, module: str, option: str) -> None:
    """One line names it, and there is no traceback."""
    line = one_line(cli.run(module, "run", option, ".", "go", python=("-c", WITHOUT)), 2)
    assert "pip install 'warren[" in line


# -- processes


def serving(cli: Cli, *options: str) -> tuple[Running, httpx.Client]:
    """Start a server; return it and a client."""
    running = cli.start("serve", "--port", "0", *options)
    url = running.read_until("\n").removeprefix("listening on ").strip()
    return running, httpx.Client(base_url=url, timeout=LIMIT)


def said(http: httpx.Client) -> tuple[str, bool]:
    """Have a new session make its calls; return the last result, and whether it is an error."""
    answer = http.post("/sessions", json={"prompt": "go"})
    assert answer.status_code in (200, 201), answer.text
    history = http.get(f"/sessions/{answer.json()['session_id']}/history").json()["messages"]
    (result,) = next(entry["message"] for entry in history if entry["message"]["role"] == "tool_results")["results"]
    return result["content"], result.get("is_error", False)


def health_of(http: httpx.Client) -> Any:
    """Return what a probe gets."""
    return http.get("/health").json()


def test_a_server_of_a_gateway_is_killed(cli: Cli) -> None:
    """Sessions get errors for results until it is back, health tells of it, and no turn fails."""
    gone = cli.folder / "gone"
    program = {
        "command": "sh",
        "args": ["-c", 'test -e "$0" || exec "$@"', str(gone), sys.executable, *bare(cli)["args"]],
    }
    options = ("-m", cli.script(SQUARE, {"text": "done"}), "--mcp-config", mcp_file(cli, bare=program))
    running, http = serving(cli, *options)
    with http:
        assert said(http) == ("49", False)
        assert health_of(http)["mcp"] == [{"name": "bare", "status": "ok", "state": "ready"}]
        gone.touch()
        os.kill(pids(cli.folder, "bare")[-1], signal.SIGKILL)
        wait_until(lambda: health_of(http)["status"] == "degraded")
        text, is_error = said(http)
        assert is_error
        assert text.startswith("the MCP server 'bare' is not connected")
        gone.unlink()
        wait_until(lambda: health_of(http)["mcp"][0]["status"] == "ok")
        assert health_of(http)["mcp"][0]["restarts"] >= 1
        assert said(http) == ("49", False)
        running.signal(signal.SIGTERM)
        assert running.end().code == 0
    assert not any(exists(pid) for pid in pids(cli.folder, "bare"))


def test_a_server_that_never_comes_up(cli: Cli) -> None:
    """The gateway works without it, degraded, and its health says why."""
    running, http = serving(cli, "-m", "echo", "--mcp-config", mcp_file(cli, bare=bare(cli, "dies")))
    with http:
        found = health_of(http)
        assert (found["status"], found["mcp"][0]["status"]) == ("degraded", "degraded")
        assert "no database here" in found["mcp"][0]["last_error"]
        assert http.post("/sessions", json={"prompt": "hello"}).json()["text"] == "hello"
    running.signal(signal.SIGTERM)
    assert running.end().code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_process(cli: Cli, number: signal.Signals) -> None:
    """However it ends: a command that runs, and the MCP server, end with it."""
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    model = calling(cli, ("square", {"n": 2}), ("shell", {"command": f"LEFT={mark} sleep 600"}))
    name = mcp_file(cli, bare=bare(cli))
    running = cli.start("run", "-m", model, "--root", ".", "--shell", "--mcp-config", name, "go")
    wait_until(lambda: marked(mark))
    left = [*marked(mark), *pids(cli.folder, "bare")]
    assert len(left) >= 2
    running.signal(number)
    running.end()
    wait_until(lambda: not any(alive(pid) for pid in left))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_servers_of_an_editor(cli: Cli, number: signal.Signals) -> None:
    """The servers that an ACP client names are its session's, and end with the agent, however that ends."""
    running = cli.start("acp", "-m", cli.script(SQUARE, {"text": "done"}))

    def ask(method: str, end: str, **params: Any) -> str:
        assert running.process.stdin is not None
        request = {"jsonrpc": "2.0", "id": method, "method": method, "params": params}
        running.process.stdin.write(json.dumps(request).encode() + b"\n")
        running.process.stdin.flush()
        return running.read_until(end)

    ask("initialize", '"id":"initialize"', protocolVersion=1, clientCapabilities={})
    server = {"name": "editor", "env": [], **bare(cli)}
    answer = ask("session/new", "}\n", cwd=str(cli.folder), mcpServers=[server])
    session_id = re.findall(r'"sessionId":"([^"]+)"', answer)[0]
    said = ask("session/prompt", "end_turn", sessionId=session_id, prompt=[{"type": "text", "text": "go"}])
    assert "49" in said
    left = pids(cli.folder, "bare")
    assert [alive(pid) for pid in left] == [True]
    running.signal(number)
    running.end()
    wait_until(lambda: not any(alive(pid) for pid in left))
