"""Names of processes: whether one has ended is told only where the kernel is sure."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from warren.storage.own_process import has_ended, own_name

pytestmark = pytest.mark.skipif(own_name() is None, reason="the system has no names of processes")
TELLS = "from warren.storage.own_process import own_name; print(own_name(), flush=True); input()"


@pytest.fixture
def process() -> Iterator["subprocess.Popen[str]"]:
    """Run a process that tells its name."""
    command = [sys.executable, "-c", TELLS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        yield running
        running.kill()


def told(stream: IO[str] | None) -> str:
    """Return the next line of a stream."""
    assert stream is not None
    return stream.readline().strip()


def test_a_process_that_is_killed(process: "subprocess.Popen[str]") -> None:
    """It lives until then, and has ended from then on, also before its parent has asked for it."""
    name = told(process.stdout)
    assert not has_ended(name)
    process.kill()
    deadline = time.monotonic() + 20
    while not has_ended(name):
        assert time.monotonic() < deadline
    assert Path(f"/proc/{process.pid}").exists()
    process.wait()
    assert has_ended(name)


def test_another_process_with_the_same_number() -> None:
    """The process that had the number before has ended; the one that has it has not."""
    name = own_name()
    assert name is not None
    before, _, started = name.rpartition(" ")
    assert (has_ended(name), has_ended(f"{before} {int(started) - 1}")) == (False, True)


@pytest.mark.parametrize("machine", [0, 1, 2], ids=["boot", "pid", "time"])
def test_a_process_elsewhere(process: "subprocess.Popen[str]", machine: int) -> None:
    """Nothing is known of processes of another machine, another start of it, or another container."""
    name = told(process.stdout)
    process.kill()
    process.wait()
    parts, _, rest = name.partition(" ")
    others = parts.split(":")
    others[machine] += "0"
    assert not has_ended(f"{':'.join(others)} {rest}")


@pytest.mark.parametrize("name", ["", " ", "here", "{machine}", "{machine} x 1", "{machine} -1 1", "{machine} 1e3 1"])
def test_a_name_that_is_none(name: str) -> None:
    """Nothing has ended by it."""
    own = own_name()
    assert own is not None
    assert not has_ended(name.format(machine=own.partition(" ")[0]))


def test_the_number_of_a_process_that_never_was() -> None:
    """The process has ended, as the kernel has none of that number."""
    own = own_name()
    assert own is not None
    assert has_ended(f"{own.partition(' ')[0]} {2**30} 1")
    assert not has_ended(f"{own.partition(' ')[0]} {2**80} 1")
    assert own.split()[1] == str(os.getpid())
