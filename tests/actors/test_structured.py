"""Structured output: one more question after the answer, which no stream and no transcript shows."""

import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.asking import ask
from tests.support.checks import assert_valid_stream, assert_valid_transcript, names
from tests.support.models import Emit, Formed, FunctionModel, is_for_data, reply, says, stuck
from tests.support.runtime import Recorder, new_session, open_runtime, replay, supervisor_of, transcript
from warren.base.errors import AgentError, BudgetExhaustedError, InvalidParamsError, ProviderError, SessionBusyError
from warren.calls.facade import SessionService
from warren.compaction import CompactionConfig
from warren.conversation import codec
from warren.conversation.budget import Budget
from warren.conversation.events import (
    BudgetWarning,
    Event,
    ExtractionCompleted,
    ExtractionFailed,
    ReasoningDelta,
    Retrying,
    RunCompleted,
    RunFailed,
    TextComplete,
    TextDelta,
    TurnCompleted,
)
from warren.conversation.messages import AssistantMessage, TextBlock, ToolUseBlock, UserMessage
from warren.conversation.options import TurnMode
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import tool
from warren.settings.config import Config, RetryPolicy
from warren.structured.output import CORRECTION, INSTRUCTION
from warren.transport.providers import Script, ScriptedModel, ScriptedStep

pytestmark = pytest.mark.virtual_time
PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ANN = {"name": "Ann"}
BEA = {"name": "Bea"}
LONG = json.dumps({"name": "Ann" * 1_000})


def about_data(recorder: Recorder) -> list[Event]:
    """Return the events that tell of data."""
    return [event for event in recorder.events if isinstance(event, ExtractionCompleted | ExtractionFailed)]


async def check(service: SessionService, session_id: str, recorder: Recorder, *words: str) -> None:
    """Fail where a stream or the transcript has anything of the question for data, or is not what it has to be."""
    assert_valid_stream(recorder.envelopes)
    shown = "".join(event.delta for event in recorder.only(TextDelta))
    assert shown == "".join(event.content for event in recorder.only(TextComplete)) == "".join(words)
    assert recorder.only(ReasoningDelta) == []
    messages = await transcript(service, session_id)
    assert_valid_transcript(messages)
    assert [message.text for message in messages if isinstance(message, AssistantMessage)] == list(words)
    assert not any(INSTRUCTION in str(message) or "secretly" in str(message) for message in messages)


async def test_an_answer_as_data(store: Path | None) -> None:
    """The text streams as ever; the data comes with the result, and only the count of steps tells of the question."""
    model, recorder = Formed(answers=['{"name": "Ann"}']), Recorder()
    async with open_runtime(model, store=store) as service:
        session_id = await new_session(service, output_schema=PERSON)
        result = await service.start_turn(session_id, "Who is she?", on_event=recorder)
        assert (result.text, result.structured_output) == ("She is called Ann.", ANN)
        assert (result.steps, result.usage, result.stop_reason) == (2, Usage(6, 4), "end_turn")
        assert (await service.read(session_id)).billing.usage == Usage(6, 4)
        await check(service, session_id, recorder, "She is called Ann.")
        shown = ["run_started", "turn_started", "text_delta", "text_complete", "turn_completed"]
        assert names(recorder.envelopes) == [*shown, "extraction_completed", "run_completed"]
        assert about_data(recorder) == [ExtractionCompleted(1)]
        assert recorder.events[-1] == RunCompleted(session_id, "She is called Ann.", Usage(6, 4), ANN)
        assert names(await replay(service, session_id)) == names(recorder.envelopes)
    (request,) = model.asked
    assert (request.answer_schema, request.tools) == (PERSON, ())
    answer = AssistantMessage((TextBlock(model.text),), structured_output=ANN)  # it is the context as it is now
    assert tuple(request.messages[:2]) == (UserMessage("Who is she?"), answer)
    assert '"required":["name"]' in str(request.messages[2])


