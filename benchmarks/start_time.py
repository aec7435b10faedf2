"""How long does a command take to start?

`warren rpc` is timed to its answer to `initialize`, `warren sessions list` to its end, in a store with one session.
Beside them are an interpreter that does nothing, and one that only imports the libraries that any of these commands
needs. The kinds take turns. The processor time is that of the whole process, and says the same on a busy machine.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from benchmarks.report import Goal, report

ROUNDS: Final = 15
COMMAND: Final = ("-m", "warren")
INITIALIZE: Final = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}\n'


def _until_answered(*arguments: str, folder: str) -> float:
    """Return the seconds from the start of a server to its first answer."""
    begun = time.perf_counter()
    with _started(*arguments, folder=folder) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(INITIALIZE)
        process.stdin.flush()
        assert b"result" in process.stdout.readline()
        seconds = time.perf_counter() - begun
        process.stdin.close()
    return seconds


def _until_ended(*arguments: str, folder: str) -> float:
    """Return the seconds of a whole process."""
    begun = time.perf_counter()
    with _started(*arguments, folder=folder) as process:
        process.communicate()
    assert process.returncode == 0
    return time.perf_counter() - begun


def _started(*arguments: str, folder: str) -> "subprocess.Popen[bytes]":
    # A user's Python keeps the byte code of modules.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def _processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print the medians of some rounds."""
    with tempfile.TemporaryDirectory() as folder:
        _until_ended(*COMMAND, "run", "--model", "echo", "Hello.", folder=folder)
        kinds: dict[str, Callable[[], float]] = {
            "python": partial(_until_ended, "-c", "pass", folder=folder),
            "libraries": partial(_until_ended, "-c", "import trio, attrs, apsw", folder=folder),
            "rpc": partial(_until_answered, *COMMAND, "rpc", folder=folder),
            "sessions_list": partial(_until_ended, *COMMAND, "sessions", "list", folder=folder),
        }
        runs: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
        for _ in range(ROUNDS):
            for name, run in kinds.items():
                before = _processor_time()
                seconds = run()
                runs[name].append((seconds, _processor_time() - before))
    wall = {name: [seconds for seconds, _ in each] for name, each in runs.items()}
    figures = {
        name: {
            "seconds": round(statistics.median(wall[name]), 3),
            "processor_seconds": round(statistics.median(used for _, used in each), 3),
        }
        for name, each in runs.items()
    }
    goals = []
    for what, name, most in (
        ("warren rpc, from its start to the answer of initialize, over the bare import of its libraries", "rpc", 3.0),
        ("warren sessions list on a small store, over the bare import of its libraries", "sessions_list", 1.6),
    ):
        ratios = [own / bare for own, bare in zip(wall[name], wall["libraries"], strict=True)]
        goals.append(Goal(what, statistics.median(ratios), "<=", most, (min(ratios), max(ratios))))
    report("How long does a command take to start?", figures, goals)


if __name__ == "__main__":
    main()
