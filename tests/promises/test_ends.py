"""The end of `warren serve` as supervisors of processes bring it about: in time, with nothing lost and nothing left."""

import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import trio

from tests.support.postgres import database
from tests.support.postgres_proxy import wire_to
from tests.transport.cli.process import SLOW, Cli, Running, clean_environ

NAMESPACE: Final = ("--pid", "--fork", "--mount-proc", "--kill-child")
STUBBORN: Final = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 1001; sleep 1002' & sleep 1003; sleep 1004"
"""A command whose processes do not end by SIGTERM, one of them in a session of its own."""
LATE: Final = 3.0
"""Seconds that a busy machine may be late: whatever hangs in these tests would take much longer."""
ORPHAN: Final = "setsid sh -c '(sleep 0.2 &) ; true'; sleep 1005"
"""A command that leaves a process behind which ends soon."""
SERVER: Final = """
import json, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for line in sys.stdin:
    asked = json.loads(line)
    info = {"protocolVersion": asked.get("params", {}).get("protocolVersion"), "capabilities": {"tools": {}}}
    found = {"initialize": {**info, "serverInfo": {"name": "x", "version": "1"}}, "tools/list": {"tools": []}}
    if asked.get("method") in found:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": found[asked["method"]]}), flush=True)
time.sleep(1006)
"""
"""An MCP server that ends neither at the end of its input nor by SIGTERM."""


