"""Commands in trouble: interrupted, killed, without readers, without room, with stores that are none."""

import json
import re
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from tests.transport.cli.process import FOOTER, SLOW, Cli, one_line
from warren.transport.cli.turns.taking import FIRST_WORDS


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_store_of_a_newer_version(cli: Cli, output: str) -> None:
    """A store that a newer version wrote is refused with a clear line and left alone."""
    cli.run("run", "x")
    path = cli.folder / ".rkat" / "sessions.sqlite3"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 999")
    db.close()
    for args in (["run", "y"], ["sessions", "list"], ["resume", "last", "y"]):
        line = one_line(cli.run(*args, "--output", output), 1)
        assert "999" in line
        assert "SESSION_STORE_ERROR" in line


def test_stores_that_are_none(cli: Cli) -> None:
    """A file in the folder's place, and a file that is no database, are refused with a line that names it."""
    (cli.folder / "file").write_text("x")
    (cli.folder / "junk").mkdir()
    (cli.folder / "junk" / "sessions.sqlite3").write_bytes(b"junk" * 1000)
    for store in ("file", "junk"):
        line = one_line(cli.run("run", "x", "--store", store), 1)
        assert store in line
        assert line.endswith("[SESSION_STORE_ERROR]\n")
    assert (cli.folder / "junk" / "sessions.sqlite3").read_bytes() == b"junk" * 1000


def test_ctrl_c_interrupts_the_turn(cli: Cli) -> None:
    """SIGINT ends the turn through the service: exit code by the table, the text so far stored."""
    running = cli.start("run", "x", "--stream", "-m", cli.script(SLOW))
    running.read_until("half ")
    running.signal(signal.SIGINT)
    ended = running.end()
    assert ended.code == 1
    assert FIRST_WORDS in ended.err
    assert ended.err.endswith("[AGENT_ERROR]\n")
    shown = cli.run("sessions", "show", "last").out
    assert shown.endswith("\nassistant (cancelled):\nhalf \n")
    assert "state:       stored\n" in shown


def test_sigterm_interrupts_the_turn_too(cli: Cli) -> None:
    """A process that is asked to end stores what it has; programs get the cause."""
    running = cli.start("run", "x", "-v", "--output", "json", "-m", cli.script(SLOW))
    running.read_until("text_delta", error=True)
    running.signal(signal.SIGTERM)
    ended = running.end()
    assert (ended.code, ended.out) == (1, "")
    assert json.loads(ended.err.splitlines()[-1])["details"]["cause"] == "cancelled"
    assert "half" in cli.run("sessions", "show", "last").out


def test_a_second_ctrl_c_exits_at_once(cli: Cli) -> None:
    """While the interrupt itself waits, another SIGINT ends the process by that signal."""
    cli.run("run", "x")
    session = cli.run("sessions", "list", "--output", "json").data["sessions"][0]["session_id"]
    lock = sqlite3.connect(cli.folder / ".rkat" / "sessions.sqlite3")
    running = cli.start("resume", session, "x", "--stream", "-m", cli.script(SLOW))
    running.read_until("half ")
    lock.execute("BEGIN IMMEDIATE")  # the interrupted turn cannot be committed
    running.signal(signal.SIGINT)
    running.read_until(FIRST_WORDS, error=True)
    running.signal(signal.SIGINT)
    assert running.process.wait(2) == -signal.SIGINT
    lock.rollback()
    lock.close()
    assert cli.run("resume", session, "go on", "-m", "echo").out == "go on\n"


