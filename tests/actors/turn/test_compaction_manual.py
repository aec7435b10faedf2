"""Compaction by hand: what it answers, what it refuses, and that nobody takes it for a turn."""

from pathlib import Path

import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.checks import assert_valid_transcript, names
from tests.support.compacting import (
    SUMMARY,
    FakeMemory,
    Model,
    assert_whole,
    assert_whole_compactions,
    compacting,
    settings,
    summaries,
    talk,
)
from tests.support.faulty_store import Faults
from tests.support.models import Emit, reply
from tests.support.runtime import Recorder, new_session, replay, transcript
from warren.actors.calls.service import Service
from warren.base.errors import (
    AgentError,
    BudgetExhaustedError,
    CapacityExceededError,
    InvalidParamsError,
    ProviderError,
    SessionBusyError,
    SessionNotFoundError,
    StoreError,
    WarrenError,
)
from warren.compaction import PROMPT
from warren.conversation.budget import Budget
from warren.conversation.events import CompactionCompleted, CompactionFailed, CompactionStarted, Envelope, Event
from warren.conversation.messages import UserMessage
from warren.conversation.views import SessionView
from warren.models.model import ModelReply, ModelRequest
from warren.settings.config import Config, Limits

pytestmark = pytest.mark.virtual_time
BY_HAND = settings(100_000)


async def talked(model: Model, service: Service, turns: int = 4) -> str:
    """Return a session of so many turns, which the model was asked for and nothing else."""
    session_id = await new_session(service)
    await talk(service, session_id, turns)
    assert model.compactions == []
    return session_id


async def test_what_comes_of_it(store: Path | None) -> None:
    """The entry is the one in the history; the next turn sees the summary; the figures say what it has cost."""
    model = Model()
    async with compacting(model, store, config=BY_HAND) as service:
        session_id = await talked(model, service)
        before = await service.read(session_id)
        entry = await service.compact(session_id)
        page = await service.history(session_id)
        assert (page.compactions, page.total) == ((entry,), 8)
        assert (entry.summary, entry.summary_tokens) == ("SECRET summary", SUMMARY.output_tokens)
        assert (entry.step, entry.head, entry.messages_before, entry.messages_after) == (4, 6, 8, 3)
        after = await service.read(session_id)
        assert after.state.compactions == 1
        assert after.billing.usage == before.billing.usage + SUMMARY
        assert _unchanged(before) == _unchanged(after)
        await service.start_turn(session_id, "go on")
        assert summaries(model.contexts[-1]) == ["SECRET summary"]
    if store is not None:
        async with compacting(model, store, config=BY_HAND) as service:
            assert (await service.history(session_id)).compactions == (entry,)
            await service.start_turn(session_id, "go on")
            assert summaries(model.contexts[-1]) == ["SECRET summary"]


def _unchanged(view: SessionView) -> tuple[object, ...]:
    """Return what a compaction leaves as it was."""
    state = view.state
    return (state.message_count, state.last_assistant_text, state.is_active, state.lifecycle, state.labels)


async def test_instructions_reach_the_model(store: Path | None) -> None:
    """They follow the prompt, once; blank ones are none."""
    model = Model()
    async with compacting(model, store, config=BY_HAND) as service:
        session_id = await talked(model, service)
        await service.compact(session_id, instructions="keep the names")
        await talk(service, session_id, 2)
        await service.compact(session_id, instructions="  ")
    asked = [request.messages[-1] for request in model.compactions]
    assert asked == [UserMessage(f"{PROMPT}\n\nAdditional instructions:\nkeep the names"), UserMessage(PROMPT)]


async def test_what_watchers_see(store: Path | None) -> None:
    """The two events of a compaction and nothing of a turn; a replay has them between the turns."""
    model, live = Model(), list[Envelope]()
    async with compacting(model, store, config=BY_HAND) as service, trio.open_nursery() as nursery:
        session_id = await talked(model, service)

        async def follow() -> None:
            async with service.subscribe(session_id) as events:
                async for envelope in events:
                    live.append(envelope)

        nursery.start_soon(follow)
        await trio.testing.wait_all_tasks_blocked()
        await service.compact(session_id)
        await trio.testing.wait_all_tasks_blocked()
        assert [type(each.event) for each in live] == [CompactionStarted, CompactionCompleted]
        await service.start_turn(session_id, "go on")
        await trio.testing.wait_all_tasks_blocked()
        log = await replay(service, session_id)
        assert_whole(log)
        assert [each for each in log if each.seq >= live[0].seq] == live
        nursery.cancel_scope.cancel()


async def test_again_and_again_at_the_same_step(store: Path | None) -> None:
    """A second one without a turn between is one more move of the head, until there is nothing left to reduce."""
    model = Model()
    async with compacting(model, store, config=settings(100_000, recent_turn_budget=2)) as service:
        session_id = await talked(model, service)
        first = await service.compact(session_id)
        second = await service.compact(session_id)
        assert (first.step, second.step) == (4, 4)
        assert first.head < second.head
        assert (await service.history(session_id)).compactions == (first, second)
        assert (await service.read(session_id)).state.compactions == 2
    if store is not None:
        async with compacting(model, store, config=settings(100_000)) as service:
            assert (await service.history(session_id)).compactions == (first, second)
            await service.start_turn(session_id, "go on")
            assert len(model.contexts[-1]) == second.messages_after + 1


