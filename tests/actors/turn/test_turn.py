"""The events of a turn and its messages in the transcript, for each way it can end."""

from typing import Any

import pytest
import trio

from tests.actors.turn.waiting_tool import CALL, check, wait
from tests.support.asking import ask
from tests.support.checks import assert_valid_transcript, names
from tests.support.models import Emit, FunctionModel, reply, says, stuck
from tests.support.runtime import Recorder, new_session, open_runtime, replay, transcript
from warren.base.errors import AgentError, ProviderError
from warren.conversation import codec
from warren.conversation.events import (
    InputTaken,
    Retrying,
    RunCompleted,
    RunFailed,
    RunStarted,
    TextComplete,
    TextDelta,
    ToolExecutionStarted,
    TurnStarted,
)
from warren.conversation.messages import (
    AssistantMessage,
    ReasoningBlock,
    SystemMessage,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
)
from warren.conversation.usage import Usage
from warren.conversation.views import TurnResult
from warren.models.model import ModelReply, ModelRequest, Provider, ReasoningPiece, TextPiece
from warren.models.tools import Tool, tool
from warren.settings.config import Config, RetryPolicy

pytestmark = pytest.mark.virtual_time
QUICK = Config(retry=RetryPolicy(max_attempts=2, initial_delay=1, jitter=0))
NONE: Any = None


async def one_turn(
    model: Provider, *, prompt: str = "hello", tools: tuple[Tool, ...] = (wait,), **options: object
) -> tuple[TurnResult, Recorder]:
    """Run one turn that ends well in a runtime of its own."""
    recorder = Recorder()
    async with open_runtime(model, tools=tools, config=QUICK) as service:
        result = await service.create_session(prompt, on_event=recorder, **options)  # type: ignore[arg-type]
        await check(service, result.session_id, recorder)
    return result, recorder


async def test_a_plain_turn() -> None:
    """One step: started, streamed, complete, ended; then the turn's end."""
    result, recorder = await one_turn(says(["Hel", "lo"]))
    assert names(recorder.envelopes) == [
        "run_started",
        "turn_started",
        "text_delta",
        "text_delta",
        "text_complete",
        "turn_completed",
        "run_completed",
    ]
    assert recorder.events[-1] == RunCompleted(result.session_id, "Hello", Usage(3, 2))
    assert result == TurnResult(result.session_id, "Hello", 1, 0, Usage(3, 2), "end_turn", first_seq=1, last_seq=7)


