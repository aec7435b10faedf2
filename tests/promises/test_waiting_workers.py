"""`warren serve --workers 2` is killed and started again while turns wait for approval: the workers share them."""

import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import Final

import pytest
import trio

from tests.promises.waiting_servers import Servers, begin, end, waits
from tests.support.postgres import database
from tests.transport.cli.process import Cli
from tests.transport.cli.serving import lives, workers_of
from warren.base.errors import AgentError, StoreError
from warren.client import RemoteService

PLACES: Final = pytest.mark.parametrize("place", ["files", "postgres"], indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the place of a store: a folder, or the address of a database."""
    if request.param == "files":
        yield "kept"
    else:
        with database() as url:
            yield url


@PLACES
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
async def test_workers_are_started_again(cli: Cli, place: str, how: str) -> None:
    """Every worker lists what waits, whichever began it; each turn goes on once, also if a worker alone is killed."""
    servers = Servers.of(cli, place)
    async with servers.serving("--workers", "2") as (first, service):
        sessions = [await begin(service, f"key {number}") for number in range(4)]
        workers = workers_of(first)
        first.signal(signal.Signals[how])
        assert await end(first) == (0 if how == "SIGTERM" else -signal.SIGKILL)
        with trio.fail_after(20):
            while any(map(lives, workers)):  # noqa: ASYNC110 - another process has no event
                await trio.sleep(0.05)
    async with servers.serving("--workers", "2") as (second, service):
        assert sorted(each.session_id for each in (await service.approvals()).approvals) == sorted(sessions)
        for session_id in sessions[:2]:
            await service.approve_tool(session_id, await waits(service, session_id), "allow")
        os.kill(workers_of(second)[0], signal.SIGKILL)
        for session_id in sessions[2:]:
            await allow(service, session_id)
        with trio.fail_after(40):
            for number, session_id in enumerate(sessions):
                again = partial(service.start_turn, session_id, "run it", mode="queue", idempotency_key=f"key {number}")
                assert (await again()).text == "it has run"
        assert not (await service.approvals()).approvals
        told = [await results(service, session_id) for session_id in sessions]
        second.signal(signal.SIGTERM)
        assert await end(second) == 0
    lost = sum(each[0].startswith("not known: the process ended") for each in told)
    assert [len(each) for each in told] == [1] * 4
    assert 4 - lost <= servers.runs <= 4


async def allow(service: RemoteService, session_id: str) -> None:
    """Allow the call of a session; a sender whose connection breaks does so again."""
    call = await waits(service, session_id)
    with trio.fail_after(30):
        while True:
            try:
                return await service.approve_tool(session_id, call, "allow")
            except (AgentError, StoreError):
                await trio.sleep(0.1)


async def results(service: RemoteService, session_id: str) -> list[str]:
    """Return the results of the session's tools."""
    found = (await service.history(session_id)).messages
    return [each.content for entry in found for each in getattr(entry.message, "results", ())]
