"""Commands with `--server`: the sessions of a gateway, and none of a store."""

import hashlib
import json
import re
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Final

import pytest

from tests.transport.cli.process import SLOW, WITHOUT, Cli, Ended, one_line, serving
from tests.transport.cli.terminals import Terminal
from warren.transport.cli.turns.taking import FIRST_WORDS, NO_MODEL

ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+Z)?")
RIGHT: Final = "a-token-of-many-letters"
CONVERSATION: Final[Sequence[tuple[tuple[str, ...], bytes]]] = (
    (("sessions", "list"), b""),
    (("run", "hello", "--label", "a=b", "--title", "First"), b""),
    (("run", "again", "--key", "k1", "--output", "json"), b""),
    (("run", "again", "--key", "k1", "--output", "json"), b""),
    (("resume", "last", "and more", "--stream"), b""),
    (("resume", "last", "--max-steps", "1", "-"), b"from a pipe"),
    (("chat", "--resume", "last"), b"one\n/session\n/compact\ntwo\n"),
    (("delegate", "last", "dig", "--wait", "--title", "A part"), b""),
    (("delegate", "last", "dig", "--wait", "--output", "json", "--max-steps", "3"), b"from a pipe"),
    (("wait", "last"), b""),
    (("compact", "last"), b""),
    (("resume", "last", "one more"), b""),
    (("wait", "last"), b""),
    (("sessions", "inject", "last", "It is noon.", "--source", "clock"), b""),
    (("sessions", "inputs", "last"), b""),
    (("sessions", "label", "last", "mood=calm", "--title", "Second"), b""),
    (("sessions", "fork", "last", "--at", "2"), b""),
    (("sessions", "show", "last", "--verbose"), b""),
    (("sessions", "list", "--label", "a=b", "--output", "json"), b""),
    (("sessions", "archive", "last"), b""),
    (("resume", "last", "hello"), b""),
    (("sessions", "delete", "last"), b""),
    (("sessions", "delete", "nobody"), b""),
    (("sessions", "list", "--all"), b""),
    (("memory", "search", "hello", "--output", "json"), b""),
    (("memory", "search", "--batch"), b'{"query": "hello", "limit": 2}\n{"query": "hello", "limit": 0}\n'),
    (("run", "hello", "--temperature", "9"), b""),
    (("sessions", "show", "nobody", "--output", "json"), b""),
)
"""Commands with what their pipes bring; a session that they name is there if those before were run."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give a gateway with the echo model to all tests that leave nothing in it."""
    cli = Cli(tmp_path_factory.mktemp("served"))
    with serving(cli, "--model", "echo") as (url, _):
        yield url
    cli.close()


def code_of(ended: Ended) -> str:
    """Return the code of the error of a command that failed."""
    assert (ended.code, ended.out) == (1, "")
    return str(ended.error["code"])


def shape(ended: Ended) -> tuple[int, str, str]:
    """Return what a command has shown, without ids and times and the word for a session in memory."""
    out, err = (TIME.sub("TIME", ID.sub("ID", text)) for text in (ended.out, ended.err))
    return ended.code, re.sub(r"\b(live|stored)\b", "KEPT", re.sub(r'"duration_ms":\d+', "", out)), err


def test_a_command_shows_the_same_as_with_a_store_of_its_own(cli: Cli) -> None:
    """Exit code, stdout and stderr of each; a command with a server makes no store."""
    common = ("--model", "echo", "--memory", "--store", "own")
    runs_a_model = ("run", "resume", "chat", "compact")
    cli.run("memory", "add", "--store", "own", stdin=b'{"content": "hello there"}')
    cli.run("memory", "add", "--store", "kept", stdin=b'{"content": "hello there"}')
    with serving(cli, "--model", "echo", "--memory") as (url, _):
        for args, given in CONVERSATION:
            options: tuple[str, ...] = common if args[0] in runs_a_model else ("--store", "own")
            if args[0] == "compact":
                options = ("--memory", "--store", "own")
            embedded = cli.run(*args, *options, stdin=given)
            served = cli.run(*args, "--server", url, stdin=given)
            assert shape(served) == shape(embedded), args
    assert sorted(each.name for each in cli.folder.iterdir()) == ["kept", "own"]


