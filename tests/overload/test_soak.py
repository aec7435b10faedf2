"""`warren load --scenario soak` against a gateway of its own: what it holds in the end it held in the middle."""

import json
import sys
from base64 import b64encode
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import attrs
import pytest
import trio

from tests.overload.gateway_process import Gateway, small_gateway
from tests.support.postgres import database
from tests.surfaces.watched import Gauge
from tests.transport.cli.process import clean_environ
from tests.transport.clients import HOST, connect

SESSIONS: Final = 50
MEASURES: Final = 12
WAL: Final = 32 * 1024 * 1024
"""Bytes: the store begins it anew at every checkpoint, so that it does not grow with the turns."""
WARM: Final = 600.0
"""Seconds after which memory is flat at the latest."""
LONG: Final = 300.0
GROWTH: Final = 0.1
"""The share by which memory may grow from then on to the end of a soak of at least `LONG` seconds."""
SPARE_MEMORY: Final = 16 * 1024 * 1024
"""Bytes by which it may grow in a shorter one: arenas are taken whole."""
COMPACTING: Final = ("--compact-threshold", "500", "--compact-every", "3")
TURNS_WITH_FILES: Final = 10
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
@pytest.mark.parametrize("kind", ["files", "postgres"])
async def test_a_gateway_under_load_for_long(
    tmp_path: Path, soak_seconds: float, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Memory, tasks, descriptors and the write-ahead log stay flat, every promise is kept, and nothing is left."""
    report = tmp_path / "report.json"
    with ExitStack() as stack:
        store = "store" if kind == "files" else stack.enter_context(database())
        target = stack.enter_context(
            small_gateway(tmp_path, turns=1_000, connections=1_000, store=store, more=("--memory", *COMPACTING))
        )
        before = await target.watched.gauge()
        command = [sys.executable, "-m", "warren", "load", "run", f"{HOST}:{target.port}", "--scenario", "soak"]
        command += ["--sessions", str(SESSIONS), "--duration", f"{soak_seconds:g}s", "--model", target.short]
        command += ["--store", str(target.store)] if kind == "files" else []
        command += ["--json", str(report), "--html", str(tmp_path / "report.html")]
        async with trio.open_nursery() as nursery:
            load = await nursery.start(_run, command)
            nursery.start_soon(attach, target, soak_seconds)
            held = await measures(target, soak_seconds)
            await load.wait()
        after = await target.watched.settled(before)
    figures = {"before": attrs.asdict(before), "held": [*map(attrs.asdict, held)], "after": attrs.asdict(after)}
    (tmp_path / "held.json").write_text(json.dumps(figures, indent=1))
    result = json.loads(report.read_bytes())
    assert (result["violations"], result["errors"]) == ([], {})
    warm_at = min(WARM, soak_seconds / 2)
    warm, end = [each for each in held if each.second >= warm_at - 1][:3], held[-3:]
    memory = [before.memory, least(warm, "memory"), least(end, "memory")]
    start, middle, last = (f"{each / 2**20:.1f}" for each in memory)
    with capsys.disabled():
        sys.stdout.write(
            f"\nsoak on {kind}: resident {start} MiB, {middle} after {warm_at:g} s, {last} after {soak_seconds:g} s\n"
        )
    spare = SPARE_MEMORY if soak_seconds < LONG else GROWTH * memory[1]
    assert memory[2] <= memory[1] + spare, held
    assert least(end, "tasks") <= least(warm, "tasks") + SPARE_TASKS, held
    assert least(end, "descriptors") <= least(warm, "descriptors") + SESSIONS, held
    assert max(each.wal for each in held) <= WAL, held


async def attach(target: Gateway, seconds: float) -> None:
    """Have turns with files, one after the other, in sessions that follow each other and are deleted."""
    number = 0
    async with connect(target.port) as client:
        with trio.move_on_after(seconds):
            while True:
                session_id = (await client.call("session/create", prompt=None, model=target.short))["session_id"]
                for _ in range(TURNS_WITH_FILES):
                    number += 1
                    data = b64encode(f"page {number}\n".encode() * 2_000).decode()
                    file = {"data": data, "media_type": "text/plain", "name": f"{number}.txt"}
                    await client.call("turn/start", session_id=session_id, prompt="read", attachments=[file])
                    client.seen.clear()
                    await trio.sleep(0.2)
                await client.call("session/delete", session_id=session_id)


def least(some: list[Measure], name: str) -> int:
    """Return the smallest of some measures: what is there in every one of them."""
    return min(int(getattr(each.gauge, name)) for each in some)


async def _run(command: list[str], task_status: trio.TaskStatus[trio.Process]) -> None:
    await trio.run_process(command, env=clean_environ(), check=False, task_status=task_status)
