"""Turns of ten tool calls in real processes that are killed or stopped at each of their commits, and go on."""

import random
import statistics
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path

import pytest

from tests.promises.turn_servers import Servers
from tests.promises.turn_world import Ended, World, chosen, every
from tests.support.postgres import database

Pick = Callable[[dict[str, int]], list[tuple[str, int, str]]]
LEASE = 1.5
LONG_LEASE = 60.0
"""A process that finds its predecessor dead waits for no lease."""
SLACK = 3.0
"""Seconds beyond the promised one, for a machine that has other work."""


def told(world: World, which: str) -> None:
    """Tell the figures of a run."""
    times = sorted(world.went_on)
    middle = statistics.median(times) if times else 0.0
    longest = max(times, default=0.0)
    ended = sum(world.hits.values())
    sys.stdout.write(f"{which}: {ended} ended; went on after {middle:.2f} s, {longest:.2f} s at most\n")


async def one_process(world: World, pick: Pick) -> None:
    """Each process ends within a turn; the next one goes on with it, answers, and ends within its own."""
    async with world.process() as counting:
        passed = await world.count(counting)
    before: list[Ended] = []
    for each in (*pick(passed), None):
        async with world.process() as victim:
            for ended in before[-1:]:
                await world.goes_on(ended, victim.process.pid, victim.ready, 1 + SLACK)
            for ended in before[-2:]:
                await world.check(ended, [victim])
            if each is not None:
                before.append(await world.end(victim, *each, alone=True))


async def two_nodes(world: World, pick: Pick, grace: float) -> None:
    """A node ends within a turn, and the other one goes on with it, and ends within the next turn."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(world.process("node-0"))
        passed = await world.count(first)
        before: list[Ended] = []
        for number, (point, at, by) in enumerate(pick(passed), 1):
            second = await stack.enter_async_context(world.process(f"node-{number}"))
            if before:
                await world.check(before[-1], [first, second])
            ended = await world.end(first, point, at, by, alone=False)
            await world.goes_on(ended, second.process.pid, ended.at, grace + 1 + SLACK)
            await world.check(ended, [second])
            before.append(ended)
            first = second


async def run(folder: Path, kind: str, pick: Pick, *, nodes: bool) -> None:
    """Run a world on a store, and tell its figures."""
    with nullcontext(None) if kind == "files" else database() as url:
        async with Servers().served() as servers:
            world = World(folder, servers, url, LEASE if nodes else LONG_LEASE)
            grace = 0.0 if url is None else LEASE / 3
            await (two_nodes(world, pick, grace) if nodes else one_process(world, pick))
    told(world, f"{kind}, {'two nodes' if nodes else 'one process'}")
    assert world.hits


@pytest.mark.time_limit(120)
@pytest.mark.parametrize("nodes", [False, True], ids=["one process", "two nodes"])
@pytest.mark.parametrize("kind", ["files", "database"])
async def test_a_turn_goes_on_wherever_its_process_ends(tmp_path: Path, kind: str, *, nodes: bool) -> None:
    """By itself, from what is kept; its key has one answer everywhere, and no call with a kept result runs again."""
    chance = random.Random(f"{kind} {nodes}")  # noqa: S311 - the same points each time
    await run(tmp_path, kind, lambda passed: chosen(passed, chance, 3), nodes=nodes)


@pytest.mark.soak
@pytest.mark.time_limit(7200)
@pytest.mark.parametrize("nodes", [False, True], ids=["one process", "two nodes"])
@pytest.mark.parametrize("kind", ["files", "database"])
async def test_a_turn_goes_on_from_each_point(tmp_path: Path, kind: str, *, nodes: bool) -> None:
    """The same for each pass of each point, and both ways to end a process."""
    await run(tmp_path, kind, every, nodes=nodes)
