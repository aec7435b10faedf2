"""A gateway is killed while a client runs its tool, or the client ends: the call waits for a client with the tool."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import trio

from tests.support.asking import ask
from tests.support.postgres import database
from tests.support.telling import running
from warren.calls.facade import SessionService
from warren.client import connect
from warren.models.tools import Tool, tool

Place = Path | str


@asynccontextmanager
async def serving(place: Place, port: int = 0) -> AsyncIterator[tuple[trio.Process, int]]:
    """Run a gateway on a store; return its process and its port."""
    command = [sys.executable, "-m", "tests.promises.client_server", str(place), str(port)]
    async with running(command) as (process, telling):
        yield process, (await telling.must())["port"]


async def kill(process: trio.Process) -> None:
    """End a process without a word."""
    process.kill()
    await process.wait()


@attrs.define(eq=False)
class Digger:
    """The tool of a client.

    Attributes:
        hangs: whether it takes an hour.
        runs: the number of its runs.
        asked: set once it runs.
    """

    hangs: bool = False
    runs: int = 0
    asked: trio.Event = attrs.field(factory=trio.Event)

    @property
    def tool(self) -> Tool:
        """The tool."""

        @tool
        async def dig(where: str) -> str:
            """Dig a hole."""
            self.runs += 1
            self.asked.set()
            await trio.sleep(3600 if self.hangs else 0.5)
            return f"a hole {where}"

        return dig


async def waits_for_client(service: SessionService, session_id: str) -> None:
    """Return once the turn waits for a client, and for nothing else."""
    with trio.fail_after(20):
        while True:
            turn = (await service.read(session_id)).state.turn
            if turn is not None and turn.state == "waiting":
                assert [each.reason for each in turn.waiting_for] == ["client"]
                return
            await trio.sleep(0.05)


async def results(service: SessionService, session_id: str) -> list[str]:
    """Return the results of the session's tools."""
    found = (await service.history(session_id)).messages
    return [each.content for entry in found for each in getattr(entry.message, "results", ())]


async def left_by(digger: Digger, port: int) -> str:
    """Begin a turn as a client that ends while it runs its tool; return the session."""
    async with connect(f"ws://127.0.0.1:{port}/ws") as service:
        session_id = (await service.create_session(None)).session_id
        async with trio.open_nursery() as nursery:
            ask(nursery, partial(service.start_turn, session_id, "go", extra_tools=[digger.tool]))
            with trio.fail_after(20):
                await digger.asked.wait()
            nursery.cancel_scope.cancel()
    return session_id


async def test_a_gateway_is_killed_while_its_client_runs_a_tool(place: Place) -> None:
    """The keyed request goes on by itself at the next process on the port; the client runs the call once."""
    digger = Digger()
    async with serving(place) as (first, port), connect(f"ws://127.0.0.1:{port}/ws") as service:
        session_id = (await service.create_session(None)).session_id
        async with trio.open_nursery() as nursery:
            begun = {"mode": "queue", "idempotency_key": "k", "extra_tools": [digger.tool]}
            turn = ask(nursery, partial(service.start_turn, session_id, "go", **begun))  # type: ignore[arg-type]
            with trio.fail_after(20):
                await digger.asked.wait()
            await kill(first)
            async with serving(place, port):
                with trio.fail_after(30):
                    assert (await turn.value()).text == "It is dug."
                assert await results(service, session_id) == ["a hole here"]
    assert digger.runs == 1


async def test_another_client_waits_with_the_tool(place: Place) -> None:
    """The client is gone, and then the gateway: a new client waits for the turn, at a new node, and runs the tool."""
    gone, back = Digger(hangs=True), Digger()
    async with serving(place) as (first, port):
        session_id = await left_by(gone, port)
        async with connect(f"ws://127.0.0.1:{port}/ws") as service:
            await waits_for_client(service, session_id)
        await kill(first)
    async with serving(place) as (_, port), connect(f"ws://127.0.0.1:{port}/ws") as service:
        await waits_for_client(service, session_id)
        with trio.fail_after(30):
            assert (await service.wait_turn(session_id, extra_tools=[back.tool])).text == "It is dug."
        assert await results(service, session_id) == ["a hole here"]
    assert (gone.runs, back.runs) == (1, 1)


async def test_a_client_comes_back_at_another_node() -> None:
    """The first node has the session idle, and hands it over to the node at which the client with the tool asks."""
    gone, back = Digger(hangs=True), Digger()
    with database() as url:
        async with serving(url) as (_, here), serving(url) as (_, there):
            session_id = await left_by(gone, here)
            async with connect(f"ws://127.0.0.1:{there}/ws") as service:
                await waits_for_client(service, session_id)
                with trio.fail_after(30):
                    assert (await service.wait_turn(session_id, extra_tools=[back.tool])).text == "It is dug."
                assert await results(service, session_id) == ["a hole here"]
    assert (gone.runs, back.runs) == (1, 1)
