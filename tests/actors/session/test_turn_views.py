"""How a session shows the turn that has not ended: running, waiting for a decision, or parked in the store."""

from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.models import Emit, FunctionModel, reply, stuck
from tests.support.runtime import new_session, open_runtime
from warren.actors.calls.service import Service
from warren.actors.events.eventlog import utc_now
from warren.conversation.categories import Gates, Switches
from warren.conversation.messages import ToolResultsMessage, ToolUseBlock
from warren.conversation.views import TurnState, TurnView
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import tool
from warren.settings.config import Config, Limits

pytestmark = pytest.mark.virtual_time
ASK = Config(gates=Gates(shell="ask"), switches=Switches(shell="enable"))
CALLS = (ToolUseBlock("call-1", "shown", {}), ToolUseBlock("call-2", "rest", {}))


@tool(category="shell")
async def shown() -> str:
    """Return a word."""
    await trio.lowlevel.checkpoint()
    return "shown"


@tool
async def rest() -> str:
    """Take ten seconds."""
    await trio.sleep(10)
    return "rested"


async def turn_in(service: Service, session_id: str) -> TurnView | None:
    """Return the turn, which `read` and `list` show alike."""
    (row,) = [each for each in (await service.list()).sessions if each.session_id == session_id]
    turn = (await service.read(session_id)).state.turn
    assert row.turn == turn
    return turn


