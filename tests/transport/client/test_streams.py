"""Streams of turns over a gateway: what a lost connection leaves of them, and what they leave behind."""

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal

import anyio
import pytest
import trio

from tests.support.checks import names, numbers
from tests.support.runtime import replay
from tests.support.waiting import until
from tests.transport.cli.process import Cli
from tests.transport.client.cable import Cable, linked
from tests.transport.client.gate import Gate
from tests.transport.clients import HOST, gateway
from tests.transport.gateway.serving import runtime
from warren.base.errors import AgentError, SessionBusyError, SessionNotRunningError
from warren.client import RemoteService, connect
from warren.conversation.events import RunCompleted, TextDelta


@pytest.mark.parametrize("mode", ["busy", "queue", "new"])
async def test_a_stream_goes_on_over_a_lost_connection(tmp_path: Path, mode: Literal["busy", "queue", "new"]) -> None:
    """Each event comes once, up to the end of the turn, which runs once; the result is that of the turn."""
    gate = Gate()
    async with runtime(tmp_path, test=gate) as service, linked(service) as (remote, wire), trio.open_nursery() as tasks:
        if mode == "new":
            opened = remote.stream_session("hi", model="test")
        else:
            session_id = (await remote.create_session(None, model="test")).session_id
            opened = remote.stream_turn(session_id, "hi", mode=mode)
        async with opened as events:
            heard = [await anext(events)]
            wire.cut()
            # The prompt that is sent again has a connection of its own: it brings events, too.
            tasks.start_soon(_let_go, gate, wire, wire.opened + (1 if mode == "busy" else 2))
            heard += [envelope async for envelope in events]
            result = await events.result()
        assert (result.text, gate.calls) == ("one two", 1)
        assert "".join(each.event.delta for each in heard if isinstance(each.event, TextDelta)) == "one two"
        assert numbers(heard) == numbers(await replay(service, result.session_id))
        assert (heard[0].seq, heard[-1].seq) == (result.first_seq, result.last_seq)


async def _let_go(gate: Gate, wire: Cable, opened: int) -> None:
    """Let the model go on once the client has opened so many connections."""
    await until(lambda: wire.opened >= opened)
    gate.go.set()


async def test_a_turn_that_ends_while_the_client_is_away(tmp_path: Path) -> None:
    """Its events are in the log, and come. The result of a prompt in the mode `busy` is lost, and says so."""
    gate = Gate()
    async with runtime(tmp_path, test=gate) as service, linked(service) as (remote, wire):
        session_id = (await remote.create_session(None, model="test")).session_id
        async with remote.stream_turn(session_id, "hi") as events:
            await gate.began.wait()
            wire.closed = True
            wire.cut()
            gate.go.set()
            await until(lambda: not service.statistics().running_turns)
            wire.closed = False
            heard = [envelope async for envelope in events]
            with pytest.raises(AgentError) as caught:
                await events.result()
        assert caught.value.cause == "connection_lost"
        assert isinstance(heard[-1].event, RunCompleted)
        assert heard[-1].event.result == "one two"


async def test_the_result_of_a_later_turn_is_not_that_of_the_stream(tmp_path: Path) -> None:
    """The turn ends while the client is away, and another one runs when it comes back."""
    gate, later = Gate(), Gate()
    async with (
        runtime(tmp_path, test=gate, later=later) as service,
        linked(service) as (remote, wire),
        trio.open_nursery() as tasks,
    ):
        session_id = (await remote.create_session(None, model="test", provider="test")).session_id
        async with remote.stream_turn(session_id, "hi") as events:
            await gate.began.wait()
            wire.closed = True
            wire.cut()
            gate.go.set()
            await until(lambda: not service.statistics().running_turns)
            tasks.start_soon(partial(service.start_turn, session_id, "now?", model="later", provider="later"))
            await later.began.wait()
            wire.closed = False
            tasks.start_soon(_let_go, later, wire, wire.opened + 1)
            heard = [envelope async for envelope in events]
            with pytest.raises(AgentError) as caught:
                await events.result()
        assert caught.value.cause == "connection_lost"
        assert names(heard).count("run_completed") == 1


