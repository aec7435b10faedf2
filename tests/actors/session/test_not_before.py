"""Prompts that wait for a time: over restarts, beside other prompts, and with clocks that jump."""

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.clocked import World
from tests.support.runtime import new_session, open_runtime, supervisor_of, transcript
from warren.actors.calls.service import Service
from warren.base.errors import AgentError, CapacityExceededError, InvalidParamsError, SessionNotRunningError
from warren.base.principals import Principal
from warren.base.tenant_limits import TenantLimits
from warren.conversation.messages import UserMessage
from warren.settings.config import Config, Limits
from warren.storage.ephemeral import EphemeralStore

pytestmark = pytest.mark.virtual_time


async def prompts(service: Service, session_id: str) -> list[str]:
    """Return the prompts that a session has had."""
    return [each.content for each in await transcript(service, session_id) if isinstance(each, UserMessage)]


async def put(service: Any, session_id: str, prompt: str, due: datetime, **more: Any) -> str:
    """Put a prompt into the inbox of a session, and wait for its turn no longer; return the id of the input."""
    before = {each.input_id for each in await service.inputs(session_id)}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(service.start_turn, session_id, prompt, mode="queue", not_before=due, **more))
        while not (new := [each for each in await service.inputs(session_id) if each.input_id not in before]):  # noqa: ASYNC110 - no event
            await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
    assert [(each.text, each.not_before) for each in new] == [(prompt, due)]
    return str(new[0].input_id)


async def test_a_prompt_waits_for_its_time(tmp_path: Path) -> None:
    """Its caller gets the result then; till then the session is idle, and other prompts go before it."""
    world = World(tmp_path)
    async with world.life() as service:
        session_id = await new_session(service)
        due, ended = world.now() + timedelta(seconds=60), list[datetime]()

        async def water() -> None:
            assert (await service.start_turn(session_id, "water", mode="queue", not_before=due)).text == "done"
            ended.append(world.now())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(water)
            await trio.sleep(10)
            (waits,) = await service.inputs(session_id)
            assert (waits.text, waits.kind, waits.not_before) == ("water", "queue", due)
            assert (await service.read(session_id)).state.turn is None
            with pytest.raises(SessionNotRunningError):
                await service.wait_turn(session_id)
            await service.start_turn(session_id, "at once")
            await service.start_turn(session_id, "queued", mode="queue")
            await service.start_turn(session_id, "steered", mode="steer")
            assert await prompts(service, session_id) == ["at once", "queued", "steered"]
        assert due <= ended[0] < due + timedelta(seconds=0.2)
        assert (await prompts(service, session_id))[3:] == ["water"]
        assert await service.inputs(session_id) == ()


async def test_those_that_are_due_keep_their_order(tmp_path: Path) -> None:
    """The one that came first goes first, whichever was due first; a later one waits on."""
    world = World(tmp_path)
    async with world.life() as service:
        session_id = await new_session(service)
        for prompt, seconds in (("a", 50), ("b", 500), ("c", 40), ("d", 45)):
            await put(service, session_id, prompt, world.now() + timedelta(seconds=seconds))
        world.ahead += 100  # three of them are due at once
        await trio.sleep(3)
        assert await prompts(service, session_id) == ["a", "c", "d"]
        await trio.sleep(500)
        assert await prompts(service, session_id) == ["a", "c", "d", "b"]


async def test_a_restart_in_between(tmp_path: Path) -> None:
    """It is listed with its time, and comes then; one whose time comes while no process lives comes at once."""
    world = World(tmp_path)
    async with world.life() as service:
        session_id = await new_session(service)
        first, second = (world.now() + timedelta(seconds=seconds) for seconds in (60, 600))
        await put(service, session_id, "first", first)
        await put(service, session_id, "second", second)
    world.ahead += 20
    async with world.life() as service:
        assert [each.not_before for each in await service.inputs(session_id)] == [first, second]
        await trio.sleep(20)
        assert await prompts(service, session_id) == []
        await trio.sleep(30)
        assert await prompts(service, session_id) == ["first"]
    world.ahead += 3600
    async with world.life() as service:
        await trio.sleep(2)
        assert await prompts(service, session_id) == ["first", "second"]


async def test_a_clock_that_jumps(tmp_path: Path) -> None:
    """Forward: it comes within seconds. Back: it waits on until its time."""
    world = World(tmp_path)
    async with world.life() as service:
        session_id = await new_session(service)
        await put(service, session_id, "one", world.now() + timedelta(hours=1))
        await put(service, session_id, "two", world.now() + timedelta(hours=2))
        world.ahead += 3600
        await trio.sleep(2)
        assert await prompts(service, session_id) == ["one"]
        world.ahead -= 1800
        await trio.sleep(3600)
        assert await prompts(service, session_id) == ["one"]
        await trio.sleep(1800)
        assert await prompts(service, session_id) == ["one", "two"]


async def test_it_is_withdrawn(tmp_path: Path) -> None:
    """Before its time, and its caller hears of it; nothing comes then."""
    world = World(tmp_path)
    async with world.life() as service:
        session_id = await new_session(service)
        due, refused = world.now() + timedelta(seconds=60), list[AgentError]()

        async def water() -> None:
            with pytest.raises(AgentError) as caught:
                await service.start_turn(session_id, "water", mode="queue", not_before=due)
            refused.append(caught.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(water)
            await trio.sleep(1)
            (waits,) = await service.inputs(session_id)
            await service.withdraw(session_id, waits.input_id)
        assert refused[0].cause == "cancelled"
        await trio.sleep(100)
        assert await prompts(service, session_id) == []


async def test_a_turn_runs_at_its_time(tmp_path: Path) -> None:
    """It begins when that has ended, before what came after it."""
    world = World(tmp_path, takes=30)
    async with world.life() as service:
        session_id = await new_session(service)
        await put(service, session_id, "later", world.now() + timedelta(seconds=20))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(service.start_turn, session_id, "long"))
            await trio.sleep(1)
            nursery.start_soon(partial(service.start_turn, session_id, "next", mode="queue"))
        await trio.sleep(100)
        assert await prompts(service, session_id) == ["long", "later", "next"]


