"""What does an idle session weigh, beyond its transcript? One that is live, and one that has left for the store."""

import gc
import statistics
import tempfile
import tracemalloc
from collections.abc import Awaitable, Callable

import trio
import trio.testing

from benchmarks.report import Goal, report
from warren import Config, Limits, RuntimeService, StoreConfig, open_supervisor

SESSIONS = 2_000
PASSIVATED, ROUNDS, WARM_UP = 300, 15, 3
NOTHING = 4
"""Bytes: whatever is kept of a session takes a pointer at least, which is eight; less is noise."""


async def _created(service: RuntimeService, count: int) -> None:
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
    """Let more and more sessions come and go than may be live; return the bytes by which each adds to what is left.

    Garbage of the newest ones gives way to the next: only what grows with their number counts.
    """
    config = Config(StoreConfig(folder, synchronous="NORMAL", projections=False), limits=Limits(max_live=1))
    left: list[int] = []
    async with open_supervisor(config) as service:
        tracemalloc.start()
        for _ in range(WARM_UP + ROUNDS):
            await _created(service, PASSIVATED)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert service.health().live_sessions <= 1
            gc.collect()
            left.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    return statistics.linear_regression(range(ROUNDS), left[WARM_UP:]).slope / PASSIVATED


def main() -> None:
    """Print the traced bytes a session, after one turn, its two short messages and seven events included."""
    live = trio.run(_live)
    with tempfile.TemporaryDirectory() as folder:
        passivated = trio.run(_passivated, folder)
    figures = {"bytes": round(live), "bytes_passivated": round(passivated), "sessions": SESSIONS}
    goals = [
        Goal("idle live session, KB", live / 1024, "<=", 10),
        Goal("passivated session, bytes", passivated, "<=", NOTHING),
    ]
    report("What does an idle session weigh?", figures, goals)


if __name__ == "__main__":
    main()