async def test_the_data_stays_with_the_turn(store: Path | None) -> None:
    """The log, the history and the session have it, also of one that was loaded anew; each turn has its own or none."""
    model = Formed(answers=['{"name": "Ann"}', '{"name": "Bea"}'])
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(open_runtime(model, store=store))
        session_id = await new_session(service)
        await service.start_turn(session_id, "Who is she?", output_schema=PERSON)
        await service.start_turn(session_id, "Thanks.")
        assert (await service.read(session_id)).state.last_structured_output is None
        await service.start_turn(session_id, "And she?", output_schema=PERSON)
        if store is not None:
            await stack.aclose()
            service = await stack.enter_async_context(open_runtime(model, store=store))
        assert (await service.read(session_id)).state.last_structured_output == BEA
        ends = [each.event for each in await replay(service, session_id) if isinstance(each.event, RunCompleted)]
        assert [end.structured_output for end in ends] == [ANN, None, BEA]
        answers = [each for each in await transcript(service, session_id) if isinstance(each, AssistantMessage)]
        assert [answer.structured_output for answer in answers] == [ANN, None, BEA]
        for at, newest in ((None, BEA), (4, None), (2, ANN)):
            fork = (await service.fork(session_id, at=at)).state
            assert fork.last_structured_output == newest
            messages = await transcript(service, fork.session_id)
            assert messages == (await transcript(service, session_id))[: fork.message_count]


async def test_no_model_is_sent_the_data(store: Path | None) -> None:
    """A later turn has the context that it would have without the data, by its messages and by its size."""
    sizes = []
    for schema in (None, PERSON):
        async with open_runtime(Formed(answers=[LONG]), store=store) as service:
            session_id = (await service.create_session("Who?", output_schema=schema)).session_id
            context = await service.context(session_id)
            sizes.append([each.tokens for each in context.messages])
            live = supervisor_of(service).find(session_id)
            assert live is not None
            sizes[-1].append(live.conversation.context.size)
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("mode", ["queue", "steer"])
async def test_an_answer_under_a_key_keeps_its_data(tmp_path: Path, mode: TurnMode) -> None:
    """Asked again under the same key, in the process or after a restart, the prompt gets the same data."""
    model = Formed(answers=['{"name": "Ann"}', '{"name": "Bea"}'])
    results = []
    session_id = ""
    for _ in range(2):
        async with open_runtime(model, store=tmp_path) as service:
            made = await service.create_session("Who?", output_schema=PERSON, idempotency_key="k")
            session_id = made.session_id
            turn = await service.start_turn(
                session_id, "And she?", mode=mode, idempotency_key="t", output_schema=PERSON
            )
            results.append((made, turn))
    assert results[0] == results[1]
    assert [each.structured_output for each in results[0]] == [ANN, BEA]


async def test_data_that_nests_deep_does_not_fit() -> None:
    """Clients refuse messages that nest too deep, so data has to leave room for the messages that it is part of."""
    for levels, fits in ((80, True), (81, False)):
        model = Formed(answers=["[" * levels + "]" * levels])
        async with open_runtime(model) as service:
            session_id = await new_session(service, output_schema={"type": "array"}, structured_output_retries=0)
            turn = service.start_turn(session_id, "x")
            if fits:
                await turn
                assert codec.parse(codec.encode({"result": await service.history(session_id)}))
            else:
                with pytest.raises(AgentError, match="nests deeper than 80 levels"):
                    await turn


async def test_after_tools() -> None:
    """Only the final answer is brought into the form, and the question for it offers no tools."""

    @tool
    def look_up() -> str:
        """Look her up."""
        return "Ann"

    call = ToolUseBlock("call-1", "look_up")
    requests: list[ModelRequest] = []
    steps = [reply("", call), reply("It is Ann."), reply('{"name": "Ann"}')]

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        requests.append(request)
        return steps[len(requests) - 1]

    async with open_runtime(FunctionModel(answer), tools=[look_up]) as service:
        result = await service.create_session("Who is she?", output_schema=PERSON)
        assert (result.structured_output, result.steps, result.tool_calls) == (ANN, 3, 1)
    assert [bool(request.tools) for request in requests] == [True, True, False]
    assert [request.answer_schema for request in requests] == [None, None, PERSON]


async def test_what_does_not_fit_is_tried_again() -> None:
    """The model is told what was wrong, next to its own words, as often as was asked for."""
    model, recorder = Formed(answers=["Ann", '{"name": 1}', '```json\n{"name": "Ann"}\n```']), Recorder()
    async with open_runtime(model) as service:
        session_id = await new_session(service)
        result = await service.start_turn(
            session_id, "Who?", output_schema=PERSON, structured_output_retries=2, on_event=recorder
        )
        assert (result.structured_output, result.steps) == (ANN, 4)
        assert about_data(recorder) == [ExtractionCompleted(3)]
        await check(service, session_id, recorder, model.text)
    said, told = model.asked[-1].messages[-2:]
    assert said == AssistantMessage((TextBlock('{"name": 1}'),))
    assert isinstance(told, UserMessage)
    assert told.content.startswith(CORRECTION)
    assert "$.name: 1 is not of type 'string'" in told.content


