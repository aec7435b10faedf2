"""Sessions that nothing is asked of leave memory, and come back as if they had never left."""

import gc
from pathlib import Path

import apsw
import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.checks import numbers
from tests.support.faulty_store import Faults
from tests.support.models import Emit, FunctionModel, reply, says, stuck
from tests.support.runtime import new_session, open_runtime, replay, transcript
from warren.actors.calls.service import Service
from warren.actors.session.actor import SessionActor
from warren.base.errors import AgentError, CapacityExceededError, SessionBusyError, SessionNotRunningError, StoreError
from warren.conversation.events import RunCompleted
from warren.conversation.messages import ToolUseBlock
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import tool
from warren.settings.config import Config, Limits

pytestmark = pytest.mark.virtual_time


def limits(idle_after: float = 10.0, max_live: int = 1_000) -> Config:
    """Return settings under which sessions leave soon."""
    return Config(limits=Limits(idle_after=idle_after, max_live=max_live))


def live(service: Service) -> int:
    """Return how many sessions are in memory."""
    return service.health().live_sessions


async def test_an_idle_session_leaves_and_comes_back(tmp_path: Path) -> None:
    """After the time it is out of memory; its next turn goes on with all that was said."""
    async with open_runtime(says(["one"], ["two"]), store=tmp_path, config=limits()) as service:
        session_id = (await service.create_session("first")).session_id
        await trio.sleep(9)
        assert live(service) == 1
        await trio.sleep(2)
        assert live(service) == 0
        assert (await service.read(session_id)).state.lifecycle == "stored"
        assert (await service.start_turn(session_id, "second")).text == "two"
        assert len(await transcript(service, session_id)) == 4


async def test_what_leaves_is_free_at_once(tmp_path: Path) -> None:
    """A session that has left needs no garbage collector, which would come after thousands of others have left."""
    gc.collect()
    gc.disable()
    try:
        async with open_runtime(says(["one"]), store=tmp_path, config=limits()) as service:
            before = actors()
            await service.create_session("first")
            assert actors() == before + 1
            await trio.sleep(11)
            assert actors() == before
    finally:
        gc.enable()


def actors() -> int:
    """Return how many actors of sessions the process has, live ones and what is left of others."""
    return sum(type(each) is SessionActor for each in gc.get_objects())


async def test_its_time_begins_when_it_was_last_needed(tmp_path: Path) -> None:
    """Turns, and others' asking for it, put the time off."""
    async with open_runtime(says(["one"], ["two"]), store=tmp_path, config=limits()) as service:
        session_id = await new_session(service)
        await trio.sleep(8)
        await service.start_turn(session_id, "go on")
        await trio.sleep(8)
        await service.resume(session_id)
        await trio.sleep(8)
        assert live(service) == 1
        await trio.sleep(3)
        assert live(service) == 0


