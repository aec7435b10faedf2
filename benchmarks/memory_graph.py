"""How good is the graph of vectors? Ours (USearch as the store sets it) beside hnswlib and an exact search by numpy.

The same vectors, as many as a memory compares one by one before it builds a graph, the same connectivity and
expansions, one thread each. They lie in clusters, as those of texts do. As in the memory each search asks for a hundred
candidates, which are weighed exactly then: counted is how many of the ten nearest are among them.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np

from benchmarks.peer import Peer, PeerError, peer
from benchmarks.report import Goal, report
from warren.storage.memory.graph import CONNECTIVITY, EXPANSION_ADD, EXPANSION_SEARCH, Graph, Note
from warren.storage.memory.spaces import Vectors
from warren.storage.memory.weighing import BY_VECTORS

VECTORS: Final = 20_000
DIMENSIONS: Final = 384
CLUSTERS: Final = 1_000
QUERIES: Final = 200
NEAREST: Final = 10
ROUNDS: Final = 5


@attrs.frozen
class Found:
    """The hits for each query, and the median seconds of a search."""

    keys: list[list[int]]
    seconds: float


def _vectors() -> tuple[Vectors, Vectors]:
    """Return vectors and queries of length 1."""
    random = np.random.default_rng(7)
    centres = random.standard_normal((CLUSTERS, DIMENSIONS))
    rows = centres[random.integers(CLUSTERS, size=VECTORS + QUERIES)]
    rows = rows + 0.7 * random.standard_normal(rows.shape)
    unit = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit[:VECTORS], unit[VECTORS:]


def _timed(queries: Vectors, search: Callable[[Vectors], list[int]]) -> Found:
    times, keys = [], []
    for query in queries:
        begun = time.perf_counter()
        keys.append(search(query))
        times.append(time.perf_counter() - begun)
    return Found(keys, statistics.median(times))


def _exact(vectors: Vectors, queries: Vectors) -> Found:
    def search(query: Vectors) -> list[int]:
        scores = vectors @ query
        best = np.argpartition(-scores, NEAREST)[:NEAREST]
        return best[np.argsort(-scores[best])].tolist()  # type: ignore[no-any-return]

    return _timed(queries, search)


def _recall(found: Found, exact: Found) -> float:
    """Return which part of the nearest ones was found."""
    shared = [len({*some} & {*all_}) for some, all_ in zip(found.keys, exact.keys, strict=True)]
    return sum(shared) / NEAREST / len(shared)


def _theirs(other: Peer, paths: dict[str, Any]) -> Found:
    answer = other.ask("search", count=BY_VECTORS, **paths)
    return Found(answer["found"], answer["seconds"])


def _beside(other: Peer, folder: Path, vectors: Vectors, queries: Vectors) -> tuple[dict[str, Any], list[Goal]]:
    """Build both graphs, then search in them and exactly, in turn."""
    paths: dict[str, Any] = {name: str(folder / f"{name}.npy") for name in ("vectors", "queries")}
    np.save(paths["vectors"], vectors)
    np.save(paths["queries"], queries)
    settings = {"connectivity": CONNECTIVITY, "expansion_add": EXPANSION_ADD, "expansion_search": EXPANSION_SEARCH}
    theirs_built = other.ask("build", vectors=paths["vectors"], **settings)["seconds"]
    graph = Graph.empty(DIMENSIONS, Note("benchmark", "benchmark", 0))
    begun = time.perf_counter()
    graph.add(range(VECTORS), vectors, VECTORS)
    built = time.perf_counter() - begun
    rounds = [
        (
            _timed(queries, lambda query: graph.nearest(query, BY_VECTORS)),
            _theirs(other, paths),
            _exact(vectors, queries),
        )
        for _ in range(ROUNDS)
    ]
    ours, theirs, exact = (each[0] for each in zip(*rounds, strict=True))
    medians = [statistics.median(found.seconds for found in each) for each in zip(*rounds, strict=True)]
    figures = {
        "build_s": {"ours": round(built, 2), "hnswlib": round(theirs_built, 2)},
        "search_us": dict(zip(("ours", "hnswlib", "numpy"), (round(1e6 * each) for each in medians), strict=True)),
        "recall": {"ours": round(_recall(ours, exact), 3), "hnswlib": round(_recall(theirs, exact), 3)},
        "versions": other.ask("versions"),
    }
    ratios = [one.seconds / other.seconds for one, other, _ in rounds]
    return figures, [
        Goal("graph: time of a search over hnswlib's", statistics.median(ratios), "<=", 1, (min(ratios), max(ratios))),
        Goal("graph: recall@10 over hnswlib's", _recall(ours, exact) / _recall(theirs, exact), ">=", 0.98),
        Goal("graph: time of a build over hnswlib's", built / theirs_built, "<=", 1),
    ]


def main() -> None:
    """Print microseconds a search, and which part of the nearest was found."""
    vectors, queries = _vectors()
    figures: dict[str, Any] = {}
    goals: list[Goal] = []
    try:
        with peer("hnswlib") as other, tempfile.TemporaryDirectory() as folder:
            figures, goals = _beside(other, Path(folder), vectors, queries)
    except PeerError as exc:
        figures["failed"] = {"hnswlib": str(exc)}
    report("How good is the graph of vectors?", figures, goals)


if __name__ == "__main__":
    main()
