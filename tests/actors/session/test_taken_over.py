"""Sessions that another process has taken over while theirs hung, and what is left of them in its memory."""

import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio

from tests.support.asking import ask
from tests.support.checks import assert_valid_transcript
from tests.support.crashing import actor_of
from tests.support.faulty_store import Faults
from tests.support.hanging import expire_leases, store_of, wake
from tests.support.models import reply, says
from tests.support.runtime import new_session, open_runtime, transcript
from warren.actors.calls.service import Service
from warren.base.errors import AgentError, InvalidParamsError, LeasedError, StoreError
from warren.conversation.messages import ToolResultsMessage, ToolUseBlock
from warren.models.tools import Tool, ToolOutput, current_call, tool

pytestmark = pytest.mark.virtual_time
DIG = reply("", ToolUseBlock("dig", "dig"))
ORDER = reply("", ToolUseBlock("order", "order"))


def clock() -> float:
    """Return the virtual time, long after all leases that have ended."""
    return 1e6 + trio.current_time()


def dig(seconds: float = math.inf) -> Tool:
    """Return a tool that takes some time."""

    async def dig() -> str:
        """Dig."""
        await trio.sleep(seconds)
        return "a hole"

    return tool(dig)


def ordering(tokens: list[str], seconds: float = 0.0) -> Tool:
    """Return a tool whose result comes from outside, under the token that it adds to a list."""

    async def order() -> ToolOutput:
        """Order."""
        await trio.lowlevel.checkpoint()
        tokens.append(current_call().token(expires=30 * 86_400))
        await trio.sleep(seconds)
        return ToolOutput.later(tokens[-1])

    return tool(order)


async def results(service: Service, session_id: str) -> list[str]:
    """Return the texts of all results of a session's tools."""
    found = await transcript(service, session_id)
    assert_valid_transcript(found)
    return [each.content for message in found if isinstance(message, ToolResultsMessage) for each in message.results]


async def test_an_archive_ends_a_turn_that_was_left_open_meanwhile(tmp_path: Path) -> None:
    """Who archives a session by what it remembers of it is refused, and the next try ends the turn with its calls."""
    async with (
        open_runtime(says(["one"]), store=tmp_path) as gateway,
        open_runtime(says(DIG), store=tmp_path, tools=[dig()]) as command,
        trio.open_nursery() as nursery,
    ):
        session_id = (await gateway.create_session("hello")).session_id
        await expire_leases(gateway)
        ask(nursery, command.start_turn, session_id, "dig", mode="queue", idempotency_key="k")
        await trio.sleep(0.2)
        await expire_leases(command)
        (await store_of(gateway)).me.clock = time.time  # it goes on, and has not renewed its leases yet
        with pytest.raises(StoreError) as caught:
            await gateway.archive(session_id)
        assert (caught.value.cause, caught.value.retryable) == ("lease_lost", True)
        await gateway.archive(session_id)
        (result,) = await results(gateway, session_id)
        assert result.startswith("not known")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("key", [None, "k"])
