"""What does the memory's index cost, and does a search through it find what an exact one finds?

`python -m benchmarks.memory_index [ENTRIES ...]`, 10,000 and 100,000 unless given. The files lie on the disk that
TMPDIR is on. The exact search weighs every entry by the same weights; lateness is that of a task that sleeps one
millisecond at a time while the searches run; that of an idle loop, just before, is what the machine adds.
"""

import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import trio

from benchmarks.memory_data import Labelled, Query, filler, labelled
from benchmarks.report import Goal, report
from warren.memory import MemoryConfig, MemoryEntry
from warren.storage.memory import MemoryStore
from warren.storage.memory.weights import Corpus, Question
from warren.storage.memory.words import Analyzer
from warren.transport.process import tune

SIZES: Final = (10_000, 100_000)
QUERIES: Final = 200
NOW: Final = datetime.now(UTC)


def entries(texts: Sequence[str], session: str = "session", first: int = 0) -> list[MemoryEntry]:
    """Return texts as entries, fifty to a session."""
    return [MemoryEntry(f"{session}-{at // 50}", at, at, text, NOW) for at, text in enumerate(texts, first)]


def exact_ranks(texts: Sequence[str], queries: Sequence[Query]) -> float:
    """Return the MRR@10 of weighing every text."""
    analyzer = Analyzer()
    terms = [analyzer.terms(text) for text in texts]
    containing = Counter(term for text in terms for term in set(text.tolist()))
    corpus = Corpus(len(terms), statistics.fmean(map(len, terms)))
    found = []
    for query in queries:
        scores = Question.of(analyzer.terms(query.text), containing, corpus).scores(terms)
        rank = int((scores > scores[query.answer]).sum()) + 1
        found.append(1 / rank if scores[query.answer] > 0 and rank <= 10 else 0.0)  # noqa: PLR2004 - MRR@10
    return statistics.fmean(found)


async def measure(folder: Path, data: Labelled) -> dict[str, float]:
    """Index, rebuild, open and search."""
    config = MemoryConfig(folder)
    memory = await MemoryStore.open(config)
    began = time.perf_counter()
    for at in range(0, len(data.texts), 500):
        await memory.index(entries(data.texts[at : at + 500], first=at))
    stored = time.perf_counter()
    await memory.catch_up()
    built = time.perf_counter()
    await memory.aclose()
    closed = time.perf_counter()
    memory = await MemoryStore.open(config)
    opened = time.perf_counter()
    figures = {
        "entries": len(data.texts),
        "stored_per_s": len(data.texts) / (stored - began),
        "build_s": built - stored,
        "open_s": opened - closed,
        "index_mb": (await memory.stats()).index_bytes / 1e6,
        "database_mb": (await memory.stats()).database_bytes / 1e6,
    }
    figures |= await _searched(memory, data)
    figures["forty_messages_ms"] = await _forty(memory, data.texts)
    await memory.aclose()
    return figures


async def _searched(memory: MemoryStore, data: Labelled) -> dict[str, float]:
    idle: list[float] = []
    with trio.move_on_after(2):
        await _watch(idle)
    late: list[float] = []
    times, ranks = [], []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch, late)
        for query in data.queries:
            began = time.perf_counter()
            hits = await memory.search(query.text, limit=10)
            times.append(time.perf_counter() - began)
            turns = [hit.turn for hit in hits]
            ranks.append(1 / (turns.index(query.answer) + 1) if query.answer in turns else 0.0)
        nursery.cancel_scope.cancel()
    return {
        "mrr": statistics.fmean(ranks),
        "search_p50_ms": statistics.median(times) * 1e3,
        "search_p99_ms": float(np.quantile(times, 0.99)) * 1e3,
        "idle_loop_late_p99_ms": float(np.quantile(idle, 0.99)) * 1e3,
        "loop_late_p50_ms": statistics.median(late) * 1e3,
        "loop_late_p99_ms": float(np.quantile(late, 0.99)) * 1e3,
        "loop_late_max_ms": max(late) * 1e3,
    }


async def _watch(late: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await trio.sleep(0.001)
        late.append(time.perf_counter() - began - 0.001)


async def _forty(memory: MemoryStore, texts: Sequence[str]) -> float:
    """Return the median time of indexing what a compaction leaves, in milliseconds."""
    times = []
    for number in range(7):
        some = entries(texts[number * 40 : number * 40 + 40], session=f"new-{number}")
        began = time.perf_counter()
        await memory.index(some)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def main(sizes: Sequence[int]) -> None:
    """Measure each size."""
    tune()  # as every command that serves does
    figures: dict[str, Any] = {}
    goals = []
    for size in sizes:
        data = labelled(min(size, 10_000), QUERIES)
        texts = [*data.texts, *filler(max(0, size - len(data.texts)))]
        whole = Labelled(texts, data.queries)
        with tempfile.TemporaryDirectory() as folder:
            figures[str(size)] = found = trio.run(measure, Path(folder) / "memory", whole)
        found["mrr_exact"] = exact_ranks(texts, data.queries)
        goals += [
            Goal(f"MRR@10 against exact search, {size}", found["mrr"] / found["mrr_exact"], ">=", 0.97),
            Goal(f"search p50 ms, {size}", found["search_p50_ms"], "<=", 10),
            Goal(f"loop late p99 ms, {size}", found["loop_late_p99_ms"], "<=", 2),
            Goal(f"build / open, {size}", found["build_s"] / found["open_s"], ">=", 50),
            Goal(f"indexing 40 messages ms, {size}", found["forty_messages_ms"], "<=", 100),
        ]
    report("what does the memory's index cost, and what does it miss?", figures, goals)


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or SIZES)
