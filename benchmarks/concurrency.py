"""Do many sessions get in each other's way? 1,000 sessions x 5 turns on a model that takes 50 ms, durable.

The process sets the garbage collector as `warren serve` does.
"""

import tempfile
import time
from pathlib import Path

import trio

from benchmarks.models import FixedModel
from benchmarks.report import Goal, report
from warren import Config, SessionService, StoreConfig, open_supervisor
from warren.transport.cli.process.tuning import tune

SESSIONS, TURNS, DELAY = 1_000, 5, 0.05
ROUNDS = 3


async def _session(service: SessionService) -> None:
    result = await service.create_session("Go on, please.")
    for _ in range(TURNS - 1):
        await service.start_turn(result.session_id, "Go on, please.")


async def _wall(folder: Path) -> float:
    config = Config(store=StoreConfig(folder), model="fixed", provider="fixed")
    async with open_supervisor(config, providers={"fixed": FixedModel(DELAY)}) as service:
        begun = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(SESSIONS):
                nursery.start_soon(_session, service)
        return time.perf_counter() - begun


def main() -> None:
    """Print the wall time over that of one session alone with no work but the model's."""
    tune()
    with tempfile.TemporaryDirectory() as name:
        wall = min(trio.run(_wall, Path(name) / str(index)) for index in range(ROUNDS))
    ideal = TURNS * DELAY
    figures = {"wall_s": round(wall, 3), "ideal_s": ideal, "turns_per_s": round(SESSIONS * TURNS / wall)}
    goal = Goal("1,000 sessions x 5 turns x 50 ms, wall over ideal", wall / ideal, "<=", 3.0)
    report("Do many sessions get in each other's way?", figures, [goal])


if __name__ == "__main__":
    main()
