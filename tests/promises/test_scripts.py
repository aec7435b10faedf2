"""Random scripts over the whole runtime: whatever is done to it in whatever order, its promises hold."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.promises.world import Step, World

pytestmark = pytest.mark.virtual_time

TURNS = st.builds(Step, st.just("start"), st.integers(0, 1), st.sampled_from(["quick", "slow", "tool", "fail", "retry"]))
WAITS = st.builds(Step, st.just("wait"), st.just(0), st.sampled_from([0, 0.1, 1, 30]))
CALLS = st.builds(
    Step,
    st.sampled_from(["interrupt", "read", "list", "history", "resume", "subscribe", "give up", "archive", "delete"]),
    st.integers(0, 1),
    st.integers(0, 20),
)
CRASHES = st.builds(Step, st.sampled_from(["crash", "crash load"]), st.integers(0, 1))
STORE = st.builds(
    Step,
    st.sampled_from(["crash storage", "crash storage after", "refuse", "accept", "slow", "fast", "restart"]),
)
EPHEMERAL = st.lists(TURNS | WAITS | CALLS | CRASHES, max_size=14)
STORED = st.lists(TURNS | TURNS | WAITS | CALLS | CRASHES | STORE, max_size=14)


@settings(max_examples=150)
@given(script=EPHEMERAL)
async def test_scripts_without_a_store(script: list[Step]) -> None:
    """Every ask ends, every turn has one terminal event, streams are whole, nothing is left running."""
    await World(None).run(script)


@settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow])
@given(script=STORED)
async def test_scripts_with_a_store(script: list[Step]) -> None:
    """All that, and what was acknowledged is stored, numbered once, and can be gone on from."""
    with tempfile.TemporaryDirectory() as folder:
        await World(Path(folder)).run(script)
