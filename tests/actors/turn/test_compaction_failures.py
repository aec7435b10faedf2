"""A compaction that fails changes nothing but the account: the turn goes on, the next attempt keeps its distance."""

from collections.abc import Callable, Sequence
from pathlib import Path

import apsw
import attrs
import pytest
import trio

from tests.support.checks import assert_valid_transcript, names
from tests.support.compacting import (
    ANSWER,
    SUMMARY,
    FakeMemory,
    Model,
    about_compaction,
    assert_whole,
    at_the_end,
    compacting,
    settings,
    summaries,
    talk,
)
from tests.support.faulty_store import Faults
from tests.support.models import Answer, Emit, reply
from tests.support.runtime import Recorder, new_session, replay, transcript
from warren.actors.calls.service import Service
from warren.base.errors import BudgetExhaustedError, MemoryDisabledError, ProviderError, StoreError
from warren.base.windows import Window
from warren.compaction import CompactionConfig, CompactionContext, CompactionResult, DefaultCompactor
from warren.conversation.budget import Budget
from warren.conversation.events import (
    BudgetWarning,
    CompactionFailed,
    CompactionStarted,
    Retrying,
    RunCompleted,
    RunFailed,
)
from warren.conversation.messages import Message, UserMessage
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest
from warren.settings.config import Config, Limits, RetryPolicy
from warren.storage.operations import Commit

pytestmark = pytest.mark.virtual_time


def says(text: str) -> Answer:
    """Return a summary call that says this, whatever that is worth."""

    async def answer(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        return reply(text, usage=SUMMARY)

    return answer


def fails(error: Exception) -> Answer:
    """Return a summary call that raises."""

    async def answer(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        raise error

    return answer


FAILURES = {
    "provider_error": (fails(ProviderError("SECRET no", retryable=False)), Usage()),
    "empty_summary": (says(" \n"), SUMMARY),
    "not_smaller": (says("SECRET " * 1_000), SUMMARY),
}


@pytest.mark.parametrize("reason", FAILURES)
async def test_a_summary_that_cannot_be_had(store: Path | None, reason: str) -> None:
    """The turn goes on with the history as it was; the reason is told; what the call cost is booked."""
    call, cost = FAILURES[reason]
    model, recorder = Model(summary=call), Recorder()
    async with compacting(model, store) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 4)
        before = await service.read(session_id)
        result = await service.start_turn(session_id, "go on", on_event=recorder)
        assert names(recorder.envelopes)[1:4] == ["compaction_started", "compaction_failed", "turn_started"]
        assert [event.reason for event in recorder.only(CompactionFailed)] == [reason]
        assert result.usage == ANSWER + cost
        assert list(model.contexts[-1]) == (await transcript(service, session_id))[:-1]
        after = await service.read(session_id)
        assert after.billing.usage == before.billing.usage + ANSWER + cost
        assert after.state.compactions == 0


async def test_a_failed_attempt_arms_the_guard(store: Path | None) -> None:
    """A context that stays too large is tried again after the distance, not at every step, also after a restart."""
    model, recorder = Model(summary=says("")), Recorder()
    config = settings(min_turns_between_compactions=3)
    async with compacting(model, store, config=config) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 4)
        await talk(service, session_id, 7, on_event=recorder)
        assert len(recorder.only(CompactionStarted)) == len(model.compactions) == 3
    if store is not None:
        async with compacting(model, store, config=config) as service:
            await talk(service, session_id, 2)
            assert len(model.compactions) == 3
            await talk(service, session_id, 1)
            assert len(model.compactions) == 4


async def test_a_summary_call_is_retried(store: Path | None) -> None:
    """A provider that is overloaded once is asked again; the retry is told, the compaction succeeds."""
    script = [fails(ProviderError("overloaded", retryable=True)), says("SECRET at last")]

    async def twice(request: ModelRequest, emit: Emit) -> ModelReply:
        return await script.pop(0)(request, emit)

    recorder = Recorder()
    async with compacting(Model(summary=twice), store) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 5, on_event=recorder)
        assert len(recorder.only(Retrying)) == 1
        assert (await service.read(session_id)).state.compactions == 1
        assert_whole(recorder.envelopes)


async def test_a_summary_that_utf_8_cannot_hold(store: Path | None) -> None:
    """Half a character from a careless provider is replaced: neither the turn nor the compaction fails of it."""
    model = Model(summary=says("half \ud83d a beetle"))
    async with compacting(model, store) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 6)
        assert summaries(model.contexts[-1]) == ["half ? a beetle"]


