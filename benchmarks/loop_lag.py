"""How late is the event loop under full load? 100 sessions that do nothing but turns, durable; a task sleeps 1 ms.

Beside it the same task in a loop that is idle, in turn: what the machine adds.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import trio

from benchmarks.models import FixedModel
from benchmarks.report import Goal, report
from warren import Config, SessionService, StoreConfig, open_supervisor
from warren.transport.cli.process.tuning import tune

SESSIONS: Final = 100
SECONDS: Final = 2.0
ROUNDS: Final = 5
STEP: Final = 0.001


async def _watch(late: list[float]) -> None:
    while True:
        begun = time.perf_counter()
        await trio.sleep(STEP)
        late.append(time.perf_counter() - begun - STEP)


async def _turns(service: SessionService, session_id: str) -> None:
    while True:
        await service.start_turn(session_id, "Go on, please.")


async def _loaded(folder: Path) -> list[float]:
    late: list[float] = []
    config = Config(store=StoreConfig(folder), model="fixed", provider="fixed")
    async with open_supervisor(config, providers={"fixed": FixedModel()}) as service:
        ids = [(await service.create_session(None)).session_id for _ in range(SESSIONS)]
        with trio.move_on_after(SECONDS):
            async with trio.open_nursery() as nursery:
                for session_id in ids:
                    nursery.start_soon(_turns, service, session_id)
                await _watch(late)
    return late


async def _idle() -> list[float]:
    late: list[float] = []
    with trio.move_on_after(SECONDS):
        await _watch(late)
    return late


def _p99_ms(late: list[float]) -> float:
    return 1000 * statistics.quantiles(late, n=100)[98]


def main() -> None:
    """Print the 99th percentile of the lateness, in milliseconds."""
    tune()
    with tempfile.TemporaryDirectory() as name:
        rounds = [(trio.run(_loaded, Path(name) / str(number)), trio.run(_idle)) for number in range(ROUNDS)]
    loaded, idle = ([_p99_ms(late) for late in each] for each in zip(*rounds, strict=True))
    figures = {"p99_ms": round(statistics.median(loaded), 2), "idle_p99_ms": round(statistics.median(idle), 2)}
    goal = Goal("loop lag p99 under full load, ms", statistics.median(loaded), "<=", 20, (min(loaded), max(loaded)))
    report("How late is the event loop under full load?", figures, [goal])


if __name__ == "__main__":
    main()