@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_no_answer_fits(store: Path | None, retries: int) -> None:
    """The turn fails with its text and the last problems, is stored, and the next one goes on from it."""
    model, recorder = Formed(answers=["no"] * retries + ["{}", '{"name": "Ann"}']), Recorder()
    async with open_runtime(model, store=store) as service:
        session_id = await new_session(service, output_schema=PERSON, structured_output_retries=retries)
        with pytest.raises(AgentError) as caught:
            await service.start_turn(session_id, "Who?", on_event=recorder)
        error = caught.value
        assert (error.cause, error.session_id, error.numbers.exit) == ("structured_output", session_id, 1)
        assert error.details["text"] == model.text
        assert error.details["errors"] == ["$: 'name' is a required property"]
        assert about_data(recorder) == [ExtractionFailed(error.message, retries + 1)]
        assert recorder.events[-2:] == [
            *about_data(recorder),
            RunFailed(session_id, error.message, "structured_output"),
        ]
        await check(service, session_id, recorder, model.text)
        view = await service.read(session_id)
        assert (view.state.last_assistant_text, view.state.message_count) == (model.text, 2)
        assert view.billing.usage == Usage(3 * (retries + 2), 2 * (retries + 2))
        assert (await service.start_turn(session_id, "Again?")).structured_output == ANN


async def test_the_turn_alone() -> None:
    """A turn's schema and retries win over the session's, for that turn."""
    numbers = {"type": "array", "items": {"type": "integer"}}
    model = Formed(answers=["[1]", '{"name": "Ann"}', "no"])
    async with open_runtime(model) as service:
        session_id = await new_session(service, output_schema=PERSON)
        assert (await service.start_turn(session_id, "a", output_schema=numbers)).structured_output == [1]
        assert (await service.start_turn(session_id, "b")).structured_output == ANN
        with pytest.raises(AgentError):
            await service.start_turn(session_id, "c", structured_output_retries=0)
        plain = await new_session(service)
        assert (await service.start_turn(plain, "d")).structured_output is None


async def test_the_session_keeps_its_schema(tmp_path: Path) -> None:
    """After a restart the session's turns are brought into the same form, with as many retries."""
    async with open_runtime(Formed(), store=tmp_path) as service:
        session_id = await new_session(service, output_schema=PERSON, structured_output_retries=1)
    model = Formed(answers=["no", "no", '{"name": "Ann"}'])
    async with open_runtime(model, store=tmp_path) as service:
        with pytest.raises(AgentError) as caught:
            await service.start_turn(session_id, "a")
        assert caught.value.cause == "structured_output"
        assert (await service.start_turn(session_id, "b")).structured_output == ANN


async def test_a_bad_schema_is_refused_before_anything_exists() -> None:
    """The error names the place; no session is there, and none is busy."""
    async with open_runtime(Formed()) as service:
        with pytest.raises(InvalidParamsError) as caught:
            await service.create_session("a", output_schema={"properties": {"a": {"type": "x"}}})
        assert caught.value.path == "$.output_schema.properties.a.type"
        assert (await service.list()).sessions == ()
        session_id = await new_session(service)
        for retries in (-1, 11, "2"):
            with pytest.raises(InvalidParamsError) as caught:
                await service.start_turn(session_id, "a", structured_output_retries=retries)  # type: ignore[arg-type]
            assert caught.value.path == "$.structured_output_retries"
        assert (await service.start_turn(session_id, "a")).text


