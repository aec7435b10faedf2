"""`wait_turn`: a caller that did not start a turn gets its end, whatever the turn waits for."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import apsw
import pytest
import trio
import trio.testing

from tests.actors.session.faulty import config
from tests.actors.session.inboxes import CALL, Slow, rest
from tests.support.asking import ask
from tests.support.compacting import Model, compacting, summarise, talk
from tests.support.crashing import actor_of
from tests.support.faulty_store import Faults
from tests.support.models import Emit, FunctionModel, GatedModel, reply, stuck
from tests.support.runtime import new_session, open_runtime
from warren.actors.calls.service import Service
from warren.base.errors import AgentError, SessionNotFoundError, SessionNotRunningError, StoreError
from warren.conversation.messages import ToolResultsMessage
from warren.conversation.options import TurnMode
from warren.models.model import ModelReply, ModelRequest
from warren.storage.operations import Commit

pytestmark = pytest.mark.virtual_time
FULL = apsw.FullError("the disk is full")


@pytest.mark.parametrize("stored", [False, True])
async def test_the_end_of_the_running_turn(tmp_path: Path, stored: bool) -> None:  # noqa: FBT001
    """All that wait get the result that the caller of the turn gets, and the session is free by then."""
    async with open_runtime(Slow(), store=tmp_path if stored else None) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        started = ask(nursery, service.start_turn, session_id, "first")
        await trio.sleep(1)
        others = [ask(nursery, service.wait_turn, session_id) for _ in range(2)]
        result = await service.wait_turn(session_id)
        assert (await service.start_turn(session_id, "second")).text == "re: second"
        assert result == await started.value() == await others[0].value() == await others[1].value()


async def test_a_turn_that_is_only_admitted(tmp_path: Path) -> None:
    """A wait that comes while the turn's session is loaded gets the end of that turn."""
    async with open_runtime(Slow(), store=tmp_path, config=config(idle_after=5)) as service:
        session_id = await new_session(service)
        await trio.sleep(10)
        assert actor_of(service, session_id) is None
        async with trio.open_nursery() as nursery:
            started = ask(nursery, service.start_turn, session_id, "first")
            await trio.testing.wait_all_tasks_blocked()
            assert await service.wait_turn(session_id) == await started.value()


