"""The vectors of all entries: a graph of most of them, and the newest beside it, which are compared one by one.

Comparing is exact and adding costs nothing, so a memory has no graph until its vectors are more than `EXACT_BYTES`.
Below that a search by numpy takes less than the words of the same query do; above, the graph wins.
"""

import threading
from collections.abc import Collection
from typing import Final, cast

import apsw
import numpy as np
from numpy.typing import NDArray

from warren.storage.memory.graph import Graph
from warren.storage.memory.spaces import BLOB, Space, Vectors, normal, unpacked
from warren.storage.memory.words import release_gil

EXACT_BYTES: Final = 32 << 20
"""Bytes of vectors beside the graph, four for each number, from which on a larger graph is due: 21,845 vectors of 384
numbers, 2,048 of 4,096. Comparing with all of them takes some three milliseconds, without the interpreter's lock."""
_MOST_BESIDE: Final = 2
"""Times that many bytes are kept in memory at most; entries after them are found by their words until the graph is
built."""
_GONE: Final = 1_000
"""Removed entries from which on a graph is made without them: a search steps over each."""
_STEPS: Final = 4
"""Looks for some ids in a graph; each looks at four times as many."""
AT_ONCE: Final = 500
_AFTER: Final = f"""
    SELECT id, {BLOB.format("body")} FROM entries LEFT JOIN vectors ON space = ? AND entry = id
    WHERE id > ? ORDER BY id LIMIT ?
"""  # noqa: S608 - a constant


class VectorIndex:
    """Finds the vectors near another one. Safe to use from any thread.

    It reads new vectors from the database before each search, so that no writer has to notify it, in this process or in
    another one.
    """

    def __init__(self, space: Space, graph: Graph | None, exact_bytes: int = EXACT_BYTES) -> None:
        self._space = space
        self._most = max(1, exact_bytes // (4 * max(1, space.dimensions)))
        # Guards all below. A search goes on with the graph and the rows that it has taken: rows are only added behind
        # them, or replaced as a whole.
        self._lock = threading.Lock()
        self._graph = graph
        self._count = 0
        self._ids = np.zeros(0, dtype=np.int64)
        self._rows: Vectors = np.zeros((0, space.dimensions), dtype=np.float32)
        self._gone: frozenset[int] = frozenset()
        self._read_to = self.watermark

    @property
    def watermark(self) -> int:
        """The id up to which the graph has every entry, 0 without one."""
        return 0 if self._graph is None else self._graph.watermark

    @property
    def read_to(self) -> int:
        """The id up to which every entry is known here; later ones may have no vector yet."""
        return self._read_to

    def is_overgrown(self, last_id: int) -> bool:
        """Tell whether a new graph is due, for a database with this last id of an entry."""
        return last_id - self.watermark > self._most or len(self._gone) > _GONE

    def follow(self, db: apsw.Connection, space_key: int) -> None:
        """Read the vectors of the entries that came since the last call. Raises apsw.Error."""
        if not self._space.dimensions:
            return
        with self._lock:
            while self._count < _MOST_BESIDE * self._most:
                some = next_vectors(db, space_key, self._read_to)
                if some:
                    self._append(some)
                if len(some) < AT_ONCE:
                    return
                release_gil()

    def nearest(self, vector: Vectors, count: int, among: NDArray[np.int64] | None = None) -> list[int]:
        """Return the ids of about `count` of the nearest vectors in the graph, and of as many beside it.

        Args:
            vector: the vector.
            count: how many.
            among: the ids that count, ascending; None for all. Those in the graph are looked for among more and more
                of its vectors, so there may be fewer of them.
        """
        with self._lock:
            graph, gone = self._graph, self._gone
            ids, rows = self._ids[: self._count], self._rows[: self._count]
        wanted = count + len(gone)
        if among is not None:
            beside = np.isin(ids, among)
            ids, rows = ids[beside], rows[beside]
        found = [] if graph is None else _in_graph(graph, vector, wanted, among)
        scores = rows @ normal(vector)
        best = np.argpartition(-scores, wanted)[:wanted] if len(scores) > wanted else np.arange(len(scores))
        return [key for key in (*found, *ids[best].tolist()) if key not in gone]

    def discard(self, ids: Collection[int]) -> None:
        """Leave out entries that are no longer stored."""
        with self._lock:
            beside = self._ids[: self._count]
            self._gone |= set(ids) - set(beside.tolist())
            self._keep(~np.isin(beside, list(ids)))

    def replace_graph(self, graph: Graph | None) -> None:
        """Go on with another graph, made since."""
        with self._lock:
            self._graph, self._gone = graph, frozenset()
            if graph is None:
                # The entries that it had are read anew, and those beside it with them.
                self._read_to = 0
                self._keep(np.zeros(self._count, dtype=np.bool_))
            else:
                self._read_to = max(self._read_to, graph.watermark)
                self._keep(self._ids[: self._count] > graph.watermark)

    def _keep(self, which: NDArray[np.bool_]) -> None:
        """Drop the other vectors beside the graph."""
        self._ids, self._rows = self._ids[: self._count][which], self._rows[: self._count][which]
        self._count = len(self._ids)

    def _append(self, vectors: dict[int, bytes]) -> None:
        end = self._count + len(vectors)
        if end > len(self._ids):
            room = max(end, 2 * len(self._ids)) - self._count
            self._ids = np.concatenate([self._ids[: self._count], np.zeros(room, dtype=np.int64)])
            self._rows = np.concatenate(
                [self._rows[: self._count], np.zeros((room, self._space.dimensions), dtype=np.float32)]
            )
        self._ids[self._count : end] = list(vectors)
        self._rows[self._count : end] = normal(unpacked(self._space, list(vectors.values())))
        self._count, self._read_to = end, max(vectors)


def _in_graph(graph: Graph, vector: Vectors, count: int, among: NDArray[np.int64] | None) -> list[int]:
    if among is None:
        return graph.nearest(vector, count)
    wanted = min(count, int(np.searchsorted(among, graph.watermark, side="right")))
    mine: list[int] = []
    for step in range(_STEPS):
        near = np.array(graph.nearest(vector, count << (2 * step)), dtype=np.int64)
        mine = near[np.isin(near, among)][:count].tolist()
        if len(mine) >= wanted:
            break
    return mine


def next_vectors(db: apsw.Connection, space_key: int, after: int) -> dict[int, bytes]:
    """Return the packed vectors of up to `AT_ONCE` entries with ids above `after`, ascending.

    They end at the first entry without a vector: it waits for its embedder, and the next call begins with it.
    """
    found: dict[int, bytes] = {}
    for row in db.execute(_AFTER, (space_key, after, AT_ONCE)):
        key, packed = cast(tuple[int, bytes | None], row)
        if packed is None:
            break
        found[key] = packed
    return found
