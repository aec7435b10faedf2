"""The clients of the simulation, which run tools of their own."""

import random
from pathlib import Path

import pytest
import trio

from tests.simulation.clients import Client
from tests.simulation.plan import Fault, Operation, Plan
from tests.simulation.record import Record
from tests.simulation.stage import run
from tests.simulation.users import Told, User
from tests.simulation.world import World, empty_store
from warren.base.errors import StoreError
from warren.models.tools import Tool
from warren.storage.sqlite.file import FILE_NAME
from warren.transport.client.service import RemoteService

pytestmark = pytest.mark.usefixtures("silent_log")


async def asked(folder: Path, *, times: int, fails: int) -> Record:
    """Return the record of a client that runs a call so often in each request; the first requests fail."""
    (folder / FILE_NAME).write_bytes(empty_store())
    chance, requests = random.Random(0), 0  # noqa: S311 - the seed tells all

    async def request(_service: RemoteService, own: Tool) -> None:
        nonlocal requests
        requests += 1
        for _ in range(times):
            await own.call(call="s0.1-0-0")
        if requests <= fails:
            raise StoreError("the disk is full", cause="disk_full", retryable=True)

    async with trio.open_nursery() as tasks:
        world = World(chance, folder, tasks, clustered=False)
        node = await world.start("anna")
        await Client(User(world, Told(0, "default"), [], 1, chance), "s0.1").use(request)
        node.leaves.set()
        await node.gone.wait()
    return world.record


@pytest.mark.parametrize(
    ("times", "fails", "wrong"),
    [(1, 0, 0), (1, 2, 0), (2, 0, 1)],
    ids=["once", "again after an error", "twice in a request"],
)
@pytest.mark.virtual_time
async def test_a_request_runs_a_call_once(tmp_path: Path, times: int, fails: int, wrong: int) -> None:
    """A request that fails leaves its call without a result, so the next one may be asked for it; one runs it once."""
    record = await asked(tmp_path, times=times, fails=fails)
    assert len(record.wrong) == wrong
    assert sum(" runs s0.1-0-0" in line for line in record.diary) == times * (fails + 1)


def test_a_client_takes_the_end_of_a_key_for_its_end() -> None:
    """A stop ends a turn that is stored at its end, and its key: the client that asks again hears that, and is done."""
    made = Operation(0, 0.0, 0, "session/create with turns that are stored at their end")
    other = Operation(1, 0.0, 2, "session/create with a prompt")
    asks = Operation(2, 0.1, 0, "turn/start with a tool of a client")
    faults = [Fault(0.6, "leave", slot, 0.3) for slot in ("anna", "berta")]
    stage = run(Plan(18, (made, other, asks), faults))
    assert stage.wrong == []
    assert stage.told[0].prompts["s0.2"].error is not None
