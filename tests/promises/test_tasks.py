"""A gateway is killed between two looks at a task of an MCP service: the next one takes the next look, in time."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.asking import ask
from tests.support.telling import Telling, running
from warren.calls.facade import SessionService
from warren.client import connect

POLL = 6_000
"""Milliseconds between two looks: long enough that the turn suspends until the next one."""


@asynccontextmanager
async def elsewhere() -> AsyncIterator[tuple[Telling, str]]:
    """Run the service; return its streams and its address."""
    async with running([sys.executable, "-m", "tests.promises.task_service", str(POLL)]) as (_, telling):
        yield telling, (await telling.must())["url"]


async def told(telling: Telling, command: str = "state") -> dict[str, Any]:
    """Give the service a command; return its state after it."""
    await telling.say(command)
    return await telling.must()


@asynccontextmanager
async def serving(folder: Path, url: str, tool: str = "build") -> AsyncIterator[tuple[trio.Process, SessionService]]:
    """Run a gateway; return its process and a client of it."""
    command = [sys.executable, "-m", "tests.promises.task_gateway", str(folder), url, tool]
    async with running(command) as (process, telling):
        port = (await telling.must())["port"]
        async with connect(f"ws://127.0.0.1:{port}/ws", patience=1) as service:
            yield process, service


async def suspended(service: SessionService, yard: Telling, session_id: str, looks: int) -> None:
    """Return once the turn waits after so many looks."""
    with trio.fail_after(30):
        while (await told(yard))["looks"] < looks:  # noqa: ASYNC110 - of another process
            await trio.sleep(0.05)
    await trio.sleep(0.5)
    turn = (await service.read(session_id)).state.turn
    assert turn is not None
    assert (turn.state, turn.resumed) == ("waiting", 0)


async def begun(service: SessionService, yard: Telling) -> str:
    """Begin a turn, leave it once it has suspended after the first look, and return its session."""
    session_id = (await service.create_session(None)).session_id
    async with trio.open_nursery() as nursery:
        ask(nursery, service.start_turn, session_id, "Build it.")
        await suspended(service, yard, session_id, looks=1)
        nursery.cancel_scope.cancel()
    return session_id


async def results(service: SessionService, session_id: str) -> list[str]:
    """Return the results of the tools."""
    found = (await service.history(session_id)).messages
    return [each.content for entry in found for each in getattr(entry.message, "results", ())]


@pytest.mark.parametrize(
    ("command", "result"),
    [("complete", "built"), ("forget", "the MCP server 'yard' does not know the task of the call any more: ")],
)
async def test_kills_between_the_looks(tmp_path: Path, command: str, result: str) -> None:
    """The tool is called once, no look comes early, and the result is that of the call, or says that it is lost."""
    async with elsewhere() as (yard, url):
        async with serving(tmp_path, url) as (process, service):
            session_id = await begun(service, yard)
            process.kill()
            await process.wait()
        async with serving(tmp_path, url) as (process, service):
            await suspended(service, yard, session_id, looks=2)
            process.kill()
            await process.wait()
        state = await told(yard, command)
        async with serving(tmp_path, url) as (_, service):
            with trio.fail_after(30):
                assert (await service.wait_turn(session_id)).text == "It builds."
            (found,) = await results(service, session_id)
            assert found.startswith(result)
        state = await told(yard)
        assert (state["calls"], state["faults"]) == ([["build", "task"]], [])
        assert state["looks"] == (3 if command == "complete" else 0)


@pytest.mark.parametrize("how", ["interrupt", "delete"])
async def test_the_task_is_cancelled_by_the_next_process(tmp_path: Path, how: str) -> None:
    """As nobody wants its result, though it is not time to look at it."""
    async with elsewhere() as (yard, url):
        async with serving(tmp_path, url) as (process, service):
            session_id = await begun(service, yard)
            process.kill()
            await process.wait()
        async with serving(tmp_path, url) as (_, service):
            await getattr(service, how)(session_id)
            with trio.fail_after(10):
                while (state := await told(yard))["states"] != ["cancelled"]:  # noqa: ASYNC110 - of another process
                    await trio.sleep(0.05)
        assert (state["looks"], state["faults"]) == (1, [])


async def test_a_question_after_a_kill(tmp_path: Path) -> None:
    """The process ends before the answer: the next one asks again, and the service gets the answer."""
    async with elsewhere() as (yard, url):
        async with serving(tmp_path, url, "choose") as (process, service):
            session_id = (await service.create_session(None)).session_id
            async with trio.open_nursery() as nursery:
                ask(nursery, service.start_turn, session_id, "Choose.")
                call = await decided(service, session_id)
                question = await pending(service, session_id, besides=call)
                assert question == f"{call}.1"
                process.kill()
                await process.wait()
                nursery.cancel_scope.cancel()
        async with serving(tmp_path, url, "choose") as (_, service):
            assert await decided(service, session_id) == question
            with trio.fail_after(30):
                assert (await service.wait_turn(session_id)).text == "It builds."
            (result,) = await results(service, session_id)
            assert "'accept'" in result
        state = await told(yard)
        assert len(state["answers"]) == 1
        assert state["calls"] == [["choose", "task"]]


async def pending(service: SessionService, session_id: str, besides: str = "") -> str:
    """Return the id of the one thing that somebody is to decide on, once there is another one."""
    with trio.fail_after(30):
        while True:
            found = (await service.read(session_id)).state.pending_approvals
            if found and found[0].call_id != besides:
                return found[0].call_id
            await trio.sleep(0.05)


async def decided(service: SessionService, session_id: str) -> str:
    """Allow the one thing that somebody is to decide on; return its id."""
    call_id = await pending(service, session_id)
    await service.approve_tool(session_id, call_id, "allow")
    return call_id