@pytest.mark.parametrize("stored", [False, True])
async def test_a_running_turn_is_shown_until_it_has_ended(tmp_path: Path, stored: bool) -> None:  # noqa: FBT001
    """From the first step on, with the time at which it began; a session without a turn shows none."""
    async with (
        open_runtime(FunctionModel(stuck), store=tmp_path if stored else None) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        assert await turn_in(service, session_id) is None
        before = utc_now()
        ask(nursery, service.start_turn, session_id, "go")
        await trio.testing.wait_all_tasks_blocked()
        turn = await turn_in(service, session_id)
        assert turn is not None
        assert (turn.state, turn.resumed, turn.waiting_for) == ("running", 0, ())
        assert before - timedelta(seconds=1) <= turn.since <= utc_now()
        assert await turn_in(service, session_id) == turn
        await service.interrupt(session_id)
        assert await turn_in(service, session_id) is None


async def calls_first(request: ModelRequest, _emit: Emit) -> ModelReply:
    """Call both tools, and then answer."""
    await trio.lowlevel.checkpoint()
    called = any(isinstance(each, ToolResultsMessage) for each in request.messages)
    return reply("done") if called else reply("", *CALLS)


async def test_a_turn_waits_when_all_its_calls_wait(tmp_path: Path) -> None:
    """While another call runs the turn runs; then it says which call waits, why, and since when."""
    async with (
        open_runtime(FunctionModel(calls_first), store=tmp_path, tools=[shown, rest], config=ASK) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        started = ask(nursery, service.start_turn, session_id, "go")
        await trio.sleep(5)
        turn = await turn_in(service, session_id)
        assert turn is not None
        assert turn.state == "running"
        await trio.sleep(10)
        turn = await turn_in(service, session_id)
        assert turn is not None
        assert turn.state == "waiting"
        (call,) = turn.waiting_for
        assert (call.call_id, call.name, call.reason) == ("call-1", "shown", "approval")
        # The beginning of the turn is told from the virtual clock, which stands still meanwhile.
        assert turn.since - timedelta(seconds=1) <= call.since <= utc_now()
        await service.approve_tool(session_id, "call-1", "allow")
        await started.value()
        assert await turn_in(service, session_id) is None


async def stuck_later(request: ModelRequest, emit: Emit) -> ModelReply:
    """Call a tool, and then never end."""
    if any(isinstance(each, ToolResultsMessage) for each in request.messages):
        return await stuck(request, emit)
    return reply("", CALLS[1])


def opened(store: Path) -> AbstractAsyncContextManager[Service]:
    """Open a process whose turns never end, and which waits for none of them."""
    config = Config(limits=Limits(drain=0.1))
    return open_runtime(FunctionModel(stuck_later), store=store, tools=[rest], config=config)


async def test_a_turn_is_parked_until_a_process_goes_on_with_it(tmp_path: Path) -> None:
    """A process that takes no more work shows it as parked; the next one runs it, resumed, from its first beginning.

    Health and metrics have the number of parked turns, and count those that were gone on with.
    """
    async with trio.open_nursery() as nursery:
        async with opened(tmp_path) as service:
            session_id = await new_session(service)
            ask(nursery, service.start_turn, session_id, "go")
            await trio.sleep(20)
            first = await turn_in(service, session_id)
            assert first is not None
            assert service.health().parked_turns == 0
        async with opened(tmp_path) as service:
            await service.drain()
            await trio.sleep(60)
            assert await turn_in(service, session_id) == TurnView("parked", first.since)
            assert service.health().parked_turns == service.metrics().total("warren_turns_parked") == 1
        async with opened(tmp_path) as service:
            await trio.sleep(10)
            assert await turn_in(service, session_id) == TurnView("running", first.since, 1)
            assert service.health().parked_turns == 0
            assert service.metrics().total("warren_turns_resumed_total") == 1
            await service.interrupt(session_id)
            assert await turn_in(service, session_id) is None


async def test_a_turn_that_waits_is_shown_by_every_process(tmp_path: Path) -> None:
    """The process that had it, another one, and one that finds it in the store say what it waits for, since when."""
    opened = partial(open_runtime, FunctionModel(calls_first), store=tmp_path, tools=[shown, rest], config=ASK)
    async with trio.open_nursery() as nursery, opened() as service, opened() as other:
        session_id = await new_session(service)
        ask(nursery, partial(service.start_turn, session_id, "go", mode="queue", idempotency_key="k"))
        await trio.sleep(5)
        seen = await turn_in(other, session_id)
        assert seen is not None
        assert (seen.state, seen.waiting_for) == ("running", ())
        await trio.sleep(10)
        own = await turn_in(service, session_id)
        assert own is not None
        assert [each.name for each in own.waiting_for] == ["shown"]
        assert await turn_in(other, session_id) == own
        assert await listed(service, "waiting") == await listed(other, "waiting") == [session_id]
        nursery.cancel_scope.cancel()
    async with opened() as service:
        await trio.sleep(60)
        assert await turn_in(service, session_id) == own
        assert await listed(service, "waiting") == [session_id]
        await service.approve_tool(session_id, "call-1", "allow")
        assert (await service.wait_turn(session_id)).text == "done"
        assert await turn_in(service, session_id) is None


async def listed(service: Service, state: TurnState) -> list[str]:
    """Return the sessions whose turns are in a state."""
    return [each.session_id for each in (await service.list(turn_state=state)).sessions]


@pytest.mark.parametrize("stored", [False, True])
async def test_sessions_are_listed_by_the_states_of_their_turns(tmp_path: Path, stored: bool) -> None:  # noqa: FBT001
    """What a process has in memory counts for more than the row in the store, which may know nothing of the turn."""
    store = tmp_path if stored else None
    async with (
        open_runtime(FunctionModel(calls_first), store=store, tools=[shown, rest], config=ASK) as service,
        trio.open_nursery() as nursery,
    ):
        session_id, _ = await new_session(service), await new_session(service)
        ask(nursery, service.start_turn, session_id, "go")
        await trio.sleep(5)
        assert (await listed(service, "running"), await listed(service, "waiting")) == ([session_id], [])
        await trio.sleep(10)
        assert (await listed(service, "running"), await listed(service, "waiting")) == ([], [session_id])
        await service.approve_tool(session_id, "call-1", "allow")
        await trio.sleep(1)
        assert await listed(service, "running") == await listed(service, "waiting") == []


async def test_parked_turns_are_listed_by_their_state(tmp_path: Path) -> None:
    """A turn is parked until a process runs it; another process sees it as running then."""
    async with trio.open_nursery() as nursery:
        async with opened(tmp_path) as service, opened(tmp_path) as other:
            session_id = await new_session(service)
            ask(nursery, service.start_turn, session_id, "go")
            await trio.sleep(20)
            assert (await listed(other, "running"), await listed(other, "parked")) == ([session_id], [])
            await other.drain()
        async with opened(tmp_path) as service:
            await service.drain()
            await trio.sleep(60)
            assert (await listed(service, "running"), await listed(service, "parked")) == ([], [session_id])
        async with opened(tmp_path) as service:
            await trio.sleep(10)
            assert (await listed(service, "running"), await listed(service, "parked")) == ([session_id], [])
            await service.interrupt(session_id)
            assert await listed(service, "running") == []


async def test_the_turn_of_another_process_is_shown_as_running(tmp_path: Path) -> None:
    """The row of the store tells that a living process has it; before the first commit it tells of no turn."""
    async with opened(tmp_path) as service, opened(tmp_path) as other, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        ask(nursery, service.start_turn, session_id, "go")
        await trio.testing.wait_all_tasks_blocked()
        own, seen = await turn_in(service, session_id), await turn_in(other, session_id)
        assert own is not None
        assert seen == TurnView("running", own.since)
        await service.interrupt(session_id)
        assert await turn_in(other, session_id) is None
