"""The loop of a session's actor: it answers while its errands are slow, and the end of a turn is the end."""

from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.asking import ask
from tests.support.crashing import Bomb, actor_of
from tests.support.faulty_store import Faults
from tests.support.models import GatedModel, says
from tests.support.runtime import new_session, open_runtime, replay
from warren.actors.protocol import Loaded, Retire
from warren.actors.session.conversation import Committed, Conversation
from warren.base.errors import AgentError, SessionBusyError, SessionNotFoundError, SessionNotRunningError
from warren.conversation.events import RunCompleted

pytestmark = pytest.mark.virtual_time


async def test_a_slow_load_holds_nobody_up(tmp_path: Path) -> None:
    """While a session is loaded for one caller, a turn is admitted once, and another is refused at once.

    An interrupt waits for the load: it may be meant for a turn that was left open in the store.
    """
    faults = Faults()
    async with open_runtime(says(), store=tmp_path) as service:
        session_id = await new_session(service)
    async with (
        open_runtime(says(["hi"]), store=tmp_path, faults=faults) as service,
        trio.open_nursery() as nursery,
    ):
        faults.read_delay = 2
        loaded = ask(nursery, service.resume, session_id)
        await trio.sleep(1)
        interrupt = ask(nursery, service.interrupt, session_id)
        await trio.testing.wait_all_tasks_blocked()
        turn = ask(nursery, service.start_turn, session_id, "a")
        other = ask(nursery, service.start_turn, session_id, "b")
        await trio.sleep(0.5)
        refused, admitted = (turn, other) if turn.ended.is_set() else (other, turn)
        await refused.failure(SessionBusyError)
        assert refused.took == 0
        await interrupt.failure(SessionNotRunningError)
        assert (await loaded.value()).state.is_active
        assert (await admitted.value()).text == "hi"


async def test_a_slow_withdrawal_holds_no_interrupt_up(tmp_path: Path) -> None:
    """While the store is told of a withdrawn input, the running turn is interrupted, and its inputs are taken."""
    faults, model = Faults(), GatedModel()
    async with (
        open_runtime(model, store=tmp_path, faults=faults) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "a")
        await trio.sleep(1)
        await service.inject_context(session_id, "it rains")
        (waiting,) = await service.inputs(session_id)
        faults.gate = trio.Event()
        withdrawal = ask(nursery, service.withdraw, session_id, waiting.input_id)
        await trio.sleep(1)
        actor = actor_of(service, session_id)
        assert actor is not None
        assert (await actor.mailbox.ask(Loaded())).session_id == session_id
        assert not withdrawal.ended.is_set()
        interrupt = ask(nursery, service.interrupt, session_id)
        await trio.sleep(1)
        assert model.entered == 1
        assert not interrupt.ended.is_set()  # its turn is to be committed first
        faults.gate.set()
        assert (await turn.failure(AgentError)).cause == "cancelled"
        await interrupt.ended.wait()
        await withdrawal.ended.wait()
        assert interrupt.error is withdrawal.error is None
        assert await service.inputs(session_id) == ()


async def test_a_turn_that_is_stored_has_ended_though_the_actor_crashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between the commit of a turn and its end changes nothing of it: caller, stream and store agree."""
    commit = Conversation.commit

    async def and_then_crash(self: Conversation, *args: Any, **more: Any) -> Committed:
        committed = await commit(self, *args, **more)
        if crashes:
            actor = actor_of(service, session_id)
            assert actor is not None
            actor.mailbox.tell(crashes.pop())
        return committed

    monkeypatch.setattr(Conversation, "commit", and_then_crash)
    crashes = [Bomb()]
    async with open_runtime(says(["one"], ["two"]), store=tmp_path) as service:
        session_id = await new_session(service)
        async with service.subscribe(session_id) as events:
            assert (await service.start_turn(session_id, "a")).text == "one"
            seen = [await anext(events)]
            while not isinstance(seen[-1].event, RunCompleted):
                seen.append(await anext(events))
        assert not crashes
        assert actor_of(service, session_id) is None
        stored = await replay(service, session_id)
        assert [each.event for each in stored][-1] == seen[-1].event
        assert (await service.start_turn(session_id, "b")).text == "two"
        assert service.health().running_turns == 0


async def test_what_retires_a_session_twice_is_answered_twice(tmp_path: Path) -> None:
    """A second archive that comes while the first is written is answered with it."""
    faults = Faults()
    async with (
        open_runtime(says(["hi"]), store=tmp_path, faults=faults) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        faults.delay = 2
        both = [ask(nursery, service.archive, session_id)]
        await trio.sleep(1)
        both.append(ask(nursery, service.archive, session_id))
        turn = ask(nursery, service.start_turn, session_id, "a")
        await turn.failure(SessionNotFoundError)
        assert turn.took == 0
        for archived in both:
            await archived.ended.wait()
            assert archived.error is None


async def test_an_end_that_waited_for_a_failed_one_is_tried_in_its_place(tmp_path: Path) -> None:
    """A request to retire that came while the store refused another one is carried out after that."""
    faults = Faults()
    async with (
        open_runtime(says(["hi"]), store=tmp_path, faults=faults) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        actor = actor_of(service, session_id)
        assert actor is not None
        faults.delay, faults.crash_before = 2, 1
        archived = ask(nursery, service.archive, session_id)
        await trio.sleep(0.1)
        stopped = ask(nursery, actor.mailbox.ask, Retire("stop"))
        await archived.ended.wait()
        assert archived.error is not None
        await stopped.ended.wait()
        assert stopped.error is None
        assert actor_of(service, session_id) is None
