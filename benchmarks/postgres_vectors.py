"""Does pgvector find what an exact search finds, and as soon as a memory in files? Both have the same vectors.

A memory in files compares up to 21,845 vectors of this length one by one, and has a graph from there on.

`python -m benchmarks.postgres_vectors [ENTRIES]`, 20,000 unless given. The vectors lie in clusters, as those of texts
do, and no query has a word of a text: so vectors alone decide. Each query goes to both in turn, in the whole memory and
in one session of fifty entries. The server of the tests is started for it, with the settings of a new server. A machine
whose PostgreSQL has no pgvector leaves it out.
"""

import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
import trio
from numpy.typing import NDArray
from tests.support.postgres import server_with_vectors

from benchmarks.postgres_memory import AT_ONCE, fill, tidy
from benchmarks.report import Goal, report
from warren.conversation.memory import MemoryConfig
from warren.storage.memory import FileMemory
from warren.storage.memory.postgres import PostgresMemory
from warren.storage.memory_store import MemoryStore
from warren.transport.cli.process.tuning import tune

ENTRIES: Final = 20_000
QUERIES: Final = 200
DIMENSIONS: Final = 384
CLUSTERS: Final = 1_000
NEAREST: Final = 10
IN_SESSION: Final = 50
DATABASE: Final = "vectors"
_CENTRES: Final = np.random.default_rng(7).standard_normal((CLUSTERS, DIMENSIONS))


@attrs.frozen
class Clustered:
    """An embedder whose vectors are made of a text's checksum."""

    name: str = "clustered"
    dimensions: int = DIMENSIONS

    async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float]]:
        """Return a vector for each text."""
        return [vector(text).tolist() for text in texts]


def vector(text: str) -> NDArray[np.float64]:
    """Return the vector of a text, of length 1."""
    random = np.random.default_rng(zlib.crc32(text.encode()))
    found = _CENTRES[random.integers(CLUSTERS)] + 0.7 * random.standard_normal(DIMENSIONS)
    unit: NDArray[np.float64] = found / np.linalg.norm(found)
    return unit


@attrs.frozen
class Found:
    """The milliseconds of each search, and the share of the nearest entries among its hits."""

    times: list[float] = attrs.field(factory=list)
    recalls: list[float] = attrs.field(factory=list)

    def figures(self) -> dict[str, float]:
        """Return what to report."""
        return {
            "recall_at_10": float(np.mean(self.recalls)),
            "p50_ms": float(np.median(self.times)),
            "p99_ms": float(np.quantile(self.times, 0.99)),
        }


async def search(
    homes: dict[str, MemoryStore], query: str, nearest: list[int], session: str | None
) -> dict[str, Found]:
    """Search once in each.

    Entries that have no more in common with the query than most are no hits, so there may be fewer than asked for.
    """
    times, hits = {}, {}
    for name, memory in homes.items():
        began = time.perf_counter()
        found = await memory.search(query, limit=NEAREST, session_id=session)
        times[name] = 1e3 * (time.perf_counter() - began)
        hits[name] = {hit.turn for hit in found}
    wanted = set(nearest[: max(map(len, hits.values()))])
    return {name: Found([times[name]], [len(wanted & hits[name]) / len(wanted)] if wanted else []) for name in homes}


async def compare(folder: Path, url: str, size: int) -> dict[str, Any]:
    """Store and search in both."""
    embedder, texts = Clustered(), [f"entry{number}" for number in range(size)]
    file = await FileMemory.open(MemoryConfig(folder, embedder=embedder.name), embedder)
    database = await PostgresMemory.open(MemoryConfig(url=url, embedder=embedder.name), embedder)
    homes: dict[str, MemoryStore] = {"PostgreSQL": database, "file": file}
    stored = {name: await fill(memory, texts) for name, memory in homes.items()}
    await trio.to_thread.run_sync(tidy, url)
    vectors = np.array([vector(text) for text in texts])
    found = {(name, where): Found() for where in ("all", "a session") for name in homes}
    for number in range(-AT_ONCE // 10, QUERIES):
        query = f"query{number}"
        cosines = vectors @ vector(query)
        first = (number * 7_919) % (size // IN_SESSION) * IN_SESSION
        inside = first + np.argsort(-cosines[first : first + IN_SESSION])
        for where, nearest, session in (
            ("all", np.argsort(-cosines), None),
            ("a session", inside, f"session-{first // IN_SESSION}"),
        ):
            for name, one in (await search(homes, query, nearest[:NEAREST].tolist(), session)).items():
                if number >= 0:  # the ones before warm both up
                    found[name, where].times.extend(one.times)
                    found[name, where].recalls.extend(one.recalls)
    for memory in homes.values():
        await memory.aclose()
    return {
        "entries": size,
        "stored_per_s": {name: round(rate) for name, rate in stored.items()},
        **{f"{name}, in {where}": each.figures() for (name, where), each in found.items()},
    }


def main(size: int) -> None:
    """Print the figures of both."""
    tune()
    what = "Does pgvector find what an exact search finds, and as soon as a memory in files?"
    server = server_with_vectors()
    if server is None:
        report(what, {"left out": "no PostgreSQL with pgvector is installed"}, [])
        return
    server.run("postgres", f"CREATE DATABASE {DATABASE}")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        figures = trio.run(partial(compare, Path(folder) / "memory", server.url(DATABASE), size))
    report(what, figures, goals(figures, size))


def goals(figures: dict[str, Any], size: int) -> list[Goal]:
    """Return the figures of pgvector over those of a file."""
    found = []
    for where in ("all", "a session"):
        ours, theirs = figures[f"PostgreSQL, in {where}"], figures[f"file, in {where}"]
        over = f"of pgvector over a file's, {size} vectors, in {where}"
        found.append(Goal(f"recall@10 {over}", ours["recall_at_10"] / theirs["recall_at_10"], ">=", 0.9))
        found.append(Goal(f"search p50 {over}", ours["p50_ms"] / theirs["p50_ms"], "<=", 1.0))
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ENTRIES)
