"""Makes a plan that fails smaller, as long as it fails."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import attrs

from tests.simulation.plan import Plan, plan_of
from tests.simulation.stage import run

T = TypeVar("T")


def shrunk(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """Return a plan with as few operations and faults as this finds that fails still.

    Args:
        plan: a plan that fails.
        fails: runs a plan.
    """
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(plan):
            if fails(candidate):
                plan, smaller = candidate, True
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yield plans without a part of a plan, large parts first."""
    for faults in _without_parts(plan.faults):
        yield attrs.evolve(plan, faults=faults)
    for operations in _without_parts(plan.operations):
        yield attrs.evolve(plan, operations=operations)
    if plan.nodes:
        yield attrs.evolve(plan, nodes=False)
    if plan.compacts:
        yield attrs.evolve(plan, compacts=False)


def _without_parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    size = len(items)
    while size:
        for begin in range(0, len(items), size):
            yield (*items[:begin], *items[begin + size :])
        size //= 2


def verdict(seed: int) -> str:
    """Return why a seed fails, with the smallest plan that fails; the empty text if it does not."""
    plan = plan_of(seed)
    if not run(plan).wrong:
        return ""
    small = shrunk(plan, lambda each: bool(run(each).wrong))
    stage = run(small)
    return "\n".join([f"seed {seed} fails:", *stage.wrong, "run this:", str(small), *stage.world.record.diary])
