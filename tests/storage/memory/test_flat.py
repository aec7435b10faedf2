"""The vectors beside the graph: compared one by one, with those of other tenants and removed ones left out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.storage.memory.samples import NOW, SubjectEmbedder, opened
from warren.conversation.memory import MemoryEntry
from warren.storage.memory.graph import Flat
from warren.storage.memory.spaces import Vectors


def vectors(count: int, dimensions: int = 32) -> Vectors:
    """Return vectors of which none is like another."""
    return np.random.default_rng(1).standard_normal((count, dimensions), dtype=np.float32)


def exactly(rows: Vectors, vector: Vectors, count: int) -> list[int]:
    """Return the numbers of the rows with the largest cosines."""
    best = np.argsort(-(rows @ vector) / np.linalg.norm(rows, axis=1), kind="stable")
    return [int(at) for at in best[:count]]


def test_the_nearest_are_found_exactly() -> None:
    """The nearest of all are found, and never a vector of length 0 or one that was removed."""
    rows = vectors(2_000)
    flat = Flat(32)
    assert (len(flat), flat.nearest(rows[0], 3), flat.remove([1])) == (0, [], set())
    for at in range(0, 2_000, 500):
        flat.add(range(at, at + 500), rows[at : at + 500])
    flat.add([5_000], np.zeros((1, 32), dtype=np.float32))
    assert len(flat) == 2_000
    for number in range(0, 2_000, 100):
        # Numbers of two bytes may change the order of near ones; of the hundred candidates the best are weighed again.
        assert set(exactly(rows, rows[number], 50)) <= set(flat.nearest(rows[number], 100))
        assert flat.nearest(rows[number], 1) == [number]
    assert flat.remove([7, 8, 9_999]) == {7, 8}
    assert flat.remove([7]) == set()
    assert not {7, 8} & {*flat.nearest(rows[7], 2_000), *flat.nearest(rows[8], 2_000)}
    assert len(flat.nearest(rows[7], 5_000)) == 1_998
    flat.add([7], rows[7:8])
    assert flat.nearest(rows[7], 1) == [7]
    assert flat.nearest(np.zeros(32, dtype=np.float32), 3) == []


class OneDirection(SubjectEmbedder):
    """A text `near N` is the nearer to `near 0` the smaller N is; nothing else tells texts apart."""

    def vector(self, text: str) -> list[float]:
        """Return a text's vector."""
        angle = int(text.rpartition(" ")[2]) / 10_000
        return [float(np.cos(angle)), float(np.sin(angle)), 0.0, 0.0]


@pytest.mark.parametrize("exact_bytes", [16 << 20, 0], ids=["flat", "graph"])
async def test_the_nearest_of_a_tenant_among_many_of_another(tmp_path: Path, exact_bytes: int) -> None:
    """The nearest text of a tenant is found though a thousand texts of another one are nearer."""
    model: Any = OneDirection()
    async with opened(tmp_path, model, exact_bytes=exact_bytes) as memory:
        for tenant, numbers in (("many", range(1, 1_001)), ("few", range(2_000, 2_020))):
            texts = [MemoryEntry(tenant, at, 1, f"w{number} {number}", NOW) for at, number in enumerate(numbers)]
            await memory.index(texts, tenant=tenant)
        await memory.catch_up()
        assert (await memory.search("near 0", tenant="few"))[0].content == "w2000 2000"
        assert (await memory.search("near 0", tenant="many"))[0].content == "w1 1"