async def test_the_error_of_the_running_turn(tmp_path: Path) -> None:
    """A turn that fails has failed for those who wait, too, each with an error of its own."""
    async with open_runtime(FunctionModel(stuck), store=tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        started = ask(nursery, service.start_turn, session_id, "first")
        await trio.sleep(1)
        waits = ask(nursery, service.wait_turn, session_id)
        await trio.testing.wait_all_tasks_blocked()
        await service.interrupt(session_id)
        own, other = await started.failure(AgentError), await waits.failure(AgentError)
        assert own.body() == other.body()
        assert own is not other
        assert other.cause == "cancelled"


async def test_the_turn_of_an_input_that_waits(tmp_path: Path) -> None:
    """With no turn running, the end is that of the turn that the first input begins, also in a later process."""
    with trio.CancelScope() as process:
        async with open_runtime(GatedModel(), store=tmp_path) as service, trio.open_nursery() as nursery:
            session_id = await new_session(service)
            ask(nursery, service.start_turn, session_id, "first")
            await trio.sleep(1)
            ask(nursery, service.start_turn, session_id, "second", mode="queue")
            await trio.sleep(1)
            process.cancel()
    async with open_runtime(Slow(), store=tmp_path) as service:
        assert (await service.wait_turn(session_id)).text == "re: first"  # it was running, and goes on
        assert (await service.wait_turn(session_id)).text == "re: second"


async def test_nothing_to_wait_for(tmp_path: Path) -> None:
    """An idle session is refused at once, in memory and out of it; so are one that is archived and one that is not."""
    async with open_runtime(Slow(), store=tmp_path, config=config(idle_after=5)) as service:
        session_id = await new_session(service)
        for _ in range(2):
            with trio.fail_after(1), pytest.raises(SessionNotRunningError, match="runs no turn, and none waits"):
                await service.wait_turn(session_id)
            await trio.sleep(10)
            assert actor_of(service, session_id) is None
        await service.inject_context(session_id, "it rains")
        with trio.fail_after(1), pytest.raises(SessionNotRunningError):  # context begins no turn
            await service.wait_turn(session_id)
        await service.archive(session_id)
        for gone in (session_id, "01a20000-0000-7000-8000-000000000000"):
            with trio.fail_after(1), pytest.raises(SessionNotFoundError):
                await service.wait_turn(gone)


async def test_a_compaction_is_no_turn(tmp_path: Path) -> None:
    """A wait during a compaction ends with it, as no turn follows."""
    gate = trio.Event()

    async def held(request: ModelRequest, emit: Emit) -> ModelReply:
        await gate.wait()
        return await summarise(request, emit)

    async with compacting(Model(summary=held), store=tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        await talk(service, session_id, 3)
        compaction = ask(nursery, service.compact, session_id)
        await trio.sleep(1)
        waits = ask(nursery, service.wait_turn, session_id)
        await trio.testing.wait_all_tasks_blocked()
        assert not waits.ended.is_set()
        gate.set()
        await waits.failure(SessionNotRunningError)
        await compaction.value()


async def test_an_input_that_is_withdrawn(tmp_path: Path) -> None:
    """Whoever waits for the turn of an input hears at once that the input was withdrawn."""
    async with (
        open_runtime(Slow(), store=tmp_path, config=config(max_sessions=1)) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        ask(nursery, service.start_turn, await new_session(service), "takes the room")
        await trio.sleep(1)
        queued = ask(nursery, service.start_turn, session_id, "first", mode="queue")
        await trio.sleep(1)
        waits = ask(nursery, service.wait_turn, session_id)
        await trio.sleep(1)
        assert not waits.ended.is_set()
        (input_,) = await service.inputs(session_id)
        await service.withdraw(session_id, input_.input_id)
        await waits.failure(SessionNotRunningError)
        await queued.failure(AgentError)


async def test_a_wait_tries_a_paused_inbox_again(tmp_path: Path) -> None:
    """A prompt whose turn the store refused is tried again when somebody waits for its turn."""
    faults = Faults()
    async with open_runtime(Slow(), store=tmp_path, faults=faults, config=config(idle_after=1e9)) as service:
        session_id = await new_session(service)
        faults.refuse, faults.refuse_kinds = FULL, (Commit,)
        with pytest.raises(StoreError):
            await service.start_turn(session_id, "first", mode="queue", idempotency_key="1")
        with trio.fail_after(15), pytest.raises(StoreError):
            await service.wait_turn(session_id)
        faults.refuse = None
        with trio.fail_after(15):
            assert (await service.wait_turn(session_id)).text == "re: first"


async def test_giving_up_leaves_the_turn_alone(tmp_path: Path) -> None:
    """A wait that is cancelled ends nothing, and is forgotten by the next one."""
    async with open_runtime(Slow(), store=tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        started = ask(nursery, service.start_turn, session_id, "first")
        await trio.sleep(1)
        for _ in range(20):
            with trio.move_on_after(0.1):
                await service.wait_turn(session_id)
        actor = actor_of(service, session_id)
        assert actor is not None
        assert len(actor.conversation.inbox.awaiting) == 1
        assert (await started.value()).text == "re: first"


async def test_a_runtime_that_ends(tmp_path: Path) -> None:
    """Whoever waits for a turn that is cut off by the end of the runtime gets an answer."""
    async with open_runtime(FunctionModel(stuck), store=tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        ask(nursery, service.start_turn, session_id, "first")
        await trio.sleep(1)
        waits = ask(nursery, service.wait_turn, session_id)
        await trio.testing.wait_all_tasks_blocked()
        await service.stop()
        assert (await waits.failure(AgentError)).cause == "shutting_down"


async def call_first(request: ModelRequest, emit: Emit) -> ModelReply:
    """Call a tool, and answer an hour later."""
    if any(isinstance(each, ToolResultsMessage) for each in request.messages):
        await trio.sleep(3600)
        return await Slow().complete(request, emit)
    return reply("", CALL)


def opened(store: Path, faults: Faults | None = None) -> AbstractAsyncContextManager[Service]:
    """Open a process that waits for no turn when it ends."""
    return open_runtime(FunctionModel(call_first), store=store, faults=faults, tools=[rest], config=config(drain=0.1))


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_turn_that_is_parked(tmp_path: Path, key: str | None) -> None:
    """Its callers hear that it goes on, and may ask again if they cannot run it twice; the next process has its end."""
    mode: TurnMode = "busy" if key is None else "queue"
    async with trio.open_nursery() as nursery:
        async with opened(tmp_path) as service:
            session_id = await new_session(service)
            started = ask(nursery, service.start_turn, session_id, "go", mode=mode, idempotency_key=key)
            await trio.sleep(20)
            waits = ask(nursery, service.wait_turn, session_id)
            await trio.sleep(1)
        own, other = await started.failure(AgentError), await waits.failure(AgentError)
        assert own.cause == other.cause == "shutting_down"
        assert own.message.endswith("goes on: turn/wait has its end, and so has the same key")
        assert (own.details["goes_on"], own.retryable, own.numbers.http) == (True, key is not None, 500)
        assert other.message.endswith("the turn has not ended: wait again")
        assert ("goes_on" in other.details, other.retryable, other.numbers.http) == (False, True, 503)
        assert own.session_id == session_id
        async with opened(tmp_path) as service:
            ended = await service.wait_turn(session_id)
            assert ended.text == "re: rested"
            if key is not None:
                assert await service.start_turn(session_id, "go", mode="queue", idempotency_key=key) == ended


async def test_a_turn_whose_step_is_refused(tmp_path: Path) -> None:
    """The error of the store is no end of a turn that is stored so far: its callers are told how to get that."""
    faults = Faults()
    async with opened(tmp_path, faults) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        started = ask(nursery, service.start_turn, session_id, "go")
        await trio.sleep(5)
        waits = ask(nursery, service.wait_turn, session_id)
        await trio.sleep(1)
        faults.refuse, faults.refuse_kinds = FULL, (Commit,)
        own, other = await started.failure(StoreError), await waits.failure(StoreError)
        assert own.cause == other.cause == "disk_full"
        assert (own.details["goes_on"], own.retryable) == (True, False)
        assert ("goes_on" in other.details, other.retryable) == (False, True)
        faults.refuse = None
        assert (await service.wait_turn(session_id)).text == "re: rested"
