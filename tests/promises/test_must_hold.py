"""The promises of a session, end to end, on a virtual clock: nobody waits for somebody else."""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import apsw
import pytest
import trio
import trio.testing

from tests.promises.world import nap
from tests.support.asking import Asked, ask
from tests.support.checks import assert_valid_stream, assert_valid_transcript, name
from tests.support.faulty_store import Faults
from tests.support.models import Emit, FunctionModel, GatedModel, reply, says
from tests.support.runtime import Recorder, new_session, open_runtime, replay, transcript
from warren.actors.calls.service import Service
from warren.base.errors import AgentError, ProviderError, SessionBusyError, StoreError
from warren.conversation.events import RunCompleted, RunFailed
from warren.conversation.messages import ToolUseBlock, UserMessage
from warren.conversation.views import TurnResult
from warren.models.model import ModelReply, ModelRequest, TextPiece
from warren.settings.config import Config, RetryPolicy

pytestmark = pytest.mark.virtual_time


async def play(request: ModelRequest, emit: Emit) -> ModelReply:
    """Answer by the first word of the last prompt: a slow stream, a slow tool, a retry, or at once."""
    last = request.messages[-1]
    word = last.content if isinstance(last, UserMessage) else ""
    emit(TextPiece("well, "))
    if word == "stream":
        for _ in range(600):
            await trio.sleep(0.1)
            emit(TextPiece("and "))
    if word == "tool":
        return reply("well, ", ToolUseBlock(f"call-{len(request.messages)}", "nap", {"seconds": 60}))
    if word == "retry":
        raise ProviderError("overloaded", retryable=True, retry_after=60)
    await trio.lowlevel.checkpoint()
    emit(TextPiece("yes"))
    return reply("well, yes")


PATIENT = Config(retry=RetryPolicy(max_retry_after=60))


@pytest.mark.parametrize("stored", [False, True])
async def test_one_of_a_thousand_wins_in_one_pass(tmp_path: Path, stored: bool) -> None:  # noqa: FBT001
    """Of 1,000 simultaneous turns one is admitted; 999 callers have their refusal after a pass of the scheduler."""
    model = GatedModel()
    async with open_runtime(model, store=tmp_path if stored else None) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        asks = [ask(nursery, service.start_turn, session_id, f"{number}") for number in range(1000)]
        # The order within a pass is random: by now some of the 1,000 have asked, after the second pass all of them
        # have, and after the third the 999 have come back from the one checkpoint that every call has.
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        refused = [asked for asked in asks if isinstance(asked.error, SessionBusyError)]
        assert len(refused) == 999
        model.gate.set()
        winners = [asked for asked in asks if asked not in refused]
        assert (await winners[0].value()).text == "done"
        assert model.entered == 1
        assert len(await transcript(service, session_id)) == 2


