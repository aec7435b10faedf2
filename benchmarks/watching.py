"""What does an open console cost? 1,000 sessions run durable turns, with and without a client that watches the list.

The client is a process of its own, as a browser is. The ratio is that of the processor time of the server, which the
other programs of the machine do not change; the turns a second are shown too.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import trio

from benchmarks.models import FixedModel
from benchmarks.report import Goal, report
from warren import Config, SessionService, StoreConfig, open_supervisor
from warren.transport.access.config import GatewayConfig
from warren.transport.cli.process.tuning import tune
from warren.transport.gateway.gateway import serve_gateway

SESSIONS: Final = 1_000
TURNS: Final = 6
DELAY: Final = 0.2
ROUNDS: Final = 3
WATCHER: Final = """
import sys, trio
from warren.client import connect

async def watch():
    async with connect(sys.argv[1]) as service, service.watch(include_archived=True) as reader:
        print("watching", flush=True)
        async for _changes in reader:
            pass

trio.run(watch)
"""


async def _session(service: SessionService, session_id: str) -> None:
    for _ in range(TURNS):
        await service.start_turn(session_id, "Go on, please.")


async def _run(folder: Path, *, watched: bool) -> tuple[float, float]:
    """Return the seconds of the processor for each turn, and the turns a second."""
    config = Config(store=StoreConfig(folder), model="fixed", provider="fixed")
    async with (
        open_supervisor(config, providers={"fixed": FixedModel(DELAY)}) as service,
        trio.open_nursery() as serving,
    ):
        port = await serving.start(serve_gateway, service, GatewayConfig(port=0))
        ids = [(await service.create_session(None)).session_id for _ in range(SESSIONS)]
        watcher = None
        if watched:
            command = [sys.executable, "-c", WATCHER, f"ws://127.0.0.1:{port}"]
            watcher = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
            assert watcher.stdout is not None
            await watcher.stdout.receive_some()
        begun, used = time.perf_counter(), time.process_time()
        async with trio.open_nursery() as nursery:
            for session_id in ids:
                nursery.start_soon(_session, service, session_id)
        turns = SESSIONS * TURNS
        found = (time.process_time() - used) / turns, turns / (time.perf_counter() - begun)
        if watcher is not None:
            watcher.kill()
            await watcher.wait()
        serving.cancel_scope.cancel()
    return found


def main() -> None:
    """Print the processor time of a turn without a watcher, over that with one."""
    tune()
    pairs = list[tuple[tuple[float, float], tuple[float, float]]]()
    with tempfile.TemporaryDirectory() as name:
        for index in range(ROUNDS):
            off = trio.run(lambda folder: _run(folder, watched=False), Path(name) / f"{index}-off")
            on = trio.run(lambda folder: _run(folder, watched=True), Path(name) / f"{index}-on")
            pairs.append((off, on))
    ratios = [off[0] / on[0] for off, on in pairs]
    figures = {
        "cpu_us_of_a_turn": {
            "without": round(1e6 * statistics.median(off[0] for off, _ in pairs)),
            "watched": round(1e6 * statistics.median(on[0] for _, on in pairs)),
        },
        "turns_per_s": {
            "without": round(statistics.median(off[1] for off, _ in pairs)),
            "watched": round(statistics.median(on[1] for _, on in pairs)),
        },
    }
    what = "processor time of a turn without an open console, over that with one, 1,000 running sessions"
    goal = Goal(what, statistics.median(ratios), ">=", 0.95, (min(ratios), max(ratios)))
    report("What does an open console cost the turns?", figures, [goal])


if __name__ == "__main__":
    main()
