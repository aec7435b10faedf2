"""What does a compaction cost besides the model's call? On a thousand messages, durable, with memory and without."""

import statistics
import tempfile
import time
from pathlib import Path

import attrs
import trio

from benchmarks.models import FixedModel
from benchmarks.report import Goal, report
from warren import Config, StoreConfig, open_supervisor
from warren.compaction import CompactionConfig
from warren.memory import MemoryConfig

MESSAGES = 1_000
ROUNDS = 5


async def _seconds(folder: Path, memory: MemoryConfig | None) -> float:
    """Build a history and compact it by hand; the model answers at once."""
    config = Config(store=StoreConfig(folder), model="fixed", provider="fixed", compaction=CompactionConfig())
    config = attrs.evolve(config, memory=memory)
    async with open_supervisor(config, providers={"fixed": FixedModel()}) as service:
        session_id = (await service.create_session(None)).session_id
        for _ in range(MESSAGES // 2):
            await service.start_turn(session_id, "Go on, please.")
        begun = time.perf_counter()
        await service.compact(session_id)
        return time.perf_counter() - begun


def main() -> None:
    """Print the medians with and without a memory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = [trio.run(_seconds, folder / f"plain-{number}", None) for number in range(ROUNDS)]
        kept = [trio.run(_seconds, folder / f"kept-{n}", MemoryConfig(folder / f"memory-{n}")) for n in range(ROUNDS)]
    milliseconds = 1000 * statistics.median(plain)
    figures = {"ms": round(milliseconds, 2), "ms_with_memory_of_all_of_it": round(1000 * statistics.median(kept), 1)}
    goal = Goal("compaction of 1,000 messages besides the model's call, ms", milliseconds, "<=", 10)
    report("What does a compaction cost?", figures, [goal])


if __name__ == "__main__":
    main()
