"""What does durability cost? Turns through the whole runtime against raw apsw writing the very same rows.

The rows are read back from the file that the runtime made and written again by plain apsw into a new file of the same
layout: one transaction a turn for one session, one transaction a hundred turns for a hundred sessions at once. The
latter is the floor for a program that may wait for a hundred turns; what apsw does with a transaction for each of them
is shown beside it. The process sets the garbage collector as `warren serve` does.
"""

import tempfile
import time
from pathlib import Path

import trio

from benchmarks.models import FixedModel
from benchmarks.raw_apsw import rows_of, turns_per_second
from benchmarks.report import Goal, Pairs, median_ratio, report
from warren import Config, SessionService, StoreConfig, open_supervisor
from warren.transport.cli.process.tuning import tune

ROUNDS = 5


async def _turns(service: SessionService, session_id: str, count: int) -> None:
    for _ in range(count):
        await service.start_turn(session_id, "Go on, please.")


async def _rate(folder: Path, sessions: int, turns: int) -> float:
    """Return turns per second; the folder keeps the file."""
    config = Config(store=StoreConfig(folder), model="fixed", provider="fixed")
    async with open_supervisor(config, providers={"fixed": FixedModel()}) as service:
        ids = [(await service.create_session(None)).session_id for _ in range(sessions)]
        begun = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for session_id in ids:
                nursery.start_soon(_turns, service, session_id, turns)
        return sessions * turns / (time.perf_counter() - begun)


def _measure(sessions: int, turns: int) -> tuple[Pairs, float]:
    """Return turns per second of ours and of raw apsw in groups, and of raw apsw without groups."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trio.run(_rate, folder / "rows", sessions, turns)
        groups = rows_of(folder / "rows", group=sessions)
        runs = iter(range(1_000))
        pairs = median_ratio(
            lambda: trio.run(_rate, folder / f"run-{next(runs)}", sessions, turns),
            lambda: turns_per_second(folder / f"raw-{next(runs)}.sqlite3", groups),
            ROUNDS,
        )
        singly = [[turn] for group in groups for turn in group]
        return pairs, turns_per_second(folder / "singly.sqlite3", singly)


def main() -> None:
    """Print the ratios for one session and for a hundred at once."""
    tune()
    figures, goals = {}, []
    for sessions, turns, goal in ((1, 1_000, 0.6), (100, 30, 0.27)):
        pairs, singly = _measure(sessions, turns)
        figures[f"{sessions}_sessions"] = {
            "turns_per_s": round(pairs.ours),
            "raw_turns_per_s": round(pairs.theirs),
            "raw_turns_per_s_a_transaction_each": round(singly),
        }
        what = f"durable turns, {sessions} session(s), over raw apsw"
        goals.append(Goal(what, pairs.ratio, ">=", goal, pairs.spread))
        rate = pairs.ours
    goals.append(Goal("durable turns/s at 100 sessions", rate, ">=", 5_000))
    report("What does durability cost?", figures, goals)


if __name__ == "__main__":
    main()
