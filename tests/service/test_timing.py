"""A session of another tenant takes the work, and the time, of one that nobody knows."""

import random
import time
from contextlib import nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from psycopg.pq.abc import PGresult
from trio.testing import wait_all_tasks_blocked

from tests.service.principals import ACME, OF_SESSIONS, called
from tests.support.postgres import database
from tests.support.runtime import open_runtime
from tests.support.steps import Calls
from warren.base.errors import SessionNotFoundError
from warren.base.ids import new_session_id
from warren.calls.facade import RuntimeService
from warren.conversation.peers import Peer
from warren.settings.config import PostgresConfig
from warren.storage.postgres.driver import Connection
from warren.storage.runner import thread_runner

ROUNDS = 3
SAMPLES = 8_000
MOST = 0.03
"""The share of the pairs by which they may differ: five times the deviation of so many that chance decides."""


OFF = {"compact", "forget_memory"}
"""Methods that a runtime without compaction and memory refuses whatever the session is."""


async def work(service: RuntimeService, method: str, session_id: str) -> int:
    """Return how many functions a call takes, without what other tasks do now and then."""
    found = []
    for _ in range(ROUNDS):
        calls = Calls()
        with calls.counted():
            await called(service, method, session_id)
        found.append(calls.number)
    return min(found)


@pytest.mark.virtual_time
@pytest.mark.parametrize("live", [True, False])
async def test_a_foreign_session_takes_the_work_of_an_unknown_one(tmp_path: Path, *, live: bool) -> None:
    """Each method calls as many functions for both, whether the session is in this process or in the store alone."""
    async with open_runtime(store=tmp_path) as service:
        mine = (await service.create_session("hi", peer=Peer("scout"))).session_id
        if live:
            await compare(service, mine)
    if not live:
        async with open_runtime(store=tmp_path) as service:
            await compare(service, mine)


async def compare(service: RuntimeService, session_id: str) -> None:
    """Check the work of all methods."""
    foreign = service.as_(ACME)
    await wait_all_tasks_blocked()  # the runtime's first look at its store is nobody's call
    for method in OF_SESSIONS:
        await called(foreign, method, new_session_id())
        found, unknown = await work(foreign, method, session_id), await work(foreign, method, new_session_id())
        assert found == unknown, method


async def test_a_foreign_session_takes_the_queries_of_an_unknown_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each method sends a database as much for both, and gets as many rows, whether the session is live or stored."""
    asked: ContextVar[list[object] | None] = ContextVar("asked", default=None)
    run = Connection._run  # noqa: SLF001 - all that goes over the wire

    async def noted(self: Connection, *args: Any) -> list[PGresult]:
        results = await run(self, *args)
        into = asked.get()
        if into is not None:  # by the task of the call, and not by one of the runtime
            into.append([(each.status, each.ntuples) for each in results])
        return results

    monkeypatch.setattr(Connection, "_run", noted)

    async def sent(service: RuntimeService, method: str, session_id: str) -> list[object]:
        found = [list[object]() for _ in range(ROUNDS)]
        for each in found:
            token = asked.set(each)
            await called(service, method, session_id)
            asked.reset(token)
        return min(found, key=len)  # a connection that another task has just made prepares its statements first

    async def compared(service: RuntimeService, session_id: str) -> None:
        foreign, counts = service.as_(ACME), dict[str, int]()
        for method in OF_SESSIONS:
            found, unknown = await sent(foreign, method, session_id), await sent(foreign, method, new_session_id())
            assert found == unknown, method
            counts[method] = len(found)
        assert {name for name, count in counts.items() if not count} <= OFF, counts

    with database() as url:
        async with open_runtime(store=PostgresConfig(url)) as service:
            mine = (await service.create_session("hi", peer=Peer("scout"))).session_id
            await compared(service, mine)
        async with open_runtime(store=PostgresConfig(url)) as service:
            await compared(service, mine)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["file", "database"])
@pytest.mark.parametrize("live", [True, False])
async def test_a_foreign_session_takes_the_time_of_an_unknown_one(tmp_path: Path, kind: str, *, live: bool) -> None:
    """Of two calls in random order, one for each, either is the longer one as often, however slow both are."""
    with database() if kind == "database" else nullcontext("") as url:
        store = PostgresConfig(url) if url else tmp_path
        async with open_runtime(store=store, runner=thread_runner) as service:
            mine = (await service.create_session("hi")).session_id
            if live:
                share = await longer(service, mine)
        if not live:
            async with open_runtime(store=store, runner=thread_runner) as service:
                share = await longer(service, mine)
    assert abs(share - 0.5) < MOST


async def longer(service: RuntimeService, session_id: str) -> float:
    """Return the share of pairs in which the call for a foreign session takes longer than one for an unknown one."""
    foreign = service.as_(ACME)

    async def taken(asked: str) -> float:
        begun = time.perf_counter()
        with pytest.raises(SessionNotFoundError):
            await foreign.read(asked)
        return time.perf_counter() - begun

    asked = session_id, new_session_id()
    pairs = np.zeros((SAMPLES, 2))
    for at in range(SAMPLES):
        for column in random.sample(range(2), 2):
            pairs[at, column] = await taken(asked[column])
    return float((pairs[:, 0] > pairs[:, 1]).mean())