def test_ctrl_c_interrupts_the_turn_at_the_server(cli: Cli) -> None:
    """Its exit code and its words are those of a turn in the process; the text so far is stored."""
    with serving(cli, "--model", cli.script(SLOW)) as (url, _):
        running = cli.start("run", "x", "--stream", "--server", url)
        running.read_until("half ")
        running.signal(signal.SIGINT)
        ended = running.end()
        assert ended.code == 1
        assert FIRST_WORDS in ended.err
        assert ended.err.endswith("[AGENT_ERROR]\n")
        shown = cli.run("sessions", "show", "last", "--server", url).out
        assert shown.endswith("\nassistant (cancelled):\nhalf \n")
        assert not (cli.folder / ".rkat").exists()


def test_the_turn_of_another_command(cli: Cli) -> None:
    """A second turn is refused, of the session and beyond the capacity; `sessions interrupt` ends the first, once."""
    (cli.folder / "config.toml").write_text("[limits]\nmax_sessions = 1\n")
    with serving(cli, "--model", cli.script(SLOW), "--config", "config.toml") as (url, _):
        running = cli.start("run", "x", "--stream", "--server", url)
        running.read_until("half ")
        assert code_of(cli.run("run", "x", "--server", url, "--output", "json")) == "CAPACITY_EXCEEDED"
        assert code_of(cli.run("resume", "last", "x", "--server", url, "--output", "json")) == "SESSION_BUSY"
        assert cli.run("sessions", "interrupt", "last", "--server", url).out.startswith("interrupted ")
        assert running.end().code == 1
        late = cli.run("sessions", "interrupt", "last", "--server", url, "--output", "json")
        assert code_of(late) == "SESSION_NOT_RUNNING"


def test_a_server_without_a_store(cli: Cli) -> None:
    """Its sessions go on as long as it runs, and the line under each answer says so; it has no memory."""
    running = cli.start("serve", "--port", "0", "--ephemeral", "--model", "echo")
    url = running.read_until("\n").split()[-1]
    assert cli.run("run", "hi", "--server", url).err.endswith(" · not stored\n")
    assert cli.run("resume", "last", "and more", "--server", url).out == "and more\n"
    assert cli.run("chat", "--resume", "last", "--server", url, stdin=b"one\n").out == "one\n"
    gone = cli.run("chat", "--resume", "00000000-0000-7000-8000-000000000000", "--server", url, "--output", "json")
    assert code_of(gone) == "SESSION_PERSISTENCE_DISABLED"
    assert code_of(cli.run("memory", "search", "hi", "--server", url, "--output", "json")) == "SESSION_MEMORY_DISABLED"
    running.signal(signal.SIGTERM)
    assert running.end().code == 0


def test_a_call_that_waits_for_approval_is_asked_about_here(cli: Cli) -> None:
    """The tool runs at the server once the user of the command allows it."""
    steps = {"tool_calls": [{"name": "datetime_now", "args": {}}]}, {"text": "done"}
    with serving(cli, "--model", cli.script(*steps), "--builtins", "--ask", "builtins") as (url, _):
        denied = cli.run("run", "x", "--server", url)
        allowed = cli.run("run", "x", "--server", url, "--approve-all")
    assert "datetime_now was not run" in denied.err
    assert "datetime_now was not run" not in allowed.err
    assert (denied.out, allowed.out) == ("done\n", "done\n")


def test_a_terminal_is_not_told_of_the_model_here(terminal: Terminal, shared: str) -> None:
    """The server's own answers, whichever keys this environment lacks."""
    terminal.start("run", "hi", "--server", shared)
    code, shown = terminal.end()
    assert (code, "tokens" in shown, NO_MODEL in shown) == (0, True, False)


