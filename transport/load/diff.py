"""The comparison of two results: each figure, its ratio, and by how much it got worse. No I/O."""

import math
from collections.abc import Mapping
from typing import Final

from warren.base.values import frozen
from warren.transport.load.result import MILLISECONDS, Result

SLOWER_IS_WORSE: Final = tuple(name for name in MILLISECONDS if name != "tester's lag ")
MORE_IS_BETTER: Final = frozenset({"turns/s", "events/s"})
MORE_IS_WORSE: Final = frozenset({"errors", "violations"})
NOT_JUDGED: Final = (" p100", " p99.9")
"""Figures of single moments of a run: they are shown, but vary too much to be judged."""


@frozen
class Change:
    """One figure of two runs.

    Attributes:
        name: the figure.
        before: its value in the first run.
        after: its value in the second run.
        ratio: after over before; None if it was 0 before.
        worse: the percentage by which it got worse; None if it got no worse, or is not judged.
    """

    name: str
    before: float
    after: float
    ratio: float | None
    worse: float | None


def compare(before: Result, after: Result) -> list[Change]:
    """Return every figure of two results, and the number of broken promises."""
    left, right = (dict(each.figures) | {"violations": float(each.violation_count)} for each in (before, after))
    return [_change(name, left.get(name, 0.0), right.get(name, 0.0)) for name in dict.fromkeys([*left, *right])]


def regressions(changes: list[Change], percent: float) -> list[Change]:
    """Return the figures that got worse by more than this percentage."""
    return [change for change in changes if change.worse is not None and change.worse > percent]


def unlike(before: Result, after: Result) -> list[str]:
    """Return the differences between the plans and the machines of two results, without their seeds."""
    return _unlike(before.plan, after.plan, {"seed"}) + _unlike(before.machine, after.machine, set())


def _unlike(before: Mapping[str, object], after: Mapping[str, object], aside: set[str]) -> list[str]:
    return sorted(name for name in {*before, *after} - aside if before.get(name) != after.get(name))


def _change(name: str, before: float, after: float) -> Change:
    ratio = after / before if before else None
    return Change(name, before, after, ratio, _worse(name, before, after))


def _worse(name: str, before: float, after: float) -> float | None:
    if name in MORE_IS_BETTER:
        before, after = -before, -after
    elif name not in MORE_IS_WORSE and (not name.startswith(SLOWER_IS_WORSE) or name.endswith(NOT_JUDGED)):
        return None
    if after <= before or (name.startswith(SLOWER_IS_WORSE) and not before):
        return None
    return 100 * (after - before) / abs(before) if before else math.inf
