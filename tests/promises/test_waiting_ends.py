"""Servers stop, run out of memory, or end sessions of each other while turns wait: the turns do not notice, or end."""

import signal
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final

import pytest
import trio

from tests.promises.waiting_servers import Servers, begin, end, waits
from tests.support.asking import Asked, ask
from tests.support.postgres import database
from tests.transport.cli.process import Cli
from warren.base.errors import AgentError, SessionNotFoundError, WarrenError
from warren.conversation.views import TurnResult

PLACES: Final = pytest.mark.parametrize("place", ["files", "postgres"], indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the place of a store: a folder, or the address of a database."""
    if request.param == "files":
        yield "kept"
    else:
        with database() as url:
            yield url


@PLACES
@pytest.mark.parametrize("how", ["SIGTERM", "drain"])
async def test_a_stop_of_the_node_with_waiting_turns(cli: Cli, place: str, how: str) -> None:
    """It ends at once; who waits at the other node gets the answer, and who waited at this one asks again."""
    servers = Servers.of(cli, place)
    async with (
        servers.serving("--node-name", "a") as (a, at_a),
        servers.serving("--node-name", "b") as (b, at_b),
        trio.open_nursery() as nursery,
    ):
        sessions = [await begin(at_a, f"key {number}") for number in range(3)]
        lost = ask(nursery, at_a.wait_turn, sessions[0])
        kept = ask(nursery, at_b.wait_turn, sessions[0])
        await trio.sleep(0.3)
        began = trio.current_time()
        if how == "drain":
            asked = partial(servers.cli.run, "nodes", "drain", "a", "--store", place)
            assert (await trio.to_thread.run_sync(asked)).code == 0
        else:
            a.signal(signal.SIGTERM)
        assert await end(a) == 0
        assert trio.current_time() - began < 15
        await lost.ended.wait()
        assert isinstance(lost.error, AgentError), lost
        assert lost.error.retryable
        for session_id in sessions:
            await at_b.approve_tool(session_id, await waits(at_b, session_id), "allow")
        with trio.fail_after(30):
            assert (await kept.value()).text == "it has run"
            for number, session_id in enumerate(sessions):
                again = partial(at_b.start_turn, session_id, "run it", mode="queue", idempotency_key=f"key {number}")
                assert (await again()).text == "it has run"
        b.signal(signal.SIGTERM)
        assert await end(b) == 0
    assert servers.runs == 3


@PLACES
async def test_memory_is_short(cli: Cli, place: str) -> None:
    """Turns that wait can be decided on, go on one after the other, and are not kept in memory."""
    servers, short = Servers.of(cli, place), {"WARREN_LIMITS_MAX_MEMORY": "1"}
    async with servers.serving("--node-name", "a", env=short) as (_, at_a):
        async with servers.serving("--node-name", "b") as (b, at_b):
            sessions = [await begin(at_b, f"key {number}") for number in range(5)]
            await at_a.approve_tool(sessions[0], await waits(at_a, sessions[0]), "allow")
            b.signal(signal.SIGTERM)
            assert await end(b) == 0
        assert len((await at_a.approvals()).approvals) in (4, 5)
        for session_id in sessions[1:]:
            await at_a.approve_tool(session_id, await waits(at_a, session_id), "allow")
        with trio.fail_after(60):
            for number, session_id in enumerate(sessions):
                again = partial(at_a.start_turn, session_id, "run it", mode="queue", idempotency_key=f"key {number}")
                assert (await again()).text == "it has run"
            while (await at_a.health()).live_sessions:  # noqa: ASYNC110 - another process has no event
                await trio.sleep(0.1)
    assert servers.runs == 5


@PLACES
@pytest.mark.parametrize("how", ["archive", "delete", "interrupt"])
async def test_another_node_ends_a_session_that_waits(cli: Cli, place: str, how: str) -> None:
    """Whoever waits at either node hears it; later decisions are refused, at either node; nothing runs."""
    servers = Servers.of(cli, place)
    async with (
        servers.serving("--node-name", "a") as (_, at_a),
        servers.serving("--node-name", "b") as (_, at_b),
        trio.open_nursery() as nursery,
    ):
        session_id = await begin(at_a)
        call = await waits(at_b, session_id)
        asked: list[Asked[TurnResult]] = [ask(nursery, each.wait_turn, session_id) for each in (at_a, at_b)]
        await trio.sleep(0.5)
        await getattr(at_b, how)(session_id)
        with trio.fail_after(20):
            for each in asked:
                await each.ended.wait()
                assert isinstance(each.error, WarrenError), each
                assert each.error.cause == ("cancelled" if how != "delete" else each.error.cause)
        for service in (at_a, at_b):
            await refused(partial(service.approve_tool, session_id, call, "allow"))
            assert not (await service.approvals()).approvals
            if how == "delete":
                with pytest.raises(SessionNotFoundError):
                    await service.read(session_id)
            else:
                assert (await service.read(session_id)).state.turn is None
        await trio.sleep(3)  # longer than a lease
    assert servers.runs == 0


async def refused(call: Callable[[], Awaitable[object]]) -> None:
    """Make a call that fails."""
    with pytest.raises(WarrenError):
        await call()