async def test_asking_in_vain_puts_it_off_too(tmp_path: Path) -> None:
    """A session whose turns find no room is wanted all the same."""
    config = Config(limits=Limits(idle_after=10, max_sessions=1))
    async with (
        open_runtime(FunctionModel(stuck), store=tmp_path, config=config) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        ask(nursery, service.start_turn, await new_session(service), "think")
        await trio.sleep(8)
        with pytest.raises(CapacityExceededError):
            await service.start_turn(session_id, "go on")
        await trio.sleep(8)
        assert live(service) == 2
        await trio.sleep(3)
        assert live(service) == 1
        nursery.cancel_scope.cancel()


async def test_a_running_turn_keeps_it(tmp_path: Path) -> None:
    """However long a turn takes, its session stays, and can be interrupted."""
    async with (
        open_runtime(FunctionModel(stuck), store=tmp_path, config=limits()) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "think")
        await trio.sleep(100)
        assert live(service) == 1
        with pytest.raises(SessionBusyError):
            await service.start_turn(session_id, "and?")
        await service.interrupt(session_id)
        await turn.failure(AgentError)
        await trio.sleep(11)
        assert live(service) == 0
        with pytest.raises(SessionNotRunningError):
            await service.interrupt(session_id)


async def test_open_subscriptions_survive(tmp_path: Path) -> None:
    """A watcher sees the turns before and after, with no gap, no double, and no end between them."""
    async with open_runtime(says(["one"], ["two"]), store=tmp_path, config=limits()) as service:
        session_id = (await service.create_session("first")).session_id
        async with service.subscribe(session_id, after_seq=0) as events:
            await trio.sleep(20)
            assert live(service) == 0
            await service.start_turn(session_id, "second")
            seen, ends = [], 0
            async for envelope in events:
                seen.append(envelope.seq)
                ends += isinstance(envelope.event, RunCompleted)
                if ends == 2:
                    break
        assert seen == numbers(await replay(service, session_id))


async def test_past_the_cap_the_longest_idle_leaves(tmp_path: Path) -> None:
    """As many stay as may; who was needed last stays."""
    async with open_runtime(says(), store=tmp_path, config=limits(1e9, max_live=3)) as service:
        ids = [await new_session(service) for _ in range(3)]
        await service.resume(ids[0])
        ids.append(await new_session(service))
        await trio.testing.wait_all_tasks_blocked()
        states = [(await service.read(each)).state.lifecycle for each in ids]
        assert states == ["live", "stored", "live", "live"]


async def test_the_cap_does_not_end_turns(tmp_path: Path) -> None:
    """More turns than the cap may run at once; when they end their sessions leave, down to the cap."""
    async with (
        open_runtime(FunctionModel(stuck), store=tmp_path, config=limits(1e9, max_live=2)) as service,
        trio.open_nursery() as nursery,
    ):
        ids = [await new_session(service) for _ in range(5)]
        turns = [ask(nursery, service.start_turn, each, "think") for each in ids]
        await trio.testing.wait_all_tasks_blocked()
        assert live(service) == 5
        for session_id, turn in zip(ids, turns, strict=True):
            await service.interrupt(session_id)
            await turn.failure(AgentError)
        await trio.testing.wait_all_tasks_blocked()
        assert live(service) <= 2


async def test_a_session_without_a_store_never_leaves() -> None:
    """A session that only memory has stays there, past any time and any cap."""
    async with open_runtime(says(["hi"]), config=limits(1.0, max_live=1)) as service:
        ids = [await new_session(service) for _ in range(5)]
        await trio.sleep(100)
        assert live(service) == 5
        assert (await service.start_turn(ids[0], "still there?")).text == "hi"


async def test_a_message_at_the_last_moment_is_not_lost(tmp_path: Path) -> None:
    """Turns that arrive at the very time the session leaves are run, whichever comes first."""
    async with open_runtime(says(*[["hi"]] * 60), store=tmp_path, config=limits(1.0)) as service:
        session_id = await new_session(service)
        for tenths in range(50):
            await trio.sleep(0.99 + tenths * 0.0005)
            assert (await service.start_turn(session_id, "now?")).text == "hi"
        assert len(await transcript(service, session_id)) == 100


async def test_its_own_tools_come_back(tmp_path: Path) -> None:
    """Tools that were given with the session are there after it has left."""

    @tool
    async def dig(depth: int) -> str:
        """Dig."""
        return f"{depth} m deep"

    model = says(reply("", ToolUseBlock("c1", "dig", {"depth": 3})), ["done"])
    async with open_runtime(model, store=tmp_path, config=limits()) as service:
        session_id = await new_session(service, tools=[dig])
        await trio.sleep(20)
        assert live(service) == 0
        await service.start_turn(session_id, "dig")
        assert "3 m deep" in str(await transcript(service, session_id))


async def test_a_release_that_fails_costs_nothing(tmp_path: Path) -> None:
    """If the store cannot take note that a session left, it comes back all the same."""
    faults = Faults()
    async with open_runtime(says(["one"], ["two"]), store=tmp_path, config=limits(), faults=faults) as service:
        session_id = (await service.create_session("first")).session_id
        faults.crash_before = 1
        await trio.sleep(20)
        assert live(service) == 0
        assert (await service.start_turn(session_id, "second")).text == "two"


# -- what came between


async def hi(_request: ModelRequest, _emit: Emit) -> ModelReply:
    """Answer at once."""
    await trio.lowlevel.checkpoint()
    return reply("hi")


@pytest.mark.parametrize("then", ["start_turn", "resume"])
async def test_the_only_idle_session_at_the_cap_is_served(tmp_path: Path, then: str) -> None:
    """Whoever goes on at once, when a turn has ended that made one too many, finds the session."""
    models = {"stuck": FunctionModel(stuck)}
    async with (
        open_runtime(FunctionModel(hi), store=tmp_path, config=limits(1e9, max_live=1), models=models) as service,
        trio.open_nursery() as nursery,
    ):
        other = await new_session(service, model="stuck")
        ask(nursery, service.start_turn, other, "think")
        await trio.testing.wait_all_tasks_blocked()
        session_id = await new_session(service)
        for _ in range(100):
            await service.start_turn(session_id, "go on")
            await (service.resume(session_id) if then == "resume" else service.start_turn(session_id, "go on"))
        await service.interrupt(other)


async def test_a_burst_past_the_cap_goes_in_time(tmp_path: Path) -> None:
    """Sessions that were all asked for at once leave, down to the cap at once and the rest when their time is over."""
    async with open_runtime(says(), store=tmp_path) as service:
        ids = [await new_session(service) for _ in range(50)]
    config = limits(10, max_live=10)
    async with open_runtime(says(), store=tmp_path, config=config) as service, trio.open_nursery() as nursery:
        for session_id in ids:
            ask(nursery, service.resume, session_id)
        await trio.testing.wait_all_tasks_blocked()
        assert live(service) <= 10
        await trio.sleep(30)
        assert live(service) == 0


async def test_sessions_that_were_looked_at_leave_beside_turns(tmp_path: Path) -> None:
    """While as many turns run as may be live, what is looked at does not stay for ever."""
    config = limits(10, max_live=2)
    async with (
        open_runtime(FunctionModel(stuck), store=tmp_path, config=config) as service,
        trio.open_nursery() as nursery,
    ):
        running = [await new_session(service) for _ in range(2)]
        for session_id in running:
            ask(nursery, service.start_turn, session_id, "think")
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(20):
            await service.resume(await new_session(service))
        await trio.sleep(30)
        assert live(service) == 2
        for session_id in running:
            await service.interrupt(session_id)


async def test_what_could_not_be_put_back_is_put_back_later(tmp_path: Path) -> None:
    """A release that failed for a moment does not keep the session from other processes."""
    faults = Faults()
    async with (
        open_runtime(says(["one"]), store=tmp_path, config=limits(), faults=faults) as gateway,
        open_runtime(says(["two"]), store=tmp_path) as command,
    ):
        session_id = (await gateway.create_session("hello")).session_id
        faults.crash_before = 1
        await trio.sleep(60)
        assert live(gateway) == 0
        assert (await command.start_turn(session_id, "go on")).text == "two"


async def test_a_turn_that_was_not_stored_keeps_its_session_no_longer_than_needed(tmp_path: Path) -> None:
    """When the full disk has room again, the events that were shown are stored and the session is free."""
    faults = Faults()
    async with (
        open_runtime(says(["one"], ["two"]), store=tmp_path, config=limits(), faults=faults) as gateway,
        open_runtime(says(["three"]), store=tmp_path) as command,
    ):
        session_id = (await gateway.create_session("hello")).session_id
        faults.refuse, faults.refusals = apsw.FullError("full"), 1
        with pytest.raises(StoreError):
            await gateway.start_turn(session_id, "lost")
        shown = await replay(gateway, session_id)
        await trio.sleep(60)
        assert live(gateway) == 0
        assert await replay(command, session_id) == shown
        assert (await command.start_turn(session_id, "go on")).text == "three"
