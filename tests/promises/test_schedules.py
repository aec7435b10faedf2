"""Processes that share a store send what is due, while one after the other is killed: each run once, and in time."""

import math
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.support.postgres import database
from tests.support.runtime import supervisor_of
from tests.support.telling import running
from warren.calls.facade import SessionService
from warren.conversation.messages import UserMessage
from warren.conversation.schedules import RunView, Schedule, ScheduleView, Timing
from warren.settings.config import Config, PostgresConfig, StoreConfig
from warren.storage.operations import PutSchedule
from warren.transport.embed import open_host

Place = Path | str
COUNT: Final = 20
LEASE: Final = 2.0
"""The lease of the nodes: a session of a killed one is free after it at the latest."""
MANY: Final = 10_000


@asynccontextmanager
async def node(place: Place) -> AsyncIterator[trio.Process]:
    """Run a process that sends what is due."""
    async with running([sys.executable, "-m", "tests.promises.schedule_node", str(place)]) as (process, telling):
        await telling.must()
        yield process


@asynccontextmanager
async def looking(place: Place, *, works: bool = False) -> AsyncIterator[SessionService]:
    """Open the store in this process, which does nothing of itself, unless it `works`."""
    store = PostgresConfig(place, lease=LEASE) if isinstance(place, str) else StoreConfig(place, lease=LEASE)
    async with open_host(Config(store=store, model="echo"), environ={}, takes_up=works) as hosted:
        yield hosted.service


async def listed(service: SessionService) -> Sequence[ScheduleView]:
    """Return all schedules."""
    found: list[ScheduleView] = []
    while page := (await service.schedules(offset=len(found), limit=1000)).schedules:
        found += page
    return found


async def said(service: SessionService, session_id: str) -> int:
    """Return the number of prompts that a session has had."""
    messages = (await service.history(session_id, limit=1000)).messages
    return sum(isinstance(each.message, UserMessage) for each in messages)


def late(run: RunView) -> float:
    """Return the seconds by which the prompt of a run was late."""
    return (run.at - run.due).total_seconds()


async def test_nodes_are_killed_while_prompts_are_due(place: Place) -> None:
    """No run is lost, none comes twice, and none is later than a takeover and two seconds."""
    async with looking(place) as service:
        for _ in range(COUNT):
            session_id = (await service.create_session(None)).session_id
            await service.create_schedule("water", every="1s", session_id=session_id, misfire="all")
    async with node(place) as first, trio.open_nursery() as nursery:
        up = datetime.now(UTC)
        await trio.sleep(2.5)
        async with node(place):
            await trio.sleep(2.5)
            first.kill()
            await trio.sleep(LEASE + 4)
        nursery.cancel_scope.cancel()
    async with looking(place) as service:
        for each in await listed(service):
            await service.change_schedule(each.schedule_id, paused=True)
    async with looking(place, works=True) as service:
        for each in await listed(service):
            assert each.session_id is not None
            dues = [run.due for run in reversed(each.runs)]
            assert len(dues) >= 6
            steps = [(b - a).total_seconds() for a, b in pairwise(dues)]
            assert steps == [1.0] * len(steps), "a run was left out"
            assert {run.state for run in each.runs} == {"fired"}
            assert max(late(run) for run in each.runs if run.due >= up) <= LEASE + 2
            while any(waits.starts for waits in await service.inputs(each.session_id)):  # noqa: ASYNC110 - no event
                await trio.sleep(0.05)
            await ended(service, each.session_id)
            assert len(dues) <= await said(service, each.session_id) <= len(dues) + 1


async def test_a_node_is_killed_at_the_time_of_prompts(place: Place) -> None:
    """Prompts that have waited for a time run once, not before it, and no later than a takeover and two seconds."""
    async with looking(place) as service:
        due = supervisor_of(service).shared.storage.now() + timedelta(seconds=15)
        waiting = list[str]()
        async with trio.open_nursery() as nursery:
            for number in range(COUNT):
                session_id = (await service.create_session(None)).session_id
                at = due + timedelta(milliseconds=20 * number)
                nursery.start_soon(partial(service.start_turn, session_id, "water", mode="queue", not_before=at))
                waiting.append(session_id)
            for session_id in waiting:
                while not await service.inputs(session_id):  # noqa: ASYNC110 - there is no event
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    async with node(place) as first, node(place):
        await trio.sleep((due - datetime.now(due.tzinfo)).total_seconds() + 0.2)
        first.kill()
        await trio.sleep(LEASE + 3)
    async with looking(place) as service:
        for session_id in waiting:
            prompt, answer = (await service.history(session_id)).messages
            assert isinstance(prompt.message, UserMessage)
            assert (prompt.message.content, prompt.created_at >= due) == ("water", True)
            assert answer.created_at - due <= timedelta(seconds=LEASE + 2)
            assert await service.inputs(session_id) == ()


async def ended(service: SessionService, session_id: str) -> None:
    """Wait until no turn of a session runs."""
    while (await service.read(session_id)).state.turn is not None:  # noqa: ASYNC110 - there is no event
        await trio.sleep(0.05)


@pytest.mark.soak
@pytest.mark.time_limit(600)
async def test_ten_thousand_prompts_within_a_minute() -> None:
    """Two nodes send each of them once; 99 % are stored within a second."""
    with database() as url:
        async with looking(url) as service:
            begin = supervisor_of(service).shared.storage.now() + timedelta(seconds=120)
            async with trio.open_nursery() as nursery:
                for number in range(100):
                    nursery.start_soon(make, service, begin, range(number, MANY, 100))
            made = supervisor_of(service).shared.storage.now()
            assert made < begin, f"the schedules were made {made - begin} too late"
        async with node(url), node(url):
            await trio.sleep((begin - datetime.now(begin.tzinfo)).total_seconds() + 75)
        async with looking(url) as service:
            found = await listed(service)
    runs = [run for each in found for run in each.runs]
    delays = sorted(map(late, runs))
    sessions = Counter(run.session_id for run in runs)
    p50, p99 = (delays[math.ceil(len(delays) * share) - 1] for share in (0.5, 0.99))
    sys.stdout.write(f"{len(runs)} runs: p50 {p50:.3f} s, p99 {p99:.3f} s, longest {delays[-1]:.3f} s\n")
    assert len(runs) == len(found) == MANY
    assert {run.state for run in runs} == {"fired"}
    assert sum(sessions.values()) == MANY


async def make(service: SessionService, begin: datetime, numbers: Sequence[int]) -> None:
    """Store schedules that are due once, evenly over a minute, for one session."""
    session_id, storage = (await service.create_session(None)).session_id, supervisor_of(service).shared.storage
    for number in numbers:
        at = begin + timedelta(seconds=60 * number / MANY)
        made = Schedule(
            f"{session_id}-{number}",
            "default",
            "local",
            storage.now(),
            f"prompt {number}",
            Timing(at=at),
            session_id=session_id,
            due=at,
        )
        await storage.write(PutSchedule(made, MANY))
