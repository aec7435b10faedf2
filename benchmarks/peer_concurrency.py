"""Do many sessions get in each other's way, beside other frameworks? 1,000 sessions x 5 turns x 50 ms model, durable.

Wall time over that of one session alone with no work but the model's. A peer has one round, as it takes minutes, and
ends after `PATIENCE`; ours has three of them, and one with 10,000 sessions.
"""

import statistics
from typing import Any, Final

from benchmarks.peer import FRAMEWORKS, OURS, Beside, beside
from benchmarks.report import Goal, report

SESSIONS: Final = 1_000
MANY: Final = 10_000
TURNS: Final = 5
DELAY: Final = 0.05
ROUNDS: Final = 3
PATIENCE: Final = 400 * TURNS * DELAY
"""Seconds that a peer may take."""


def _over_ideal(together: Beside, *, sessions: int, rounds: int = 1) -> dict[str, list[float]]:
    command: dict[str, Any] = {"sessions": sessions, "turns": TURNS, "delay": DELAY, "warm": 1, "patience": PATIENCE}
    said = together.ask("turns", rounds=rounds, durable=True, **command)
    return {name: [each["seconds"] / (TURNS * DELAY) for each in answers] for name, answers in said.items()}


def main() -> None:
    """Print everybody's wall time over the ideal."""
    figures: dict[str, Any] = {}
    with beside(FRAMEWORKS) as together:
        walls = _over_ideal(together, sessions=SESSIONS)
        figures |= {"versions": together.versions, "failed": together.failed}
    with beside(()) as alone:
        walls[OURS] += _over_ideal(alone, sessions=SESSIONS, rounds=ROUNDS - 1)[OURS]
        (many,) = _over_ideal(alone, sessions=MANY)[OURS]
    figures["wall_over_ideal"] = {name: round(statistics.median(each), 1) for name, each in walls.items()}
    ours = walls[OURS]
    what = "sessions x 5 turns x 50 ms, wall over ideal"
    goals = [
        Goal(f"{SESSIONS:,} {what}", statistics.median(ours), "<=", 3, (min(ours), max(ours))),
        Goal(f"{MANY:,} {what}", many, "<=", 20),
    ]
    report("Do many sessions get in each other's way, beside other frameworks?", figures, goals)


if __name__ == "__main__":
    main()
