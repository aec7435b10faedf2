"""Many sessions and many servers, one of which is always dying."""

import itertools
import random
from pathlib import Path

import attrs
import pytest
import trio

from tests.actors.tools.mcp.connecting import ready
from tests.actors.tools.mcp.world import bare, descriptors, exists, kill, pids
from warren.actors.tools.mcp.pool import McpPool
from warren.models.tools import ToolError

SERVERS = 10
TASKS = 200
CALLS = 3


@attrs.define
class Tally:
    """The outcomes of the calls, by server."""

    right: int = 0
    failed: list[int] = attrs.field(factory=lambda: [0] * SERVERS)


async def work(pool: McpPool, tally: Tally, task: int) -> None:
    """Make the calls of one session, a server each; an answer is right, or an error that names its server."""
    tools = {each.spec.name: each for each in pool.tools()}
    for step in range(CALLS):
        index, n = (task + step) % SERVERS, task * CALLS + step
        try:
            assert await tools[f"s{index}_square"].call(n=n) == str(n * n)
            tally.right += 1
        except ToolError as exc:
            assert f"'s{index}'" in str(exc)  # noqa: PT017 - it may also go well
            tally.failed[index] += 1


async def round_of(pool: McpPool, tally: Tally) -> None:
    """Have all sessions make their calls at once."""
    async with trio.open_nursery() as nursery:
        for task in range(TASKS):
            nursery.start_soon(work, pool, tally, task)


async def test_one_of_ten_is_killed_again_and_again(tmp_path: Path) -> None:
    """Only calls of the server that is killed fail; every other answer is the right one, to its own question."""
    tally, done = Tally(), trio.Event()
    async with ready(*(bare(tmp_path, f"s{index}") for index in range(SERVERS))) as pool:
        async with trio.open_nursery() as nursery:

            async def kill_one() -> None:
                for kills in itertools.count(1):
                    await kill(tmp_path, "s3", pool.health)
                    if kills >= 5 and tally.failed[3] and tally.right >= TASKS * CALLS:
                        break
                done.set()

            nursery.start_soon(kill_one)
            while not done.is_set():
                await round_of(pool, tally)
        assert [index for index, failed in enumerate(tally.failed) if failed] == [3]
        last = Tally()
        await round_of(pool, last)
        assert last.right == TASKS * CALLS
    assert not any(exists(pid) for index in range(SERVERS) for pid in pids(tmp_path, f"s{index}"))


@pytest.mark.soak
@pytest.mark.time_limit(100_000)
async def test_one_of_ten_is_killed_every_second(tmp_path: Path, soak_seconds: float) -> None:
    """For as long as it is asked: no session is lost, and each failure is one of a server that was killed."""
    tally, before = Tally(), descriptors()
    killed = set()
    async with ready(*(bare(tmp_path, f"s{index}") for index in range(SERVERS))) as pool:
        end = trio.current_time() + soak_seconds
        async with trio.open_nursery() as nursery:

            async def kill_one() -> None:
                while trio.current_time() < end:
                    killed.add(victim := random.randrange(SERVERS))  # noqa: S311 - no secret
                    await kill(tmp_path, f"s{victim}", pool.health)
                    await trio.sleep(1)

            nursery.start_soon(kill_one)
            for _ in itertools.takewhile(lambda _: trio.current_time() < end, itertools.count()):
                await round_of(pool, tally)
        assert {index for index, failed in enumerate(tally.failed) if failed} <= killed
    assert not any(exists(pid) for index in range(SERVERS) for pid in pids(tmp_path, f"s{index}"))
    assert descriptors() <= before