async def test_the_hosts_schema_may_change_later() -> None:
    """A change of the host's own copy is not the session's business."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    model = Formed(answers=['{"name": "Ann"}'])
    async with open_runtime(model) as service:
        session_id = await new_session(service, output_schema=schema)
        schema["type"] = "nonsense"
        assert (await service.start_turn(session_id, "a")).structured_output == ANN


async def test_an_interrupt_during_the_question(store: Path | None) -> None:
    """It ends at once; the answer stays as it was given, and the session goes on."""
    recorder, asked = Recorder(), trio.Event()

    async def answer(request: ModelRequest, emit: Emit) -> ModelReply:
        if is_for_data(request):
            asked.set()
            return await stuck(request, emit)
        return await says(["She is Ann."]).complete(request, emit)

    async with open_runtime(FunctionModel(answer), store=store) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "Who?", output_schema=PERSON, on_event=recorder)
        await asked.wait()
        with pytest.raises(SessionBusyError):
            await service.start_turn(session_id, "b")
        began = trio.current_time()
        await service.interrupt(session_id)
        assert trio.current_time() == began
        error = await turn.failure(AgentError)
        assert (error.cause, error.details["text"]) == ("cancelled", "She is Ann.")
        assert [event.attempts for event in recorder.only(ExtractionFailed)] == [0]
        assert recorder.events[-1] == RunFailed(session_id, error.message, "cancelled")
        await check(service, session_id, recorder, "She is Ann.")
        assert (await service.start_turn(session_id, "b")).text == "She is Ann."


@pytest.mark.parametrize(
    ("budget", "kind"), [(Budget(max_steps=1), "steps"), (Budget(max_tokens=5), "tokens")], ids=["steps", "tokens"]
)
async def test_a_budget_that_is_used_up_before_it(budget: Budget, kind: str) -> None:
    """The question draws from the same budgets: without anything left it is not asked, and the text is kept."""
    model, recorder = Formed(), Recorder()
    async with open_runtime(model) as service:
        session_id = await new_session(service)
        with pytest.raises(BudgetExhaustedError) as caught:
            await service.start_turn(session_id, "Who?", output_schema=PERSON, budget=budget, on_event=recorder)
        assert (caught.value.cause, caught.value.details["text"]) == (kind, model.text)
        assert [event.attempts for event in recorder.only(ExtractionFailed)] == [0]
        await check(service, session_id, recorder, model.text)
    assert model.asked == []


async def test_a_budget_that_ends_between_two_tries() -> None:
    """Each try is a step of its own; a warning may come before it."""
    model, recorder = Formed(answers=["no", "no"]), Recorder()
    async with open_runtime(model) as service:
        session_id = await new_session(service, output_schema=PERSON)
        with pytest.raises(BudgetExhaustedError):
            await service.start_turn(session_id, "Who?", budget=Budget(max_steps=2), on_event=recorder)
        assert [event.attempts for event in recorder.only(ExtractionFailed)] == [1]
        assert recorder.only(BudgetWarning) == [BudgetWarning("steps", 2, 2, 100.0)]


async def test_time_that_ends_during_the_question() -> None:
    """A time budget cuts it off where it is."""
    script = Script((ScriptedStep(text="Ann", structured=('{"name": "Ann"}',), delay=4.0),))
    async with open_runtime(ScriptedModel(script)) as service:
        began = trio.current_time()
        with pytest.raises(BudgetExhaustedError) as caught:
            await service.create_session("Who?", output_schema=PERSON, budget=Budget(max_seconds=6))
        assert trio.current_time() - began == pytest.approx(6)
        assert (caught.value.cause, caught.value.details["text"]) == ("time", "Ann")


async def test_a_call_that_fails_is_retried_as_others_are() -> None:
    """Retries of the provider are told of and are no attempts; a final failure is the turn's, with its text."""
    broken = ProviderError("overloaded", retryable=True)
    model, recorder = Formed(answers=[broken, '{"name": "Ann"}', broken, broken]), Recorder()
    config = Config(retry=RetryPolicy(max_attempts=2, jitter=0))
    async with open_runtime(model, config=config) as service:
        session_id = await new_session(service, output_schema=PERSON)
        result = await service.start_turn(session_id, "a", on_event=recorder)
        assert (result.structured_output, result.steps) == (ANN, 2)
        assert recorder.only(Retrying) == [Retrying(2, 2, "overloaded", 500)]
        assert about_data(recorder) == [ExtractionCompleted(1)]
        recorder = Recorder()
        with pytest.raises(ProviderError) as caught:
            await service.start_turn(session_id, "b", on_event=recorder)
        assert caught.value.details["text"] == model.text
        assert about_data(recorder) == [ExtractionFailed("overloaded", 0)]
        assert recorder.events[-1] == RunFailed(session_id, "overloaded", "provider_error")


async def test_a_server_that_does_not_know_the_form() -> None:
    """It is asked once more in words alone; what it refuses then is final."""
    unknown = ProviderError("response_format is not supported", cause="bad_request", retryable=False)
    model = Formed(answers=[unknown, "no", '{"name": "Ann"}', unknown, unknown])
    async with open_runtime(model) as service:
        session_id = await new_session(service, output_schema=PERSON)
        assert (await service.start_turn(session_id, "a")).structured_output == ANN
        assert [request.answer_schema for request in model.asked] == [PERSON, None, None]
        with pytest.raises(ProviderError):
            await service.start_turn(session_id, "b")


