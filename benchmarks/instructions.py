"""How many instructions does a turn take? Counted by valgrind, so another program on the machine changes nothing.

Each kind of turn runs in two processes under callgrind, the second of which runs more turns: the difference of their
instructions, over the difference of their turns, is what a turn takes beyond the start of the process. All threads
count. Without valgrind there is nothing to count with, and the benchmark says so.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import trio

from benchmarks.report import Goal, report
from warren import Config, SessionService, StoreConfig, open_supervisor
from warren.config import TraceConfig
from warren.transport.cli.process import tune

COUNTED: Final = re.compile(rb"Collected : (\d+)")
KINDS: Final = {"in_memory": (1, 100, 300), "durable_100_sessions": (100, 2, 6)}
"""Sessions, and the turns of each in the short and in the long run."""
GOAL: Final = 550_000


async def _turns(service: SessionService, session_id: str, count: int) -> None:
    for _ in range(count):
        await service.start_turn(session_id, "hello there")


async def _run(store: StoreConfig | None, traces: TraceConfig | None, sessions: int, turns: int) -> None:
    async with open_supervisor(Config(store=store, model="echo", traces=traces)) as service:
        ids = [(await service.create_session(None)).session_id for _ in range(sessions)]
        async with trio.open_nursery() as nursery:
            for session_id in ids:
                nursery.start_soon(_turns, service, session_id, turns)


def run_turns(kind: str, turns: int, traces: TraceConfig | None = None) -> None:
    """Run turns: the program that is counted."""
    tune()
    with tempfile.TemporaryDirectory() as folder:
        store = None if kind == "in_memory" else StoreConfig(Path(folder))
        trio.run(_run, store, traces, KINDS[kind][0], turns)


def _counted(command: Sequence[str], turns: int) -> int:
    """Return the instructions of a process that runs `turns` turns in each session."""
    valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, "-m"]
    run = subprocess.run([*valgrind, *command, str(turns)], stderr=subprocess.PIPE, check=True)
    found = COUNTED.search(run.stderr)
    assert found is not None, run.stderr.decode()
    return int(found[1])


def of_a_turn(kind: str, *command: str) -> int:
    """Return the instructions of a turn of a kind.

    Args:
        kind: the kind.
        command: the module that runs its turns, and its arguments before their number.
    """
    sessions, short, long = KINDS[kind]
    return round((_counted(command, long) - _counted(command, short)) / (sessions * (long - short)))


def main() -> None:
    """Print the instructions of a turn of each kind."""
    figures: dict[str, Any] = {}
    goals = []
    if shutil.which("valgrind") is None:
        figures["failed"] = {"valgrind": "is not installed"}
    else:
        figures |= {kind: of_a_turn(kind, "benchmarks.instructions", kind) for kind in KINDS}
        goals.append(Goal("instructions of an in-memory turn", figures["in_memory"], "<=", GOAL))
    report("How many instructions does a turn take?", figures, goals)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_turns(sys.argv[1], int(sys.argv[2]))
    else:
        main()