def isolated(*options: str) -> list[str]:
    """Return the command that runs another one in namespaces of its own; skip the test if this is not permitted."""
    program = shutil.which("unshare")
    if program is None:
        pytest.skip("there is no unshare")
    command = [program, *options]
    tried = subprocess.run([*command, "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"namespaces are not permitted: {tried.stderr.decode().strip()}")
    return command


def processes(within: int) -> dict[int, str]:
    """Return the state of each descendant of a process."""
    found: dict[int, tuple[int, str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        found[int(path.parent.name)] = int(parent), state
    below, new = dict[int, str](), {within}
    while new:
        new = {pid for pid, (parent, _) in found.items() if parent in new and pid not in below}
        below |= {pid: found[pid][1] for pid in new}
    return below


def is_there(pid: int) -> bool:
    """Tell whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def shell(command: str) -> dict[str, Any]:
    """Return a step of a script that runs a command."""
    return {"text": "I look.", "tool_calls": [{"name": "shell", "args": {"command": command}}]}


READ_ONLY: Final = """
mount --bind {kept} {kept}
for place in $(awk '{{print $5}}' /proc/self/mountinfo | sort -u); do
    case $place in /proc*|/sys*|/dev|/dev/pts*|{kept}) ;; *) mount -o remount,bind,ro $place 2>/dev/null ;; esac
done
touch /tmp/probe 2>/dev/null && exit 99
exec "$@"
"""


def port_of(running: Running) -> int:
    """Return the port that a server says it listens to."""
    return int(running.read_until("\n").strip().rpartition(":")[2])


def of_first(within: int) -> int:
    """Return the process below another one that is the first of its namespace."""
    for pid in processes(within):
        if Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2].split("\n")[0].split()[-1] == "1":
            return pid
    raise AssertionError("no process is the first of a namespace")


def asked(port: int) -> httpx.Client:
    """Return a client of a server."""
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)


def wait_for(holds: Callable[[], bool], seconds: float = 20) -> bool:
    """Wait until a condition holds; return whether it did in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@contextmanager
def running_turn(port: int) -> Iterator["Future[httpx.Response]"]:
    """Begin a turn that does not end by itself, and let its tools begin; its answer comes later."""
    with ThreadPoolExecutor(1) as threads, asked(port) as http:
        answer = threads.submit(httpx.post, f"http://127.0.0.1:{port}/sessions", json={"prompt": "go"}, timeout=30)
        assert wait_for(lambda: bool(http.get("/health").json()["running_turns"]))
        time.sleep(1)
        yield answer


def gone_in_time(running: Running, seconds: float, number: signal.Signals = signal.SIGTERM) -> None:
    """Signal a server, and check that it and all of its processes are gone in time."""
    left, began = processes(running.process.pid), time.monotonic()
    running.signal(number)
    wait_for(lambda: running.process.poll() is not None and not any(map(is_there, left)), seconds + LATE)
    assert time.monotonic() - began < seconds + LATE
    assert not any(map(is_there, left))


def interrupted(answer: "Future[httpx.Response]") -> None:
    """Check that the caller of a turn was told that it was interrupted by an end."""
    response = answer.result(10)
    body = response.json()
    assert (response.status_code, body["retryable"], body["details"]["cause"]) == (500, False, "shutting_down")
    assert "retry-after" not in response.headers


@pytest.mark.parametrize("options", [(), ("--workers", "2")])
def test_processes_that_ignore_an_end_are_gone_in_time(cli: Cli, options: Sequence[str]) -> None:
    """The turn that waits for them is stored and answered, and no process is left, not even of another session."""
    (cli.folder / "server.py").write_text(SERVER)
    (cli.folder / ".rkat").mkdir()
    table = f'[mcp_servers.x]\ncommand = "{sys.executable}"\nargs = ["server.py"]\n'
    (cli.folder / ".rkat" / "config.toml").write_text(table)
    model = cli.script(shell(STUBBORN))
    running = cli.start("serve", "--port", "0", "--drain", "5s", "-m", model, "--shell", "--root", ".", *options)
    with running_turn(port_of(running)) as answer:
        gone_in_time(running, 5)
        interrupted(answer)
    assert "(calls shell" in cli.run("sessions", "show", "last").out


async def test_a_database_that_hangs_does_not_hold_up_an_end(cli: Cli) -> None:
    """The caller whose turn cannot be stored is told before the process is gone, and the process is gone in time."""

    def end(hold: Callable[[], object]) -> None:
        port = port_of(running)
        with running_turn(port) as answer, asked(port) as http:
            assert http.get("/readyz").status_code == 200
            trio.from_thread.run_sync(hold)
            assert wait_for(lambda: http.get("/readyz").status_code == 503)
            assert http.get("/livez").status_code == 200
            gone_in_time(running, 4)
            interrupted(answer)

    with database() as url:
        async with wire_to(url) as wire:
            model = cli.script(SLOW)
            running = cli.start("serve", "--port", "0", "--drain", "4s", "-m", model, "--store", wire.url)
            await trio.to_thread.run_sync(end, wire.hold)
            wire.go_on()


def test_a_second_signal_leaves_no_process(cli: Cli) -> None:
    """It ends the server at once by that signal, and the commands of its tools with it."""
    model = cli.script(shell(STUBBORN))
    running = cli.start("serve", "--port", "0", "--drain", "60s", "-m", model, "--shell", "--root", ".")
    with running_turn(port_of(running)) as answer:
        running.signal(signal.SIGTERM)
        time.sleep(0.3)
        gone_in_time(running, 5)
        assert running.process.returncode == -signal.SIGTERM
        assert isinstance(answer.exception(10), httpx.HTTPError)


def test_the_first_process_of_a_container(cli: Cli) -> None:
    """With SIGKILL ten seconds after SIGTERM nothing is lost: it ends before, has reaped orphans, and answered."""
    model = cli.script(shell(ORPHAN))
    command = [*isolated(*NAMESPACE), sys.executable, "-m", "warren"]
    command += ["serve", "--port", "0", "-m", model, "--shell", "--root", "."]
    process = subprocess.Popen(command, cwd=cli.folder, env=clean_environ(), stdout=subprocess.PIPE)
    cli.started.append(process)
    with running_turn(port_of(Running(process))) as answer:
        time.sleep(0.5)
        assert "Z" not in processes(process.pid).values()
        os.kill(of_first(process.pid), signal.SIGTERM)
        assert process.wait(10) == 0
        interrupted(answer)
    assert "(calls shell" in cli.run("sessions", "show", "last").out


def test_the_first_process_of_a_container_is_not_frozen_by_its_terminal(cli: Cli) -> None:
    """Nobody could wake the command again after Ctrl-Z: it goes on, and ends by Ctrl-C as ever."""
    ours, theirs = pty.openpty()
    script = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
    )
    command = [sys.executable, "-c", script, *isolated(*NAMESPACE), sys.executable, "-m", "warren"]
    command += ["serve", "--port", "0", "-m", "echo"]
    process = subprocess.Popen(
        command, cwd=cli.folder, env=clean_environ(), stdin=theirs, stdout=subprocess.PIPE, start_new_session=True
    )
    cli.started.append(process)
    with asked(port_of(Running(process))) as http:
        for _ in range(5):
            os.write(ours, b"\x1a")
            assert http.get("/livez", timeout=10).status_code == 200
    os.write(ours, b"\x03")
    assert process.wait(10) == 0
    os.close(ours)
    os.close(theirs)


def test_the_first_process_of_a_container_with_a_terminal_of_others(cli: Cli) -> None:
    """A terminal that does not control the process sends no signals, and a command works with it."""
    ours, theirs = pty.openpty()
    command = [*isolated(*NAMESPACE), sys.executable, "-m", "warren", "--version"]
    ended = subprocess.run(
        command,
        cwd=cli.folder,
        env=clean_environ(),
        stdin=theirs,
        capture_output=True,
        start_new_session=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    os.close(ours)
    os.close(theirs)


def test_a_read_only_machine_with_one_folder(cli: Cli, tmp_path: Path) -> None:
    """No home, no /tmp, no cache: a server needs no other place to write than its store."""
    model, kept = cli.script({"text": "hello"}), tmp_path / "kept"
    kept.mkdir()
    command = [*isolated("--mount"), "sh", "-c", READ_ONLY.format(kept=kept), "sh", sys.executable, "-m", "warren"]
    command += ["serve", "--port", "0", "-m", model, "--store", str(kept / "store"), "--memory"]
    command += ["--builtins", "--shell", "--root", str(kept)]
    environ, pipe = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}, subprocess.PIPE
    process = subprocess.Popen(command, cwd=cli.folder, env=environ, stdin=pipe, stdout=pipe, stderr=pipe)
    cli.started.append(process)
    with asked(port_of(Running(process))) as http:
        made = http.post("/sessions", json={"prompt": "go"})
        assert (made.status_code, made.json()["text"]) == (201, "hello")
        wanted = {"query": "go", "session_id": made.json()["session_id"]}
        assert http.post("/memory/search", json=wanted).status_code == 200
        assert http.get("/readyz").status_code == 200
    Running(process).signal(signal.SIGTERM)
    ended = Running(process).end()
    assert (ended.code, ended.err) == (0, "")


def test_a_signal_while_the_store_is_opened(cli: Cli) -> None:
    """A server that waits for its database ends, too, though it serves nothing yet."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/none"
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        running = cli.start("serve", "--port", f"{port}", "--drain", "2s", "-m", "echo", "--store", place)
        accepted, _ = silent.accept()
        with accepted, asked(port) as http:
            assert (http.get("/livez").status_code, http.get("/readyz").status_code) == (200, 503)
            gone_in_time(running, 2)
