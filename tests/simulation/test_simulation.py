"""The whole service keeps its promises while processes, their store and their network fail at seeded moments."""

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.checks import CHECKS
from tests.simulation.kinds import KINDS, MAKING
from tests.simulation.plan import FAULTS, Fault, Operation, Plan, plan_of
from tests.simulation.shrinking import shrunk, verdict
from tests.simulation.stage import run
from warren.calls.facade import CALLS

pytestmark = pytest.mark.usefixtures("silent_log")
SEEDS = 300
REPEATED = range(400, 408)
ROOT = Path(__file__).parents[2]
TESTS = 10
"""The tests that share the seeds: each of the workers of a run takes some of them."""


@pytest.mark.parametrize("part", range(TESTS))
def test_every_promise_is_kept(part: int) -> None:
    """No fault breaks a promise, in any of the seeds."""
    for seed in range(part, SEEDS, TESTS):
        assert not (problem := verdict(seed)), problem


@pytest.mark.soak
def test_every_promise_is_kept_for_many_seeds(soak_seconds: float) -> None:
    """The same for 10,000 seeds, or for as many as there is time for."""
    begin, end = time.time_ns() % 10**9, time.monotonic() + soak_seconds
    for seed in range(begin, begin + 10_000):
        if time.monotonic() > end:
            break
        assert not (problem := verdict(seed)), problem


@pytest.mark.outside
def test_a_seed_is_the_same_in_every_process() -> None:
    """The diaries of seeds do not depend on the order of sets, which differs from process to process."""
    diaries = set()
    for hashes in ("1", "2"):
        command = [sys.executable, "-m", "tests.simulation", *map(str, REPEATED)]
        environ = os.environ | {"PYTHONHASHSEED": hashes}
        diaries.add(subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, check=True, text=True).stdout)
    assert len(diaries) == 1


def test_the_plans_have_all_operations_and_faults() -> None:
    """The seeds of the suite have each kind of operation several times, on 8 sessions, and at least 3 faults each."""
    plans = [plan_of(seed) for seed in range(SEEDS)]
    operations = Counter(each.kind for plan in plans for each in plan.operations)
    assert len(KINDS) >= 60
    assert set(operations) == set(KINDS)
    assert min(operations.values()) >= 3
    assert {each.kind for plan in plans for each in plan.faults} == set(FAULTS)
    assert all(len(plan.faults) >= 3 and len({each.session for each in plan.operations}) >= 8 for plan in plans)


def test_a_session_is_made_first() -> None:
    """Nothing happens to a session before it is made, not even at the same moment."""
    for plan in map(plan_of, range(2_000)):
        first = {each.session: each.kind for each in reversed(plan.operations)}
        assert set(first.values()) <= set(MAKING), plan.seed


def test_the_operations_are_those_of_the_service() -> None:
    """Each kind of operation is named for a method of the service, or for the events or changes that it follows."""
    methods = {name.split(" ")[0] for name in KINDS}
    assert methods - set(CALLS) == {"events", "changes"}
    assert set(CALLS) <= methods, "add an operation for a new method"


def test_a_plan_is_its_source() -> None:
    """The text of a plan is source: a test can have it."""
    plan = plan_of(0)
    names = {"Plan": Plan, "Operation": Operation, "Fault": Fault}
    assert eval(str(plan), names) == plan  # noqa: S307 - our own text


def test_a_failing_plan_becomes_small() -> None:
    """Of a plan that fails for two of its operations and one fault, these are left."""
    plan = plan_of(1)
    wanted = {plan.operations[3], plan.operations[20], plan.faults[1]}
    small = shrunk(plan, lambda each: wanted <= {*each.operations, *each.faults})
    assert {*small.operations, *small.faults} == wanted


@pytest.mark.parametrize("at", [0.3, 0.4, 0.5, 0.6])
def test_no_fault_comes_once_the_users_are_done(at: float) -> None:
    """No process is killed that is asked whether its sessions rest: faults of a plan that became small come late."""
    makes = [Operation(number, 0.01, number, "session/create with instructions") for number in range(5)]
    assert run(Plan(0, tuple(makes), (Fault(at, "kill", "anna", 0.1),), nodes=False)).wrong == []


def test_a_plan_of_nothing_keeps_all_promises() -> None:
    """Without operations and faults nothing is wrong, and there are promises to keep."""
    assert CHECKS
    assert run(Plan(0)).wrong == []
