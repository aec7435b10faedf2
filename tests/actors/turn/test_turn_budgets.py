"""Budgets of a turn and of a session: when they warn, when they end a turn, and what is charged."""

import math
from pathlib import Path

import pytest
import trio

from tests.actors.turn.waiting_tool import CALL, check, wait
from tests.support.asking import ask
from tests.support.checks import assert_valid_stream, names
from tests.support.models import Emit, FunctionModel, GatedModel, reply, says, stuck
from tests.support.runtime import Recorder, new_session, open_runtime, transcript
from warren.base.errors import BudgetExhaustedError, ProviderError, WarrenError
from warren.compaction import CompactionConfig
from warren.conversation.budget import Budget
from warren.conversation.events import BudgetWarning, RunFailed, ToolExecutionStarted, TurnStarted
from warren.conversation.messages import (
    AssistantMessage,
    TextBlock,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
)
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, TextPiece
from warren.settings.config import Config, Limits

pytestmark = pytest.mark.virtual_time


async def test_the_step_limit() -> None:
    """A turn that uses up its steps fails with a typed error that has the text so far; its tools all have results."""
    recorder = Recorder()
    config = Config(limits=Limits(turn=Budget(max_steps=2)))
    model = says(reply("one", CALL), reply("two", ToolUseBlock("call-2", "wait", {"seconds": 1})))
    async with open_runtime(model, tools=[wait], config=config) as service:
        session_id = await new_session(service)
        with pytest.raises(BudgetExhaustedError) as caught:
            await service.start_turn(session_id, "hello", on_event=recorder)
        expected = {"budget_type": "steps", "used": 2, "limit": 2, "text": "two"}
        assert expected.items() <= caught.value.details.items()
        await check(service, session_id, recorder)
        assert isinstance(recorder.events[-1], RunFailed)
        assert recorder.events[-1].cause == "budget_exhausted"
        assert len(recorder.only(TurnStarted)) == 2


async def test_a_token_budget_warns_then_ends_the_turn() -> None:
    """At 80 % there is one warning, before the next step; past the limit the turn ends before its next step."""
    calls = [ToolUseBlock(f"call-{number}", "wait", {"seconds": 0}) for number in range(3)]
    model = says(*(reply("", call, usage=Usage(40, 5)) for call in calls))
    recorder = Recorder()
    async with open_runtime(model, tools=[wait]) as service:
        session_id = await new_session(service)
        with pytest.raises(BudgetExhaustedError):
            await service.start_turn(session_id, "hello", budget=Budget(max_tokens=100), on_event=recorder)
        assert recorder.only(BudgetWarning)[0] == BudgetWarning("tokens", 90, 100, 90.0)
        assert len(recorder.only(TurnStarted)) == 3
        await check(service, session_id, recorder)


async def test_a_turn_of_one_step_warns() -> None:
    """A step that crosses 80 % is told of before the terminal event, also if no other step follows."""
    recorder = Recorder()
    async with open_runtime(says(reply("done", usage=Usage(80, 5)))) as service:
        await service.create_session("hello", budget=Budget(max_tokens=100), on_event=recorder)
    assert recorder.only(BudgetWarning) == [BudgetWarning("tokens", 85, 100, 85.0)]
    assert names(recorder.envelopes)[-3:] == ["turn_completed", "budget_warning", "run_completed"]
    assert_valid_stream(recorder.envelopes)


async def test_a_failed_turn_warns() -> None:
    """A turn that fails in its last step says first how far it has used its budget."""
    model = says(reply("", CALL, usage=Usage(80, 5)), ProviderError("broken", retryable=False))
    recorder = Recorder()
    async with open_runtime(model, tools=[wait]) as service:
        session_id = await new_session(service)
        with pytest.raises(ProviderError):
            await service.start_turn(session_id, "hello", budget=Budget(max_seconds=1.2), on_event=recorder)
    assert names(recorder.envelopes)[-1] == "run_failed"
    assert [warning.budget_type for warning in recorder.only(BudgetWarning)] == ["time"]


