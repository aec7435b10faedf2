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
from warren.conversation.memory import MemoryConfig

MESSAGES = 1_000
ROUNDS = 5
TIGHT = CompactionConfig(100_000, max_summary_tokens=25_000, window=94_000)
"""The history fits the window; with the room for its summary it does not, and the request has to be cut."""


async def _seconds(
    folder: Path, memory: MemoryConfig | None = None, compaction: CompactionConfig | None = None
) -> float:
    """Build a history and compact it by hand; the model answers at once."""
    config = Config(store=StoreConfig(folder), model="fixed", provider="fixed", memory=memory)
    config = attrs.evolve(config, compaction=compaction or CompactionConfig())
    async with open_supervisor(config, providers={"fixed": FixedModel()}) as service:
        session_id = (await service.create_session(None)).session_id
        for _ in range(MESSAGES // 2):
            await service.start_turn(session_id, "Go on, please.")
        begun = time.perf_counter()
        await service.compact(session_id)
        return time.perf_counter() - begun


def main() -> None:
    """Print the medians: without a known window, within a tight one, and with a memory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = [trio.run(_seconds, folder / f"plain-{number}") for number in range(ROUNDS)]
        tight = [trio.run(_seconds, folder / f"tight-{number}", None, TIGHT) for number in range(ROUNDS)]
        kept = [trio.run(_seconds, folder / f"kept-{n}", MemoryConfig(folder / f"memory-{n}")) for n in range(ROUNDS)]
    plain_ms, tight_ms, kept_ms = (1000 * statistics.median(each) for each in (plain, tight, kept))
    figures = {
        "ms": round(plain_ms, 2),
        "ms_where_the_request_is_cut": round(tight_ms, 2),
        "ms_with_memory_of_all_of_it": round(kept_ms, 1),
    }
    goal = Goal("compaction of 1,000 messages besides the model's call, ms", max(plain_ms, tight_ms), "<=", 10)
    report("What does a compaction cost?", figures, [goal])


if __name__ == "__main__":
    main()
