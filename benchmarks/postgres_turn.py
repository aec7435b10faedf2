"""What does a store in PostgreSQL cost beside one in a file? Turns through the whole runtime, in turn on one disk.

The server of the tests is started for it, with the settings of a new server: every commit is flushed. Beside the turns
in a second, the processor time of our process for each turn, and the lateness of the event loop. A machine without
PostgreSQL leaves it out.
"""

import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import attrs
import trio
from tests.support.postgres import Server, available

from benchmarks.models import FixedModel
from benchmarks.report import Goal, report
from warren import Config, PostgresConfig, SessionService, StoreConfig, open_supervisor
from warren.transport.cli.process.tuning import tune

ROUNDS = 5
TURNS = {1: 300, 100: 20}
TICK = 0.002


@attrs.frozen
class Run:
    """Turns in a second, microseconds of processor time a turn, and the loop's lateness in ms (99th percentile)."""

    rate: float
    cpu_us: float
    late_ms: float


async def _turns(service: SessionService, session_id: str, count: int) -> None:
    for _ in range(count):
        await service.start_turn(session_id, "Go on, please.")


async def _tick(late: list[float]) -> None:
    while True:
        begun = trio.current_time()
        await trio.sleep(TICK)
        late.append(trio.current_time() - begun - TICK)


async def _run(store: StoreConfig | PostgresConfig, sessions: int) -> Run:
    config = Config(store=store, model="fixed", provider="fixed")
    turns, late = TURNS[sessions], list[float]()
    async with open_supervisor(config, providers={"fixed": FixedModel()}) as service:
        ids = [(await service.create_session(None)).session_id for _ in range(sessions)]
        for session_id in ids:
            await service.start_turn(session_id, "Begin, please.")
        async with trio.open_nursery() as ticking:
            ticking.start_soon(_tick, late)
            begun, used = time.perf_counter(), time.process_time()
            async with trio.open_nursery() as nursery:
                for session_id in ids:
                    nursery.start_soon(_turns, service, session_id, turns)
            took, used = time.perf_counter() - begun, time.process_time() - used
            ticking.cancel_scope.cancel()
    count = sessions * turns
    return Run(count / took, used / count * 1e6, statistics.quantiles(late, n=100)[98] * 1e3)


def _pairs(server: Server, sessions: int) -> list[tuple[Run, Run]]:
    """Return the runs on a database and on a file, in turn."""
    found = []
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        for number in range(ROUNDS):
            name = f"turns_{sessions}_{number}"
            server.run("postgres", f"CREATE DATABASE {name}")
            ours = trio.run(partial(_run, PostgresConfig(server.url(name)), sessions))
            found.append((ours, trio.run(partial(_run, StoreConfig(Path(folder) / name, projections=False), sessions))))
    return found


def main() -> None:
    """Print the figures of one session and of a hundred."""
    tune()
    if not available():
        report("What does a store in PostgreSQL cost?", {"left out": "PostgreSQL is not installed"}, [])
        return
    server = Server.make(durable=True)
    figures, goals = {}, []
    try:
        for sessions, least in ((1, 0.6), (100, 0.8)):
            pairs = _pairs(server, sessions)
            rates = [ours.rate / theirs.rate for ours, theirs in pairs]
            used = [ours.cpu_us / theirs.cpu_us for ours, theirs in pairs]
            late = statistics.median(ours.late_ms for ours, _ in pairs)
            for name, runs in (
                ("PostgreSQL", [ours for ours, _ in pairs]),
                ("SQLite", [theirs for _, theirs in pairs]),
            ):
                figures[f"{name}, {sessions} sessions"] = {
                    "turns_per_s": round(statistics.median(run.rate for run in runs)),
                    "cpu_us_per_turn": round(statistics.median(run.cpu_us for run in runs)),
                    "loop_late_p99_ms": round(statistics.median(run.late_ms for run in runs), 2),
                }
            what = f"durable turns/s on PostgreSQL over SQLite, {sessions} session{'s' * (sessions > 1)}"
            goals.append(Goal(what, statistics.median(rates), ">=", least, (min(rates), max(rates))))
            what = f"processor time a durable turn on PostgreSQL over SQLite, {sessions} session{'s' * (sessions > 1)}"
            goals.append(Goal(what, statistics.median(used), "<=", 1.0, (min(used), max(used))))
            goals.append(Goal(f"loop late p99 on PostgreSQL in ms, {sessions} sessions", late, "<=", 20.0))
    finally:
        server.remove()
    report("What does a store in PostgreSQL cost beside one in a file?", figures, goals)


if __name__ == "__main__":
    main()