@pytest.mark.parametrize("where", ["stream", "tool", "retry"])
async def test_a_long_turn_ends_soon_after_an_interrupt(tmp_path: Path, where: str) -> None:
    """Wherever a 60 s turn is, it ends within 0.2 s; one terminal event; valid transcript; the next turn works."""
    recorder = Recorder()
    async with (
        open_runtime(FunctionModel(play), store=tmp_path, tools=[nap], config=PATIENT) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        for _ in range(2):
            turn = ask(nursery, service.start_turn, session_id, where, on_event=recorder)
            await trio.sleep(30)
            with trio.fail_after(0.2):
                await service.interrupt(session_id)
                assert (await turn.failure(AgentError)).cause == "cancelled"
            assert_valid_transcript(await transcript(service, session_id))
            assert (await service.start_turn(session_id, "go on", on_event=recorder)).text == "well, yes"
        assert_valid_stream(recorder.envelopes)
        assert [event.cause for event in recorder.only(RunFailed)] == ["cancelled"] * 2
        assert len(recorder.only(RunCompleted)) == 2


async def measure(service: Service, slow: str) -> list[Asked[object]]:
    """Ask for 100 things besides a slow session; return what became of each."""
    asks: list[Asked[object]] = []
    async with trio.open_nursery() as nursery:
        for number in range(100):
            calls: list[Callable[[], Awaitable[object]]] = [
                partial(service.read, slow),
                service.list,
                partial(service.create_session, f"hello {number}"),
                partial(service.history, slow),
                partial(service.create_session, None),
            ]
            asks.append(ask(nursery, calls[number % len(calls)]))
    return asks


@pytest.mark.parametrize("stored", [False, True])
async def test_nobody_waits_for_a_slow_session(tmp_path: Path, stored: bool) -> None:  # noqa: FBT001
    """Beside a turn that streams for a minute, 100 reads, lists and creates take no time at all."""
    async with (
        open_runtime(FunctionModel(play), store=tmp_path if stored else None, tools=[nap]) as service,
        trio.open_nursery() as nursery,
    ):
        slow = await new_session(service)
        turn = ask(nursery, service.start_turn, slow, "stream")
        await trio.sleep(5)
        asks = await measure(service, slow)
        assert [asked.error for asked in asks] == [None] * 100
        assert max(asked.took for asked in asks) < 0.001
        assert not turn.ended.is_set()
        await service.interrupt(slow)


async def test_a_hundred_slow_turns_take_as_long_as_one(tmp_path: Path) -> None:
    """Turns of different sessions do not wait for each other."""
    async with open_runtime(FunctionModel(play), store=tmp_path, tools=[nap]) as service:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            turns = [ask(nursery, service.create_session, "tool") for _ in range(100)]
        assert trio.current_time() - began == pytest.approx(60, abs=0.01)
        assert {(await turn.value()).text for turn in turns} == {"well, yes"}


async def test_a_read_during_a_turn_shows_the_last_finished_one(tmp_path: Path) -> None:
    """It answers at once, says that a turn runs, and shows nothing half done."""
    async with open_runtime(FunctionModel(play), store=tmp_path) as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session("hello")).session_id
        before = await service.read(session_id)
        turn = ask(nursery, service.start_turn, session_id, "stream")
        await trio.sleep(5)
        during = await service.read(session_id)
        assert during.state.is_active
        assert not before.state.is_active
        assert during.state.message_count == before.state.message_count == len(await transcript(service, session_id))
        assert during.billing == before.billing
        await service.interrupt(session_id)
        await turn.failure(AgentError)
        after = await service.read(session_id)
        assert (after.state.message_count, after.state.is_active) == (4, False)


async def test_a_caller_who_goes_away_loses_only_the_answer(tmp_path: Path) -> None:
    """The turn runs on, is stored, and can be read; its callback goes on too."""
    model, recorder = GatedModel(), Recorder()
    async with open_runtime(model, store=tmp_path) as service:
        session_id = await new_session(service)
        async with trio.open_nursery() as nursery:
            turn = ask(nursery, service.start_turn, session_id, "hello", on_event=recorder)
            await trio.testing.wait_all_tasks_blocked()
            turn.scope.cancel()
        assert (turn.result, turn.error) == (None, None)
        assert (await service.read(session_id)).state.is_active
        model.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (await service.read(session_id)).state.last_assistant_text == "done"
        assert isinstance(recorder.events[-1], RunCompleted)
    async with open_runtime(model, store=tmp_path) as service:
        assert len(await transcript(service, session_id)) == 2


