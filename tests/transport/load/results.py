"""A result to show and to compare."""

from typing import Any

import attrs

from warren.transport.load.plan import LoadPlan
from warren.transport.load.recorder import Second
from warren.transport.load.result import Result
from warren.transport.load.stream import Violation

FIGURES = {"sessions": 2.0, "turns": 10.0, "turns/s": 100.0, "latency p50": 10.0, "latency p99": 20.0, "errors": 0.0}


def made(**changes: Any) -> Result:
    """Make a result; figures that are given are added to those there are."""
    figures = FIGURES | changes.pop("figures", {})
    base = Result(
        finished_at="2030-01-01T00:00:00+00:00",
        target="somewhere",
        plan=attrs.asdict(LoadPlan()),
        machine={"system": "Linux", "processors": 2, "python": "3.11", "warren": "0", "trio": "0"},
        figures=figures,
        errors={},
        latency=((0.0, 5.0), (50.0, 10.0), (90.0, 15.0), (99.0, 20.0), (100.0, 25.0)),
        series=tuple(Second(n, 10 * n, 100 * n, 0, 0, 2, 10.0, 20.0, 1.5) for n in range(4)),
        violations=(),
        violation_count=0,
    )
    return attrs.evolve(base, **changes)


BROKEN = made(
    violations=(Violation("session-<7>", "order", "a turn began within a turn"),),
    violation_count=1,
    errors={"AGENT_ERROR": 3},
    warnings=("the tester was late itself",),
)
