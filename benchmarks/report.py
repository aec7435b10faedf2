"""The output of every benchmark: one JSON object with figures and the goals they are measured against."""

import json
import statistics
import sys
from collections.abc import Callable, Iterable
from typing import Any, Literal

import attrs


@attrs.frozen
class Goal:
    """One figure and what it should be; `met` is for the reader, nothing fails on it.

    `spread` has the least and the greatest of the rounds whose median the figure is.
    """

    what: str
    value: float
    relation: Literal[">=", "<="]
    goal: float
    spread: tuple[float, float] | None = None

    @property
    def met(self) -> bool:
        """Whether the figure is as good as it should be."""
        return self.value >= self.goal if self.relation == ">=" else self.value <= self.goal


def report(question: str, figures: dict[str, Any], goals: Iterable[Goal]) -> None:
    """Print the result as JSON on one line."""
    shown = [_shown(goal) for goal in goals]
    sys.stdout.write(json.dumps({"question": question, "figures": figures, "goals": shown}) + "\n")


def _shown(goal: Goal) -> dict[str, Any]:
    spread = None if goal.spread is None else [round(each, 3) for each in goal.spread]
    return {**attrs.asdict(goal), "value": round(goal.value, 3), "spread": spread, "met": goal.met}


@attrs.frozen
class Pairs:
    """The results of two programs: the median of each, the median of the ratios pair by pair, and their spread."""

    ours: float
    theirs: float
    ratio: float
    spread: tuple[float, float]


def median_ratio(ours: Callable[[], float], theirs: Callable[[], float], rounds: int) -> Pairs:
    """Measure both in turn, `rounds` times.

    In turn, because the machine's speed drifts: a ratio of neighbours holds where two absolute figures do not.
    """
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    ratios = [one / other for one, other in pairs]
    return Pairs(
        statistics.median(one for one, _ in pairs),
        statistics.median(other for _, other in pairs),
        statistics.median(ratios),
        (min(ratios), max(ratios)),
    )