FAULTS = {
    "full": apsw.FullError("no space left"),
    "locked": apsw.BusyError("database is locked"),
    "corrupt": apsw.CorruptError("malformed"),
    "io": apsw.IOError("disk I/O error"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_store_that_fails(tmp_path: Path, fault: str) -> None:
    """The turn's caller gets the text; nothing is half written; session and neighbours go on when the store can."""
    faults, recorder = Faults(), Recorder()
    async with open_runtime(FunctionModel(play), store=tmp_path, faults=faults) as service:
        session_id, other = await new_session(service), await new_session(service)
        await service.start_turn(session_id, "first", on_event=recorder)
        before, log = await transcript(service, session_id), await replay(service, session_id)
        faults.refuse = FAULTS[fault]
        with pytest.raises(StoreError) as caught:
            await service.start_turn(session_id, "second", on_event=recorder)
        assert caught.value.session_id == session_id
        assert caught.value.details["text"] == "well, yes"
        assert isinstance(recorder.events[-1], RunFailed)
        assert recorder.events[-1].cause == "store_error"
        assert service.health().status == "degraded"
        assert await transcript(service, session_id) == before
        assert (await service.read(other)).state.message_count == 0
        faults.refuse = None
        assert (await service.start_turn(other, "hello")).text == "well, yes"
        assert (await service.start_turn(session_id, "third", on_event=recorder)).text == "well, yes"
        assert service.health().status == "ok"
        prompts = [each.content for each in await transcript(service, session_id) if isinstance(each, UserMessage)]
        assert prompts == ["first", "third"]
        assert (await replay(service, session_id))[: len(log)] == log
        assert_valid_stream(recorder.envelopes)


async def test_a_session_that_cannot_be_saved_does_not_exist(tmp_path: Path) -> None:
    """Creation fails with the store's error, no turn runs, nothing is listed."""
    faults, model = Faults(refuse=apsw.FullError("no space left")), GatedModel()
    model.gate.set()
    async with open_runtime(model, store=tmp_path, faults=faults) as service:
        for prompt in ("hello", None):
            with pytest.raises(StoreError):
                await service.create_session(prompt)
        assert model.entered == 0
        assert (await service.list(include_archived=True)).sessions == ()
        assert (service.health().live_sessions, service.health().running_turns) == (0, 0)


async def test_a_failed_first_turn_names_its_session(tmp_path: Path) -> None:
    """The id is in the error, and the session can be gone on with."""
    async with open_runtime(says(ProviderError("no"), ["fine"]), store=tmp_path) as service:
        with pytest.raises(ProviderError) as caught:
            await service.create_session("hello")
        session_id = caught.value.session_id
        assert session_id is not None
        assert caught.value.body()["session_id"] == session_id
        assert (await service.start_turn(session_id, "again")).text == "fine"


async def test_a_restart_on_the_same_file(tmp_path: Path) -> None:
    """Content, figures and labels are as they were; numbers go on rising; the log has everything."""
    recorder = Recorder()
    async with open_runtime(FunctionModel(play), store=tmp_path) as service:
        options = {"system_prompt": "be brief", "labels": {"a": "b"}}
        session_id = await new_session(service, **options)
        await service.start_turn(session_id, "one", on_event=recorder)
        before, messages = await service.read(session_id), await transcript(service, session_id)
    for _ in range(2):
        async with open_runtime(FunctionModel(play), store=tmp_path) as service:
            after = await service.read(session_id)
            assert after.state.lifecycle == "stored"
            assert (after.billing, after.state.labels) == (before.billing, {"a": "b"})
            assert (after.state.created_at, after.state.updated_at) == (
                before.state.created_at,
                before.state.updated_at,
            )
            assert await transcript(service, session_id) == messages
            await service.start_turn(session_id, "more", on_event=recorder)
            before, messages = await service.read(session_id), await transcript(service, session_id)
            assert "".join(map(name, recorder.events)).count("run_started") == before.state.message_count // 2
            assert_valid_stream(recorder.envelopes)
            assert_valid_stream(await replay(service, session_id))


async def test_a_turn_costs_the_loop_little() -> None:
    """Two hundred refused callers do not make a turn noticeably slower for the one who runs."""
    model = GatedModel()
    async with open_runtime(model) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        winner: Asked[TurnResult] = ask(nursery, service.start_turn, session_id, "hello")
        await trio.testing.wait_all_tasks_blocked()
        began = time.perf_counter()
        for _ in range(200):
            with pytest.raises(SessionBusyError):
                await service.start_turn(session_id, "hello")
        assert time.perf_counter() - began < 5
        model.gate.set()
        await winner.value()
