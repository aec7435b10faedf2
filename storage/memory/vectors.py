"""The vectors of all entries: a graph of most of them, and the newest beside it, which are compared one by one.

Comparing is exact and adding costs microseconds, so a memory has no graph until its vectors are more than
`EXACT_BYTES`. Below that a search takes less than the words of the same query do; above, the graph wins.
"""

import threading
from collections.abc import Collection
from typing import Final, cast

import apsw
import numpy as np
from numpy.typing import NDArray

from warren.storage.memory.graph import Flat, Graph
from warren.storage.memory.spaces import BLOB, Space, Vectors, unpacked
from warren.storage.memory.words import release_gil

EXACT_BYTES: Final = 16 << 20
"""Bytes of vectors beside the graph, two for each number, from which on a larger graph is due: 21,845 vectors of 384
numbers, 2,048 of 4,096. USearch compares a query with all of them in one to two milliseconds, without the interpreter's
lock (384 numbers: 0.06 ms for 1,000 vectors, 0.6 for 10,000, 12 for 100,000). One thread of numpy takes the same time
on twice the memory from 3,000 vectors on; on a busy machine its two wait for each other: 20 ms, where USearch takes
one."""
_MOST_BESIDE: Final = 2
"""Times that many bytes are kept in memory at most; entries after them are found by their words until the graph is
built."""
_GONE: Final = 1_000
"""Removed entries from which on a graph is made without them: a search steps over each."""
_WIDEST: Final = 64
"""Times as many vectors as are wanted of some ids are looked at in a graph, at most."""
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
        self._most = max(1, exact_bytes // (2 * max(1, space.dimensions)))
        # Guards all below. A search goes on with the graph that it has taken; adding to the vectors beside it may move
        # them, so they are searched under the lock.
        self._lock = threading.Lock()
        self._graph = graph
        self._beside = Flat(space.dimensions)
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
            while len(self._beside) < _MOST_BESIDE * self._most:
                some = next_vectors(db, space_key, self._read_to)
                if some:
                    self._beside.add(some, unpacked(self._space, list(some.values())))
                    self._read_to = max(some)
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
            newest = _found(self._beside, vector, count, _above(among, self.watermark), len(self._beside))
        if graph is None:
            return newest
        wanted = count + len(gone)
        older = _found(graph, vector, wanted, _up_to(among, graph.watermark), _WIDEST * wanted)
        return [key for key in (*older, *newest) if key not in gone]

    def discard(self, ids: Collection[int]) -> None:
        """Leave out entries that are no longer stored."""
        with self._lock:
            self._gone |= set(ids) - self._beside.remove(ids)

    def replace_graph(self, graph: Graph | None) -> None:
        """Go on with another graph, made since. The entries after it are read anew."""
        with self._lock:
            self._graph, self._gone = graph, frozenset()
            self._beside = Flat(self._space.dimensions)
            self._read_to = self.watermark


def _above(among: NDArray[np.int64] | None, watermark: int) -> NDArray[np.int64] | None:
    return None if among is None else among[np.searchsorted(among, watermark, side="right") :]


def _up_to(among: NDArray[np.int64] | None, watermark: int) -> NDArray[np.int64] | None:
    return None if among is None else among[: np.searchsorted(among, watermark, side="right")]


def _found(index: Graph | Flat, vector: Vectors, count: int, among: NDArray[np.int64] | None, widest: int) -> list[int]:
    """Return the ids of the `count` nearest vectors among some, looked for in up to `widest` of the nearest of all."""
    if among is None:
        return index.nearest(vector, count)
    wanted = min(count, len(among))
    if not wanted:
        return []
    # As many as have the wanted ones if these lie evenly among all, and then four times as many at a time.
    looked_at = count * max(1, len(index) // len(among))
    while True:
        near = np.array(index.nearest(vector, min(looked_at, widest)), dtype=np.int64)
        mine: list[int] = near[np.isin(near, among)][:count].tolist()
        if len(mine) >= wanted or looked_at >= widest:
            return mine
        looked_at *= 4


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
