"""What does the memory's index cost, and does a search through it find what an exact one finds?

`python -m benchmarks.memory_index [ENTRIES ...]`, 10,000 and 100,000 unless given. The files lie on the disk that
TMPDIR is on. The exact search weighs every entry by the same weights; lateness is that of a task that sleeps one
millisecond at a time while the memory works; that of an idle loop, just before, is the machine's own share.

`with_vectors` is a memory with an embedder: texts with random vectors, enough of them for a graph. Its lateness is told
for storing, for building the graph and for searching.
"""

import statistics
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
import trio

from benchmarks.memory_data import Labelled, Query, filler, labelled
from benchmarks.report import Goal, report
from warren.conversation.memory import MemoryConfig, MemoryEntry
from warren.storage.memory import FileMemory
from warren.storage.memory.weights import Corpus, Question
from warren.storage.memory.words import Analyzer
from warren.transport.cli.process.tuning import tune

SIZES: Final = (10_000, 100_000)
QUERIES: Final = 200
VECTORS: Final = 25_000
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
    """Store, open and search by words, as without an embedder."""
    config = MemoryConfig(folder)
    memory = await FileMemory.open(config)
    began = time.perf_counter()
    for at in range(0, len(data.texts), 500):
        await memory.index(entries(data.texts[at : at + 500], first=at))
    stored = time.perf_counter()
    await memory.aclose()
    closed = time.perf_counter()
    memory = await FileMemory.open(config)
    opened = time.perf_counter()
    figures = {
        "entries": len(data.texts),
        "stored_per_s": len(data.texts) / (stored - began),
        "open_s": opened - closed,
        "database_mb": (await memory.stats()).database_bytes / 1e6,
    }
    figures |= await _searched(memory, data)
    figures["forty_messages_ms"] = await _forty(memory, data.texts)
    await memory.aclose()
    return figures


async def _searched(memory: FileMemory, data: Labelled) -> dict[str, float]:
    times, ranks = [], []
    idle = await _lateness(partial(trio.sleep, 2))

    async def search() -> None:
        for query in data.queries:
            began = time.perf_counter()
            hits = await memory.search(query.text, limit=10)
            times.append(time.perf_counter() - began)
            turns = [hit.turn for hit in hits]
            ranks.append(1 / (turns.index(query.answer) + 1) if query.answer in turns else 0.0)

    late = await _lateness(search)
    return {
        "mrr": statistics.fmean(ranks),
        "search_p50_ms": statistics.median(times) * 1e3,
        "search_p99_ms": float(np.quantile(times, 0.99)) * 1e3,
        "idle_loop_late_p99_ms": idle["p99_ms"],
        **{f"loop_late_{name}": value for name, value in late.items()},
    }


@attrs.frozen
class RandomEmbedder:
    """Gives each text a random vector: the work of an index does not depend on what its vectors mean."""

    name: str = "random"
    dimensions: int = 384

    async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float]]:
        """Return the vectors."""
        await trio.lowlevel.checkpoint()
        seed = zlib.crc32(texts[0].encode())
        vectors: Any = np.random.default_rng(seed).standard_normal((len(texts), self.dimensions), dtype=np.float32)
        return vectors  # type: ignore[no-any-return]


async def with_vectors(folder: Path) -> dict[str, Any]:
    """Store more vectors than are compared one by one, build the graph, search."""
    memory = await FileMemory.open(MemoryConfig(folder, "random"), RandomEmbedder())
    texts = [f"a short text of number {number}" for number in range(VECTORS)]
    figures: dict[str, Any] = {"entries": VECTORS, "idle": await _lateness(partial(trio.sleep, 2))}

    async def store() -> None:
        for at in range(0, VECTORS, 40):
            await memory.index(entries(texts[at : at + 40], first=at))

    async def search() -> None:
        for at in range(QUERIES):
            await memory.search(texts[at * 97], limit=10)

    figures["storing"] = await _lateness(store)
    figures["searching_exactly"] = await _lateness(search)
    began = time.perf_counter()
    figures["building"] = await _lateness(memory.catch_up)
    figures["build_s"] = time.perf_counter() - began
    assert not memory.is_behind
    figures["searching_the_graph"] = await _lateness(search)
    figures["index_mb"] = (await memory.stats()).index_bytes / 1e6
    await memory.aclose()
    return figures


async def _lateness(work: Callable[[], Awaitable[object]]) -> dict[str, float]:
    """Do the work; return how late the loop was meanwhile."""
    late: list[float] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch, late)
        await work()
        nursery.cancel_scope.cancel()
    return {
        "p50_ms": statistics.median(late) * 1e3,
        "p99_ms": float(np.quantile(late, 0.99)) * 1e3,
        "max_ms": max(late) * 1e3,
    }


async def _watch(late: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await trio.sleep(0.001)
        late.append(time.perf_counter() - began - 0.001)


async def _forty(memory: FileMemory, texts: Sequence[str]) -> float:
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
            Goal(f"indexing 40 messages ms, {size}", found["forty_messages_ms"], "<=", 100),
        ]
    with tempfile.TemporaryDirectory() as folder:
        figures["with_vectors"] = vectors = trio.run(with_vectors, Path(folder) / "memory")
    goals += [
        Goal(f"loop late p99 ms, {name.replace('_', ' ')}", vectors[name]["p99_ms"], "<=", 2)
        for name in ("storing", "searching_exactly", "building", "searching_the_graph")
    ]
    report("what does the memory's index cost, and what does it miss?", figures, goals)


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or SIZES)