@pytest.mark.parametrize(("own", "sent"), [(None, 500), (200, 200), (4_000, 500)])
async def test_an_answer_is_capped_by_what_a_budget_has_left(own: int | None, sent: int) -> None:
    """A step gets no more tokens than its cap, and than the budget has left after the input."""
    caps: list[int | None] = []

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        caps.append(request.answer_cap(4_096))
        return reply("done", usage=Usage(100, 400))

    async with open_runtime(FunctionModel(answer)) as service:
        session_id = await new_session(service, budget=Budget(max_tokens=1_000))
        await service.start_turn(session_id, "hello")
        await service.start_turn(session_id, "hello", max_tokens=own)
    first, second = caps
    assert first is not None
    assert second is not None
    assert 950 <= first < 1_000
    assert sent - 50 <= second <= sent


async def test_a_step_that_would_overshoot_is_cut() -> None:
    """The offline model takes the cap: a long answer ends where the budget does."""
    async with open_runtime() as service:
        result = await service.create_session("word " * 200, model="echo", budget=Budget(max_tokens=300))
    assert result.stop_reason == "max_tokens"
    assert 250 < result.usage.total_tokens <= 300


@pytest.mark.parametrize(("count", "shown"), [(4, "4"), (50_000, "more than 4096")])
async def test_too_many_calls_in_one_answer(store: Path | None, count: int, shown: str) -> None:
    """None of them runs, the model is told why, the turn goes on, and the history has as many as the bound."""
    calls = [ToolUseBlock(f"call-{number}", "wait", {"seconds": 0}) for number in range(count)]
    recorder = Recorder()
    config = Config(limits=Limits(max_answer_calls=3))
    model = says(reply("", *calls), reply("", CALL), reply("done"))
    async with open_runtime(model, store=store, tools=[wait], config=config) as service:
        session_id = await new_session(service)
        result = await service.start_turn(session_id, "hello", budget=Budget(max_tool_calls=1), on_event=recorder)
        assert (result.text, result.tool_calls) == ("done", 1)
        assert len(recorder.only(ToolExecutionStarted)) == 1
        messages = await transcript(service, session_id)
        refused = next(each for each in messages if isinstance(each, ToolResultsMessage)).results
        assert [each.tool_use_id for each in refused] == ["call-0", "call-1", "call-2"]
        assert all(each.is_error and f"has {shown} tool calls, and may have 3" in each.content for each in refused)
        await check(service, session_id, recorder)


