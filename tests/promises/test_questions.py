"""A gateway is killed around the answer to a question of an MCP server: the call runs again, nobody is asked twice."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.support.asking import ask
from tests.support.telling import running
from warren.calls.facade import SessionService
from warren.client import connect


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[trio.Process, SessionService]]:
    """Run a gateway; return its process and a client of it."""
    command = [sys.executable, "-m", "tests.promises.question_server", str(folder)]
    async with running(command) as (process, telling):
        port = (await telling.must())["port"]
        async with connect(f"ws://127.0.0.1:{port}/ws", patience=1) as service:
            yield process, service


async def waits_for(service: SessionService, session_id: str, besides: str = "") -> str:
    """Return the id of the one thing that somebody is to decide on, once there is another one."""
    with trio.fail_after(30):
        while True:
            pending = (await service.read(session_id)).state.pending_approvals
            if pending and pending[0].call_id != besides:
                return pending[0].call_id
            await trio.sleep(0.05)


@pytest.mark.parametrize("answered", [True, False])
async def test_a_question_around_a_kill(tmp_path: Path, *, answered: bool) -> None:
    """The answer was stored before the kill, or is given to the next process: the server gets it, and the turn ends."""
    async with serving(tmp_path) as (process, service):
        session_id = (await service.create_session(None)).session_id
        async with trio.open_nursery() as nursery:
            ask(nursery, service.start_turn, session_id, "Paint it.")
            call = await waits_for(service, session_id)
            await service.approve_tool(session_id, call, "allow")
            question = await waits_for(service, session_id, besides=call)
            assert question == f"{call}.1"
            if answered:
                await service.approve_tool(session_id, question, "allow")
                await trio.sleep(0.3)
            process.kill()
            await process.wait()
            nursery.cancel_scope.cancel()
    async with serving(tmp_path) as (_, service):
        if not answered:
            assert await waits_for(service, session_id) == question
            await service.approve_tool(session_id, question, "allow")
        with trio.fail_after(30):
            assert (await service.wait_turn(session_id)).text == "It is painted."
        found = (await service.history(session_id)).messages
        told = [each.content for entry in found for each in getattr(entry.message, "results", ())]
        assert told == ["accept {'colour': 'red'}"]
