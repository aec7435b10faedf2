"""Does a turn get dearer as its session grows, beside other frameworks? Durable, at 10 messages and at 3,000."""

from typing import Any, Final

from benchmarks.peer import FRAMEWORKS, OURS, beside
from benchmarks.report import Goal, report

LENGTHS: Final = (10, 3_000)
SAMPLES: Final = 15


def main() -> None:
    """Print milliseconds a turn at both lengths, and the late ones over the early ones."""
    figures: dict[str, Any] = {}
    with beside(FRAMEWORKS) as together:
        said = together.ask(
            "growth", durable=True, lengths=LENGTHS, samples=SAMPLES, more={"samples": 100}, patience=150
        )
        figures["versions"], figures["failed"] = together.versions, together.failed
    for name, ((early, late),) in ((name, [each["seconds"] for each in answers]) for name, answers in said.items()):
        figures[name] = {"ms": [round(1000 * early, 3), round(1000 * late, 3)], "ratio": round(late / early, 2)}
    goal = Goal("turn at history 3,000 over turn at history 10", figures[OURS]["ratio"], "<=", 1.2)
    report("Does a turn get dearer as its session grows, beside other frameworks?", figures, [goal])


if __name__ == "__main__":
    main()
