"""`warren load --scenario soak` against a gateway of its own: what it holds in the end it held in the middle."""

import json
import sys
from pathlib import Path
from typing import Final

import attrs
import pytest
import trio

from tests.overload.gateway_process import Gateway, small_gateway
from tests.surfaces.watched import Gauge
from tests.transport.cli.process import clean_environ
from tests.transport.clients import HOST

SESSIONS: Final = 50
MEASURES: Final = 12
WAL: Final = 32 * 1024 * 1024
"""Bytes: the store begins it anew at every checkpoint, so that it does not grow with the turns."""
SPARE_MEMORY: Final = 16 * 1024 * 1024
PER_TURN: Final = 4 * 1024
"""Bytes by which memory may grow from the middle to the end: arenas are taken whole, and what was said is kept."""
SPARE_TASKS: Final = 4 * SESSIONS
"""Turns, connections and subscriptions come and go."""


@attrs.frozen
class Measure:
    """The resources of the gateway at some moment: its process, and bytes of its write-ahead log."""

    second: float
    gauge: Gauge
    wal: int


async def measures(target: Gateway, seconds: float) -> list[Measure]:
    """Measure again and again for so long."""
    found, began = list[Measure](), trio.current_time()
    wal = trio.Path(target.store / "sessions.sqlite3-wal")
    for number in range(1, MEASURES + 1):
        await trio.sleep_until(began + seconds * number / MEASURES)
        size = (await wal.stat()).st_size if await wal.exists() else 0
        found.append(Measure(trio.current_time() - began, await target.watched.gauge(), size))
    return found


@pytest.mark.soak
@pytest.mark.time_limit(7200)
async def test_a_gateway_under_load_for_long(tmp_path: Path, soak_seconds: float) -> None:
    """Memory, tasks, descriptors and the write-ahead log stay flat, every promise is kept, and nothing is left."""
    report = tmp_path / "report.json"
    with small_gateway(tmp_path, turns=1_000, connections=1_000) as target:
        before = await target.watched.gauge()
        command = [sys.executable, "-m", "warren", "load", "run", f"{HOST}:{target.port}", "--scenario", "soak"]
        command += ["--sessions", str(SESSIONS), "--duration", f"{soak_seconds:g}s", "--model", target.short]
        command += ["--store", str(target.store), "--json", str(report), "--html", str(tmp_path / "report.html")]
        async with trio.open_nursery() as nursery:
            load = await nursery.start(_run, command)
            held = await measures(target, soak_seconds)
            await load.wait()
        after = await target.watched.settled(before)
    figures = {"before": attrs.asdict(before), "held": [*map(attrs.asdict, held)], "after": attrs.asdict(after)}
    (tmp_path / "held.json").write_text(json.dumps(figures, indent=1))
    result = json.loads(report.read_bytes())
    assert (result["violations"], result["errors"]) == ([], {})
    middle, end = held[MEASURES // 2 - 1 : MEASURES // 2 + 2], held[-3:]
    spare = SPARE_MEMORY + PER_TURN * result["figures"]["turns"] / 2
    assert least(end, "memory") <= least(middle, "memory") + spare, held
    assert least(end, "tasks") <= least(middle, "tasks") + SPARE_TASKS, held
    assert least(end, "descriptors") <= least(middle, "descriptors") + SESSIONS, held
    assert max(each.wal for each in held) <= WAL, held


def least(some: list[Measure], name: str) -> int:
    """Return the smallest of some measures: what is there in every one of them."""
    return min(int(getattr(each.gauge, name)) for each in some)


async def _run(command: list[str], task_status: trio.TaskStatus[trio.Process]) -> None:
    await trio.run_process(command, env=clean_environ(), check=False, task_status=task_status)