async def test_a_server_that_stays_away_ends_a_stream_with_an_error(tmp_path: Path) -> None:
    """In the time that a call may take: the loop says that it cannot be reached, the result that it is unknown."""
    gate = Gate()
    async with runtime(tmp_path, test=gate) as service, linked(service, patience=0.2) as (remote, wire):
        session_id = (await remote.create_session(None, model="test")).session_id
        async with remote.stream_turn(session_id, "hi") as events:
            await gate.began.wait()
            wire.closed = True
            wire.cut()
            with trio.fail_after(5):
                with pytest.raises(AgentError) as caught:
                    [envelope async for envelope in events]
                assert caught.value.cause == "unreachable"
                with pytest.raises(AgentError) as caught:
                    await events.result()
                assert caught.value.cause == "connection_lost"
        gate.go.set()


async def test_a_stream_left_early_leaves_nothing_at_either_end(tmp_path: Path) -> None:
    """Neither a reader at the server nor a task, a feed or a connection at the client; the turn runs on."""
    gate = Gate()
    async with runtime(tmp_path, test=gate) as service, linked(service) as (remote, wire):
        session_id = (await remote.create_session(None, model="test")).session_id
        tasks = trio.lowlevel.current_statistics().tasks_living
        async with remote.stream_turn(session_id, "hi") as events:
            assert names([await anext(events)]) == ["run_started"]
            with pytest.raises(SessionBusyError):
                async with remote.stream_turn(session_id, "hi"):
                    raise AssertionError("the body has begun")
        assert (await remote.read(session_id)).state.is_active
        gate.go.set()
        result = await remote.wait_turn(session_id)
        assert result.text == "one two"
        await until(lambda: not service.statistics().subscriptions)
        await until(lambda: wire.carrying == 1)
        await until(lambda: trio.lowlevel.current_statistics().tasks_living <= tasks)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_stream_on_either_event_loop(cli: Cli, backend: Literal["trio", "asyncio"]) -> None:
    """Events, texts and the result; early leaving; the body's own error; an asyncio task that is cancelled."""
    running = cli.start("serve", "--port", "0", "--model", "echo", "--ephemeral")
    url = running.read_until("\n").split()[-1]

    async def program() -> None:
        async with connect(url) as service:
            async with service.stream_session("one") as events:
                session_id = events.session_id
                assert names([envelope async for envelope in events])[-1] == "run_completed"
                assert (await events.result()).text == "one"
            async with service.stream_turn(session_id, "two") as events:
                assert "".join([text async for text in events.texts()]) == "two"
            async with service.stream_turn(session_id, "three"):
                pass
            with suppress(SessionNotRunningError):
                await service.wait_turn(session_id)
            with pytest.raises(KeyError, match="mine"):
                await _failing(service, session_id)
            if backend == "asyncio":
                await _cancelled(service, session_id)
            assert (await service.read(session_id)).state.message_count >= 8

    anyio.run(program, backend=backend)


async def _failing(service: RemoteService, session_id: str) -> None:
    """Raise an error in the body of a stream."""
    async with service.stream_turn(session_id, "four") as events:
        await events.result()
        raise KeyError("mine")


async def _cancelled(service: RemoteService, session_id: str) -> None:
    """Cancel an asyncio task in the body of a stream."""
    inside = asyncio.Event()

    async def body() -> None:
        async with service.stream_turn(session_id, "five"):
            inside.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(body())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_stream_of_many_at_once(tmp_path: Path) -> None:
    """Each of them has its own session's events, on the connections of one client."""
    async with (
        runtime(tmp_path) as service,
        gateway(service) as port,
        connect(f"ws://{HOST}:{port}") as remote,
        trio.open_nursery() as tasks,
    ):

        async def one(number: int) -> None:
            async with remote.stream_session(f"hello {number}", model="echo") as events:
                assert "".join([text async for text in events.texts()]) == f"hello {number}"
                assert (await events.result()).session_id == events.session_id

        for number in range(50):
            tasks.start_soon(one, number)
