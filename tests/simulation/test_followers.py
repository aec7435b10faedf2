"""Followers see every event once and the end of every turn, whatever befalls the nodes and their store."""

from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.simulation.play import Play, play

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("silent_log")]
SEEDS = st.integers(0, 2**32)
NO_SHRINKING = hypothesis.settings(phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])


async def _check(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    found = await play(seed, tmp_path_factory.mktemp("play"))
    assert found.wrong == [], found.diary


@hypothesis.example(seed=4)  # a reader comes to a node that another one has overtaken: its place is no mistake
@hypothesis.example(seed=5)  # a link breaks and is opened again, to such a node: no event is gone
@hypothesis.example(seed=20)  # a plain process loses a session in the middle of a turn, and a node goes on with it
@hypothesis.example(seed=22)  # the log of another node's session is filled from before a takeover
@hypothesis.example(seed=1007)  # a call outlives its own node
@hypothesis.example(seed=1025)  # the same, while another node hangs
@hypothesis.example(seed=1016)  # a late reader finds a slow disk
@hypothesis.example(seed=1029)  # a node that hung is overtaken, and a slow reader has not seen the end of its turn
@hypothesis.example(seed=1046)  # the same
@hypothesis.example(seed=494418)  # the same
@hypothesis.example(seed=2165)  # the same, for a slow reader at another node
@hypothesis.example(seed=2007)  # the actor of a store crashes while a reader finds its session again
@hypothesis.example(seed=2055)  # the same
@hypothesis.example(seed=2291)  # the same, and a read was on its way
@NO_SHRINKING
@hypothesis.given(seed=SEEDS)
async def test_every_event_once(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each reader gets each event above its place once, in order, with each turn's end, and no marker of a gap."""
    await _check(seed, tmp_path_factory)


@pytest.mark.soak
@NO_SHRINKING
@hypothesis.given(seed=SEEDS)
async def test_every_event_once_for_many_seeds(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The same for as many seeds as the profile asks for."""
    await _check(seed, tmp_path_factory)


async def test_a_play_that_hangs_names_its_tasks(tmp_path: Path) -> None:
    """It fails, also if its tasks cannot be cancelled."""

    async def hang(found: Play) -> None:
        node = await found.world.start("anna")
        node.hang()
        await node.service.create_session(None)

    with pytest.raises(AssertionError, match="_live_on"):
        await play(0, tmp_path, hang)
