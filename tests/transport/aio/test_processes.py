"""Programs with `warren.aio` in processes of their own: Ctrl-C, a fork, a loop that is closed without leaving."""

import signal
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = Path(__file__).with_name("program.py")
LIMIT = 60


def _started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_ctrl_c_ends_the_program_in_order(tmp_path: Path) -> None:
    """The body is cancelled and cleans up, the turn ends, and asyncio raises KeyboardInterrupt as always."""
    process = _started("interrupted", str(tmp_path))
    assert _line(process) == "waiting"
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=LIMIT)
    assert out.split("\n")[:3] == ["body cancelled", "sessions 1", "cancelled"], errors
    assert "never" not in out
    assert errors.strip().split("\n")[-1] == "KeyboardInterrupt"
    assert "ExceptionGroup" not in errors
    assert process.returncode in (1, 130, -signal.SIGINT)


def test_a_second_ctrl_c_goes_through() -> None:
    """While the end waits for a model that hangs, a second Ctrl-C leaves it; the process is gone soon."""
    process = _started("stuck")
    assert _line(process) == "waiting"
    process.send_signal(signal.SIGINT)
    assert _line(process) == "leaving"
    time.sleep(0.3)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT)
    assert time.monotonic() - begun < 30
    assert "a runtime of warren.aio still runs at the end of the program" in errors


def test_a_fork_is_named() -> None:
    """A child that was forked is told so; the parent goes on."""
    out, errors = _started("forked").communicate(timeout=LIMIT)
    assert "the service of warren.aio was opened before a fork" in out, errors
    assert out.strip().endswith("over")


def test_a_loop_that_is_closed_ends_the_runtime() -> None:
    """A program that never leaves the block ends all the same, and its runtime in order."""
    out, errors = _started("left_open").communicate(timeout=LIMIT)
    assert out.split() == ["hello", "closed"], errors
    assert "a runtime of warren.aio still runs at the end of the program" in errors
    assert "Traceback" not in errors
