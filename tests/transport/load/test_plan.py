"""The plan: what it refuses, and that all chance comes from its seed."""

from itertools import islice
from typing import Any

import attrs
import pytest
import trio

from warren.base.fields import FieldValueError
from warren.transport.load.pace import ClosedPace, OpenPace, paces
from warren.transport.load.plan import LoadPlan, Mix, Profile, plan_of
from warren.transport.load.scenarios import SCENARIOS


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"sessions": 0}, "sessions"),
        ({"turns": -1}, "turns"),
        ({"arrival": "open"}, "rate"),
        ({"rate": 5.0}, "rate"),
        ({"arrival": "soak"}, "duration"),
        ({"duration": 5.0}, "duration"),
        ({"arrival": "sometimes"}, "arrival"),
        ({"prompt_min": 10, "prompt_max": 5}, "prompt_min"),
        ({"think": -1.0}, "think"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(given: dict[str, Any], field: str) -> None:
    """The error names the field."""
    with pytest.raises(FieldValueError) as caught:
        LoadPlan(**given)
    assert caught.value.field == field


def test_shares_are_shares() -> None:
    """Each is from 0 to 1, and what ends a turn otherwise is not more than all turns."""
    with pytest.raises(FieldValueError, match="busy must be from 0 to 1"):
        Mix(busy=1.5)
    with pytest.raises(FieldValueError, match="interrupts and disconnects"):
        Mix(interrupts=0.6, disconnects=0.6)
    with pytest.raises(FieldValueError, match="chunks must be above 0"):
        Profile(chunks=0)


def test_all_chance_comes_from_the_seed() -> None:
    """Two runs of a plan do the same; with another seed, something else."""
    mix = Mix(interrupts=0.3, busy=0.3, disconnects=0.3, tools=0.3)
    plan, same, other = (LoadPlan(seed=seed, think=1, mix=mix) for seed in (1, 1, 2))
    told = [list(islice(each.conducts(7), 20)) for each in (plan, same, other)]
    assert told[0] == told[1] != told[2]
    assert len({conduct.prompt for conduct in told[0]}) == 20


def test_the_mix_is_what_happens() -> None:
    """Over many turns each share is about what was asked for, and a turn is not interrupted and left at once."""
    mix = Mix(interrupts=0.2, disconnects=0.3, busy=0.5)
    conducts = [conduct for session in range(50) for conduct in islice(LoadPlan(mix=mix).conducts(session), 40)]
    assert 300 < sum(conduct.interrupt for conduct in conducts) < 500
    assert 500 < sum(conduct.disconnect for conduct in conducts) < 700
    assert 850 < sum(conduct.busy for conduct in conducts) < 1150
    assert not any(conduct.interrupt and conduct.disconnect for conduct in conducts)


def test_prompts_are_as_long_as_asked_for() -> None:
    """Up to a word."""
    sizes = [len(conduct.prompt) for conduct in islice(LoadPlan(prompt_min=100, prompt_max=300).conducts(0), 50)]
    assert min(sizes) >= 100
    assert max(sizes) < 310


def test_a_plan_survives_its_json() -> None:
    """The plan in a result is the plan of the run."""
    for plan in SCENARIOS.values():
        assert plan_of(attrs.asdict(plan)) == plan


@pytest.mark.virtual_time
async def test_a_closed_user_thinks_between_turns() -> None:
    """Each turn is meant for when the user has thought, counted from the end of the one before."""
    pace = ClosedPace(joins=trio.current_time() + 2, turns=3)
    began, meant = trio.current_time(), list[float]()
    await pace.join()
    while (moment := await pace.next(5.0 if meant else 0.0)) is not None:
        assert trio.current_time() == pytest.approx(moment)
        meant.append(moment - began)
        await trio.sleep(1)
    assert meant == pytest.approx([2, 8, 14])


@pytest.mark.virtual_time
async def test_a_soak_ends_in_time() -> None:
    """No turn begins after its end."""
    (pace,) = paces(LoadPlan(sessions=1, arrival="soak", duration=10), trio.current_time())
    began, turns = trio.current_time(), 0
    while await pace.next(3) is not None:
        turns += 1
    assert turns == 3
    assert trio.current_time() - began == pytest.approx(9)


@pytest.mark.virtual_time
async def test_a_ramp_lets_sessions_join_one_by_one() -> None:
    """Spread over its duration."""
    began = trio.current_time()
    joined = list[float]()
    for pace in paces(LoadPlan(sessions=5, arrival="ramp", duration=10), began):
        await pace.join()
        joined.append(trio.current_time() - began)
    assert joined == pytest.approx([0, 2, 4, 6, 8])


@pytest.mark.virtual_time
async def test_an_open_run_does_not_wait_for_answers() -> None:
    """A user who was busy too long takes up a turn that was meant for long ago; as many begin as were to."""
    plan = LoadPlan(sessions=1, turns=200, arrival="open", rate=10)
    (pace,) = paces(plan, began := trio.current_time())
    moments: list[float] = []
    late = 0.0
    while (meant := await pace.next(99)) is not None:
        late = max(late, trio.current_time() - meant)
        moments.append(meant - began)
        await trio.sleep(0.2)  # twice as long as there is from one turn to the next
    assert len(moments) == 200
    assert 14 < moments[-1] < 27
    assert late > 10


async def test_an_open_run_is_the_same_for_every_seed() -> None:
    """The moments come from the plan's chance."""
    one, other = (paces(LoadPlan(arrival="open", rate=1e6, seed=3), 0.0)[0] for _ in range(2))
    assert isinstance(one, OpenPace)
    assert [await one.next(0) for _ in range(5)] == [await other.next(0) for _ in range(5)]
