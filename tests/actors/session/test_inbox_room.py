"""Which of the sessions for which something waits begins when there is room, and those that nobody looks after."""

import time
from pathlib import Path

import pytest
import trio

from tests.actors.session.faulty import config
from tests.actors.session.inboxes import Slow, said
from tests.support.asking import ask
from tests.support.crashing import crash
from tests.support.faulty_store import Faults
from tests.support.runtime import new_session, open_runtime
from warren.base.errors import AgentError, StoreError

pytestmark = pytest.mark.virtual_time


async def test_a_session_that_is_only_told_things_leaves_memory(tmp_path: Path) -> None:
    """An input in the inbox of an idle session does not keep it in memory."""
    async with open_runtime(Slow(), store=tmp_path, config=config(idle_after=5)) as service:
        session_id = await new_session(service)
        await service.inject_context(session_id, "it rains")
        await trio.sleep(10)
        assert service.health().live_sessions == 0


async def test_a_prompt_runs_though_its_session_crashed(tmp_path: Path) -> None:
    """An input that waits in a session whose actor crashes is begun by the next one, which comes by itself."""
    async with open_runtime(Slow(), store=tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        ask(nursery, service.start_turn, session_id, "first")
        await trio.sleep(1)
        second = ask(nursery, service.start_turn, session_id, "second", mode="queue")
        await trio.sleep(1)
        crash(service, session_id)
        await second.failure(AgentError)
        await trio.sleep(100)
        assert await said(service, session_id) == ["second"]


async def test_room_goes_to_whom_it_helps(tmp_path: Path) -> None:
    """Of two sessions that wait for room the first has nothing to say any more: the second begins."""
    async with (
        open_runtime(Slow(), store=tmp_path, config=config(max_sessions=1)) as service,
        trio.open_nursery() as nursery,
    ):
        busy, one, other = [await new_session(service) for _ in range(3)]
        nursery.start_soon(service.start_turn, busy, "first")
        await trio.sleep(1)
        withdrawn = ask(nursery, service.start_turn, one, "second", mode="queue")
        await trio.sleep(1)
        third = ask(nursery, service.start_turn, other, "third", mode="queue")
        await trio.sleep(1)
        await service.withdraw(one, (await service.inputs(one))[0].input_id)
        await withdrawn.failure(AgentError)
        await trio.sleep(60)
        assert third.ended.is_set()


async def test_sessions_take_turns(tmp_path: Path) -> None:
    """If there is room for one turn a long queue of one session does not keep another one waiting."""
    async with (
        open_runtime(Slow(), store=tmp_path, config=config(max_sessions=1)) as service,
        trio.open_nursery() as nursery,
    ):
        long, short = [await new_session(service) for _ in range(2)]
        for n in range(6):
            ask(nursery, service.start_turn, long, f"{n}", mode="queue")
        await trio.sleep(1)
        asked = ask(nursery, service.start_turn, short, "me", mode="queue")
        await asked.value()
        assert asked.took < 40


async def test_waiting_sessions_past_the_live_cap_do_not_spin(tmp_path: Path) -> None:
    """Sessions that wait for room, more than may be live, wait quietly; each of them runs."""
    settings = config(max_sessions=1, max_live=1)
    async with open_runtime(Slow(), store=tmp_path, config=settings) as service, trio.open_nursery() as nursery:
        ids = [await new_session(service) for _ in range(4)]
        asked = [ask(nursery, service.start_turn, each, "hi", mode="queue") for each in ids]
        began = time.monotonic()
        for each in asked:
            while not each.ended.is_set():
                assert time.monotonic() - began < 20
                await trio.sleep(0.1)
        assert [each.error for each in asked] == [None] * 4


async def test_a_turn_that_cannot_be_stored_is_tried_ever_later(tmp_path: Path) -> None:
    """The disk takes little and no turn: the model is not asked again and again; once there is room it runs."""
    model, faults = Slow(), Faults()
    faults.too_large = True
    async with (
        open_runtime(model, store=tmp_path, faults=faults, config=config(idle_after=5)) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        first = ask(nursery, service.start_turn, session_id, "first", mode="queue")
        await first.failure(StoreError)
        await trio.sleep(1000)
        assert 2 <= len(model.read) <= 7
        faults.too_large = False
        await trio.sleep(1000)
        assert await said(service, session_id) == ["first"]
