"""The processes of the simulated world."""

import random
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.simulation.network import Line, Wire
from tests.simulation.world import KilledError, Node, World
from tests.support.asking import ask

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


async def test_a_connection_that_hangs_twice_at_once_delivers_again() -> None:
    """A message that waits since the first time arrives as well."""
    wire = Wire(Line(lambda: 0.0), Line(lambda: 0.0))
    wire.hang()
    wire.up.put("early")
    async with trio.open_nursery() as nursery:
        arrived = ask(nursery, wire.up.get)
        await trio.testing.wait_all_tasks_blocked()
        wire.hang()
        wire.flow()
        assert await arrived.value() == "early"
