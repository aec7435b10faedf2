"""The shell tool: what a model is told of a command, and what a command is given."""

import os
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from uuid import uuid4

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.actors.tools.shells import MarkedShell
from warren.actors.tools.shell.folder import open_folder
from warren.actors.tools.shell.output import OutputTail
from warren.actors.tools.shell.tool import LONGEST_COMMAND, shell_tool
from warren.base.fields import FieldValueError
from warren.models.tools import ToolError


async def test_a_command(shell: MarkedShell) -> None:
    """The answer is how it ended and what it printed, errors in their place; there is nothing to read."""
    said = await shell.run("echo one; echo two >&2; echo three; cat; pwd")
    how, *lines = said.splitlines()
    assert how.startswith("[exit code 0, ")
    assert how.endswith(" s]")
    assert lines == ["one", "two", "three", str(shell.root)]
    assert shell.left() == {}


@pytest.mark.parametrize(
    ("command", "how"),
    [
        ("exit 3", "exit code 3,"),
        ("kill -9 $$", "ended by signal 9,"),
        ("no-such-program", "exit code 127,"),
        ("(yes; echo $? >&2) | head -1", "exit code 0,"),
        ("-x", "exit code 127,"),
    ],
)
async def test_how_a_command_ended(shell: MarkedShell, command: str, how: str) -> None:
    """A code that is not 0 and a signal are told; they are no error of the tool's."""
    assert (await shell.run(command)).startswith(f"[{how}")


async def test_a_pipe_that_nobody_reads(shell: MarkedShell) -> None:
    """A command has the signals of any other process: who writes to a closed pipe ends of it."""
    # The reader prints before it closes the pipe: `head` would close first, and print when it ends.
    assert await shell.output("(yes; echo $? >&2) | (read -r line; echo $line)") == "y\n141\n"


async def test_the_environment(tmp_path: Path) -> None:
    """A command gets what is allowed and nothing else, and neither has the process that keeps it."""
    environ = {
        "PATH": os.environ["PATH"],
        "LC_TIME": "C",
        "OPENAI_API_KEY": "sk-secret",
        "LCX": "secret",
        "BASH_ENV": "/dev/null",
    }
    shell = MarkedShell.under(tmp_path, environ=environ)
    printed = await shell.output("env; tr '\\0' '\\n' < /proc/$PPID/environ")
    assert "LC_TIME=C" in printed
    assert not [line for line in printed.splitlines() if "secret" in line or line.startswith("BASH_ENV")]
    assert "sk-secret" not in await shell.output("cat /proc/$PPID/cmdline")


GATEWAY = """
import os, subprocess, trio
from pathlib import Path
from warren.actors.tools.shell.tool import shell_tool

made = shell_tool(Path("/"), environ=os.environ)
print(trio.run(made.call, "cat /proc/*/environ | tr '\\\\0' '\\\\n'; echo read"))
print("child:", subprocess.run(["/usr/bin/env"], capture_output=True, text=True).stdout, os.environ["OPENAI_API_KEY"])
"""
NOBODY = """
import ctypes, os, subprocess
from warren.actors.tools.shell.hiding import hide_environment

if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # a change of the user hides a process, too
looks = ["/bin/sh", "-c", f"cat /proc/{os.getpid()}/environ; head -c1 /proc/{os.getpid()}/maps"]
print(subprocess.run(looks, capture_output=True, text=True).returncode)
hide_environment(lambda name: name == "LC_TIME")
print(subprocess.run(looks, capture_output=True, text=True))
"""


def run_with_key(program: str, key: str) -> str:
    """Run a program that has a key in its environment; return what it prints."""
    environ = {"PATH": os.environ["PATH"], "LC_TIME": "C", "OPENAI_API_KEY": key}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True, cwd="/").stdout


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_keys_of_the_process_itself() -> None:
    """A command cannot read the keys of the process that started it, not even as root; that process has them."""
    key = uuid4().hex
    said, has = run_with_key(GATEWAY, key).split("child:")
    assert "read" in said
    assert key not in said
    assert has.count(key) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_memory_of_the_process_itself() -> None:
    """Nobody but root can look into the process once its environment is hidden."""
    key = uuid4().hex
    before, after = run_with_key(NOBODY, key).splitlines()
    assert before == "0"
    assert key not in after
    assert "Permission denied" in after