async def test_a_session_leaves_memory_meanwhile(tmp_path: Path) -> None:
    """What waits for a time keeps nothing in memory."""
    world = World(tmp_path)
    async with world.life(config=Config(limits=Limits(idle_after=5))) as service:
        session_id = await new_session(service)
        await put(service, session_id, "water", world.now() + timedelta(seconds=60))
        await trio.sleep(20)
        assert supervisor_of(service).find(session_id) is None
        await trio.sleep(41)
        assert await prompts(service, session_id) == ["water"]


@pytest.mark.parametrize("leaves", ["holder", "other"])
async def test_two_processes(leaves: str, tmp_path: Path) -> None:
    """Whichever lives has the turn begin at its time, once."""
    world = World(tmp_path)
    async with trio.open_nursery() as nursery:
        ends, ready = trio.Event(), trio.Event()
        made = list[str]()

        async def first() -> None:
            async with world.life() as service:
                made.append(await new_session(service))
                await put(service, made[0], "water", world.now() + timedelta(seconds=60))
                ready.set()
                await ends.wait()

        if leaves == "holder":
            nursery.start_soon(first)
            await ready.wait()
            async with world.life() as service:
                await trio.sleep(10)
                ends.set()
                await trio.sleep(49.8)
                assert await prompts(service, made[0]) == []
                await trio.sleep(1)
                assert await prompts(service, made[0]) == ["water"]
            return
        nursery.start_soon(first)
        await ready.wait()
        async with world.life():
            await trio.sleep(30)
        await trio.sleep(31)
        ends.set()
    async with world.life() as service:
        assert await prompts(service, made[0]) == ["water"]


async def test_a_process_that_has_got_the_session(tmp_path: Path) -> None:
    """It wakes the session by itself, though another one has put the prompt in."""
    world = World(tmp_path)
    async with world.life() as one, world.life() as other:
        session_id = await new_session(one)
        await put(one, session_id, "water", world.now() + timedelta(seconds=9))
        await other.start_turn(session_id, "mine", mode="queue")
        await trio.sleep(9)
        assert await prompts(other, session_id) == ["mine", "water"]


async def test_a_key(tmp_path: Path) -> None:
    """The prompt is taken once, at the time that was said first, and counts for the bound of the inbox."""
    world = World(tmp_path)
    async with world.life(config=Config(limits=Limits(inbox=1))) as service:
        session_id = await new_session(service)
        due = world.now() + timedelta(seconds=60)
        await put(service, session_id, "water", due, idempotency_key="k")
        with pytest.raises(CapacityExceededError):
            await service.start_turn(session_id, "dig", mode="queue", not_before=due)
        again = await service.start_turn(
            session_id, "water", mode="queue", idempotency_key="k", not_before=due + timedelta(hours=1)
        )
        assert (again.text, world.now() < due + timedelta(seconds=1)) == ("done", True)
        assert await prompts(service, session_id) == ["water"]


async def test_a_caller_that_waits_holds_no_place(tmp_path: Path) -> None:
    """A prompt counts for the turns that may run at once when it runs, and for the rate when it comes."""
    world = World(tmp_path)
    config = Config(tenants={"acme": TenantLimits(running_turns=1)})
    async with world.life(config=config) as service:
        ann = service.as_(Principal("acme", "ann"))
        one, two = [(await ann.create_session(None)).session_id for _ in range(2)]
        async with trio.open_nursery() as nursery:
            later = world.now() + timedelta(seconds=60)
            nursery.start_soon(partial(ann.start_turn, one, "later", mode="queue", not_before=later))
            await trio.sleep(1)
            assert (await ann.start_turn(two, "now")).text == "done"
        assert world.now() >= later


async def test_without_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits as long as the process lives."""
    world = World(tmp_path)
    monkeypatch.setattr(EphemeralStore, "now", lambda _store: world.now())
    async with open_runtime() as service:
        session_id = await new_session(service)
        due = world.now() + timedelta(seconds=100)
        await put(service, session_id, "water", due)
        await trio.sleep(99.9)
        assert await prompts(service, session_id) == []
        await trio.sleep(0.3)
        assert await prompts(service, session_id) == ["water"]


@pytest.mark.parametrize("mode", ["busy", "steer"])
async def test_a_mode_that_waits_for_nothing(mode: str, tmp_path: Path) -> None:
    """It is refused; a time that is past is due at once."""
    world = World(tmp_path)
    async with world.life() as service:
        session_id = await new_session(service)
        start: Any = service.start_turn
        with pytest.raises(InvalidParamsError, match="not_before"):
            await start(session_id, "water", mode=mode, not_before=world.now())
        with pytest.raises(InvalidParamsError, match="time zone"):
            await start(session_id, "water", mode="queue", not_before=datetime(2126, 1, 1))  # noqa: DTZ001
        past = datetime(2000, 1, 1, tzinfo=UTC)
        assert (await start(session_id, "water", mode="queue", not_before=past)).text == "done"