def test_ctrl_c_leaves_a_prompt_that_waits_for_its_time(cli: Cli) -> None:
    """The process ends at once, and the next one that has the store at that time runs the prompt."""
    cli.run("run", "x")
    running = cli.start("resume", "last", "later", "--not-before", "4s")
    store = sqlite3.connect(cli.folder / ".rkat" / "sessions.sqlite3")
    while not store.execute("SELECT count(*) FROM inbox WHERE not_before IS NOT NULL").fetchone()[0]:
        time.sleep(0.01)
    store.close()
    running.signal(signal.SIGINT)
    ended = running.end()
    assert (ended.code, ended.out) == (-signal.SIGINT, "")
    assert "the prompt waits until" in ended.err
    assert "the next one waits until" in one_line(cli.run("wait", "last"), 1)
    assert cli.run("resume", "last", "at once").out == "at once\n"
    assert cli.run("run", "another", "--not-before", "5s").out == "another\n"
    shown = cli.run("sessions", "list", "--output", "json").data["sessions"]
    assert [each["message_count"] for each in shown] == [2, 6]


def test_a_killed_run_loses_its_turn_alone(cli: Cli) -> None:
    """After SIGKILL in mid-turn, the session goes on from its last finished turn."""
    session = cli.run("run", "one", "--output", "json").data["session_id"]
    running = cli.start("resume", session, "two", "--stream", "-m", cli.script(SLOW))
    running.read_until("half ")
    running.process.kill()
    assert running.end().code == -signal.SIGKILL
    assert cli.run("resume", "last", "three").out == "three\n"
    said = cli.run("sessions", "show", session).out
    assert "two" not in said
    assert "\nuser:\none\n" in said


def test_a_reader_that_leaves_ends_nothing(cli: Cli) -> None:
    """`warren run | head -1` is quiet, and the turn is stored whole."""
    text = "".join(f"line {number}\n" for number in range(50_000))
    running = cli.start("run", "x", "--stream", "-m", cli.script({"text": text}))
    running.read_until("line 0\n")
    assert running.process.stdout is not None
    running.process.stdout.close()
    assert running.process.stderr is not None
    err = running.process.stderr.read().decode()
    assert running.process.wait(20) == 0
    assert re.fullmatch(FOOTER + "\n", err)
    shown = cli.run("sessions", "show", "last", "--output", "json").data
    assert shown["messages"][-1]["message"]["blocks"][0]["text"] == text


@pytest.mark.parametrize("args", [["models"], ["sessions", "list"], ["sessions", "show", "last"], ["run", "x"]])
def test_nobody_reads_at_all(cli: Cli, args: list[str]) -> None:
    """A stdout without a reader is no error of any command."""
    cli.run("run", "x")
    running = cli.start(*args, stdin=subprocess.DEVNULL)
    assert running.process.stdout is not None
    running.process.stdout.close()
    assert running.process.stderr is not None
    assert b"Error" not in running.process.stderr.read()
    assert running.process.wait(20) == 0


def test_a_full_disk_loses_no_turn(cli: Cli) -> None:
    """If the answer cannot be written, one line says so, and the turn is stored all the same."""
    with Path("/dev/full").open("wb") as full:
        ended = cli.run("run", "precious", stdout=full)
    assert ended.code == 1
    assert "Error: No space left on device\n" in ended.err
    assert "Traceback" not in ended.err
    assert "\nassistant:\nprecious\n" in cli.run("sessions", "show", "last").out


def test_closed_streams(cli: Cli) -> None:
    """A process started without stdin, stdout and stderr does its work, and the store keeps its file to itself."""
    command = 'exec "$@" <&- >&- 2>&-'
    ended = cli.run("run", "x", stdin=b"", python=("-c", _EXEC_SHELL, command, "-m", "warren"))
    assert ended.code == 0
    assert "\nassistant:\nx\n" in cli.run("sessions", "show", "last").out


_EXEC_SHELL = "import os, sys; os.execv('/bin/sh', ['sh', '-c', sys.argv[1], 'sh', sys.executable, *sys.argv[2:]])"


def test_a_locale_without_the_characters(cli: Cli) -> None:
    """A character that stdout's encoding lacks is replaced; the answer does not break off."""
    ended = cli.run("run", "café au lait", env={"PYTHONIOENCODING": "ascii"})
    assert (ended.code, ended.out) == (0, "caf? au lait\n")