async def test_a_caller_hears_of_the_end_at_another_process(tmp_path: Path, key: str | None, *, watched: bool) -> None:
    """The turn waited here, and ended there: its caller need not wait for the time at which it would have gone on."""
    tokens = list[str]()
    order = ordering(tokens)
    async with (
        open_runtime(says(ORDER), store=tmp_path, tools=[order]) as gateway,
        open_runtime(says(["there it is"]), store=tmp_path, tools=[order]) as command,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(gateway)
        if watched:
            nursery.start_soon(watch, gateway, session_id)
        options: dict[str, Any] = {} if key is None else {"mode": "queue", "idempotency_key": key}
        turn = ask(nursery, partial(gateway.start_turn, session_id, "order", **options))
        await trio.sleep(0.2)
        await expire_leases(gateway)
        await command.complete_tool(tokens[0], "here")
        await trio.sleep(0.2)
        assert await results(command, session_id) == ["here"]
        await wake(gateway)
        with trio.fail_after(120):
            if key is None:
                assert (await turn.failure(AgentError)).cause == "outcome_unknown"
            else:
                assert (await turn.failure(LeasedError)).retryable
                assert (await gateway.start_turn(session_id, "order", **options)).text == "there it is"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("waits", ["prompt", "archive"])
async def test_a_turn_whose_tool_runs_on_ends_once_another_process_has_taken_it_over(
    tmp_path: Path, waits: str
) -> None:
    """Whoever waits for it here is sent on: the tool asks for no proof of the lease, and may run for ever."""
    async with (
        open_runtime(says(DIG), store=tmp_path, tools=[dig()]) as gateway,
        open_runtime(says(["there it is"]), store=tmp_path, tools=[dig()]) as command,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(gateway)
        turn = ask(nursery, gateway.start_turn, session_id, "dig", mode="queue", idempotency_key="k")
        await trio.sleep(0.2)
        await expire_leases(gateway)
        await trio.sleep(30)
        (result,) = await results(command, session_id)
        assert result.startswith("not known")
        if waits == "archive":
            turn.scope.cancel()
            archive = ask(nursery, gateway.archive, session_id)
        await wake(gateway)
        with trio.fail_after(120):
            if waits == "archive":
                await archive.ended.wait()
                assert archive.error is None  # the other process has handed the session over
            else:
                assert (await turn.failure(StoreError)).retryable


async def test_a_refused_change_tells_a_process_that_it_has_lost_the_session(tmp_path: Path) -> None:
    """Sent again to the same process, the request finds the session as it is, also if no renewal has come meanwhile."""
    tokens = list[str]()
    order = ordering(tokens)
    async with (
        open_runtime(says(ORDER), store=tmp_path, tools=[order]) as gateway,
        open_runtime(says(["there it is"]), store=tmp_path, tools=[order]) as command,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(gateway)
        ask(nursery, gateway.start_turn, session_id, "order", mode="queue", idempotency_key="k")
        await trio.sleep(0.2)
        await expire_leases(gateway)
        await command.complete_tool(tokens[0], "here")
        await trio.sleep(0.2)
        (await store_of(gateway)).me.clock = time.time
        with pytest.raises(StoreError) as caught:
            await gateway.complete_tool(tokens[0], "here")
        assert (caught.value.cause, caught.value.retryable) == ("lease_lost", True)
        await gateway.complete_tool(tokens[0], "here")
        nursery.cancel_scope.cancel()


async def test_a_result_is_not_refused_for_good_by_a_process_that_has_lost_the_session(tmp_path: Path) -> None:
    """It knows of no call that waits, and no renewal has told it that another process has the session."""
    tokens = list[str]()
    async with (
        open_runtime(says(["one"]), store=tmp_path, clock=clock, tools=[ordering(tokens)]) as gateway,
        open_runtime(says(ORDER, ["there it is"]), store=tmp_path, clock=clock, tools=[ordering(tokens, 5)]) as command,
        trio.open_nursery() as nursery,
    ):
        session_id = (await gateway.create_session("hello")).session_id
        await expire_leases(gateway)
        turn = ask(nursery, command.start_turn, session_id, "order", mode="queue", idempotency_key="k")
        await trio.sleep(0.2)
        (await store_of(gateway)).me.clock = clock
        with pytest.raises(StoreError) as caught:
            await gateway.complete_tool(tokens[0], "here")
        assert (caught.value.cause, caught.value.retryable) == ("lease_lost", True)
        with pytest.raises(LeasedError):
            await gateway.complete_tool(tokens[0], "here")
        await command.complete_tool(tokens[0], "here")
        assert (await turn.value()).text == "there it is"
        nursery.cancel_scope.cancel()


async def test_a_process_does_not_ask_again_and_again_for_a_turn_of_another_one(tmp_path: Path) -> None:
    """It has been refused the session, and has read that a turn is open there."""
    faults = Faults(delay=0.01)
    async with (
        open_runtime(says(DIG), store=tmp_path, tools=[dig(60)]) as gateway,
        open_runtime(says(["two"]), store=tmp_path, faults=faults) as other,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(gateway)
        ask(nursery, gateway.start_turn, session_id, "dig", mode="queue", idempotency_key="k1")
        await trio.sleep(0.2)
        with pytest.raises(LeasedError):
            await other.withdraw(session_id, "no input")
        before = len(faults.groups)
        await trio.sleep(5)
        assert len(faults.groups) - before < 3
        nursery.cancel_scope.cancel()


async def test_an_input_waits_on_in_the_process_that_ends_a_turn_in_passing(tmp_path: Path) -> None:
    """It was refused the session, and has got it a moment later, to end a turn that cannot be gone on with."""
    faults = Faults()
    async with (
        open_runtime(says(DIG), store=tmp_path, clock=clock, tools=[dig()]) as gateway,
        open_runtime(says(["two"]), store=tmp_path, clock=clock, faults=faults) as other,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(gateway)
        ask(nursery, gateway.start_turn, session_id, "dig", mode="queue", idempotency_key="k1")
        await trio.sleep(0.1)
        ask(nursery, gateway.start_turn, session_id, "two", mode="queue", idempotency_key="k2")
        await trio.sleep(0.2)
        faults.read_delay = 5.0
        withdrawal = ask(nursery, other.withdraw, session_id, "no input")
        await trio.sleep(3)
        db = apsw.Connection(str(tmp_path / "sessions.sqlite3"))
        db.execute("UPDATE sessions SET turn = NULL; DELETE FROM calls")  # as a turn that is stored at its end
        db.close()
        await expire_leases(gateway)
        await withdrawal.failure(InvalidParamsError)
        faults.read_delay = 0.0
        with trio.fail_after(60):
            assert (await other.start_turn(session_id, "two", mode="queue", idempotency_key="k2")).text == "two"
        nursery.cancel_scope.cancel()


async def watch(service: Service, session_id: str) -> None:
    """Read the events of a session."""
    async with service.subscribe(session_id) as events:
        async for _ in events:
            pass


async def test_the_death_of_the_process_that_took_the_session_counts(tmp_path: Path) -> None:
    """A process that comes back to a session counts it, also if it has itself left an earlier turn half done."""
    async with (
        open_runtime(says(DIG, DIG), store=tmp_path, tools=[dig(60)]) as gateway,
        open_runtime(says(["one"], DIG), store=tmp_path, tools=[dig()]) as command,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(gateway)
        ask(nursery, gateway.start_turn, session_id, "one", mode="queue", idempotency_key="k1")
        await trio.sleep(1)
        await expire_leases(gateway)
        assert (await command.start_turn(session_id, "one", mode="queue", idempotency_key="k1")).text == "one"
        ask(nursery, command.start_turn, session_id, "two", mode="queue", idempotency_key="k2")
        await trio.sleep(1)
        await expire_leases(command)
        await wake(gateway)
        await trio.sleep(90)  # its tool has ended, and what it wanted to store of the first turn was refused
        actor = actor_of(gateway, session_id)
        assert actor is not None
        turn = actor.conversation.open_turn
        assert turn is not None
        assert (turn.resumed, turn.deaths) == (1, 1)
        nursery.cancel_scope.cancel()
