"""What every benchmark prints: one JSON object with figures and the goals they are measured against."""

import json
import statistics
import sys
from collections.abc import Callable, Iterable
from typing import Any, Literal

import attrs


@attrs.frozen
class Goal:
    """One figure and what it should be; `met` is for the reader, nothing fails on it."""

    what: str
    value: float
    relation: Literal[">=", "<="]
    goal: float

    @property
    def met(self) -> bool:
        """Whether the figure is as good as it should be."""
        return self.value >= self.goal if self.relation == ">=" else self.value <= self.goal


def report(question: str, figures: dict[str, Any], goals: Iterable[Goal]) -> None:
    """Print the result as JSON on one line."""
    shown = [{**attrs.asdict(goal), "value": round(goal.value, 3), "met": goal.met} for goal in goals]
    sys.stdout.write(json.dumps({"question": question, "figures": figures, "goals": shown}) + "\n")


def median_ratio(ours: Callable[[], float], theirs: Callable[[], float], rounds: int) -> tuple[float, float, float]:
    """Measure both in turn, `rounds` times; return the medians of both and of the ratios pair by pair.

    In turn, because the machine's speed drifts: a ratio of neighbours holds where two absolute figures do not.
    """
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    return (
        statistics.median(one for one, _ in pairs),
        statistics.median(other for _, other in pairs),
        statistics.median(one / other for one, other in pairs),
    )
