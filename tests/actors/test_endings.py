"""Archive, delete, and the end of the runtime: orderly, and nobody is left waiting."""

from pathlib import Path

import apsw
import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.checks import assert_valid_stream, numbers
from tests.support.crashing import crash
from tests.support.faulty_store import Faults
from tests.support.models import Emit, FunctionModel, GatedModel, says, stuck
from tests.support.runtime import Recorder, new_session, open_runtime, replay, transcript
from warren.base.errors import (
    AgentError,
    SessionNotFoundError,
    StoreError,
)
from warren.conversation.events import Envelope, RunCompleted
from warren.models.model import ModelReply, ModelRequest
from warren.settings.config import Config, Limits
from warren.storage.operations import Archive, Delete

pytestmark = pytest.mark.virtual_time


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


@pytest.mark.parametrize(("first", "second"), [("archive", "delete"), ("delete", "archive")])
async def test_two_endings_at_once(tmp_path: Path, first: str, second: str) -> None:
    """An ending that comes while another one is being written does not bring the session back if it fails."""
    faults = Faults(refuse_kinds=(Delete if second == "delete" else Archive,))
    async with (
        open_runtime(says(["hi"]), store=tmp_path, faults=faults) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        faults.refuse, faults.delay = apsw.FullError("no room"), 1
        one = ask(nursery, getattr(service, first), session_id)
        await trio.sleep(0.5)
        two = ask(nursery, getattr(service, second), session_id)
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
    """A session that was retired can be removed."""
    async with open_runtime(says(), store=tmp_path) as service:
        session_id = await new_session(service)
        await service.archive(session_id)
        await service.delete(session_id)
        with pytest.raises(SessionNotFoundError):
            await service.read(session_id)


async def test_leaving_parks_running_turns(tmp_path: Path) -> None:
    """Every caller gets an answer, the turn is stored as far as it has come, and its readers have seen all of that."""
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
    assert numbers(seen) == numbers(recorder.envelopes)
    async with open_runtime(says(["hi"]), store=tmp_path) as service:
        assert (await service.wait_turn(session_id)).text == "hi"
        assert len(await transcript(service, session_id)) == 2
        assert_valid_stream(await replay(service, session_id))


@pytest.mark.parametrize(("refused", "hurried"), [(apsw.BusyError("locked"), True), (apsw.FullError("full"), False)])
async def test_a_locked_store_is_waited_for_once(tmp_path: Path, *, refused: Exception, hurried: bool) -> None:
    """The events of a turn that a lock has kept out are stored at the end if the lock is gone, with hardly a wait."""
    faults, recorder = Faults(), Recorder()
    async with open_runtime(says(["hi"]), store=tmp_path, faults=faults) as service:
        session_id = await new_session(service)
        faults.refuse, faults.refusals = refused, 1
        with pytest.raises(StoreError):
            await service.start_turn(session_id, "a", on_event=recorder)
    assert faults.hurried == [False, False, hurried]
    async with open_runtime(says(), store=tmp_path) as service:
        assert numbers(await replay(service, session_id)) == numbers(recorder.envelopes)


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
        assert (await service.wait_turn(session_id)).text == "hi"
        assert len(await transcript(service, session_id)) == 2


async def test_what_the_body_raises_leaves_unchanged(store: Path | None) -> None:
    """The host's own error is not wrapped in a group, and no turn is left running."""

    async def body() -> None:
        async with open_runtime(says(), store=store) as service:
            await new_session(service)
            raise LookupError("the host's")

    with pytest.raises(LookupError, match="the host's"):
        await body()