async def test_nothing_to_reduce(store: Path | None) -> None:
    """A session without messages, and one without anything old, say so; nothing has changed."""
    model = Model()
    async with compacting(model, store, config=BY_HAND) as service:
        session_id = await new_session(service)
        for _ in range(2):
            with pytest.raises(AgentError) as caught:
                await service.compact(session_id)
            assert (caught.value.cause, caught.value.details["reason"]) == ("compaction_failed", "nothing_to_reduce")
            assert caught.value.session_id == session_id
        assert (await service.read(session_id)).state.compactions == 0
        assert [type(each.event) for each in await replay(service, session_id)] == [
            CompactionStarted,
            CompactionFailed,
        ] * 2
        await service.start_turn(session_id, "hello")


async def test_a_failure_is_told_with_its_reason(store: Path | None) -> None:
    """The provider's error is in the message; the guard is armed for turns, not for another request by hand."""

    async def fail(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        raise ProviderError("no such model", retryable=False)

    model = Model(summary=fail)
    config = settings(1_000, min_turns_between_compactions=100)
    async with compacting(model, store, config=config) as service:
        session_id = await talked(model, service)
        for _ in range(2):
            with pytest.raises(AgentError, match="no such model") as caught:
                await service.compact(session_id)
            assert caught.value.details["reason"] == "provider_error"
        await talk(service, session_id, 3)
        assert len(model.compactions) == 2
        assert (await service.read(session_id)).state.compactions == 0


async def test_an_empty_summary_is_paid_for(store: Path | None) -> None:
    """The cost of the call is in the error and on the account."""

    async def say_nothing(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        return reply("", usage=SUMMARY)

    model = Model(summary=say_nothing)
    async with compacting(model, store, config=BY_HAND) as service:
        session_id = await talked(model, service)
        before = (await service.read(session_id)).billing.usage
        with pytest.raises(AgentError) as caught:
            await service.compact(session_id)
        assert caught.value.details["usage"]["output_tokens"] == SUMMARY.output_tokens
        assert (await service.read(session_id)).billing.usage == before + SUMMARY


async def waiting(model: Model) -> trio.Event:
    """Let the next compactions wait for the event."""
    gate = trio.Event()

    async def wait(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await gate.wait()
        return reply("SECRET summary", usage=SUMMARY)

    model.summary = model.answer = wait
    await trio.lowlevel.checkpoint()
    return gate


async def test_one_thing_at_a_time(store: Path | None) -> None:
    """Busy while a turn runs, and a turn is refused while it compacts; either counts as a running turn."""
    model = Model()
    async with compacting(model, store, config=BY_HAND) as service, trio.open_nursery() as nursery:
        session_id = await talked(model, service)
        gate = await waiting(model)
        turn = ask(nursery, service.start_turn, session_id, "go on")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(SessionBusyError):
            await service.compact(session_id)
        gate.set()
        await turn.value()
        gate = await waiting(model)
        compaction = ask(nursery, service.compact, session_id)
        await trio.testing.wait_all_tasks_blocked()
        assert (await service.read(session_id)).state.is_active
        assert service.health().running_turns == 1
        for refused in (service.compact(session_id), service.start_turn(session_id, "now")):
            with pytest.raises(SessionBusyError):
                await refused
        gate.set()
        await compaction.value()
        assert service.health().running_turns == 0
        await service.start_turn(session_id, "now")


async def test_no_capacity(store: Path | None) -> None:
    """It takes one of the runtime's turns, or is refused."""
    model = Model()
    config = settings(100_000, config=Config(limits=Limits(max_sessions=1)))
    async with compacting(model, store, config=config) as service, trio.open_nursery() as nursery:
        session_id, other = await talked(model, service), await new_session(service)
        gate = await waiting(model)
        compaction = ask(nursery, service.compact, session_id)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(CapacityExceededError):
            await service.compact(other)
        gate.set()
        await compaction.value()


async def test_an_interrupt(store: Path | None) -> None:
    """It ends as cancelled, with its end told; the history is as it was, and no turn is said to have failed."""
    model = Model()
    async with compacting(model, store, config=BY_HAND) as service, trio.open_nursery() as nursery:
        session_id = await talked(model, service)
        before = await transcript(service, session_id)
        summary, answer = model.summary, model.answer
        await waiting(model)
        compaction = ask(nursery, service.compact, session_id)
        await trio.testing.wait_all_tasks_blocked()
        await service.interrupt(session_id)
        assert (await compaction.failure(AgentError)).cause == "cancelled"
        log = await replay(service, session_id)
        assert_whole(log)
        assert names(log)[-2:] == ["compaction_started", "compaction_failed"]
        assert await transcript(service, session_id) == before
        model.summary, model.answer = summary, answer
        await service.start_turn(session_id, "go on")
        assert summaries(model.contexts[-1]) == []
        assert (await service.compact(session_id)).head > 0


async def test_a_caller_who_goes_away(store: Path | None) -> None:
    """The compaction runs on and counts."""
    model = Model()
    async with compacting(model, store, config=BY_HAND) as service:
        session_id = await talked(model, service)
        gate = await waiting(model)
        async with trio.open_nursery() as nursery:
            compaction = ask(nursery, service.compact, session_id)
            await trio.testing.wait_all_tasks_blocked()
            compaction.scope.cancel()
        gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (await service.read(session_id)).state.compactions == 1


async def test_an_archive_waits_for_it(tmp_path: Path) -> None:
    """The compaction is stored, then the session is retired; what is archived cannot be compacted."""
    model = Model()
    async with compacting(model, tmp_path, config=BY_HAND) as service, trio.open_nursery() as nursery:
        session_id = await talked(model, service)
        gate = await waiting(model)
        compaction = ask(nursery, service.compact, session_id)
        await trio.testing.wait_all_tasks_blocked()
        archived = ask(nursery, service.archive, session_id)
        await trio.testing.wait_all_tasks_blocked()
        gate.set()
        assert (await compaction.value()).head == 6
        await archived.ended.wait()
        assert (await service.read(session_id)).state.lifecycle == "archived"
        with pytest.raises(SessionNotFoundError) as caught:
            await service.compact(session_id)
        assert (caught.value.cause, caught.value.session_id) == ("archived", session_id)


async def test_what_there_is_not(store: Path | None) -> None:
    """An unknown session is not found; bad input names its field."""
    async with compacting(Model(), store, config=BY_HAND) as service:
        with pytest.raises(SessionNotFoundError):
            await service.compact("nobody")
        with pytest.raises(InvalidParamsError) as caught:
            await service.compact("nobody", instructions=3)  # type: ignore[arg-type]
        assert caught.value.path == "$.instructions"


async def test_a_budget_that_is_used_up(store: Path | None) -> None:
    """A session that may spend nothing more is not compacted either: no call, no events, the error of a turn."""
    model = Model()
    async with compacting(model, store, config=BY_HAND) as service:
        session_id = await new_session(service, budget=Budget(max_tokens=4 * 30))
        await talk(service, session_id, 4)
        log = await replay(service, session_id)
        with pytest.raises(BudgetExhaustedError) as caught:
            await service.compact(session_id)
        assert caught.value.cause == "tokens"
        assert (model.compactions, await replay(service, session_id)) == ([], log)


async def test_a_memory_that_refuses(store: Path | None) -> None:
    """Its error's code is the reason; nothing has changed."""
    model, memory = Model(), FakeMemory(refusal=StoreError("the memory is full"))
    async with compacting(model, store, config=BY_HAND, memory=memory) as service:
        session_id = await talked(model, service)
        with pytest.raises(AgentError, match="the memory is full") as caught:
            await service.compact(session_id)
        assert caught.value.details["reason"] == "session_store_error"
        memory.refusal = None
        entry = await service.compact(session_id)
        assert sorted(memory.rows) == list(range(entry.head))


STORE = {
    "before": lambda faults: setattr(faults, "crash_before", 1),
    "after": lambda faults: setattr(faults, "crash_after", 1),
}


@pytest.mark.parametrize("when", STORE)
async def test_a_store_that_crashes(tmp_path: Path, when: str) -> None:
    """Before the commit it has failed; behind it, it has succeeded: the caller is told what the store holds."""
    model, faults, outcome = Model(), Faults(), Recorder()
    async with compacting(model, tmp_path, config=BY_HAND, faults=faults) as service:
        session_id = await talked(model, service)
        STORE[when](faults)
        failed: WarrenError | None = None
        try:
            await service.compact(session_id)
        except WarrenError as exc:
            failed = exc
        assert (failed is None) is (when == "after")
        await service.start_turn(session_id, "go on", on_event=outcome)
        assert len(summaries(model.contexts[-1])) == int(when == "after")
        assert_whole(outcome.envelopes)
        log = await replay(service, session_id)
        assert_whole(log)
        assert len(_ends(log)) == 1


def _ends(log: list[Envelope]) -> list[Event]:
    assert_whole_compactions([each.event for each in log])
    return [each.event for each in log if isinstance(each.event, CompactionCompleted | CompactionFailed)]


async def test_one_commit(tmp_path: Path) -> None:
    """It is stored once, whole: a store that fails right behind it can take nothing back."""
    model, faults = Model(), Faults()
    async with compacting(model, tmp_path, config=BY_HAND, faults=faults) as service:
        session_id = await talked(model, service)
        faults.groups.clear()
        await service.compact(session_id)
        assert faults.groups == [1]
        log, billing = await replay(service, session_id), (await service.read(session_id)).billing
    async with compacting(model, tmp_path, config=BY_HAND) as service:
        assert await replay(service, session_id) == log
        assert (await service.read(session_id)).billing == billing
        assert_valid_transcript(await transcript(service, session_id))