async def test_a_server_that_fails_on_the_form() -> None:
    """A server that answers the form with errors of its own is asked in words alone once the retries are used up."""
    failing = ProviderError("cannot parse the grammar", cause="server_error", retryable=True)
    config = Config(retry=RetryPolicy(max_attempts=2))
    model = Formed(answers=[failing, failing, '{"name": "Ann"}', failing, failing, failing, failing])
    async with open_runtime(model, config=config) as service:
        session_id = await new_session(service, output_schema=PERSON)
        assert (await service.start_turn(session_id, "a")).structured_output == ANN
        assert [request.answer_schema for request in model.asked] == [PERSON, PERSON, None]
        with pytest.raises(ProviderError, match="grammar"):
            await service.start_turn(session_id, "b")


async def test_it_may_need_room(store: Path | None) -> None:
    """A context that is due for it is compacted before the question, and the answer that is stored has its data."""
    model, recorder = Formed(text="long " * 2_000, answers=['{"name": "Ann"}'] * 3), Recorder()
    model_of_summaries = model.complete

    async def answer(request: ModelRequest, emit: Emit) -> ModelReply:
        last = request.messages[-1]
        if isinstance(last, UserMessage) and "CONTEXT COMPACTION" in last.content:
            return reply("They spoke of Ann.")
        return await model_of_summaries(request, emit)

    compaction = CompactionConfig(auto_compact_threshold=6_000, recent_turn_budget=0, min_turns_between_compactions=1)
    config = Config(compaction=compaction)
    async with open_runtime(FunctionModel(answer), store=store, config=config) as service:
        session_id = await new_session(service, output_schema=PERSON)
        for prompt in "abc":
            result = await service.start_turn(session_id, prompt, on_event=recorder)
            assert result.structured_output == ANN
        names_ = names(recorder.envelopes)
        ends = [at for at, name in enumerate(names_) if name == "extraction_completed"]
        assert any(names_[at - 1] == "compaction_completed" for at in ends), "none came between answer and data"
        assert_valid_stream(recorder.envelopes)
        messages = await transcript(service, session_id)
        assert_valid_transcript(messages)
        answers = [each for each in messages if isinstance(each, AssistantMessage)]
        assert [answer.structured_output for answer in answers] == [ANN] * 3
    if store is not None:
        async with open_runtime(store=store) as service:
            assert await transcript(service, session_id) == messages


@pytest.mark.parametrize(
    ("schema", "said", "data"),
    [
        (PERSON, '{"name": "Ann"}', ANN),
        ({"type": "array", "items": {"enum": ["red", "blue"]}}, '["red"]', ["red"]),
        ({"type": "integer"}, "7", 7),
    ],
)
async def test_the_offline_models(schema: dict[str, Any], said: str, data: object) -> None:
    """The echo says JSON again as data, and a script has answers of its own, one an attempt, turn by turn."""
    async with open_runtime() as service:
        assert (await service.create_session(said, output_schema=schema)).structured_output == data
    script = Script((ScriptedStep(text="x", structured=("no", said)), ScriptedStep(text=said)))
    async with open_runtime(ScriptedModel(script)) as service:
        first = await service.create_session("a", output_schema=schema)
        assert (first.text, first.structured_output, first.steps) == ("x", data, 3)
        second = await service.start_turn(first.session_id, "b")
        assert (second.text, second.structured_output, second.steps) == (said, data, 2)


async def test_steps_are_counted_and_not_shown() -> None:
    """The session's step numbers go on after those that nobody saw."""
    recorder = Recorder()
    async with open_runtime(Formed(answers=['{"name": "Ann"}'] * 2)) as service:
        session_id = await new_session(service, output_schema=PERSON)
        for prompt in "ab":
            await service.start_turn(session_id, prompt, on_event=recorder)
        numbers: Callable[[Any], Any] = lambda event: getattr(event, "turn_number", None)  # noqa: E731 - short
        assert [number for number in map(numbers, recorder.events) if number is not None] == [0, 2]
        assert len(recorder.only(TurnCompleted)) == 2


async def test_a_model_that_answers_nonsense_does_not_crash_the_turn() -> None:
    """Half characters and calls of tools in place of data are answers that do not fit."""
    odd = [reply("\ud800"), reply("", ToolUseBlock("call-1", "nothing")), reply('{"name": "Ann"}')]

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        return odd.pop(0) if is_for_data(request) else reply("Ann")

    async with open_runtime(FunctionModel(answer)) as service:
        assert (await service.create_session("a", output_schema=PERSON)).structured_output == ANN
