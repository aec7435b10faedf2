"""A process that starts with many turns that wait for approval: it serves at once, and no turn needs a task."""

import gc
import json
import resource
import sys
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.support.models import Emit, FunctionModel, reply
from tests.support.runtime import supervisor_of
from tests.support.telling import running
from warren.actors.calls.service import Service
from warren.calls.facade import SessionService
from warren.conversation.categories import Gates
from warren.conversation.messages import ToolResultsMessage, ToolUseBlock, UserMessage
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import tool
from warren.settings.config import Config, Limits, StoreConfig
from warren.transport.embed import open_supervisor

AT_ONCE: Final = 100
"""Turns that begin at once."""
MOST: Final = 2.0
"""KiB that a turn that waits may take."""
SECONDS: Final = 5.0
"""Time in which a process that starts answers."""


async def answers(request: ModelRequest, _emit: Emit) -> ModelReply:
    """Say "done" to a result or a new prompt, and ask for approval to a prompt that wants to pay."""
    await trio.lowlevel.checkpoint()
    last = request.messages[-1]
    if isinstance(last, UserMessage) and last.content == "pay":
        return reply("", ToolUseBlock("call-1", "pay", {}))
    return reply("paid" if isinstance(last, ToolResultsMessage) else "new")


@tool
async def pay() -> str:
    """Pay."""
    await trio.lowlevel.checkpoint()
    return "paid"


def resident() -> float:
    """Return the KiB that this process has."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1024


def opened(folder: Path) -> AbstractAsyncContextManager[SessionService]:
    """Open the store."""
    limits = Limits(approval_timeout=24 * 3600, max_live=2 * AT_ONCE)
    store = StoreConfig(folder, projections=False)
    config = Config(store=store, model="model", gates=Gates(callback="ask"), limits=limits)
    return open_supervisor(config, tools=[pay], providers={"model": FunctionModel(answers)}, environ={})


async def begin(service: Service, room: trio.CapacityLimiter, found: list[str]) -> None:
    """Begin a turn, and leave it once it waits."""
    async with room:
        session_id = (await service.create_session(None)).session_id
        found.append(session_id)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.start_turn, session_id, "pay")
            while True:
                turn = (await service.read(session_id)).state.turn
                if turn is not None and turn.state == "waiting":
                    break
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()


async def serve(folder: Path) -> None:
    """Serve a store whose turns wait, in a process that has done nothing before, and tell what that takes."""
    async with opened(folder.with_name("empty")) as service:  # what the first session of a process takes
        await service.create_session("new")
        await service.list()
    before, begins = resident(), time.monotonic()
    async with opened(folder) as service:
        assert isinstance(service, Service)
        session_id = (await service.create_session("new")).session_id
        answered = time.monotonic() - begins
        (found, *_) = (await service.list(turn_state="waiting", limit=1000)).sessions
        listed = time.monotonic() - begins
        await trio.sleep(3)
        tasks, after = trio.lowlevel.current_statistics().tasks_living, resident()
        assert supervisor_of(service).scheduler.running == set()
        assert supervisor_of(service).scheduler.live == {session_id}
        await service.approve_tool(found.session_id, "call-1", "allow")
        assert (await service.wait_turn(found.session_id)).text == "paid"
        told = {"answered": answered, "listed": listed, "kib": after - before, "tasks": tasks}
        sys.stdout.write(json.dumps(told) + "\n")


async def run(folder: Path, number: int) -> None:
    """Begin turns in this process; another one serves, waits with them for a while, and goes on with one."""
    found, room = list[str](), trio.CapacityLimiter(AT_ONCE)
    async with opened(folder) as service:
        assert isinstance(service, Service)
        async with trio.open_nursery() as nursery:
            for _ in range(number):
                nursery.start_soon(begin, service, room, found)
        await trio.sleep(1)
        assert len(supervisor_of(service).scheduler.live) <= 2 * AT_ONCE
    async with running([sys.executable, "-m", "tests.promises.test_many_waiting", str(folder)]) as (_, telling):
        told = await telling.must()
    each = told["kib"] / number
    sys.stdout.write(
        f"{number} waiting turns: served after {told['answered']:.2f} s, listed after {told['listed']:.2f} s, "
        f"{each:.2f} KiB each, {told['tasks']} tasks\n"
    )
    assert told["listed"] < SECONDS
    assert told["tasks"] < AT_ONCE
    if number >= 10_000:
        assert each <= MOST


async def test_a_process_serves_beside_turns_that_wait(tmp_path: Path) -> None:
    """A new session has its answer soon, and an approval lets its turn go on."""
    await run(tmp_path / "store", 200)


@pytest.mark.soak
@pytest.mark.time_limit(1800)
async def test_a_process_serves_beside_very_many_turns_that_wait(tmp_path: Path) -> None:
    """The same with ten thousand, each of which takes next to no memory."""
    await run(tmp_path / "store", 10_000)


if __name__ == "__main__":
    trio.run(serve, Path(sys.argv[1]))
