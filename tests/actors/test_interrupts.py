"""Interrupts: whenever they come, they end their own turn and no other."""

from collections.abc import Mapping
from pathlib import Path

import apsw
import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.checks import assert_valid_stream
from tests.support.faulty_store import Faults
from tests.support.models import Emit, FunctionModel, GatedModel, says, stuck
from tests.support.runtime import Recorder, new_session, open_runtime
from warren.base.errors import AgentError, SessionNotRunningError, StoreError
from warren.calls.facade import RuntimeService
from warren.conversation.events import RunFailed
from warren.models.model import ModelReply, ModelRequest
from warren.settings.config import Config, Limits
from warren.storage.operations import Claim

pytestmark = pytest.mark.virtual_time


async def test_an_interrupt_between_admission_and_the_first_event(store: Path | None) -> None:
    """A turn that was admitted and has not begun ends as cancelled, with its events."""
    recorder = Recorder()
    async with open_runtime(FunctionModel(stuck), store=store) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)

        async def both() -> None:
            async with trio.open_nursery() as inner:
                inner.start_soon(service.interrupt, session_id)

        turn = ask(nursery, service.start_turn, session_id, "hello", on_event=recorder)
        while service.health().running_turns == 0:
            await trio.lowlevel.checkpoint()
        await both()
        assert (await turn.failure(AgentError)).cause == "cancelled"
        assert_valid_stream(recorder.envelopes)
        assert len(recorder.only(RunFailed)) == 1


async def test_an_interrupt_while_the_session_is_being_loaded(tmp_path: Path) -> None:
    """A turn that still waits for its session ends as soon as it is there."""
    faults, recorder = Faults(), Recorder()
    async with open_runtime(says(["hi"]), store=tmp_path) as service:
        session_id = await new_session(service)
    async with (
        open_runtime(FunctionModel(stuck), store=tmp_path, faults=faults) as service,
        trio.open_nursery() as nursery,
    ):
        faults.read_delay = 2
        turn = ask(nursery, service.start_turn, session_id, "hello", on_event=recorder)
        await trio.sleep(1)
        await service.interrupt(session_id)
        assert (await turn.failure(AgentError)).cause == "cancelled"
        assert turn.took == pytest.approx(2)
        assert_valid_stream(recorder.envelopes)


async def test_an_interrupt_just_after_the_end_touches_nothing(store: Path | None) -> None:
    """It is refused with NOT_RUNNING, and the turn that follows runs to its end."""
    async with open_runtime(says(["one"], ["two"]), store=store) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "a")
        with pytest.raises(SessionNotRunningError):
            await service.interrupt(session_id)
        assert (await service.start_turn(session_id, "b")).text == "two"


async def test_an_interrupt_during_the_commit_comes_too_late(tmp_path: Path) -> None:
    """The turn counts as finished; the interrupt is answered when it has ended; the next turn is not touched."""
    faults = Faults()
    async with (
        open_runtime(says(["one"], ["two"]), store=tmp_path, faults=faults) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        faults.delay = 2
        turn = ask(nursery, service.start_turn, session_id, "a")
        await trio.sleep(1)
        interrupt = ask(nursery, service.interrupt, session_id)
        assert (await turn.value()).text == "one"
        await interrupt.ended.wait()
        assert interrupt.error is None
        assert interrupt.took == pytest.approx(1)
        assert (await service.start_turn(session_id, "b")).text == "two"


async def test_an_interrupt_never_touches_the_following_turn(store: Path | None) -> None:
    """An interrupt that is in the mailbox when its turn ends is answered; the turn behind it runs on."""
    model = GatedModel()
    async with open_runtime(model, store=store) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        for _ in range(50):
            model.gate = trio.Event()
            first = ask(nursery, service.start_turn, session_id, "a")
            await trio.testing.wait_all_tasks_blocked()
            model.gate.set()
            interrupt = ask(nursery, service.interrupt, session_id)
            await first.ended.wait()
            second = await service.start_turn(session_id, "b")
            assert second.text == "done"
            await interrupt.ended.wait()
            assert interrupt.error is None or isinstance(interrupt.error, SessionNotRunningError)


async def test_two_interrupts(store: Path | None) -> None:
    """Both are answered when the turn has ended."""
    async with open_runtime(FunctionModel(stuck), store=store) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "a")
        await trio.testing.wait_all_tasks_blocked()
        interrupts = [ask(nursery, service.interrupt, session_id) for _ in range(2)]
        await turn.failure(AgentError)
        for interrupt in interrupts:
            await interrupt.ended.wait()
            assert interrupt.error is None


