"""Ten thousand clients that do nothing."""

import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.overload.gateway_process import small_gateway
from tests.surfaces.watched import SPARE
from tests.transport.clients import HOST
from warren.transport.load.address import address_of
from warren.transport.load.plan import BadClients, LoadPlan
from warren.transport.load.remote import remote_target
from warren.transport.load.run import RunProgress, run_load

IDLE: Final = 10_000
COST: Final = 64 * 1024
"""Bytes of the gateway's memory that an idle connection may cost; measured: about half of that."""


@pytest.fixture
def many_files() -> Iterator[None]:
    """Let this process, too, have as many connections."""
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * IDLE - 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"the system allows no more than {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.soak
@pytest.mark.time_limit(900)
@pytest.mark.usefixtures("many_files")
async def test_ten_thousand_idle_connections(tmp_path: Path) -> None:
    """They cost a bounded memory each; users are served meanwhile, and when they go nothing is left of them."""
    plan = LoadPlan(sessions=20, turns=20, think=0.1, model="echo", bad_clients=BadClients(idle=IDLE))
    with small_gateway(tmp_path, turns=1_000, connections=IDLE + 100) as target:
        empty, crowded = await target.watched.gauge(), []

        async def look(progress: RunProgress) -> None:
            while progress.stage == "arrival":  # noqa: ASYNC110 - a run has no event for it
                await trio.sleep(0.05)
            crowded.append(await target.watched.gauge())

        address = address_of(f"{HOST}:{target.port}")
        async with remote_target(plan, address, target.store) as there, trio.open_nursery() as nursery:
            result = await run_load(plan, there, lambda progress: nursery.start_soon(look, progress))
        while (after := await target.watched.gauge()).tasks > empty.tasks:  # noqa: ASYNC110 - it is a process
            await trio.sleep(1)
        assert after.descriptors <= empty.descriptors + SPARE
    each = (crowded[0].memory - empty.memory) / IDLE
    report = {
        "bytes per idle connection": each,
        "tasks per idle connection": (crowded[0].tasks - empty.tasks) / IDLE,
        "objects per idle connection": (crowded[0].objects - empty.objects) / IDLE,
        "memory before, with, after": [gauge.memory for gauge in (empty, crowded[0], after)],
        "latency": {name: value for name, value in result.figures.items() if name.startswith("latency")},
    }
    (tmp_path / "report.json").write_text(json.dumps(report, indent=1))
    assert (result.violations, result.errors) == ((), {})
    assert result.figures["idle connections"] == IDLE
    assert "idle connections lost" not in result.figures
    assert each < COST, report
