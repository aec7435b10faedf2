"""What does counting for the metrics cost a turn? Counted in instructions, as `instructions` does.

Counting has no switch. In the process that counts nothing, the functions that count are replaced by one that does
nothing. A scrape runs in a thread, beside the turns: its time is measured.
"""

import shutil
import sys
import time
from typing import Any, Final

import trio

from benchmarks.instructions import of_a_turn, run_turns
from benchmarks.report import Goal, report
from warren import Config, open_supervisor
from warren.actors.observe.counters import Counters, Histogram, ModelCounters
from warren.actors.session.actor import SessionActor
from warren.transport.prometheus import exposed

KIND: Final = "in_memory"
SCRAPES: Final = 50


def _nothing(*_arguments: object) -> None:
    pass


def _without_counting() -> None:
    Histogram.add = ModelCounters.called = Counters.turn = SessionActor._count = _nothing  # type: ignore[assignment, method-assign] # noqa: SLF001


async def _scrape() -> tuple[float, int]:
    """Return the milliseconds of a scrape, and the bytes of its answer."""
    async with open_supervisor(Config(model="echo")) as service:
        await service.create_session("hello")
        exposed(service.metrics(), "")
        times = []
        for _ in range(SCRAPES):
            began = time.perf_counter()
            body, _media_type = exposed(service.metrics(), "")
            times.append(time.perf_counter() - began)
    return min(times) * 1000, len(body)


def main() -> None:
    """Print the instructions of a turn with and without counting, and the time of a scrape."""
    took, size = trio.run(_scrape)
    figures: dict[str, Any] = {"scrape_ms": round(took, 2), "scrape_bytes": size}
    goals = []
    if shutil.which("valgrind") is None:
        figures["failed"] = {"valgrind": "is not installed"}
    else:
        on, off = (of_a_turn(KIND, "benchmarks.metrics", each) for each in ("on", "off"))
        figures |= {"on": on, "off": off}
        goals.append(Goal("instructions of a turn without metrics, over those with them", off / on, ">=", 0.98))
    report("What does counting for the metrics cost a turn?", figures, goals)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        if sys.argv[1] == "off":
            _without_counting()
        run_turns(KIND, int(sys.argv[2]))
    else:
        main()
