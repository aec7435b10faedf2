"""How often does the memory find the text that a query is about, against plain full-text search and a bag of words?

MRR@10 over queries written by people (see memory_data). Goals are on the test split, which nothing was tuned on.
`--weights DIR` adds a model of meaning, that of `--embedder local` with its weights in this folder: words alone, its
vectors alone, and both. Its texts take a minute of processor time for each two thousand.
"""

import argparse
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import apsw
import numpy as np
import trio

from benchmarks.memory_data import Labelled, Query, labelled
from benchmarks.report import Goal, report
from warren.conversation.memory import Embedder, MemoryConfig, MemoryEntry
from warren.storage.memory import FileMemory
from warren.transport.embedders import open_embedder

TEXTS: Final = 10_000
QUERIES: Final = 2_400
TEXTS_FOR_MODEL: Final = 2_000
QUERIES_FOR_MODEL: Final = 800
AT_ONCE: Final = 32
"""Texts indexed at a time."""

Finder = Callable[[str], list[int]]


def reciprocal(found: Sequence[int], answer: int) -> float:
    """Return one over the answer's rank among the first ten, 0 where it is not there."""
    return 1 / (found.index(answer) + 1) if answer in found[:10] else 0.0


def plain_fts5(texts: Sequence[str]) -> Finder:
    """Search by SQLite's FTS5 with its porter stemmer and its bm25()."""
    db = apsw.Connection(":memory:")
    db.execute("CREATE VIRTUAL TABLE texts USING fts5(content, tokenize='porter unicode61')")
    with db:
        db.executemany("INSERT INTO texts (rowid, content) VALUES (?, ?)", enumerate(texts))

    def find(query: str) -> list[int]:
        match = " OR ".join(f'"{word}"' for word in re.findall(r"[^\W_]+", query))
        rows = db.execute("SELECT rowid FROM texts WHERE texts MATCH ? ORDER BY rank LIMIT 10", (match,))
        return [row[0] for row in rows]

    return find


def seed_embedder(texts: Sequence[str]) -> Finder:
    """Search exactly by counts of words between spaces, hashed to 4,096 places, and their cosine."""
    matrix = np.zeros((len(texts), 4_096), dtype=np.float32)
    for row, text in zip(matrix, texts, strict=True):
        counts = _places(text)
        length = math.sqrt(sum(count * count for count in counts.values()))
        for place, count in counts.items():
            row[place] = count / length

    def find(query: str) -> list[int]:
        counts = _places(query)
        scores = matrix[:, list(counts)] @ np.array(list(counts.values()), dtype=np.float32)
        return [at for at in np.argsort(-scores, kind="stable")[:10].tolist() if scores[at] > 0]

    return find


def _places(text: str) -> Counter[int]:
    return Counter(zlib.crc32(word.encode()) % 4_096 for word in text.lower().split())


async def through_memory(data: Labelled, queries: Sequence[Query], embedder: Embedder | None = None) -> list[float]:
    """Return each query's reciprocal rank by the whole search: index, fusion and all."""
    memory = await FileMemory.open(MemoryConfig(), embedder)
    now = datetime.now(UTC)
    entries = [MemoryEntry(f"session-{at // 50}", at, at, text, now) for at, text in enumerate(data.texts)]
    for at in range(0, len(entries), AT_ONCE):
        await memory.index(entries[at : at + AT_ONCE])
    await memory.catch_up()
    ranks = []
    for query in queries:
        hits = await memory.search(query.text, limit=10)
        ranks.append(reciprocal([hit.turn for hit in hits], query.answer))
    await memory.aclose()
    return ranks


async def by_vectors(texts: Sequence[str], queries: Sequence[Query], embedder: Embedder) -> list[float]:
    """Return each query's reciprocal rank by the cosines of vectors of length 1 alone."""
    rows = np.array(await embedder.embed(texts))
    asked = np.array(await embedder.embed([query.text for query in queries]))
    best = np.argsort(-(asked @ rows.T), axis=1, kind="stable")[:, :10].tolist()
    return [reciprocal(found, query.answer) for found, query in zip(best, queries, strict=True)]


def ranks_by(find: Finder, queries: Sequence[Query]) -> list[float]:
    """Return each query's reciprocal rank by a search."""
    return [reciprocal(find(query.text), query.answer) for query in queries]


def by_kind(queries: Sequence[Query], ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Return our MRR as a part of theirs, for each kind of query."""
    groups: dict[str, list[int]] = {}
    for at, query in enumerate(queries):
        groups.setdefault(query.kind, []).append(at)
    return {
        f"{kind} ({len(group)})": sum(ours[at] for at in group) / sum(theirs[at] for at in group)
        for kind, group in sorted(groups.items())
    }


def main() -> None:
    """Measure both splits; with a model also what it adds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, help="the folder with the weights of all-MiniLM-L6-v2")
    weights = parser.parse_args().weights
    data = labelled(TEXTS, QUERIES)
    plain, seed = plain_fts5(data.texts), seed_embedder(data.texts)
    figures: dict[str, Any] = {"texts": len(data.texts)}
    for split in ("dev", "test"):
        queries = data.of(split)
        ours, theirs = trio.run(through_memory, data, queries), ranks_by(plain, queries)
        figures[split] = {
            "queries": len(queries),
            "memory": fmean(ours),
            "fts5_porter": fmean(theirs),
            "seed_embedder": fmean(ranks_by(seed, queries)),
            "by_kind": by_kind(queries, ours, theirs),
        }
    test = figures["test"]
    goals = [
        Goal("MRR@10, default embedder / FTS5 porter", test["memory"] / test["fts5_porter"], ">=", 1.03),
        Goal("MRR@10, default embedder / seed's embedder", test["memory"] / test["seed_embedder"], ">=", 3.5),
    ]
    if weights is not None:
        figures["with_model"] = with_model = trio.run(_with_model, weights)
        goals.append(Goal("MRR@10, with a model / FTS5 porter", with_model["memory"] / with_model["fts5"], ">=", 1.08))
    report("how often is the text found that a query is about?", figures, goals)


async def _with_model(weights: Path) -> dict[str, float]:
    data = labelled(TEXTS_FOR_MODEL, QUERIES_FOR_MODEL)
    queries = data.of("test")
    async with open_embedder("local", {}, memory=MemoryConfig(embedder_folder=weights)) as embedder:
        assert embedder is not None
        memory = await through_memory(data, queries, embedder)
        alone = await by_vectors(data.texts, queries, embedder)
    words = await through_memory(data, queries)
    plain = ranks_by(plain_fts5(data.texts), queries)
    found = {"memory": memory, "vectors_alone": alone, "words": words, "fts5": plain}
    return {"queries": len(queries)} | {name: fmean(ranks) for name, ranks in found.items()}


if __name__ == "__main__":
    main()
