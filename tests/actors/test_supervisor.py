"""Sessions side by side: crashes stay where they happen, admission is at once, endings are orderly."""

from pathlib import Path

import apsw
import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.checks import assert_valid_stream, names, numbers
from tests.support.crashing import crash
from tests.support.faulty_store import Faults
from tests.support.models import Emit, FunctionModel, GatedModel, reply, says, stuck
from tests.support.runtime import Recorder, new_session, open_runtime, replay, transcript
from warren.config import Config, Limits
from warren.errors import (
    AgentError,
    CapacityExceededError,
    InvalidParamsError,
    PersistenceDisabledError,
    SessionBusyError,
    SessionNotFoundError,
    SessionNotRunningError,
    StoreError,
)
from warren.events import Envelope, RunCompleted, RunFailed
from warren.messages import UserMessage
from warren.model import ModelReply, ModelRequest
from warren.storage import Archive, Delete

pytestmark = pytest.mark.virtual_time
UNKNOWN = "00000000-0000-7000-8000-000000000000"


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """Where the sessions are stored: nowhere, then in a file."""
    return tmp_path if request.param == "file" else None


# -- crashes


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


async def test_a_subscriber_survives_a_crash_and_a_revival(tmp_path: Path) -> None:
    """The stream goes on over the crash: the lost turn's terminal event, then the next turn."""
    model, found = GatedModel(), list[Envelope]()
    async with open_runtime(model, store=tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)

        async def follow() -> None:
            async with service.subscribe(session_id) as events:
                async for envelope in events:
                    found.append(envelope)  # noqa: PERF401 - looked at while it grows

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


async def test_a_crashed_session_without_a_store_is_gone_and_says_so() -> None:
    """Everything later about it is SESSION_NOT_FOUND with the cause; its subscribers' streams end."""
    async with open_runtime(says()) as service:
        session_id = await new_session(service)
        async with service.subscribe(session_id) as events:
            crash(service, session_id)
            with trio.fail_after(1):
                assert [each async for each in events] == []
        for call in (service.read, service.interrupt, service.history, service.archive):
            with pytest.raises(SessionNotFoundError, match="crashed") as caught:
                await call(session_id)
            assert caught.value.cause == "crash"
        with pytest.raises(SessionNotFoundError, match="crashed"):
            await service.start_turn(session_id, "hello")
        assert (await service.list()).sessions == ()


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


# -- admission


async def test_a_second_turn_is_refused_at_once(store: Path | None) -> None:
    """Busy is never queued, also while the turn ends; after it the session is free."""
    model = GatedModel()
    async with open_runtime(model, store=store) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        first = ask(nursery, service.start_turn, session_id, "a")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(SessionBusyError) as caught:
            await service.start_turn(session_id, "b")
        assert caught.value.retryable
        model.gate.set()
        await first.value()
        await service.start_turn(session_id, "c")
        assert len(await transcript(service, session_id)) == 4


async def test_capacity_counts_running_turns_only(store: Path | None) -> None:
    """Idle sessions take no room; past the limit turns are refused, and the room of an ended one is free again."""
    model = GatedModel()
    config = Config(limits=Limits(max_sessions=2))
    async with open_runtime(model, store=store, config=config) as service, trio.open_nursery() as nursery:
        ids = [await new_session(service) for _ in range(5)]
        turns = [ask(nursery, service.start_turn, session_id, "a") for session_id in ids[:2]]
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(CapacityExceededError):
            await service.start_turn(ids[2], "a")
        with pytest.raises(CapacityExceededError):
            await service.create_session("a")
        with pytest.raises(SessionBusyError):
            await service.start_turn(ids[0], "a")
        assert len((await service.list()).sessions) == 5
        await service.interrupt(ids[0])
        await turns[0].failure(AgentError)
        model.gate.set()
        assert (await service.start_turn(ids[2], "a")).text == "done"


async def test_a_turn_that_cannot_be_planned_leaves_the_session_free(store: Path | None) -> None:
    """An unknown model of one turn is bad input: nothing ran, nothing counts as running."""
    async with open_runtime(says(["hi"]), store=store) as service:
        session_id = await new_session(service)
        with pytest.raises(InvalidParamsError) as caught:
            await service.start_turn(session_id, "hello", provider="nobody")
        assert caught.value.session_id == session_id
        assert service.health().running_turns == 0
        assert (await service.start_turn(session_id, "hello")).text == "hi"


@pytest.mark.parametrize("name", ["start_turn", "interrupt", "read", "history", "archive", "resume", "delete"])
async def test_unknown_ids(store: Path | None, name: str) -> None:
    """An id that nothing is known of is SESSION_NOT_FOUND, or needs a store to be looked for in."""
    async with open_runtime(says(), store=store) as service:
        arguments = (UNKNOWN, "hello") if name == "start_turn" else (UNKNOWN,)
        needs_store = store is None and name in ("resume", "delete")
        with pytest.raises(PersistenceDisabledError if needs_store else SessionNotFoundError):
            await getattr(service, name)(*arguments)
        assert (service.health().running_turns, service.health().live_sessions) == (0, 0)


