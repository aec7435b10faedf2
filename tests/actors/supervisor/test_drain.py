"""A runtime that is told to end lets its turns finish, and takes no new ones."""

from pathlib import Path

import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.checks import numbers
from tests.support.models import FunctionModel, GatedModel, says, stuck
from tests.support.runtime import Recorder, new_session, open_runtime, replay, transcript
from warren.base.errors import AgentError, SessionBusyError
from warren.calls.facade import SessionService
from warren.conversation.events import Envelope, RunFailed, TextDelta

pytestmark = pytest.mark.virtual_time


async def test_turns_finish_and_none_begins(tmp_path: Path) -> None:
    """New turns and sessions are refused at once, reads are answered, and the running turn ends with its answer."""
    model = GatedModel()
    async with open_runtime(models={"gated": model}, store=tmp_path) as service, trio.open_nursery() as nursery:
        busy, idle = await new_session(service, model="gated"), await new_session(service, model="gated")
        turn = ask(nursery, service.start_turn, busy, "think")
        await trio.testing.wait_all_tasks_blocked()
        drained = ask(nursery, service.drain)
        await trio.testing.wait_all_tasks_blocked()
        for refused in (service.start_turn(idle, "me too"), service.create_session("and me")):
            with pytest.raises(AgentError) as caught:
                await refused
            assert (caught.value.cause, caught.value.retryable) == ("shutting_down", True)
        with pytest.raises(SessionBusyError):
            await service.start_turn(busy, "and?")
        assert (await service.read(idle)).state.message_count == 0
        assert service.health().status == "degraded"
        assert not drained.ended.is_set()
        model.gate.set()
        assert (await turn.value()).text == "done"
        await drained.ended.wait()
        assert len(await transcript(service, busy)) == 2


async def test_an_idle_runtime_is_drained_at_once() -> None:
    """With nothing running there is nothing to wait for, the first time and the second."""
    async with open_runtime() as service:
        with trio.fail_after(1):
            await service.drain()
            await service.drain()


async def test_what_does_not_finish_is_parked(tmp_path: Path) -> None:
    """A caller that stops waiting leaves the runtime: the turn is stored as far as it has come, and goes on later."""
    async with trio.open_nursery() as nursery:
        async with open_runtime(FunctionModel(stuck), store=tmp_path) as service:
            session_id = await new_session(service)
            turn = ask(nursery, service.start_turn, session_id, "think")
            await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(10):
                await service.drain()
        error = await turn.failure(AgentError)
        assert error.cause == "shutting_down"
    async with open_runtime(says(["a whole answer"]), store=tmp_path) as service:
        assert (await service.wait_turn(session_id)).text == "a whole answer"
        assert "half an answer" not in str(await transcript(service, session_id))


async def test_a_turn_that_is_stored_at_its_end_is_interrupted(tmp_path: Path) -> None:
    """It is stored as cancelled, with what was said."""
    async with trio.open_nursery() as nursery:
        async with open_runtime(FunctionModel(stuck), store=tmp_path) as service:
            session_id = await new_session(service, durability="turn")
            turn = ask(nursery, service.start_turn, session_id, "think")
            await trio.testing.wait_all_tasks_blocked()
        assert (await turn.failure(AgentError)).cause == "shutting_down"
    async with open_runtime(store=tmp_path) as service:
        assert "half an answer" in str((await transcript(service, session_id))[-1])
        assert isinstance((await replay(service, session_id))[-1].event, RunFailed)


async def test_a_runtime_that_is_stopped_has_answered_everybody(tmp_path: Path) -> None:
    """When `stop` returns, the caller of a turn has the error, each reader all events, and the turn is stored."""
    recorder = Recorder()
    async with (
        open_runtime(FunctionModel(stuck), store=tmp_path) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "think", on_event=recorder)
        follower = ask(nursery, followed, service, session_id)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(service.stop)
        await service.stop()
        assert (await turn.failure(AgentError)).cause == "shutting_down"
        assert "".join(each.delta for each in recorder.only(TextDelta)) == "half an answer"
        assert numbers(await follower.value()) == numbers(recorder.envelopes)
        for refused in (
            service.read(session_id),
            service.start_turn(session_id, "go on"),
            service.create_session(None),
        ):
            with pytest.raises(AgentError) as caught:
                await refused
            assert caught.value.cause == "shutting_down"
    async with open_runtime(says(["a whole answer"]), store=tmp_path) as service:
        assert (await service.wait_turn(session_id)).text == "a whole answer"
        assert numbers(await replay(service, session_id))[: len(recorder.envelopes)] == numbers(recorder.envelopes)


async def followed(service: SessionService, session_id: str) -> list[Envelope]:
    """Return what a subscription brings until it ends."""
    async with service.subscribe(session_id, after_seq=0) as events:
        return [each async for each in events]
