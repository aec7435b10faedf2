"""Sessions side by side: a crash stays where it happens."""

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.checks import assert_valid_stream, names, numbers
from tests.support.crashing import crash
from tests.support.faulty_store import Faults
from tests.support.models import GatedModel, reply, says
from tests.support.runtime import Recorder, new_session, open_runtime, replay, transcript
from warren.base.errors import (
    AgentError,
)
from warren.conversation.events import Envelope, RunFailed
from warren.conversation.messages import UserMessage
from warren.conversation.usage import Usage

pytestmark = pytest.mark.virtual_time


async def test_a_crash_stays_with_its_session(store: Path | None) -> None:
    """The callers of the crashed session get AGENT_ERROR; its neighbour's turn ends well."""
    model, recorder = GatedModel(), Recorder()
    async with open_runtime(model, store=store) as service, trio.open_nursery() as nursery:
        one, two = await new_session(service), await new_session(service)
        doomed = ask(nursery, service.start_turn, one, "a", on_event=recorder)
        fine = ask(nursery, service.start_turn, two, "b")
        await trio.testing.wait_all_tasks_blocked()
        interrupted = ask(nursery, service.archive, one)
        crash(service, one)
        for asked in (doomed, interrupted):
            error = await asked.failure(AgentError)
            assert (error.cause, error.session_id) == ("crash", one)
            assert "ExceptionGroup" not in error.message
        model.gate.set()
        assert (await fine.value()).text == "done"
        assert_valid_stream(recorder.envelopes)
        last = recorder.events[-1]
        assert isinstance(last, RunFailed)
        assert last.cause == "crash"
        assert service.health().running_turns == 0


async def test_a_crashed_session_revives_from_its_snapshot(tmp_path: Path) -> None:
    """The next message finds the last commit; numbers of events go on above all that were shown."""
    model, recorder = GatedModel(), Recorder()
    model.gate.set()
    async with open_runtime(model, store=tmp_path) as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session("first", on_event=recorder)).session_id
        model.gate = trio.Event()
        doomed = ask(nursery, service.start_turn, session_id, "second", on_event=recorder)
        await trio.testing.wait_all_tasks_blocked()
        crash(service, session_id)
        await doomed.failure(AgentError)
        assert not (await service.read(session_id)).state.is_active
        model.gate.set()
        await service.start_turn(session_id, "third", on_event=recorder)
        prompts = [each.content for each in await transcript(service, session_id) if isinstance(each, UserMessage)]
        assert prompts == ["first", "third"]
        assert_valid_stream(recorder.envelopes)
        assert numbers(await replay(service, session_id)) == numbers(recorder.envelopes)


async def test_a_subscriber_survives_a_crash_and_a_revival(store: Path | None) -> None:
    """The stream goes on over the crash: the lost turn's terminal event, then the next turn."""
    model, found = GatedModel(), list[Envelope]()
    async with open_runtime(model, store=store) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)

        async def follow() -> None:
            async with service.subscribe(session_id) as events:
                async for envelope in events:
                    found.append(envelope)

        nursery.start_soon(follow)
        await trio.testing.wait_all_tasks_blocked()
        doomed = ask(nursery, service.start_turn, session_id, "a")
        await trio.testing.wait_all_tasks_blocked()
        crash(service, session_id)
        await doomed.failure(AgentError)
        model.gate.set()
        await service.start_turn(session_id, "b")
        await trio.testing.wait_all_tasks_blocked()
        assert names(found)[2] == "run_failed"
        assert names(found)[-1] == "run_completed"
        assert_valid_stream(found)
        nursery.cancel_scope.cancel()


async def test_a_crashed_session_without_a_store_goes_on_from_its_last_turn() -> None:
    """Its history, its events and its place in the list are there before anybody brings it back to life."""
    async with open_runtime(says(["one"], ["two"])) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "hello")
        before = await transcript(service, session_id)
        log = await replay(service, session_id)
        crash(service, session_id)
        await trio.sleep(1)
        assert (await service.read(session_id)).state.lifecycle == "live"
        assert [each.session_id for each in (await service.list()).sessions] == [session_id]
        assert await transcript(service, session_id) == before
        assert await replay(service, session_id) == log
        assert (await service.start_turn(session_id, "go on")).text == "two"
        assert (await transcript(service, session_id))[: len(before)] == before


async def test_a_crash_while_loading(tmp_path: Path) -> None:
    """Whoever waited for the session to be revived is told; the next one succeeds."""
    faults = Faults()
    async with open_runtime(says(["hi"]), store=tmp_path) as service:
        session_id = await new_session(service)
    async with open_runtime(says(["hi"]), store=tmp_path, faults=faults) as service:
        faults.crash_load = 1
        with pytest.raises(AgentError) as caught:
            await service.start_turn(session_id, "hello")
        assert caught.value.cause == "crash"
        assert service.health().running_turns == 0
        assert (await service.start_turn(session_id, "hello")).text == "hi"


class Odd:
    """A count that can be booked, and then breaks whatever looks at it."""

    def __radd__(self, other: object) -> "Odd":
        return self

    def __add__(self, other: object) -> "Odd":
        raise ArithmeticError("no such sum")


async def test_a_turn_that_cannot_say_what_it_came_to() -> None:
    """Its session crashes, its caller is told, the stream ends as any other; nobody else hears of it."""
    count: Any = Odd()
    recorder = Recorder()
    async with open_runtime(says(["zero"], reply("one", usage=Usage(count, 3)), ["two"])) as service:
        session_id = (await service.create_session("hello")).session_id
        with pytest.raises(AgentError) as caught:
            await service.start_turn(session_id, "go on", on_event=recorder)
        assert caught.value.cause == "crash"
        assert isinstance(recorder.events[-1], RunFailed)
        assert (await service.create_session("hello")).text == "two"