@pytest.mark.parametrize("way", ["file", "variable"])
def test_a_token(cli: Cli, way: str) -> None:
    """From a file or a variable; a wrong or a missing one is one line."""
    (cli.folder / "token").write_text(RIGHT)
    (cli.folder / "wrong").write_text(RIGHT[:-1])
    with serving(cli, "--model", "echo", "--token-file", "token") as (url, _):
        options = ("--token-file", "token") if way == "file" else ()
        env = {"WARREN_TOKEN": RIGHT if way == "variable" else "unread"}
        assert cli.run("run", "hi", "--server", url, *options, env=env).out == "hi\n"
        for wrong in ((), ("--token-file", "wrong")):
            line = one_line(cli.run("sessions", "list", "--server", url, *wrong), 1)
            assert "HTTP 401: the token is missing or wrong" in line
            assert RIGHT[:-1] not in line


def test_a_bad_token(cli: Cli) -> None:
    """The error names the variable, and the file."""
    line = one_line(cli.run("run", "x", "--server", "ws://127.0.0.1:1", env={"WARREN_TOKEN": "two words"}), 2)
    assert line == "Error: WARREN_TOKEN: must be one word of ASCII characters [INVALID_PARAMS]\n"
    line = one_line(cli.run("run", "x", "--server", "ws://127.0.0.1:1", "--token-file", "none"), 2)
    assert line.startswith("Error: token_file: cannot read none")


@pytest.mark.parametrize(
    "option",
    [
        *(("--root", "."), ("--memory",), ("--no-memory",), ("--embedder", "bm25"), ("--shell",), ("--no-builtins",)),
        *(("--no-compaction",), ("--compact-keep", "2"), ("--compactor", "a:b"), ("--synchronous", "full")),
        *(("--model-silence", "1s"), ("--projections",), ("--mcp-config", "x.json"), ("--skills", ".")),
        ("--hooks-file", "x.json"),
    ],
    ids=lambda option: option[0],
)
def test_options_of_the_runtime_are_refused_by_name(cli: Cli, option: tuple[str, ...]) -> None:
    """Nothing is connected to."""
    ended = cli.run("run", "x", "--server", "ws://127.0.0.1:1", *option, "--output", "json")
    assert ended.code == 2
    assert option[0].removeprefix("--no-").removeprefix("--") in ended.error["message"]
    assert "--server names another one" in ended.error["message"]
    assert ended.error["details"]["path"].startswith("$.")


def test_the_nearer_of_a_server_and_a_store(cli: Cli, shared: str) -> None:
    """An option is nearer than a variable, a variable nearer than the file; two of one kind exclude each other."""
    there, here = {"WARREN_SERVER": shared}, {"WARREN_STORE": "own", "WARREN_MEMORY": "1"}
    session = json.loads(cli.run("run", "hi", "--output", "json", env=there).out)["session_id"]
    assert session in cli.run("sessions", "list", env=there).out
    assert cli.run("sessions", "list", "--store", "own", env=there).out == ""
    assert session in cli.run("sessions", "list", "--server", shared, env=here).out
    assert session in cli.run("resume", session, "hi", "--server", shared, env=here).err
    for args, env in ((["--server", shared, "--store", "own"], {}), ([], there | here)):
        refused = cli.run("sessions", "list", *args, env=env)
        assert (refused.code, refused.out) == (2, "")
        assert "--server and --store exclude each other" in refused.err
    refused = cli.run("run", "hi", env=there | {"WARREN_MEMORY": "1"})
    assert (refused.code, "WARREN_MEMORY" in refused.err) == (2, True)
    (cli.folder / ".rkat").mkdir()
    (cli.folder / ".rkat" / "config.toml").write_text('store = "own"\nmemory = true\n[compaction]\nenabled = false\n')
    assert session in cli.run("sessions", "list", env=there).out
    assert cli.run("resume", session, "hi", env=there).code == 0
    assert not (cli.folder / "own").exists()


def test_a_token_file_alone(cli: Cli) -> None:
    """It is no setting of a runtime."""
    refused = cli.run("run", "x", "--token-file", "x")
    assert (refused.code, "--token-file needs --server" in refused.err) == (2, True)