@pytest.mark.parametrize("name", ["", ".", "./", "inner/deep", "./inner//deep/", "inner/./deep"])
async def test_a_folder_under_the_root(shell: MarkedShell, name: str) -> None:
    """A command runs in the folder that is named, by its path from the root or its whole one."""
    (shell.root / "inner" / "deep").mkdir(parents=True)
    where = shell.root / name
    assert await shell.output("pwd", working_dir=name) == f"{where}\n"
    assert await shell.output("pwd", working_dir=str(where)) == f"{where}\n"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("..", r"'\.\.'"),
        ("inner/../inner", r"'\.\.'"),
        ("/", "not under the root"),
        ("/etc", "not under the root"),
        ("link", "links are not followed"),
        ("link/inner", "links are not followed"),
        ("home", "links are not followed"),
        ("file", "no folder"),
        ("none", "No such file"),
        ("a\0b", "null"),
        ("a" * 300, "too long"),
        ("\ud800", "half a character"),
    ],
)
async def test_a_folder_that_is_none(tmp_path: Path, name: str, problem: str) -> None:
    """A path out of the root, any link and a path to no folder are refused, and nothing is run."""
    shell = MarkedShell.under(tmp_path / "root")
    (tmp_path / "outside" / "inner").mkdir(parents=True)
    (shell.root / "inner").mkdir(parents=True)
    (shell.root / "file").touch()
    (shell.root / "link").symlink_to("../outside")
    (shell.root / "home").symlink_to("inner")
    with pytest.raises(ToolError, match=f"working_dir: .*{problem}"):
        await shell.run(f"touch {tmp_path}/ran", working_dir=name)
    assert not (tmp_path / "ran").exists()


async def test_a_root_that_is_gone(tmp_path: Path) -> None:
    """A root that cannot be opened is an error result."""
    with pytest.raises(ToolError, match="root folder"):
        await MarkedShell.under(tmp_path / "none").run("true")


def test_a_link_put_in_at_the_last_moment(tmp_path: Path) -> None:
    """While somebody swaps a folder for a link out, again and again, what is opened is always inside."""
    root, outside, spare = tmp_path / "root", tmp_path / "outside" / "inner", tmp_path / "spare"
    outside.mkdir(parents=True)
    (root / "name" / "inner").mkdir(parents=True)
    inner = root / "name" / "inner"
    inside = inner.stat().st_ino
    enough = threading.Event()

    def swap() -> None:
        while not enough.is_set():
            (root / "name").rename(spare)
            (root / "name").symlink_to(outside.parent)
            (root / "name").unlink()
            spare.rename(root / "name")
            for _ in range(5):
                inner.stat()  # so that it is in its place about half of the time

    adversary = threading.Thread(target=swap)
    adversary.start()
    seen: set[int | str] = set()
    tries = 0
    try:
        while tries < 500 or not any(isinstance(each, str) for each in seen) or inside not in seen:
            tries += 1
            try:
                with open_folder(root, "name/inner") as folder:
                    seen.add(os.fstat(folder).st_ino)
            except ToolError as exc:
                seen.add(str(exc))
    finally:
        enough.set()
        adversary.join()
    assert {each for each in seen if isinstance(each, int)} == {inside}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"command": ""}, "command: must not be empty"),
        ({"command": " \n"}, "command: must not be empty"),
        ({"command": "echo \0"}, "command: .*null"),
        ({"command": "echo \ud800"}, "command: half a character"),
        ({"command": "x" * (LONGEST_COMMAND + 1)}, f"command: must be at most {LONGEST_COMMAND} bytes"),
        ({"command": "true", "timeout_seconds": 0}, "timeout_seconds: must be above 0"),
        ({"command": "true", "timeout_seconds": -1}, "timeout_seconds: must be above 0"),
        ({"command": "true", "timeout_seconds": float("nan")}, "timeout_seconds: must be above 0"),
    ],
)
async def test_bad_arguments(shell: MarkedShell, arguments: dict[str, str | float], problem: str) -> None:
    """A command that cannot be run is an error that names the argument."""
    with pytest.raises(ToolError, match=problem):
        await shell.tool.call(**shell.tool.bind(arguments))


