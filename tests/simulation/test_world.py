"""The processes of the simulated world."""

import random
from pathlib import Path

import pytest
import trio

from tests.simulation.world import KilledError, Node, World

pytestmark = pytest.mark.virtual_time


async def test_a_dead_process_hears_of_nothing(tmp_path: Path) -> None:
    """One that dies while its disk works never learns that the work is done, however little time that takes."""
    async with trio.open_nursery() as tasks:
        node = Node(World(random.Random(0), tmp_path, tasks), "anna1")  # noqa: S311 - the seed tells all

        def die() -> None:
            node.dead = True

        for _ in range(50):
            node.dead = False
            with pytest.raises(KilledError):
                await node.reach_disk(die)
