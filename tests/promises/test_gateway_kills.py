"""The real gateway, killed at random and at every point that matters: what it acknowledged is there, whole, once."""

import os
import random
import time
from pathlib import Path

import pytest

from tests.promises.crash_world import World
from tests.promises.crashing_gateway import POINTS


@pytest.mark.time_limit(120)
async def test_a_gateway_that_is_killed_ten_times(tmp_path: Path) -> None:
    """After each of its lives every confirmed turn is there, numbers rise, and the next life goes on."""
    world = World(tmp_path, random.Random(7))  # noqa: S311 - it hides nothing
    for _ in range(10):
        await world.live()
    assert world.acknowledged > 10
    assert len(set(world.killed_at)) > 1


@pytest.mark.soak
@pytest.mark.time_limit(7200)
async def test_a_gateway_that_is_killed_for_long(tmp_path: Path, soak_seconds: float) -> None:
    """The same for as long as asked, with luck of its own, and until it was killed at every point."""
    seed = int.from_bytes(os.urandom(4))
    world = World(tmp_path, random.Random(seed))  # noqa: S311 - it hides nothing
    end = time.monotonic() + soak_seconds
    try:
        while time.monotonic() < end or set(world.killed_at) != set(POINTS):
            await world.live()
    except Exception as exc:
        exc.add_note(f"seed {seed}, life {world.lives}")
        raise
