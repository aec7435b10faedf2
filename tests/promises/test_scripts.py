"""Random scripts over the whole runtime: whatever is done to it in whatever order, its promises hold."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.promises.world import Step, World

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("silent_log")]

SESSION = st.sampled_from([0, 0, 0, 1])
TURNS = st.builds(Step, st.just("start"), SESSION, st.sampled_from(["quick", "slow", "tool", "fail", "retry"]))
MOVES = st.builds(Step, st.sampled_from(["compact", "talk"]), SESSION, st.just("quick"))
# Multiples of what models, tools and commits take: so that things meet in the same instant.
WAITS = st.builds(Step, st.just("wait"), st.just(0), st.sampled_from([0, 1, 3, 20, 30]))
CALLS = st.builds(
    Step,
    st.sampled_from(["interrupt", "read", "list", "history", "resume", "subscribe", "give up", "archive", "delete"]),
    SESSION,
    st.integers(0, 20),
)
CRASHES = st.builds(Step, st.sampled_from(["crash", "crash load"]), SESSION)
STORE = st.builds(
    Step,
    st.sampled_from(["crash storage", "crash storage after", "refuse", "slow", "fast", "restart"]),
)


def scripts(step: st.SearchStrategy[Step]) -> st.SearchStrategy[list[Step]]:
    """Return short scripts, which shrink well, and long ones, which find more."""
    return st.lists(step, max_size=10) | st.lists(step, min_size=10, max_size=30)


@given(script=scripts(TURNS | MOVES | WAITS | CALLS | CRASHES))
async def test_scripts_without_a_store(script: list[Step]) -> None:
    """Every ask ends, every turn has one terminal event, streams are whole, nothing is left running."""
    await World(None).run(script)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(script=scripts(TURNS | TURNS | MOVES | WAITS | CALLS | CRASHES | STORE))
@example([Step("start", 0, "quick"), Step("crash storage after"), Step("refuse")])
async def test_scripts_with_a_store(script: list[Step]) -> None:
    """All that, and what was acknowledged is stored, numbered once, and can be gone on from."""
    with tempfile.TemporaryDirectory() as folder:
        await World(Path(folder)).run(script)
