"""What does projecting cost the turns, and how far are the files behind?

Turns through the whole runtime with the files on and off, in turn; beside it how long the files take from the end of
the turns on, and a rebuild of all of them.
"""

import tempfile
import time
from pathlib import Path
from statistics import median

import attrs
import trio

from benchmarks.models import FixedModel
from benchmarks.report import Goal, report
from warren import Config, SessionService, StoreConfig, open_supervisor
from warren.storage.projection import Follower

ROUNDS = 8


@attrs.frozen
class Run:
    """The measurements: turns per second, seconds of processors a turn, and seconds from the last turn to the end."""

    rate: float
    cpu: float
    end: float


async def _turns(service: SessionService, session_id: str, count: int) -> None:
    for _ in range(count):
        await service.start_turn(session_id, "Go on, please.")


async def _rate(config: StoreConfig, sessions: int, turns: int) -> Run:
    """Run the turns, and end in good order."""
    settings = Config(store=config, model="fixed", provider="fixed")
    async with open_supervisor(settings, providers={"fixed": FixedModel()}) as service:
        ids = [(await service.create_session(None)).session_id for _ in range(sessions)]
        begun, begun_cpu = time.perf_counter(), time.process_time()
        async with trio.open_nursery() as nursery:
            for session_id in ids:
                nursery.start_soon(_turns, service, session_id, turns)
        ended, ended_cpu = time.perf_counter(), time.process_time()
    return Run(
        sessions * turns / (ended - begun), (ended_cpu - begun_cpu) / sessions / turns, time.perf_counter() - ended
    )


def _rebuild(config: StoreConfig) -> float:
    """Return events per second."""
    follower = Follower(config)
    begun = time.perf_counter()
    follower.begin_anew()
    while follower.step(1.0).more:
        pass
    follower.finish()
    took = time.perf_counter() - begun
    follower.close()
    lines = sum(path.read_bytes().count(b"\n") for path in config.path.glob("sessions/*/events.jsonl"))
    return lines / took


def _compare(folder: Path, sessions: int, turns: int) -> tuple[float, dict[str, float]]:
    """Return the ratio of turns per second with the files to those without, and figures."""
    runs: dict[bool, list[Run]] = {True: [], False: []}
    for number in range(ROUNDS):
        # Now the one first, now the other: what the first has left to the disk slows the second one down.
        for projections in (True, False) if number % 2 else (False, True):
            config = StoreConfig(folder / f"{number}-{projections}", projections=projections)
            runs[projections].append(trio.run(_rate, config, sessions, turns))
    figures = {
        f"{name}_{_word(on)}": _median(name, runs[on]) for name in ("rate", "cpu", "end") for on in (True, False)
    }
    rebuilt = _rebuild(StoreConfig(folder / "0-True"))
    ratio = median(on.rate / off.rate for on, off in zip(runs[True], runs[False], strict=True))
    return ratio, figures | {"rebuilt_events_per_s": round(rebuilt)}


def _median(name: str, runs: list[Run]) -> float:
    return float(round(median(getattr(run, name) for run in runs), 6))


def _word(on: bool) -> str:  # noqa: FBT001 - it is what it is about
    return "on" if on else "off"


def main() -> None:
    """Print the ratios for one session and for a hundred at once."""
    figures, goals = {}, []
    for sessions, turns in ((1, 4_000), (100, 100)):
        with tempfile.TemporaryDirectory() as folder:
            ratio, found = _compare(Path(folder), sessions, turns)
        figures[f"{sessions}_sessions"] = found
        goals.append(Goal(f"turns of {sessions} session(s) with projections, over without", ratio, ">=", 0.95))
    report("What does projecting cost?", figures, goals)


if __name__ == "__main__":
    main()
