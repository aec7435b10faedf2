"""Ten thousand odd inputs for each surface of a real process: it goes on as ever, and keeps nothing of them."""

import os
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.surfaces.lines import SPOKEN, STORED, Lines, speaking
from tests.surfaces.noise import Noise
from tests.surfaces.sockets import PORTS, Port, knocking
from tests.surfaces.watched import Watched, watched

SURFACES: Final = (*SPOKEN, *PORTS)
MUCH: Final = 10_000
GROWTH: Final = 12 * 1024 * 1024
"""Bytes that a process may grow by in the second half: the events of sessions are kept for a while."""


@asynccontextmanager
async def met(name: str, process: Watched) -> AsyncIterator[Lines | Port]:
    """Be a client of one surface for a body."""
    async with speaking(name, process) if name in SPOKEN else knocking(name, process) as found:
        yield found


def args_of(name: str) -> tuple[str, ...]:
    """Return how a surface's process is started."""
    return (*(SPOKEN[name].args if name in SPOKEN else ("serve", "--port", "0")), *STORED)


async def survives(name: str, folder: Path, count: int, seed: int) -> None:
    """Feed a process with noise; check that it is what it was."""
    noise = Noise(random.Random(seed))  # noqa: S311 - it hides nothing
    with watched(folder, args_of(name)) as process:
        async with met(name, process) as client:
            first = await process.begun()
            await client.feed(noise, count // 2)
            second = await process.settled(first)
            await client.feed(noise, count // 2)
            third = await process.settled(first)
            await client.session()
            assert third.memory - second.memory < GROWTH, (first, second, third)
    sys.stdout.write(f"{name}: seed {seed}: {first} {second} {third}\n")


@pytest.mark.parametrize("name", SURFACES)
async def test_a_few_hundred_odd_inputs(name: str, tmp_path: Path) -> None:
    """Whatever comes, a good request after it is answered, and nothing is left of it."""
    await survives(name, tmp_path, 200, seed=1)


@pytest.mark.soak
@pytest.mark.time_limit(7200)
@pytest.mark.parametrize("name", SURFACES)
async def test_ten_thousand_odd_inputs(name: str, tmp_path: Path, soak_seconds: float) -> None:
    """The same with luck of its own, and again as long as there is time."""
    started, life = time.monotonic(), 0
    while not life or time.monotonic() < started + soak_seconds:
        life += 1
        folder = tmp_path / str(life)
        folder.mkdir()
        await survives(name, folder, MUCH, seed=int.from_bytes(os.urandom(4)))