@pytest.mark.parametrize("pieces", [100, 0])
async def test_an_answer_without_end(pieces: int) -> None:
    """A provider of the host is held against the bound of an answer, and the next turn finds nothing of it."""
    text = "x" * 100

    async def answer(request: ModelRequest, emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        if isinstance(request.messages[-1], UserMessage) and request.messages[-1].content == "go":
            return reply("done")
        for _ in range(pieces):
            emit(TextPiece(text))
        return reply(text * 100)

    async with open_runtime(FunctionModel(answer), config=Config(limits=Limits(max_answer=16_000))) as service:
        session_id = await new_session(service)
        with pytest.raises(ProviderError) as caught:
            await service.start_turn(session_id, "hello")
        assert (caught.value.cause, caught.value.retryable) == ("too_long", False)
        assert "1000 bytes, the bound of limits.max_answer" in caught.value.message
        assert (await service.start_turn(session_id, "go")).text == "done"
        assert (
            sum(len(each.text) for each in await transcript(service, session_id) if isinstance(each, AssistantMessage))
            < 2_000
        )


@pytest.mark.parametrize("aside", ["data", "summary"])
async def test_an_answer_aside_without_end(aside: str) -> None:
    """The bound of the settings holds for answers as data and for summaries, too."""

    async def answer(request: ModelRequest, emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        last = request.messages[-1]
        if isinstance(last, UserMessage) and last.content.startswith("word"):
            return reply("done")
        for _ in range(100):
            emit(TextPiece("x" * 100))
        return reply("{}")

    config = Config(limits=Limits(max_answer=16_000), compaction=CompactionConfig(recent_turn_budget=1))
    async with open_runtime(FunctionModel(answer), config=config) as service:
        session_id = await new_session(service)
        for _ in range(3):
            await service.start_turn(session_id, "word " * 200)
        call = (
            service.start_turn(session_id, "word", output_schema={"type": "object"})
            if aside == "data"
            else service.compact(session_id)
        )
        with pytest.raises(WarrenError, match=r"1000 bytes, the bound of limits\.max_answer"):
            await call


async def test_too_many_blocks() -> None:
    """An answer of more blocks than are kept fails its turn."""
    message = AssistantMessage((TextBlock("x"),) * 5_000)

    async def answer(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        return ModelReply(message, Usage(1, 1))

    async with open_runtime(FunctionModel(answer)) as service:
        with pytest.raises(ProviderError, match="more than 4096 blocks"):
            await service.create_session("hello")


async def test_a_tool_call_budget() -> None:
    """Calls past the budget get an error result; the turn ends before its next step."""
    calls = [ToolUseBlock(f"call-{number}", "wait", {"seconds": 0}) for number in range(3)]
    recorder = Recorder()
    async with open_runtime(says(reply("", *calls)), tools=[wait]) as service:
        session_id = await new_session(service)
        with pytest.raises(BudgetExhaustedError) as caught:
            await service.start_turn(session_id, "hello", budget=Budget(max_tool_calls=2), on_event=recorder)
        assert caught.value.cause == "tool_calls"
        results = (await transcript(service, session_id))[-1]
        assert isinstance(results, ToolResultsMessage)
        assert [result.is_error for result in results.results] == [False, False, True]


@pytest.mark.parametrize("tools", [True, False])
async def test_a_time_budget_ends_a_model_call_or_a_tool(tools: bool) -> None:  # noqa: FBT001
    """Time over in the middle of a step: the turn ends there and then, with what it has."""
    recorder = Recorder()
    call = ToolUseBlock("call-1", "wait", {"seconds": 60})
    model = says(reply("thinking", call)) if tools else FunctionModel(stuck)
    async with open_runtime(model, tools=[wait]) as service:
        session_id = await new_session(service)
        began = trio.current_time()
        with pytest.raises(BudgetExhaustedError) as caught:
            await service.start_turn(session_id, "hello", budget=Budget(max_seconds=2.5), on_event=recorder)
        assert trio.current_time() - began == pytest.approx(2.5)
        assert caught.value.details["text"] == ("thinking" if tools else "half an answer")
        assert caught.value.details["limit"] == 2.5
        await check(service, session_id, recorder)


async def test_a_sessions_budget_holds_over_its_turns() -> None:
    """The usage of earlier turns counts; a later turn is refused in its first step and still has its events."""
    recorder = Recorder()
    async with open_runtime(says(["one"], ["two"])) as service:
        session_id = await new_session(service, budget=Budget(max_tokens=10))
        await service.start_turn(session_id, "hello")
        await service.start_turn(session_id, "hello", on_event=recorder)
        assert recorder.only(BudgetWarning) == [BudgetWarning("tokens", 10, 10, 100.0)]
        with pytest.raises(BudgetExhaustedError):
            await service.start_turn(session_id, "hello", on_event=recorder)
        assert names(recorder.envelopes)[-3:] == ["run_started", "budget_warning", "run_failed"]
        await check(service, session_id, recorder)


async def test_the_time_of_a_failed_turn_is_booked() -> None:
    """A turn that fails after a long model call has used its session's time too."""

    async def slow_failure(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.sleep(30)
        raise ProviderError("the model broke", retryable=False)

    async with open_runtime(FunctionModel(slow_failure)) as service:
        session_id = await new_session(service, budget=Budget(max_seconds=40))
        with pytest.raises(ProviderError):
            await service.start_turn(session_id, "hello")
        began = trio.current_time()
        with pytest.raises(BudgetExhaustedError):
            await service.start_turn(session_id, "hello")
        assert trio.current_time() - began == pytest.approx(10)


async def test_idle_time_is_free() -> None:
    """Only the time of running turns is charged."""
    async with open_runtime(says(["one"], ["two"])) as service:
        session_id = await new_session(service, budget=Budget(max_seconds=5))
        await service.start_turn(session_id, "hello")
        await trio.sleep(3600)
        assert (await service.start_turn(session_id, "hello")).text == "two"


async def test_a_turn_that_waits_is_charged_what_it_waited() -> None:
    """The model's own waiting counts as running time: the session's budget is used up by it."""
    model = GatedModel()
    async with open_runtime(model) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service, budget=Budget(max_seconds=10))
        turn = ask(nursery, service.start_turn, session_id, "hello")
        await trio.sleep(8)
        model.gate.set()
        await turn.value()
        model.gate = trio.Event()
        again = ask(nursery, service.start_turn, session_id, "hello")
        assert (await again.failure(BudgetExhaustedError)).cause == "time"
        assert math.isclose(again.took, 2)
