"""What does an idle session weigh, beyond its transcript? One that is live, and one that has left for the store."""

import gc
import tempfile
import tracemalloc
from collections.abc import Awaitable, Callable

import trio
import trio.testing

from benchmarks.report import Goal, report
from warren import Config, Limits, SessionService, StoreConfig, open_supervisor

SESSIONS = 2_000
PASSIVATED = 300


async def _created(service: SessionService, count: int) -> None:
    for _ in range(count):
        await service.create_session("hello there", model="echo")


async def _added(work: Callable[[], Awaitable[None]]) -> int:
    """Return the traced bytes that some work leaves behind."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    await work()
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return after - before


async def _live() -> float:
    async with open_supervisor(Config()) as service:
        await _created(service, 1)
        return await _added(lambda: _created(service, SESSIONS)) / SESSIONS


async def _passivated(folder: str) -> float:
    """Let more sessions come and go than may be live; the first ones fill every cache."""
    config = Config(StoreConfig(folder, synchronous="NORMAL"), limits=Limits(max_live=1))
    async with open_supervisor(config) as service:

        async def work() -> None:
            await _created(service, PASSIVATED)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert service.health().live_sessions <= 1

        await work()
        return await _added(work) / PASSIVATED


def main() -> None:
    """Print the traced bytes a session, after one turn, its two short messages and seven events included."""
    live = trio.run(_live)
    with tempfile.TemporaryDirectory() as folder:
        passivated = trio.run(_passivated, folder)
    figures = {"bytes": round(live), "bytes_passivated": round(passivated), "sessions": SESSIONS}
    goals = [
        Goal("idle live session, KB", live / 1024, "<=", 10),
        Goal("passivated session, bytes", passivated, "<=", 1),
    ]
    report("What does an idle session weigh?", figures, goals)


if __name__ == "__main__":
    main()