async def test_an_error_carries_a_bounded_text() -> None:
    """The text before a failure is cut in the error, which tells how long it was; the transcript has all of it."""
    said = "x" * 300_000

    async def broken(_request: ModelRequest, emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        emit(TextPiece(said))
        raise ProviderError("broke off", retryable=False)

    async with open_runtime(FunctionModel(broken)) as service:
        session_id = await new_session(service)
        with pytest.raises(ProviderError) as caught:
            await service.start_turn(session_id, "hello")
        assert caught.value.details["text"] == said[:262_144]
        assert caught.value.details["text_length"] == 300_000
        kept = (await transcript(service, session_id))[-1]
        assert isinstance(kept, AssistantMessage)
        assert kept.text == said


async def test_an_answer_without_text_has_no_text_complete() -> None:
    """If a stop sequence ends an answer before its first word, nothing is said to be complete."""
    result, recorder = await one_turn(says(ModelReply(AssistantMessage((), "stop_sequence"), Usage())))
    assert names(recorder.envelopes) == ["run_started", "turn_started", "turn_completed", "run_completed"]
    assert result.text == ""


async def test_reasoning_is_streamed_and_kept() -> None:
    """Reasoning reaches the watchers before the text, and the transcript as it was."""

    async def think(_request: ModelRequest, emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        emit(ReasoningPiece("hm"))
        emit(TextPiece("yes"))
        blocks = ReasoningBlock("hm", {"signature": "s"}), TextBlock("yes")
        return ModelReply(AssistantMessage(blocks), Usage(1, 1))

    _, recorder = await one_turn(FunctionModel(think))
    assert names(recorder.envelopes)[2:4] == ["reasoning_delta", "text_delta"]


async def test_a_turn_with_tools() -> None:
    """Two steps: the text comes before the tools, every step is completed, the step counter rises."""
    result, recorder = await one_turn(says(reply("let me see", CALL), reply("done")))
    assert names(recorder.envelopes) == [
        "run_started",
        "turn_started",
        "text_delta",
        "text_complete",
        "tool_call_requested",
        "tool_execution_started",
        "tool_execution_completed",
        "tool_result_received",
        "turn_completed",
        "turn_started",
        "text_delta",
        "text_complete",
        "turn_completed",
        "run_completed",
    ]
    assert [event.turn_number for event in recorder.only(TurnStarted)] == [0, 1]
    assert (result.steps, result.tool_calls, result.usage) == (2, 1, Usage(6, 4))


async def test_the_transcript_of_a_turn_with_tools() -> None:
    """System message, prompt, call, result, answer: in this order, as the model saw them."""
    seen: list[list[object]] = []
    script = [reply("", CALL), reply("done")]

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        seen.append(list(request.messages))
        return script.pop(0)

    async with open_runtime(FunctionModel(answer), tools=[wait]) as service:
        result = await service.create_session("hello", system_prompt="be brief")
        whole = await transcript(service, result.session_id)
    assert whole == [
        SystemMessage("be brief"),
        UserMessage("hello"),
        AssistantMessage((CALL,), "tool_use"),
        ToolResultsMessage((ToolResult("call-1", "rested"),)),
        AssistantMessage((TextBlock("done"),)),
    ]
    assert seen == [whole[:2], whole[:4]]


async def test_a_retried_turn() -> None:
    """A retry is announced between the pieces of its two attempts, and ends like any other."""
    _, recorder = await one_turn(says(ProviderError("overloaded", retryable=True), ["hi"]))
    assert names(recorder.envelopes) == [
        "run_started",
        "turn_started",
        "retrying",
        "text_delta",
        "text_complete",
        "turn_completed",
        "run_completed",
    ]
    assert recorder.only(Retrying) == [Retrying(2, 2, "overloaded", 1000)]


async def test_a_failed_turn_keeps_what_was_said() -> None:
    """A final provider error ends the turn with one terminal event; the session goes on."""

    async def break_off(_request: ModelRequest, emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        emit(TextPiece("I was about"))
        raise ProviderError("the connection broke", cause="connection", retryable=False)

    recorder, models = Recorder(), {"broken": FunctionModel(break_off)}
    async with open_runtime(says(["fine"]), models=models) as service:
        with pytest.raises(ProviderError, match="the connection broke") as caught:
            await service.create_session("hello", model="broken", on_event=recorder)
        session_id = caught.value.session_id
        assert session_id is not None
        await check(service, session_id, recorder)
        assert names(recorder.envelopes) == ["run_started", "turn_started", "text_delta", "run_failed"]
        assert recorder.events[-1] == RunFailed(session_id, "the connection broke", "provider_error")
        assert (await service.start_turn(session_id, "and now?", model="test")).text == "fine"
        assert (await transcript(service, session_id))[1] == AssistantMessage((TextBlock("I was about"),), "cancelled")


@pytest.mark.parametrize(("levels", "kept"), [(85, True), (96, False)])
async def test_arguments_that_nest_deep(levels: int, *, kept: bool) -> None:
    """Whoever reads the history can parse it: arguments that leave no room for the replies around them are refused."""

    async def deep(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        value: Any = 1
        for _ in range(levels):
            value = [value]
        asked = request.messages[-1] == UserMessage("deep")
        return reply("", ToolUseBlock("c1", "wait", {"seconds": value})) if asked else reply("fine")

    async with open_runtime(FunctionModel(deep), tools=(wait,)) as service:
        session_id = await new_session(service)
        if kept:
            assert (await service.start_turn(session_id, "deep")).text == "fine"
        else:
            with pytest.raises(ProviderError, match="nests deeper than 90 levels"):
                await service.start_turn(session_id, "deep")
        assert (await service.start_turn(session_id, "plain")).text == "fine"
        for shown in (await service.history(session_id), await replay(service, session_id)):
            assert codec.parse(codec.encode({"result": shown}))


async def test_an_answer_that_cannot_be_kept_is_charged_once() -> None:
    """Its tokens are those that the provider told: no estimate of its text is added."""

    async def odd(_request: ModelRequest, emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        emit(TextPiece("see"))
        call = ToolUseBlock("c1", "wait", {"seconds": object()})
        return reply("see", call, usage=Usage(7, 5))

    recorder = Recorder()
    async with open_runtime(FunctionModel(odd)) as service:
        session_id = await new_session(service)
        with pytest.raises(ProviderError, match="cannot be kept"):
            await service.start_turn(session_id, "hello", on_event=recorder)
        usage = (await service.read(session_id)).billing.usage
        assert (usage.input_tokens, usage.output_tokens, usage.estimated) == (7, 5, False)


async def test_an_interrupted_answer() -> None:
    """The stream ends with the cause, the partial text is kept as cancelled, the caller gets AGENT_ERROR."""
    recorder = Recorder()
    async with open_runtime(FunctionModel(stuck)) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "hello", on_event=recorder)
        await trio.sleep(1)
        await service.interrupt(session_id)
        error = await turn.failure(AgentError)
        assert (error.cause, error.numbers.http, error.session_id) == ("cancelled", 409, session_id)
        await check(service, session_id, recorder)
        assert names(recorder.envelopes)[2:] == ["text_delta", "text_delta", "run_failed"]
        assert (await transcript(service, session_id))[-1] == AssistantMessage(
            (TextBlock("half an answer"),), "cancelled"
        )


async def test_an_interrupted_tool() -> None:
    """A started tool is reported as an error, its call gets a result, the turn fails as cancelled."""
    recorder, calls = Recorder(), (CALL, ToolUseBlock("call-2", "wait", {"seconds": 60}))
    async with open_runtime(says(reply("", *calls)), tools=[wait]) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "hello", on_event=recorder)
        await trio.sleep(2)
        await service.interrupt(session_id)
        await turn.failure(AgentError)
        await check(service, session_id, recorder)
        assert names(recorder.envelopes)[-3:] == ["tool_execution_completed", "tool_result_received", "run_failed"]
        assert (await transcript(service, session_id))[-1] == ToolResultsMessage(
            (ToolResult("call-1", "rested"), ToolResult("call-2", "cancelled before it ended", is_error=True))
        )


async def test_an_interrupt_during_a_retry_keeps_what_was_shown() -> None:
    """The text that subscribers saw of the failed attempt stays in the transcript."""

    async def flaky(_request: ModelRequest, emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        emit(TextPiece("some words"))
        raise ProviderError("overloaded", retryable=True, retry_after=50)

    recorder = Recorder()
    async with open_runtime(FunctionModel(flaky)) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "hello", on_event=recorder)
        await trio.sleep(10)
        await service.interrupt(session_id)
        await turn.failure(AgentError)
        assert turn.took == pytest.approx(10)
        await check(service, session_id, recorder)
        assert (await transcript(service, session_id))[-1] == AssistantMessage((TextBlock("some words"),), "cancelled")


@pytest.mark.parametrize("where", ["model", "tool"])
async def test_clean_up_that_fails_does_not_hide_an_interrupt(where: str) -> None:
    """A model or tool whose nursery raises while it is cancelled is cancelled all the same; the session lives."""

    async def messy() -> None:
        async def worker() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise RuntimeError("clean-up failed")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker)
            nursery.start_soon(trio.sleep_forever)

    async def model(_request: ModelRequest, _emit: Emit) -> ModelReply:
        if where == "model":
            await messy()
        return reply("", ToolUseBlock("call-1", "mess"))

    @tool
    async def mess() -> None:
        """Raise while being cancelled."""
        await messy()

    recorder = Recorder()
    async with open_runtime(FunctionModel(model), tools=[mess]) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "hello", on_event=recorder)
        await trio.sleep(1)
        await service.interrupt(session_id)
        assert (await turn.failure(AgentError)).cause == "cancelled"
        await check(service, session_id, recorder)
        assert service.health().running_turns == 0


async def test_a_model_that_sends_broken_text_fails_its_turn_only() -> None:
    """A provider whose text UTF-8 cannot hold is the provider's bug: a provider error, and the session goes on."""

    async def broken(_request: ModelRequest, emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        emit(TextPiece("so \ud800"))
        return reply("so \ud800")

    models = {"broken": FunctionModel(broken)}
    async with open_runtime(says(["fine"]), models=models) as service:
        session_id = await new_session(service)
        with pytest.raises(ProviderError):
            await service.start_turn(session_id, "hello", model="broken")
        assert (await service.start_turn(session_id, "hello")).text == "fine"
        assert_valid_transcript(await transcript(service, session_id))


@pytest.mark.parametrize("arguments", [{"x": object()}, {"x": "\ud800"}])
async def test_a_model_that_sends_arguments_without_json_fails_its_turn_only(arguments: dict[str, object]) -> None:
    """Arguments that are no JSON cannot be stored: a provider error, and the session goes on."""
    model = says(reply("", ToolUseBlock("call-1", "wait", arguments)), ["fine"])
    async with open_runtime(model, tools=[wait]) as service:
        session_id = await new_session(service)
        with pytest.raises(ProviderError):
            await service.start_turn(session_id, "hello")
        assert (await service.start_turn(session_id, "hello")).text == "fine"
        assert_valid_transcript(await transcript(service, session_id))


async def test_a_turns_options_hold_for_it_alone() -> None:
    """Model, cap and budget of one turn are not the next one's."""
    seen: list[tuple[str, int | None]] = []

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        seen.append((request.model, request.options.max_tokens))
        return reply("ok")

    model = FunctionModel(answer)
    async with open_runtime(model, models={"other": model}) as service:
        session_id = await new_session(service, max_tokens=50)
        await service.start_turn(session_id, "a", model="other", max_tokens=7)
        await service.start_turn(session_id, "b")
    assert seen == [("other", 7), ("test", 50)]


async def test_a_callback_that_raises_harms_nobody() -> None:
    """The host's bug is logged and dropped: the turn ends well, the next one calls back again."""
    seen: list[str] = []

    def callback(envelope: object) -> None:
        seen.append(type(envelope).__name__)
        raise RuntimeError("bug of the host")

    async with open_runtime(says(["hi"], ["ho"])) as service:
        result = await service.create_session("hello", on_event=callback)
        assert result.text == "hi"
        assert seen
        seen.clear()
        assert (await service.start_turn(result.session_id, "hello", on_event=callback)).text == "ho"
        assert seen


async def test_a_result_says_from_and_to_which_event_its_turn_reaches() -> None:
    """So do the error of a failed turn, and the results of all whose prompts one turn has taken."""
    heard, steered = Recorder(), Recorder()
    model = says(["one"], ProviderError("no"), reply("", CALL), reply("three"), ["four"])
    async with open_runtime(model, tools=[wait]) as service:
        first = await service.create_session("hello")
        session_id = first.session_id
        with pytest.raises(ProviderError) as failed:
            await service.start_turn(session_id, "fail")
        async with trio.open_nursery() as nursery:
            third = ask(nursery, service.start_turn, session_id, "hello", on_event=heard)
            while not heard.only(ToolExecutionStarted):
                await trio.lowlevel.checkpoint()
            with_it = ask(nursery, service.start_turn, session_id, "faster", mode="steer", on_event=steered)
            behind = ask(nursery, service.start_turn, session_id, "again", mode="queue")
        log = await replay(service, session_id)
    assert third.result is not None
    assert with_it.result is not None
    assert behind.result is not None
    reached = [
        (first.first_seq, first.last_seq),
        (failed.value.details["first_seq"], failed.value.details["last_seq"]),
        (third.result.first_seq, third.result.last_seq),
        (behind.result.first_seq, behind.result.last_seq),
    ]
    starts = [each.seq for each in log if isinstance(each.event, RunStarted)]
    ends = [each.seq for each in log if isinstance(each.event, RunCompleted | RunFailed)]
    assert reached == list(zip(starts, ends, strict=True))
    assert (with_it.result.first_seq, with_it.result.last_seq) == reached[2]
    assert [heard.envelopes[0].seq, heard.envelopes[-1].seq] == list(reached[2])
    assert isinstance(steered.events[0], InputTaken)
    assert steered.envelopes == [each for each in heard.envelopes if each.seq >= steered.envelopes[0].seq]


async def test_the_callback_of_a_caller_that_was_cancelled_hears_the_rest() -> None:
    """The turn runs on, and so does its callback, to the turn's last event."""
    recorder = Recorder()
    async with open_runtime(says(reply("", CALL), reply("done")), tools=[wait]) as service:
        session_id = await new_session(service)
        async with trio.open_nursery() as nursery:
            turn = ask(nursery, service.start_turn, session_id, "hello", on_event=recorder)
            while not recorder.only(ToolExecutionStarted):
                await trio.lowlevel.checkpoint()
            turn.scope.cancel()
            await turn.ended.wait()
            heard = len(recorder.envelopes)
        await trio.sleep(60)
        assert len(recorder.envelopes) > heard
        assert recorder.envelopes == await replay(service, session_id)


async def test_the_reply_comes_after_the_last_event() -> None:
    """When the caller has its answer, its callback has had the terminal event."""
    recorder = Recorder()
    async with open_runtime(says(["hi"])) as service:
        await service.create_session("hello", on_event=recorder)
        assert isinstance(recorder.events[-1], RunCompleted)


async def test_the_step_counter_never_starts_over() -> None:
    """Steps are numbered over the session's turns, also those of failed ones."""
    recorder = Recorder()
    model = says(reply("", CALL), reply("a"), ProviderError("no"), reply("b"))
    async with open_runtime(model, tools=[wait]) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "hello", on_event=recorder)
        with pytest.raises(ProviderError):
            await service.start_turn(session_id, "hello", on_event=recorder)
        await service.start_turn(session_id, "hello", on_event=recorder)
    assert [event.turn_number for event in recorder.only(TurnStarted)] == [0, 1, 2, 3]


async def test_only_the_sessions_own_tools_are_offered() -> None:
    """A session that names tools gets those; one's own tools are not the others'."""
    offered: list[list[str]] = []

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        offered.append([spec.name for spec in request.tools])
        return reply("ok")

    @tool
    async def own() -> None:
        """Do nothing."""
        await trio.lowlevel.checkpoint()

    async with open_runtime(FunctionModel(answer), tools=[wait]) as service:
        await service.create_session("a", tools=[own])
        await service.create_session("b", tools=[])
        await service.create_session("c")
    assert offered == [["own"], [], ["wait"]]


async def test_text_deltas_join_to_the_complete_text() -> None:
    """The streamed pieces are the complete answer."""
    pieces = ["a", " b", "  c", "\n"]
    _, recorder = await one_turn(says(pieces))
    assert "".join(event.delta for event in recorder.only(TextDelta)) == "".join(pieces)
    assert recorder.only(TextComplete) == [TextComplete("".join(pieces))]


@pytest.mark.parametrize(
    "usage", [{"input_tokens": 1, "output_tokens": 1}, None, Usage(NONE, 3), Usage(1, 3, NONE, NONE)], ids=repr
)
async def test_odd_token_counts_end_the_turn_alone(usage: Any) -> None:
    """The usage that a provider reports may be anything: its turn fails, its session goes on, others do not notice."""
    script = says(["zero"], reply("one", usage=usage), ["two"])

    async def answer(request: ModelRequest, emit: Emit) -> ModelReply:
        return await (stuck if request.messages[-1] == UserMessage("wait") else script.answer)(request, emit)

    async with open_runtime(FunctionModel(answer)) as service, trio.open_nursery() as nursery:
        other, session_id = await new_session(service), (await service.create_session("hello")).session_id
        running = ask(nursery, service.start_turn, other, "wait")
        await trio.sleep(1)
        with pytest.raises(AgentError, match="the turn crashed") as caught:
            await service.start_turn(session_id, "hello")
        assert caught.value.cause == "crash"
        assert (await service.start_turn(session_id, "hello")).text == "two"
        assert not running.ended.is_set()
        nursery.cancel_scope.cancel()


async def test_an_error_that_is_raised_for_many_sessions_tells_each_of_its_own_turn() -> None:
    """A provider raises one object again and again: each caller has the numbers and the text of its turn alone."""
    error = ProviderError("no", retryable=False)

    async def answer(request: ModelRequest, emit: Emit) -> ModelReply:
        last = request.messages[-1]
        assert isinstance(last, UserMessage)
        emit(TextPiece(last.content))
        await trio.sleep(1)
        raise error

    async with open_runtime(FunctionModel(answer)) as service, trio.open_nursery() as nursery:
        asked = [ask(nursery, service.create_session, text) for text in ("mine", "yours")]
        ended = [await each.failure(ProviderError) for each in asked]
    assert [each.details["text"] for each in ended] == ["mine", "yours"]
    assert len({each.session_id for each in ended}) == 2
    assert error.details == {}
