"""Processes that project are killed again and again: the files that they leave become those of a rebuild."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.promises.projected import check
from tests.support.waiting import wait_until

VICTIM = "tests.promises.projection_victim"
ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def victim(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the program until its first session is there; what is left of it is killed in the end."""
    process = subprocess.Popen([sys.executable, "-m", VICTIM, str(folder)], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), "it ended before it began"
        yield process
    finally:
        process.kill()
        process.communicate()


def lives(folder: Path, count: int, seed: int) -> None:
    """Go through so many lives, each of another length; the files are only looked at after some of them."""
    chance = random.Random(seed)  # noqa: S311 - it hides nothing
    for number in range(count):
        with victim(folder) as process:
            time.sleep(chance.uniform(0.0, 1.5))
            process.send_signal(signal.SIGKILL)
            process.wait()
        if number % 2:
            assert check(folder) > 2


def test_killed_a_few_times(tmp_path: Path) -> None:
    """After each kill the next process makes up for what was left half written, to the byte."""
    lives(tmp_path / "store", 2, seed=3)


@pytest.mark.soak
@pytest.mark.time_limit(7200)
def test_killed_for_long(tmp_path: Path, soak_seconds: float) -> None:
    """The same, for as long as asked."""
    lives(tmp_path / "store", max(20, int(soak_seconds / 3)), seed=int.from_bytes(os.urandom(4)))


def test_one_of_two_is_killed(tmp_path: Path) -> None:
    """The other one takes over within seconds, and goes on where the dead one was."""
    folder = tmp_path / "store"
    with victim(folder) as first:
        wait_until_held_by(folder, first.pid)
        with victim(folder) as second:
            time.sleep(0.5)
            first.kill()
            wait_until_held_by(folder, second.pid)
            time.sleep(0.5)
            second.send_signal(signal.SIGKILL)
            second.wait()
    assert check(folder) > 2


def wait_until_held_by(folder: Path, pid: int) -> None:
    """Wait until a process projects."""
    wait_until(lambda: f"process {pid} " in (folder / "projector.lock").read_text())