@pytest.mark.parametrize("field", ["timeout", "output_limit"])
def test_bad_bounds(tmp_path: Path, field: str) -> None:
    """A bound of the host's that is none is refused when the tool is made."""
    bounds = {"timeout": 1, "output_limit": 1, field: 0}
    with pytest.raises(FieldValueError) as caught:
        shell_tool(tmp_path, environ={}, timeout=bounds["timeout"], output_limit=bounds["output_limit"])
    assert caught.value.field == field


async def test_the_longest_command(shell: MarkedShell) -> None:
    """A command of as many bytes as there may be is run."""
    command = "true " + "x" * (LONGEST_COMMAND - 20) + "; echo done"
    assert LONGEST_COMMAND - 5 < len(command) <= LONGEST_COMMAND
    assert await shell.output(command) == "done\n"


async def test_a_long_output(tmp_path: Path) -> None:
    """Of a long output the end is kept, and how much came before it is said."""
    whole = "".join(f"{number}\n" for number in range(1, 100_001))
    said = await MarkedShell.under(tmp_path, output_limit=1000).output("seq 100000")
    assert said == f"[the first {len(whole) - 1000} bytes of the output are left out]\n{whole[-1000:]}"


async def test_an_output_that_is_no_text(shell: MarkedShell) -> None:
    """Output that is no UTF-8 is replaced."""
    assert await shell.output(r"printf 'a\377b\303\244\0c'") == "a�bä\0c"


@given(st.lists(st.text().map(str.encode)), st.integers(1, 50))
def test_any_tail(parts: list[bytes], limit: int) -> None:
    """However the output comes in parts, its end is what is kept, in whole characters, and all of it is counted."""
    tail, whole = OutputTail(limit), b"".join(parts)
    for part in parts:
        tail.add(part)
    text = tail.text()
    assert "�" not in text or "�" in whole.decode()
    assert whole.endswith(text.encode())
    assert tail.cut + len(text.encode()) == len(whole)
    assert len(whole) - tail.cut > min(len(whole), limit) - 4


async def test_memory_stays_flat(shell: MarkedShell) -> None:
    """A hundred megabytes of output take no more memory than what is kept of them, a few times over."""
    tracemalloc.start()
    try:
        said = await shell.output("yes | head -c 100000000")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert said.startswith(f"[the first {100_000_000 - 30_000} bytes")
    assert peak < 2_000_000


async def test_two_commands_at_once(shell: MarkedShell) -> None:
    """Commands run beside each other: these two wait for each other."""
    os.mkfifo(shell.root / "there")
    os.mkfifo(shell.root / "back")
    said: dict[str, str] = {}

    async def run(name: str, command: str) -> None:
        said[name] = await shell.output(command)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, "a", "echo ping > there; cat back")
        nursery.start_soon(run, "b", "cat there; echo pong > back")
    assert said == {"a": "pong\n", "b": "ping\n"}


async def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    """Thirty commands, those that are refused, interrupted and too slow among them, leave the process as it was."""
    shell = MarkedShell.under(tmp_path)
    await shell.run("true")
    before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208 - as many as there are

    async def run(number: int) -> None:
        match number % 5:
            case 0:
                await shell.output("true")
            case 1:
                with pytest.raises(ToolError):
                    await shell.run("true", working_dir="none")
            case 2:
                with pytest.raises(ToolError):
                    await shell.run("sleep 1000", timeout_seconds=0.05)
            case 3:
                with trio.move_on_after(0.01 * number):
                    await shell.run("sleep 1000")
            case 4:
                await shell.output("sleep 1000 &")

    for first in range(0, 30, 10):
        async with trio.open_nursery() as nursery:
            for number in range(first, first + 10):
                nursery.start_soon(run, number)
    assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - the same
    assert shell.left() == {}
