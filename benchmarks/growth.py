"""Does a turn get dearer as its session grows? Turn 3,000 against turn 10: time, and bytes written."""

import statistics
import tempfile
import time
from pathlib import Path

import trio

from benchmarks.models import FixedModel
from benchmarks.report import Goal, report
from warren import Config, StoreConfig, open_supervisor

WINDOW = 100
LATE = 3_000


def _bytes_written() -> int:
    """Return what this process has handed to the file system so far."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    raise RuntimeError("no count of written bytes on this system")


async def _windows(folder: Path) -> list[tuple[float, float]]:
    """Run the turns; return the median seconds and the mean bytes a turn of each window of turns."""
    windows = []
    config = Config(store=StoreConfig(folder), model="fixed", provider="fixed")
    async with open_supervisor(config, providers={"fixed": FixedModel()}) as service:
        session_id = (await service.create_session(None)).session_id
        for _ in range(LATE // WINDOW + 1):
            times, before = [], _bytes_written()
            for _ in range(WINDOW):
                begun = time.perf_counter()
                await service.start_turn(session_id, "Go on, please.")
                times.append(time.perf_counter() - begun)
            windows.append((statistics.median(times), (_bytes_written() - before) / WINDOW))
    return windows


def main() -> None:
    """Print the late turns over the early ones, each a median over some windows."""
    with tempfile.TemporaryDirectory() as name:
        windows = trio.run(_windows, Path(name))
    early, late = windows[:3], windows[-3:]
    seconds = [statistics.median(window[0] for window in part) for part in (early, late)]
    written = [statistics.median(window[1] for window in part) for part in (early, late)]
    figures = {"us_per_turn": [round(1e6 * value) for value in seconds], "bytes_per_turn": [*map(round, written)]}
    goals = [
        Goal("time of turn 3,000 over turn 10", seconds[1] / seconds[0], "<=", 1.2),
        Goal("bytes written by turn 3,000 over turn 10", written[1] / written[0], "<=", 1.2),
    ]
    report("Does a turn get dearer as its session grows?", figures, goals)


if __name__ == "__main__":
    main()
