"""Does a memory in PostgreSQL answer as one in a file does, and as soon? Both have the same texts, on one disk.

`python -m benchmarks.postgres_memory [ENTRIES]`, 20,000 unless given. Each query goes to both in turn, with its own
clock. The server of the tests is started for it, with the settings of a new server: every commit is flushed. A machine
without PostgreSQL leaves it out.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
import psycopg
import trio
from tests.support.postgres import Server, available

from benchmarks.memory_data import Labelled, Query, filler, labelled
from benchmarks.memory_index import entries
from benchmarks.report import Goal, report
from warren.conversation.memory import MemoryConfig
from warren.storage.memory import FileMemory
from warren.storage.memory.postgres import PostgresMemory
from warren.storage.memory_store import MemoryStore
from warren.transport.cli.process.tuning import tune

ENTRIES: Final = 20_000
QUERIES: Final = 300
AT_ONCE: Final = 200
DATABASE: Final = "memory"


@attrs.frozen
class Found:
    """The seconds of each search, the reciprocal rank of its answer among ten hits, and the positions of the hits."""

    seconds: list[float] = attrs.field(factory=list)
    ranks: list[float] = attrs.field(factory=list)
    hits: list[list[int]] = attrs.field(factory=list)

    async def search(self, memory: MemoryStore, query: Query) -> None:
        """Search once."""
        began = time.perf_counter()
        hits = await memory.search(query.text, limit=10)
        self.seconds.append(time.perf_counter() - began)
        self.hits.append([hit.turn for hit in hits])
        self.ranks.append(1 / (self.hits[-1].index(query.answer) + 1) if query.answer in self.hits[-1] else 0.0)

    def figures(self) -> dict[str, float]:
        """Return what to report."""
        return {
            "mrr": statistics.fmean(self.ranks),
            "search_p50_ms": statistics.median(self.seconds) * 1e3,
            "search_p99_ms": float(np.quantile(self.seconds, 0.99)) * 1e3,
        }


async def fill(memory: MemoryStore, texts: Sequence[str]) -> float:
    """Store the texts; return how many a second."""
    began = time.perf_counter()
    for at in range(0, len(texts), AT_ONCE):
        await memory.index(entries(texts[at : at + AT_ONCE], first=at))
    return len(texts) / (time.perf_counter() - began)


def tidy(url: str) -> None:
    """Do what the server does by itself within a minute after many rows came."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("VACUUM ANALYZE")


async def compare(folder: Path, url: str, data: Labelled) -> dict[str, Any]:
    """Store and search in both."""
    file, database = await FileMemory.open(MemoryConfig(folder)), await PostgresMemory.open(MemoryConfig(url=url))
    figures: dict[str, Any] = {"entries": len(data.texts)}
    in_file, in_database = Found(), Found()
    stored = {name: await fill(memory, data.texts) for name, memory in (("file", file), ("PostgreSQL", database))}
    await trio.to_thread.run_sync(tidy, url)
    for memory in (file, database):  # what is asked for the first time has to be counted
        warming = Found()
        for query in data.queries[: QUERIES // 10]:
            await warming.search(memory, query)
    for query in data.queries:
        await in_file.search(file, query)
        await in_database.search(database, query)
    for name, memory, found in (("file", file, in_file), ("PostgreSQL", database, in_database)):
        stats = await memory.stats()
        figures[name] = {
            **found.figures(),
            "stored_per_s": stored[name],
            "database_mb": stats.database_bytes / 1e6,
        }
        await memory.aclose()
    same = sum(one == other for one, other in zip(in_file.hits, in_database.hits, strict=True))
    figures["queries_with_the_same_ten_hits"] = same / len(data.queries)
    return figures


def main(size: int) -> None:
    """Print the figures of both."""
    tune()
    what = "Does a memory in PostgreSQL answer as one in a file does, and as soon?"
    if not available():
        report(what, {"left out": "PostgreSQL is not installed"}, [])
        return
    data = labelled(min(size, 10_000), QUERIES)
    whole = Labelled([*data.texts, *filler(max(0, size - len(data.texts)))], data.queries)
    server = Server.make(durable=True)
    try:
        server.run("postgres", f"CREATE DATABASE {DATABASE}")
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            figures = trio.run(partial(compare, Path(folder) / "memory", server.url(DATABASE), whole))
    finally:
        server.remove()
    ours, theirs = figures["PostgreSQL"], figures["file"]
    goals = [
        Goal(f"MRR@10 in PostgreSQL over a file, {size} texts", round(ours["mrr"] / theirs["mrr"], 2), ">=", 1.0),
        Goal(
            f"search p50 in PostgreSQL over a file, {size} texts",
            ours["search_p50_ms"] / theirs["search_p50_ms"],
            "<=",
            1.0,
        ),
    ]
    report(what, figures, goals)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ENTRIES)
