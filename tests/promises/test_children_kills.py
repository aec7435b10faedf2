"""Parents and children in real processes that are killed at each of their writes: each end comes, and comes once."""

import json
import random
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.promises.child_node import PARTS
from tests.support.checks import assert_valid_transcript
from tests.support.postgres import database
from tests.support.telling import Telling, running
from warren.calls.facade import SessionService
from warren.conversation.messages import AssistantMessage, ToolResultsMessage, UserMessage
from warren.settings.config import Config, PostgresConfig, StoreConfig
from warren.transport.embed import open_host

Place = Path | str
LEASE = 1.5
LATER = 60.0
"""Seconds within which a turn goes on after the death of its process, with those of a slow machine."""


@asynccontextmanager
async def node(place: Place, lease: float = 60.0) -> AsyncIterator[tuple[trio.Process, Telling]]:
    """Run the program; it is ready."""
    command = [sys.executable, "-m", "tests.promises.child_node", str(place), str(lease)]
    async with running(command) as (process, telling):
        assert "ready" in await telling.must()
        yield process, telling


async def answer(telling: Telling, key: str, at: int | None = None) -> dict[str, object] | None:
    """Ask under a key; return what is told, None if the process has ended first."""
    await telling.say(json.dumps({"key": key} if at is None else {"key": key, "at": at}))
    with trio.fail_after(LATER):
        return await telling.next()


async def check(place: Place, answered: dict[str, object], key: str) -> None:
    """Check that each part was done by one child, once, and that each end came to its call, once."""
    assert answered.get("answer") == f"done: all {key}", answered
    store = PostgresConfig(place, lease=LEASE) if isinstance(place, str) else StoreConfig(place, lease=LEASE)
    async with open_host(Config(store=store, model="echo"), environ={}, takes_up=False) as hosted:
        service = hosted.service
        results = await results_of(service, str(answered["session_id"]))
        assert results == [f"done: do {part}" for part in PARTS]


async def results_of(service: SessionService, session_id: str) -> list[str]:
    """Return the results of a session's one turn, which is sound."""
    messages = [each.message for each in (await service.history(session_id)).messages]
    assert_valid_transcript(messages)
    assert sum(isinstance(each, UserMessage) for each in messages) == 1
    assert sum(isinstance(each, AssistantMessage) and not each.tool_calls for each in messages) == 1
    assert await service.inputs(session_id) == ()
    return [each.content for one in messages if isinstance(one, ToolResultsMessage) for each in one.results]


async def count(place: Place, asked: int) -> None:
    """Check that so many turns have made four children each, of which each had one turn."""
    store = PostgresConfig(place, lease=LEASE) if isinstance(place, str) else StoreConfig(place, lease=LEASE)
    async with open_host(Config(store=store, model="echo"), environ={}, takes_up=False) as hosted:
        service, titles = hosted.service, list[str]()
        for each in (await service.list(limit=1000)).sessions:
            results = await results_of(service, each.session_id)
            titles.append(str(each.title))
            assert results == ["done: do half"] or each.title != "do two"
    parts = [title for title in titles if title.startswith("do ")]
    assert sorted(parts) == sorted(asked * [*(f"do {part}" for part in PARTS), "do half"])
    assert len(titles) == asked * (len(PARTS) + 2)


async def one_process(place: Place, points: Sequence[int]) -> None:
    """Each process ends at a write; the next one goes on."""
    for at in points:
        async with node(place) as (_, telling):
            told = await answer(telling, str(at), at)
        if told is None:
            async with node(place) as (_, telling):
                told = await answer(telling, str(at))
        assert told is not None
        await check(place, told, str(at))
    await count(place, len(points))


async def two_nodes(place: Place, points: Sequence[int]) -> None:
    """A node ends at a write, while another one serves the store, and goes on."""
    async with node(place, LEASE) as (_, staying):
        for at in points:
            async with node(place, LEASE) as (_, telling):
                told = await answer(telling, str(at), at)
            told = told or await answer(staying, str(at))
            assert told is not None
            await check(place, told, str(at))
    await count(place, len(points))


async def passes(place: Place) -> int:
    """Return how many points a turn passes, of a process that has done one before."""
    async with node(place) as (_, telling):
        await answer(telling, "first")
        told = await answer(telling, "second")
    assert told is not None
    return int(str(told["passed"]))


@pytest.mark.time_limit(180)
@pytest.mark.parametrize("nodes", [False, True], ids=["one process", "two nodes"])
@pytest.mark.parametrize("kind", ["files", "database"])
async def test_children_go_on_wherever_their_process_ends(tmp_path: Path, kind: str, *, nodes: bool) -> None:
    """Each part is done once, and its end comes to its call once, by one child for each call."""
    chance = random.Random(f"{kind} {nodes}")  # noqa: S311 - the same points each time
    points = [chance.randrange(1, 9), *(chance.randrange(9, 45) for _ in range(4))]
    if kind == "files":
        await (two_nodes if nodes else one_process)(tmp_path, points)
    else:
        with database() as url:
            await (two_nodes if nodes else one_process)(url, points)


@pytest.mark.soak
@pytest.mark.time_limit(3600)
@pytest.mark.parametrize("nodes", [False, True], ids=["one process", "two nodes"])
@pytest.mark.parametrize("kind", ["files", "database"])
async def test_children_go_on_from_each_point(tmp_path: Path, kind: str, *, nodes: bool) -> None:
    """The same before and after each write."""
    if kind == "files":
        most = await passes(tmp_path / "counted")
        await (two_nodes if nodes else one_process)(tmp_path / "store", range(1, most + 1))
    else:
        with database() as counted, database() as url:
            most = await passes(counted)
            await (two_nodes if nodes else one_process)(url, range(1, most + 1))
