"""Two results side by side: each figure, its ratio, and whether it got worse by more than is allowed. No I/O."""

import math
from collections.abc import Mapping
from typing import Final

import attrs

from warren.transport.load.result import MILLISECONDS, Result

SLOWER_IS_WORSE: Final = tuple(name for name in MILLISECONDS if name != "tester's lag ")
MORE_IS_BETTER: Final = frozenset({"turns/s", "events/s"})
MORE_IS_WORSE: Final = frozenset({"errors", "violations"})
NOT_JUDGED: Final = (" p100", " p99.9")
"""Single moments of a run: shown, and too much chance to judge by."""


@attrs.frozen
class Change:
    """One figure of two runs.

    Attributes:
        name: the figure.
        before: in the first.
        after: in the second.
        ratio: after over before; None where there was nothing before.
        worse: by how many percent it got worse; None where it got no worse, or is not judged.
    """

    name: str
    before: float
    after: float
    ratio: float | None
    worse: float | None


def compare(before: Result, after: Result) -> list[Change]:
    """Return every figure that either of two results has, and how many promises were not kept."""
    left, right = (dict(each.figures) | {"violations": float(each.violation_count)} for each in (before, after))
    return [_change(name, left.get(name, 0.0), right.get(name, 0.0)) for name in dict.fromkeys([*left, *right])]


def regressions(changes: list[Change], percent: float) -> list[Change]:
    """Return what got worse by more than so many percent."""
    return [change for change in changes if change.worse is not None and change.worse > percent]


def unlike(before: Result, after: Result) -> list[str]:
    """Return in what the plans and the machines of two results differ, chance aside."""
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
