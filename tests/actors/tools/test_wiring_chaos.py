"""The promises under load: many sessions, many servers, one of which is always dying."""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.actors.tools.mcp.world import bare, descriptors, exists, kill, pids
from tests.support.models import Emit, FunctionModel, reply
from tests.support.waiting import until
from warren.calls.facade import RuntimeService
from warren.conversation.messages import Message, ToolResultsMessage, ToolUseBlock, UserMessage
from warren.models.model import ModelReply, ModelRequest
from warren.settings.config import Config, StoreConfig
from warren.settings.tool_config import ToolsConfig
from warren.transport.embed import open_host

SERVERS = 10
AWAY = 3
CALLS = 3


def plan(prompt: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the calls of a turn: three servers next to each other, from the one that the prompt's number says."""
    n = int(prompt)
    return [(f"s{(n + step) % SERVERS}_square", {"n": n * CALLS + step}) for step in range(CALLS)]


async def three_calls(request: ModelRequest, _emit: Emit) -> ModelReply:
    """Make the calls that the prompt asks for in one step, and end when they are done."""
    await trio.lowlevel.checkpoint()
    last = request.messages[-1]
    if not isinstance(last, UserMessage):
        return reply("done")
    return reply("", *(ToolUseBlock(f"call-{at}", *call) for at, call in enumerate(plan(last.content))))


@attrs.define
class Tally:
    """The outcomes of the calls, by server."""

    right: list[int] = attrs.field(factory=lambda: [0] * SERVERS)
    failed: list[int] = attrs.field(factory=lambda: [0] * SERVERS)

    def count(self, number: int, results: ToolResultsMessage) -> None:
        """Take the results of a turn: each is right, or an error that names its server."""
        for (name, args), result in zip(plan(str(number)), results.results, strict=True):
            server = name.partition("_")[0]
            if result.is_error:
                assert f"'{server}'" in result.content
                self.failed[int(server[1:])] += 1
            else:
                assert result.content == str(args["n"] ** 2)
                self.right[int(server[1:])] += 1


async def turns(service: RuntimeService, sessions: list[str], tally: Tally) -> None:
    """Run a turn in every session at once; each ends well, and its results are in its history."""

    async def turn(number: int, session_id: str) -> None:
        before = (await service.read(session_id)).state.message_count
        assert (await service.start_turn(session_id, str(number))).text == "done"
        found: list[Message] = [e.message for e in (await service.history(session_id, offset=before)).messages]
        (results,) = (each for each in found if isinstance(each, ToolResultsMessage))
        tally.count(number, results)

    async with trio.open_nursery() as nursery:
        for number, session_id in enumerate(sessions):
            nursery.start_soon(turn, number, session_id)


async def run_under_kills(folder: Path, count: int, interval: float, enough: Callable[[Tally], object]) -> Tally:
    """Run turns in so many sessions until it is enough, while `AWAY` killers kill a server each at an interval.

    A killer waits for the server that it has killed. So no more than `AWAY` of the servers are away at a time, however
    slow the machine is, and most calls have right answers.
    """
    tally, killed, over = Tally(), set[int](), trio.Event()
    servers = tuple(bare(folder, f"s{index}") for index in range(SERVERS))
    config = Config(StoreConfig(folder / "store"), provider="three", tools=ToolsConfig(mcp_servers=servers))
    async with open_host(config, providers={"three": FunctionModel(three_calls)}) as hosted:
        service = hosted.service
        await until(lambda: service.health().mcp and all(each.status == "ok" for each in service.health().mcp or ()))
        sessions = [(await service.create_session(None)).session_id for _ in range(count)]
        async with trio.open_nursery() as nursery:

            async def kill_some(victims: Sequence[int]) -> None:
                while not over.is_set():
                    killed.add(victim := random.choice(victims))  # noqa: S311 - no secret
                    await kill(folder, f"s{victim}", lambda: service.health().mcp or ())
                    with trio.move_on_after(interval):
                        await over.wait()

            for first in range(AWAY):
                nursery.start_soon(kill_some, range(first, SERVERS, AWAY))
            while not enough(tally):
                await turns(service, sessions, tally)
            over.set()
        assert {index for index, failed in enumerate(tally.failed) if failed} <= killed
        last = Tally()
        await turns(service, sessions, last)
        assert sum(last.right) == count * CALLS
    assert not any(exists(pid) for index in range(SERVERS) for pid in pids(folder, f"s{index}"))
    return tally


async def test_servers_are_killed_under_sessions(tmp_path: Path) -> None:
    """Only calls of a server that was killed have errors for results; no turn fails, and all sessions go on."""
    tally = await run_under_kills(tmp_path, 20, 0.1, lambda tally: sum(tally.failed) > 2 and sum(tally.right) > 200)
    assert sum(tally.right) > sum(tally.failed)


@pytest.mark.soak
@pytest.mark.time_limit(100_000)
async def test_two_hundred_sessions_and_a_killer(tmp_path: Path, soak_seconds: float) -> None:
    """The same with 200 sessions, a kill every second, for as long as it is asked; no descriptor is left."""
    before, end = descriptors(), trio.current_time() + soak_seconds
    rounds = itertools.count()
    tally = await run_under_kills(tmp_path, 200, 1.0, lambda _: next(rounds) and trio.current_time() > end)
    assert sum(tally.right) > 200 * CALLS
    assert descriptors() <= before