@attrs.frozen
class Careless(DefaultCompactor):
    """A host's own policy with a bug: `how` says which."""

    how: str = ""

    def should_compact(self, context: CompactionContext) -> bool:
        if self.how == "cannot decide":
            raise KeyError("a bug")
        return super().should_compact(context)

    def compaction_prompt(self) -> str:
        if self.how == "has no prompt":
            raise KeyError("a bug")
        return super().compaction_prompt()

    def rebuild_history(self, messages: Sequence[Message], summary: str) -> CompactionResult:
        result = super().rebuild_history(messages, summary)
        if self.how == "raises":
            raise KeyError("a bug")
        if self.how == "returns nothing":
            return None  # type: ignore[return-value]
        return attrs.evolve(result, discarded=result.discarded[1:])


@pytest.mark.parametrize(
    ("how", "told", "asked"),
    [
        ("raises", 1, 1),
        ("loses a message", 1, 1),
        ("returns nothing", 1, 1),
        ("has no prompt", 1, 0),
        ("cannot decide", 5, 0),
    ],
)
async def test_a_policy_with_a_bug(store: Path | None, how: str, told: int, asked: int) -> None:
    """A host's compactor that breaks the rules or breaks is a failed compaction, not a failed turn."""
    model, recorder = Model(), Recorder()

    def careless(config: CompactionConfig, window: Window | None) -> DefaultCompactor:
        return Careless(config, window, how=how)

    async with compacting(model, store, config=attrs.evolve(settings(), compactor=careless)) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 5, on_event=recorder)
        assert [event.reason for event in recorder.only(CompactionFailed)] == ["invalid_result"] * told
        assert len(recorder.only(RunCompleted)) == 5
        assert (await service.read(session_id)).billing.usage.output_tokens == 5 * 10 + asked * 30


async def test_a_memory_that_refuses(store: Path | None) -> None:
    """A message that was not indexed is not discarded; when the memory is well again, all of it is."""
    model, recorder = Model(), Recorder()
    memory = FakeMemory(refusal=MemoryDisabledError("the memory is ill"))
    async with compacting(model, store, memory=memory) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 6, on_event=recorder)
        failed = recorder.only(CompactionFailed)
        assert [(event.error, event.reason) for event in failed] == [
            ("the memory is ill", "session_memory_disabled")
        ] * 2
        assert (len(model.contexts[-1]), memory.rows) == (11, {})
        assert (await service.read(session_id)).billing.usage.output_tokens == 6 * 10 + 2 * 30
        memory.refusal = None
        await talk(service, session_id, 1, on_event=recorder)
        history = await service.history(session_id)
        assert len(memory.rows) == history.compactions[0].head
        assert [memory.rows[entry.position] for entry in history.messages[: len(memory.rows)]] == [
            entry.message for entry in history.messages[: len(memory.rows)]
        ]
        assert_whole(recorder.envelopes)


STORE_FAULTS: dict[str, Callable[[Faults], None]] = {
    "full": lambda faults: _refuse(faults, apsw.FullError("no space left")),
    "locked": lambda faults: _refuse(faults, apsw.BusyError("database is locked")),
    "crash": lambda faults: setattr(faults, "crash_before", 1),
}


def _refuse(faults: Faults, error: Exception) -> None:
    faults.refuse, faults.refusals = error, 1


@pytest.mark.parametrize("fault", STORE_FAULTS)
async def test_a_store_that_refuses_the_new_head(tmp_path: Path, fault: str) -> None:
    """The context stays, the turn goes on and is stored whole; the next attempt moves the head."""
    faults, model, recorder, memory = Faults(), Model(), Recorder(), FakeMemory()
    async with compacting(model, tmp_path, faults=faults, memory=memory) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 4, on_event=recorder)
        STORE_FAULTS[fault](faults)
        await service.start_turn(session_id, "go on", on_event=recorder)
        assert [event.reason for event in recorder.only(CompactionFailed)] == ["session_store_error"]
        assert len(model.contexts[-1]) == 9
        assert (await service.read(session_id)).billing.usage.output_tokens == 5 * 10 + 30
        await service.start_turn(session_id, "go on", on_event=recorder)
        assert summaries(model.contexts[-1]) == ["SECRET summary"]
        await _check_after_a_restart(tmp_path, session_id, recorder, service)


async def _check_after_a_restart(folder: Path, session_id: str, recorder: Recorder, service: Service) -> None:
    """Fail where what is stored is not what was shown."""
    assert_whole(recorder.envelopes)
    log = await replay(service, session_id)
    assert [each for each in names(log) if each != "text_delta"] == [
        each for each in names(recorder.envelopes) if each != "text_delta"
    ]
    expected = await transcript(service, session_id)
    async with compacting(Model(), folder) as again:
        assert await transcript(again, session_id) == expected
        assert_valid_transcript(expected)
        assert (await again.read(session_id)).state.compactions == 1


