"""What does a turn cost beside other frameworks? One session from its first turn on; the model answers at once.

Each framework has the fake model behind its own interface and keeps the history as its documentation says; the durable
ones have SQLite as the framework opens it. Ours logs events and commits with `synchronous=FULL`.
"""

from typing import Any, Final

from benchmarks.peer import FRAMEWORKS, Beside, Comparison, beside
from benchmarks.report import Goal, report

TURNS: Final = 20
ROUNDS: Final = 9
KINDS: Final[tuple[tuple[str, dict[str, Any], float], ...]] = (
    ("text turn in memory", {}, 10),
    ("tool turn in memory", {"tools": True}, 10),
    ("durable text turn", {"durable": True}, 4),
)
"""The kind of turns, the question, and the goal: how many times the fastest peer's speed."""


def _compare(together: Beside, command: dict[str, Any]) -> Comparison:
    # What is fast is over in a few milliseconds: ours does it ten times.
    return Comparison.of(
        together.ask("turns", rounds=ROUNDS, turns=TURNS, warm=5, more={"times": 10, "warm": 40}, **command)
    )


def main() -> None:
    """Print milliseconds a turn, and ours over the fastest of the others."""
    figures: dict[str, Any] = {}
    goals = []
    with beside(FRAMEWORKS) as together:
        for kind, command, goal in KINDS:
            found = _compare(together, command)
            figures[f"{kind}, ms"] = {name: round(1000 * each / TURNS, 3) for name, each in found.seconds.items()}
            what = f"{kind}: times the speed of the fastest peer ({found.fastest})"
            goals.append(Goal(what, found.ratio, ">=", goal, found.spread))
        figures |= {"versions": together.versions, "failed": together.failed}
    report("What does a turn cost beside other frameworks?", figures, goals)


if __name__ == "__main__":
    main()
