"""The process ends in the middle of any one call that changes a file: the next one makes up for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.storage.projection.faulty_disk import FaultyDisk, KilledError, Trouble
from tests.storage.projection.histories import World

MANY: Final = 100


def life(world: World) -> None:
    """Do everything that changes files, and project after each."""
    for session in (0, 1, 2):
        world.turn(session)
    world.step()
    world.turn(0, text="again")
    world.compact(1)
    world.step()
    world.clock.now += 50  # a checkpoint is due, and the index
    world.step()
    world.turn(0)
    world.retain(1)
    world.archive(1)
    world.delete(2)
    world.step()
    world.turn(0)
    world.leave()


def lives(folder: Path, every: int) -> Iterator[World]:
    """Yield a store for each call that the life makes, or some of them: killed there."""
    trouble = Trouble()
    world = World.at(folder / "whole")
    world.disk = lambda: FaultyDisk(trouble)
    life(world)
    world.close()
    assert trouble.calls > MANY
    for number in range(1, trouble.calls + 1, every):
        killed = World.at(folder / f"{number}")
        rules = Trouble(kill_at=number)
        killed.disk = lambda rules=rules: FaultyDisk(rules)  # type: ignore[misc]
        with pytest.raises(KilledError):
            life(killed)
        killed.die()
        killed.disk = FaultyDisk.__mro__[1]
        yield killed
        killed.close()


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_killed_at_every_call(tmp_path: Path, every: int) -> None:
    """The files that the next process makes of the rest equal a rebuild, to the byte: nothing is missing or double."""
    for world in lives(tmp_path, every):
        assert world.settled() == world.rebuilt()


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.soak)])
def test_killed_at_every_call_and_then_gone_on(tmp_path: Path, every: int) -> None:
    """The same where the sessions go on before anybody projects again."""
    for world in lives(tmp_path, every):
        for session in (0, 1, 3):
            world.turn(session)
        world.step()
        world.turn(0)
        assert world.settled() == world.rebuilt()