async def test_subscribing_to_an_unknown_id(store: Path | None) -> None:
    """It is refused on entering."""
    async with open_runtime(says(), store=store) as service:
        with pytest.raises(SessionNotFoundError):
            async with service.subscribe(UNKNOWN):
                pass


# -- interrupts


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
        assert (interrupt.error, interrupt.took) == (None, pytest.approx(1))
        assert (await service.start_turn(session_id, "b")).text == "two"


async def test_an_interrupt_never_touches_the_following_turn(store: Path | None) -> None:
    """An interrupt that is in the mailbox when its turn ends is answered; the turn behind it runs on."""
    gate = trio.Event()

    async def answer(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await gate.wait()
        return reply("done")

    async with open_runtime(FunctionModel(answer), store=store) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        for _ in range(50):
            gate = trio.Event()
            first = ask(nursery, service.start_turn, session_id, "a")
            await trio.testing.wait_all_tasks_blocked()
            gate.set()
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


# -- archive and delete


async def test_archive_lets_the_turn_finish(tmp_path: Path) -> None:
    """The turn ends well and is stored; then the session is readable, hidden, and not startable."""
    model = GatedModel()
    async with open_runtime(model, store=tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "a")
        await trio.testing.wait_all_tasks_blocked()
        archive = ask(nursery, service.archive, session_id)
        await trio.testing.wait_all_tasks_blocked()
        assert not archive.ended.is_set()
        with pytest.raises(SessionNotFoundError):
            await service.start_turn(session_id, "b")
        model.gate.set()
        assert (await turn.value()).text == "done"
        await archive.ended.wait()
        assert (await service.read(session_id)).state.lifecycle == "archived"
        assert len(await transcript(service, session_id)) == 2
        assert (await service.list()).sessions == ()
        assert len((await service.list(include_archived=True)).sessions) == 1
        with pytest.raises(SessionNotFoundError, match="archived"):
            await service.start_turn(session_id, "b")
        await service.archive(session_id)
        assert service.health().live_sessions == 0


async def test_archive_without_a_store_ends_the_session() -> None:
    """It is gone, and its subscribers' streams end after the last turn."""
    async with open_runtime(says(["hi"])) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "a")
        async with service.subscribe(session_id, after_seq=0) as events:
            await service.archive(session_id)
            with trio.fail_after(1):
                assert isinstance([each async for each in events][-1].event, RunCompleted)
        with pytest.raises(SessionNotFoundError):
            await service.read(session_id)


async def test_delete_interrupts_the_turn(tmp_path: Path) -> None:
    """The turn's caller gets a cancelled turn, and nothing is left, for no later write to bring back."""
    async with open_runtime(FunctionModel(stuck), store=tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "a")
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(1):
            await service.delete(session_id)
        assert (await turn.failure(AgentError)).cause == "cancelled"
        for call in (service.read, service.history, service.resume, service.archive):
            with pytest.raises(SessionNotFoundError):
                await call(session_id)
        await service.delete(session_id)
        assert (await service.list(include_archived=True)).sessions == ()


