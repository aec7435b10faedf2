"""What do 100,000 stored sessions cost a process that asks for each of them once? As much as the cap on live ones."""

import tempfile
import time
from pathlib import Path
from typing import Final

import trio
import trio.testing

from benchmarks.large_file import fill
from benchmarks.models import FixedModel
from benchmarks.report import Goal, report
from warren import Config, Limits, StoreConfig, open_supervisor
from warren.actors.supervisor.gauge import resident

SESSIONS: Final = 100_000
CAP: Final = 1_000
WORKERS: Final = 20
PER_LIVE_SESSION: Final = 10_000
"""Bytes: the goal of the benchmark `idle_session`."""
SLACK: Final = 20_000_000
"""Bytes: SQLite's caches, and what the allocator keeps."""


async def _measure(folder: Path) -> tuple[int, int, float]:
    """Return the memory that was added, the live sessions in the end, and sessions a second."""
    config = Config(StoreConfig(folder), model="fixed", provider="fixed", limits=Limits(max_live=CAP))
    ids = iter([f"0190a000-0000-7000-8000-{n:012x}" for n in range(1, SESSIONS + 1)])
    async with open_supervisor(config, providers={"fixed": FixedModel()}) as service:
        before, begun = (resident() or 0), time.perf_counter()

        async def work() -> None:
            for session_id in ids:
                await service.resume(session_id)

        async with trio.open_nursery() as nursery:
            for _ in range(WORKERS):
                nursery.start_soon(work)
        seconds = time.perf_counter() - begun
        await trio.testing.wait_all_tasks_blocked()
        return (resident() or 0) - before, service.health().live_sessions, SESSIONS / seconds


def main() -> None:
    """Print what they cost."""
    with tempfile.TemporaryDirectory() as name:
        fill(Path(name), SESSIONS, messages=2, events=8)
        added, live, rate = trio.run(_measure, Path(name))
    figures = {"mb_added": round(added / 1e6, 1), "live_sessions": live, "sessions_per_s": round(rate)}
    goals = [
        Goal("live sessions after all were asked for", live, "<=", CAP),
        Goal("bytes added over those of the cap", added / (CAP * PER_LIVE_SESSION + SLACK), "<=", 1),
    ]
    report(f"What do {SESSIONS:,} stored sessions cost a process that may have {CAP:,} live?", figures, goals)


if __name__ == "__main__":
    main()