class _Page(BaseHTTPRequestHandler):
    """A web server that is no gateway."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def listening(kind: str) -> Iterator[int]:
    """Listen as something else than a gateway; yields the port."""
    if kind == "web":
        with HTTPServer(("127.0.0.1", 0), _Page) as pages:
            thread = threading.Thread(target=pages.serve_forever)
            thread.start()
            yield pages.server_port
            pages.shutdown()
            thread.join()
        return
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        if kind == "nothing":
            server.close()
            yield port
            return

        def greet() -> None:
            peer, _ = server.accept()
            while b"\r\n\r\n" not in peer.recv(65536):
                pass
            peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            peer.close()

        thread = threading.Thread(target=greet)
        thread.start()
        yield port
        thread.join()


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("nothing", "cannot be reached"),
        ("web", "refused the connection: HTTP 404: it is not the WebSocket of a gateway"),
        ("shell", "did not answer like a gateway"),
    ],
)
def test_there_is_no_gateway(cli: Cli, kind: str, problem: str) -> None:
    """One line, and as JSON an error with a cause."""
    with listening(kind) as port:
        line = one_line(cli.run("run", "x", "--server", f"ws://127.0.0.1:{port}"), 1)
    assert f"Error: ws://127.0.0.1:{port}/ws {problem}" in line
    assert line.endswith(" [AGENT_ERROR]\n")


def test_a_bad_address(cli: Cli) -> None:
    """The error names the option."""
    ended = cli.run("sessions", "list", "--server", "ftp://here", "--output", "json")
    assert (ended.code, ended.error["details"]["path"]) == (2, "$.server")


def test_a_gateway_that_dies_in_a_turn(cli: Cli) -> None:
    """The command ends with one error; it does not begin the turn again."""
    model = cli.script({"text": "hello"})
    session = cli.run("run", "x", "--store", "kept", "--model", model, "--output", "json").data["session_id"]
    server = cli.start("serve", "--port", "0", "--store", "kept", "--model", cli.script(SLOW))
    url = server.read_until("\n").split()[-1]
    running = cli.start("resume", session, "x", "--stream", "--server", url)
    running.read_until("half ")
    server.signal(signal.SIGKILL)
    server.end()
    ended = running.end()
    assert ended.code == 1
    assert "whether the request was carried out is unknown" in ended.err
    assert "Traceback" not in ended.err


def test_without_its_extra(cli: Cli) -> None:
    """The command says which extra it needs."""
    line = one_line(cli.run("run", "x", "--server", "ws://127.0.0.1:1", python=("-c", WITHOUT, "anyio")), 1)
    assert line == "Error: --server needs the extra `client`: pip install 'warren[client]'\n"


def test_a_server_needs_no_store(cli: Cli, shared: str) -> None:
    """Neither the extra of the store nor that of the memory."""
    for missing in ("apsw", "usearch"):
        args = ("run", "hi", "--server", shared)
        assert cli.run(*args, python=("-c", WITHOUT, missing)).out == "hi\n"


def test_no_file_is_made(cli: Cli, shared: str) -> None:
    """Not even the folder of the store."""
    assert cli.run("run", "hi", "--server", shared).code == 0
    assert list(Path(cli.folder).iterdir()) == []


def test_a_file_that_is_too_large_for_a_message(cli: Cli, shared: str) -> None:
    """It goes in pieces, and arrives whole."""
    photo = cli.folder / "photo.png"
    photo.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(1_500_000))
    ended = cli.run("run", "--server", shared, "--attach", str(photo), "look")
    assert (ended.code, ended.out) == (0, "look\n[image photo.png: 1500008 bytes]\n")
    hashed = hashlib.sha256(photo.read_bytes()).hexdigest()
    again = cli.folder / "again.png"
    assert cli.run("sessions", "file", "last", hashed, "-o", str(again), "--server", shared).code == 0
    assert again.read_bytes() == photo.read_bytes()