async def test_a_turn_that_outlives_the_grace_period() -> None:
    """An interrupt does not wait for ever: it says so, and the turn ends later, once."""
    recorder = Recorder()

    async def stubborn(_request: ModelRequest, _emit: Emit) -> ModelReply:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)
        await trio.lowlevel.checkpoint()
        raise AssertionError("unreachable")

    config = Config(limits=Limits(interrupt_grace=5))
    async with open_runtime(FunctionModel(stubborn), config=config) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "a", on_event=recorder)
        await trio.testing.wait_all_tasks_blocked()
        interrupt = ask(nursery, service.interrupt, session_id)
        assert (await interrupt.failure(AgentError)).cause == "interrupt_timeout"
        assert interrupt.took == pytest.approx(5)
        assert (await turn.failure(AgentError)).cause == "cancelled"
        assert_valid_stream(recorder.envelopes)


async def test_an_interrupt_whose_caller_leaves_is_in_the_audit() -> None:
    """It ends the turn all the same; one that is refused is not there."""

    async def slow_to_end(request: ModelRequest, emit: Emit) -> ModelReply:
        try:
            return await stuck(request, emit)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)

    async with open_runtime(FunctionModel(slow_to_end)) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        with pytest.raises(SessionNotRunningError):
            await service.interrupt(session_id)
        turn = ask(nursery, service.start_turn, session_id, "hello")
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(1) as leaving:
            await service.interrupt(session_id)
        assert leaving.cancelled_caught
        assert (await turn.failure(AgentError)).cause == "cancelled"
        with pytest.raises(SessionNotRunningError):
            await service.interrupt(session_id)
        assert await noted(service, session_id) == [("create", {}), ("interrupt", {"turn": "cancelled"})]


async def test_the_audit_tells_the_outcome_of_an_interrupt(tmp_path: Path) -> None:
    """Of one whose caller has left before its session was there, too: one that finds no turn then is not in it."""
    faults = Faults()
    async with open_runtime(says(["hi"]), store=tmp_path) as service:
        one, two = await new_session(service), await new_session(service)
    async with (
        open_runtime(says(["late"]), store=tmp_path, faults=faults) as service,
        trio.open_nursery() as nursery,
    ):
        faults.delay, faults.refuse, faults.refuse_kinds = 2, apsw.FullError("the disk is full"), (Claim,)
        turn = ask(nursery, service.start_turn, one, "hello")
        await trio.sleep(1)
        with trio.move_on_after(0.5):
            await service.interrupt(one)
        await turn.failure(StoreError)
        faults.refuse = None
        turn = ask(nursery, service.start_turn, two, "hello")
        await trio.sleep(3)  # the lease is there, and the turn is being stored
        await service.interrupt(two)
        assert (await turn.value()).text == "late"
        assert await noted(service, one) == [("create", {})]
        assert await noted(service, two) == [("create", {}), ("interrupt", {"turn": "completed"})]


async def noted(service: RuntimeService, session_id: str) -> list[tuple[str, Mapping[str, str]]]:
    """Return the actions and the details of the entries about a session."""
    return [(each.action, each.details) for each in (await service.audit(session_id=session_id)).entries]