async def test_a_store_that_crashes_behind_the_commit(tmp_path: Path) -> None:
    """A new head that was stored and not confirmed is looked up: the compaction counts, once."""
    faults, model, recorder = Faults(), Model(), Recorder()
    async with compacting(model, tmp_path, faults=faults) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 4, on_event=recorder)
        faults.crash_after = 1
        await service.start_turn(session_id, "go on", on_event=recorder)
        assert recorder.only(CompactionFailed) == []
        assert summaries(model.contexts[-1]) == ["SECRET summary"]
        await _check_after_a_restart(tmp_path, session_id, recorder, service)


@pytest.mark.parametrize("crash", [False, True])
async def test_a_store_that_fails_the_turn_after_its_compaction(tmp_path: Path, *, crash: bool) -> None:
    """The head has moved and stays; the turn ends as failed, once; what it had before the compaction is there."""
    faults, model, recorder = Faults(refuse_kinds=(Commit,)), Model(), Recorder()

    async def then_break(request: ModelRequest, _emit: Emit) -> ModelReply:
        if summaries(request.messages):
            faults.crash_before = int(crash)
            faults.refuse, faults.refusals = (None if crash else apsw.FullError("no space left")), 1
        return reply("word " * 200, usage=ANSWER)

    model.answer = then_break
    async with compacting(model, tmp_path, config=at_the_end(), faults=faults) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 4, on_event=recorder)
        with pytest.raises(StoreError):
            await service.start_turn(session_id, "lost", on_event=recorder)
        assert [event.cause for event in recorder.only(RunFailed)] == ["store_error"]
        assert (await transcript(service, session_id))[-1] == UserMessage("lost")
        faults.refuse, model.answer = None, Model().answer
        await service.start_turn(session_id, "go on", on_event=recorder)
        log = await replay(service, session_id)
        assert names(log).count("run_failed") == 1
        assert_whole(log)
        assert_whole(recorder.envelopes)
        assert_valid_transcript(model.contexts[-1])
        # A crash of the store costs the account of what came after the last commit.
        steps = 5 if crash else 6
        assert (await service.read(session_id)).billing.usage.output_tokens == steps * 10 + 30


@pytest.mark.parametrize("text", ["SECRET summary", " "])
async def test_a_budget_that_the_compaction_uses_up(store: Path | None, text: str) -> None:
    """Whether it succeeded or failed, the turn ends before its step, as out of budget, with what it has cost."""
    model, recorder = Model(summary=says(text)), Recorder()
    async with compacting(model, store) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 4)
        with pytest.raises(BudgetExhaustedError) as caught:
            await service.start_turn(session_id, "go on", budget=Budget(max_tokens=200), on_event=recorder)
        assert (caught.value.details["used"], caught.value.cause) == (SUMMARY.total_tokens, "tokens")
        end = "compaction_completed" if text.strip() else "compaction_failed"
        expected = ["run_started", "compaction_started", end, "budget_warning", "run_failed"]
        assert names(recorder.envelopes) == expected
        assert recorder.only(BudgetWarning)[0].used == SUMMARY.total_tokens
        assert len(model.contexts) == 4
        assert (await service.read(session_id)).billing.usage.output_tokens == 4 * 10 + 30
        assert (await transcript(service, session_id))[-1] == UserMessage("go on")


async def test_the_sessions_budget_pays_for_summaries(store: Path | None) -> None:
    """A budget over all turns is drawn from by compactions too, and holds over them."""
    model = Model()
    async with compacting(model, store) as service:
        session_id = await new_session(service, budget=Budget(max_tokens=4 * 30 + 230))
        await talk(service, session_id, 4)
        with pytest.raises(BudgetExhaustedError):
            await service.start_turn(session_id, "go on")
        with pytest.raises(BudgetExhaustedError):
            await service.start_turn(session_id, "go on")
        assert (len(model.contexts), len(model.compactions)) == (4, 1)


async def test_a_time_limit_during_the_summary(store: Path | None) -> None:
    """A turn whose time is over in the summary call ends as out of budget; the compaction has failed before that."""

    async def slow(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.sleep(60)
        return reply("SECRET late")

    model, recorder = Model(summary=slow), Recorder()
    config = settings(config=Config(limits=Limits(turn=Budget(max_seconds=10)), retry=RetryPolicy(max_attempts=1)))
    async with compacting(model, store, config=config) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 4)
        with pytest.raises(BudgetExhaustedError) as caught:
            await service.start_turn(session_id, "go on", on_event=recorder)
        assert caught.value.cause == "time"
        told = ["run_started", "compaction_started", "compaction_failed", "budget_warning", "run_failed"]
        assert names(recorder.envelopes) == told
        assert about_compaction(recorder.events)[-1] == CompactionFailed(
            "the turn ended before the compaction did", "cancelled"
        )
