"""What does a turn cost beside other frameworks if the model is behind HTTP? Each has its own HTTP client.

All call the same server, a process of its own whose share is printed. Ours asks for the answer in a stream, as it
always does; the others ask for it whole, as their plainest call does, which is less work. Sessions are in memory.
"""

from typing import Any, Final

from benchmarks.gateway_server import processor_time
from benchmarks.model_server import ModelServer, started
from benchmarks.peer import FRAMEWORKS, Beside, Comparison, beside
from benchmarks.report import Goal, report

ANSWER: Final = (12, 37)
"""Pieces and characters of each: they are the answer that the driver expects."""
LOADS: Final = ((1, 20, 3), (100, 2, 3), (1_000, 1, 1))
"""Sessions at once, turns of each, and rounds: a thousand sessions take some of the others half a minute."""
PATIENCE: Final = 120.0


def _compare(together: Beside, server: ModelServer, sessions: int, turns: int, rounds: int) -> Comparison:
    url = server.url(*ANSWER)
    command: dict[str, Any] = {"sessions": sessions, "turns": turns, "warm": 5, "url": url, "patience": PATIENCE}
    return Comparison.of(together.ask("turns", rounds=rounds, **command))


def main() -> None:
    """Print turns a second, and ours over the fastest of the others."""
    figures: dict[str, Any] = {}
    goals = []
    with started() as server, beside(FRAMEWORKS) as together:
        for sessions, turns, rounds in LOADS:
            begun = processor_time(server.pid)
            found = _compare(together, server, sessions, turns, rounds)
            count = rounds * sessions * turns * len(found.seconds)
            figures[f"{sessions} sessions: turns per s"] = {
                name: round(sessions * turns / each, 1) for name, each in found.seconds.items()
            }
            figures[f"{sessions} sessions: server's ms a turn"] = round(
                1000 * (processor_time(server.pid) - begun) / count, 3
            )
            what = f"turns over HTTP, {sessions} session(s): times the speed of the fastest peer ({found.fastest})"
            goals.append(Goal(what, found.ratio, ">=", 8, found.spread))
        figures |= {"versions": together.versions, "failed": together.failed}
    report("What does a turn over HTTP cost beside other frameworks?", figures, goals)


if __name__ == "__main__":
    main()