async def test_an_archive_that_the_store_refuses_can_be_repeated(tmp_path: Path) -> None:
    """Everyone who asked is told, nobody hangs, the session lives on, the next attempt works."""
    faults = Faults()
    async with (
        open_runtime(says(["hi"]), store=tmp_path, faults=faults) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        faults.refuse, faults.delay = apsw.FullError("no room"), 1
        one = ask(nursery, service.archive, session_id)
        await trio.sleep(0.5)
        two = ask(nursery, service.archive, session_id)
        with trio.fail_after(10):
            await one.failure(StoreError)
            await two.failure(StoreError)
        faults.refuse = None
        assert (await service.start_turn(session_id, "a")).text == "hi"
        await service.archive(session_id)
        assert (await service.read(session_id)).state.lifecycle == "archived"


@pytest.mark.parametrize(("first", "second"), [(Archive, Delete), (Delete, Archive)])
async def test_two_endings_at_once(tmp_path: Path, first: type, second: type) -> None:
    """An ending that comes while another one is being written does not bring the session back if it fails."""
    faults = Faults(refuse_kinds=(second,))
    calls = {Archive: "archive", Delete: "delete"}
    async with (
        open_runtime(says(["hi"]), store=tmp_path, faults=faults) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        faults.refuse, faults.delay = apsw.FullError("no room"), 1
        one = ask(nursery, getattr(service, calls[first]), session_id)
        await trio.sleep(0.5)
        two = ask(nursery, getattr(service, calls[second]), session_id)
        with trio.fail_after(10):
            await one.ended.wait()
            await two.ended.wait()
        assert one.error is None
        assert two.error is not None
        faults.refuse = None
        with pytest.raises(SessionNotFoundError):
            await service.start_turn(session_id, "a")
        assert (await service.list()).sessions == ()


async def test_deleting_an_archived_session(tmp_path: Path) -> None:
    """What was retired can be removed."""
    async with open_runtime(says(), store=tmp_path) as service:
        session_id = await new_session(service)
        await service.archive(session_id)
        await service.delete(session_id)
        with pytest.raises(SessionNotFoundError):
            await service.read(session_id)


# -- the end of the runtime


async def test_leaving_interrupts_and_stores_running_turns(tmp_path: Path) -> None:
    """Every caller gets an answer, the turn is stored in its valid form, its terminal event reaches subscribers."""
    recorder, seen = Recorder(), list[Envelope]()
    async with trio.open_nursery() as nursery:
        async with open_runtime(FunctionModel(stuck), store=tmp_path) as service:
            session_id = await new_session(service)
            turn = ask(nursery, service.start_turn, session_id, "a", on_event=recorder)

            async def follow() -> None:
                async with service.subscribe(session_id, after_seq=0) as events:
                    seen.extend([each async for each in events])

            nursery.start_soon(follow)
            await trio.testing.wait_all_tasks_blocked()
        await turn.failure(AgentError)
    assert_valid_stream(recorder.envelopes)
    assert numbers(seen) == numbers(recorder.envelopes)
    async with open_runtime(says(["hi"]), store=tmp_path) as service:
        assert len(await transcript(service, session_id)) == 2
        assert names(await replay(service, session_id))[-1] == "run_failed"


async def test_everything_is_refused_once_the_runtime_ends(store: Path | None) -> None:
    """Calls on a service whose runtime has ended fail at once with a typed error."""
    async with open_runtime(says(), store=store) as service:
        session_id = await new_session(service)
    for call in (service.read, service.interrupt, service.history, service.resume, service.archive):
        with pytest.raises(AgentError) as caught:
            await call(session_id)
        assert caught.value.cause == "shutting_down"
    with pytest.raises(AgentError):
        await service.create_session(None)
    with pytest.raises(AgentError):
        async with service.subscribe(session_id):
            pass
    assert service.health().status == "degraded"


async def test_the_drain_is_bounded(tmp_path: Path) -> None:
    """A turn that does not react ends with the drain time: its caller is told and no number is used again."""
    recorder, again = Recorder(), Recorder()

    async def stubborn(_request: ModelRequest, _emit: Emit) -> ModelReply:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)
        await trio.lowlevel.checkpoint()
        raise AssertionError("unreachable")

    config = Config(limits=Limits(drain=5))
    async with trio.open_nursery() as nursery:
        async with open_runtime(FunctionModel(stubborn), store=tmp_path, config=config) as service:
            session_id = await new_session(service)
            turn = ask(nursery, service.start_turn, session_id, "a", on_event=recorder)
            await trio.testing.wait_all_tasks_blocked()
        await turn.failure(AgentError)
    assert_valid_stream(recorder.envelopes)
    async with open_runtime(says(["hi"]), store=tmp_path) as service:
        await service.start_turn(session_id, "b", on_event=again)
    assert again.envelopes[0].seq > recorder.envelopes[-1].seq


async def test_numbers_of_a_crashed_turn_are_not_given_out_again(tmp_path: Path) -> None:
    """Also after an orderly end of the runtime: subscribers have seen them."""
    model, recorder, again = GatedModel(), Recorder(), Recorder()
    async with open_runtime(model, store=tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "a", on_event=recorder)
        await trio.testing.wait_all_tasks_blocked()
        crash(service, session_id)
        await turn.failure(AgentError)
    async with open_runtime(says(["hi"]), store=tmp_path) as service:
        await service.start_turn(session_id, "b", on_event=again)
    assert again.envelopes[0].seq > recorder.envelopes[-1].seq


async def test_a_cancelled_body_still_stores_what_runs(tmp_path: Path) -> None:
    """Cancelling the whole runtime from outside is an orderly end too."""
    with trio.move_on_after(1):
        async with open_runtime(FunctionModel(stuck), store=tmp_path) as service:
            session_id = await new_session(service)
            await service.start_turn(session_id, "a")
    async with open_runtime(says(["hi"]), store=tmp_path) as service:
        assert len(await transcript(service, session_id)) == 2


async def test_what_the_body_raises_leaves_unchanged(store: Path | None) -> None:
    """The host's own error is not wrapped in a group, and no turn is left running."""
    with pytest.raises(LookupError, match="the host's"):
        async with open_runtime(says(), store=store) as service:
            await new_session(service)
            raise LookupError("the host's")
