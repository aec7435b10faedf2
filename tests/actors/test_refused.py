"""An exchange that the provider refuses for good leaves the model's context, and stays in the history."""

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.models import USAGE, Emit, FunctionModel, reply
from tests.support.runtime import Recorder, new_session, open_runtime
from warren.base.errors import ProviderCause, ProviderError
from warren.calls.facade import SessionService
from warren.compaction import CompactionConfig
from warren.conversation.events import RequestRepaired, ToolExecutionStarted
from warren.conversation.messages import (
    AssistantMessage,
    ContextMessage,
    Message,
    StopReason,
    SystemMessage,
    TextBlock,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
)
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import tool
from warren.settings.config import Config
from warren.transport.providers.scripted import (
    Script,
    ScriptedCall,
    ScriptedError,
    ScriptedModel,
    ScriptedStep,
)

pytestmark = pytest.mark.virtual_time
POISON = "poison"
CALL = ToolUseBlock("call-1", "fetch")


@tool
async def fetch() -> str:
    """Bring back what the provider refuses."""
    await trio.lowlevel.checkpoint()
    return POISON


@attrs.define(eq=False)
class Strict:
    """A model that refuses every context with a certain word in it, as a provider's filter does."""

    error: ProviderError
    seen: list[list[Message]] = attrs.field(factory=list)

    async def complete(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        """Refuse, call the tool if the prompt wants that, or say how many messages there are."""
        await trio.lowlevel.checkpoint()
        messages = list(request.messages)
        self.seen.append(messages)
        if POISON in repr(messages):
            raise self.error.copy()
        if isinstance(messages[-1], UserMessage) and messages[-1].content == "fetch it":
            return reply("", CALL)
        return reply(f"{len(messages)} messages")


def refusal(cause: ProviderCause = "bad_request") -> ProviderError:
    """Return how a provider refuses a prompt."""
    return ProviderError("no", cause=cause, retryable=False)


async def refused(service: SessionService, session_id: str, prompt: str = POISON) -> None:
    """Run a turn that the provider refuses."""
    with pytest.raises(ProviderError):
        await service.start_turn(session_id, prompt)


async def marks(service: SessionService, session_id: str) -> list[bool]:
    """Return for each message of the history whether it has left the model's context."""
    return [entry.left_out for entry in (await service.history(session_id)).messages]


@pytest.mark.parametrize("cause", ["bad_request", "too_large", "context_length", "content_filter", "forbidden"])
async def test_a_session_goes_on_after_a_refused_prompt(cause: ProviderCause) -> None:
    """A prompt that was refused is not sent again; the history has it, marked."""
    model = Strict(refusal(cause))
    async with open_runtime(model) as service:
        session_id = await new_session(service, system_prompt="be brief")
        await service.start_turn(session_id, "a")
        await refused(service, session_id)
        await refused(service, session_id)
        assert (await service.start_turn(session_id, "b")).text == "4 messages"
        assert model.seen[-1] == [
            SystemMessage("be brief"),
            UserMessage("a"),
            AssistantMessage((TextBlock("2 messages"),)),
            UserMessage("b"),
        ]
        assert await marks(service, session_id) == [False, False, False, True, True, False, False]


@pytest.mark.parametrize("cause", ["unauthorized", "not_found", "quota", "connection", "provider_bug"])
async def test_a_prompt_that_nobody_looked_at_stays(cause: ProviderCause) -> None:
    """A failure that says nothing about the prompt leaves it where it is: the next turn goes on from it."""
    model = Strict(refusal(cause))
    async with open_runtime(model) as service:
        session_id = await new_session(service)
        await refused(service, session_id)
        await refused(service, session_id, "b")
        assert model.seen[-1] == [UserMessage(POISON), UserMessage("b")]
        assert await marks(service, session_id) == [False, False]


CAUSES: tuple[ProviderCause, ...] = ("bad_request", "too_large", "context_length", "content_filter", "forbidden")


@pytest.mark.parametrize("cause", CAUSES)
async def test_a_result_that_is_refused_is_told_without(tmp_path: Path, cause: ProviderCause) -> None:
    """A text in a result that no request may have leaves with the result; the turn goes on, and knows what ran."""
    model, recorder = Strict(refusal(cause)), Recorder()
    async with open_runtime(model, store=tmp_path, tools=[fetch]) as service:
        session_id = await new_session(service)
        assert (await service.start_turn(session_id, "fetch it", on_event=recorder)).text == "2 messages"
        assert await marks(service, session_id) == [False, True, True, True, False, False]
        assert [each.action for each in recorder.only(RequestRepaired)] == ["replaced", "dropped"]
    async with open_runtime(model, store=tmp_path, tools=[fetch]) as service:
        assert (await service.start_turn(session_id, "b")).text == "4 messages"
        fork = (await service.fork(session_id)).state.session_id
        assert (await service.start_turn(fork, "b")).text == "6 messages"
    prompt, told, answer, *_ = model.seen[-1]
    assert prompt == UserMessage("fetch it")
    assert isinstance(told, ContextMessage)
    assert "fetch({}): it succeeded" in told.content
    assert isinstance(answer, AssistantMessage)


@attrs.define(eq=False)
class Moody:
    """A model that calls a tool, and refuses requests whose newest message it does not like.

    Attributes:
        dislikes: tells which messages it refuses.
        refusals: requests that it refuses at most.
        seen: the messages of each request.
    """

    dislikes: Callable[[list[Message]], bool]
    refusals: int = 99
    seen: list[list[Message]] = attrs.field(factory=list)

    async def complete(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        """Refuse, call the tool for a first prompt, or answer."""
        await trio.lowlevel.checkpoint()
        messages = list(request.messages)
        self.seen.append(messages)
        if self.refusals and self.dislikes(messages):
            self.refusals -= 1
            raise refusal()
        last = messages[-1]
        if isinstance(last, UserMessage) and last.content.startswith("fetch"):
            return reply("", *(ToolUseBlock(f"call-{n}", "fetch") for n in range(last.content.count("it"))))
        return reply("done")


async def test_results_that_are_refused_as_results_are_told_in_words() -> None:
    """A server whose template takes no results of tools gets them as words, and the turn has its answer."""
    model = Moody(lambda messages: isinstance(messages[-1], ToolResultsMessage))
    async with open_runtime(model, tools=[fetch]) as service:
        session_id = await new_session(service)
        assert (await service.start_turn(session_id, "fetch it, it")).text == "done"
        told = model.seen[-1][-1]
        assert isinstance(told, ContextMessage)
        assert told.content.count("fetch({}): it succeeded") == told.content.count(POISON) == 2
        assert await marks(service, session_id) == [False, True, True, False, False]


async def test_a_turn_that_stays_refused_keeps_what_ran(tmp_path: Path) -> None:
    """If no form of the results helps, the turn fails; the prompt and what ran stay, and the next prompt goes on."""
    model = Moody(lambda messages: len(messages) > 1, refusals=3)
    async with open_runtime(model, store=tmp_path, tools=[fetch]) as service:
        session_id = await new_session(service)
        await refused(service, session_id, "fetch it")
        assert await marks(service, session_id) == [False, True, True, False, True]
    async with open_runtime(model, store=tmp_path, tools=[fetch]) as service:
        assert (await service.start_turn(session_id, "b")).text == "done"
    prompt, told, newest = model.seen[-1]
    assert (prompt, newest) == (UserMessage("fetch it"), UserMessage("b"))
    assert isinstance(told, ContextMessage)
    assert POISON in told.content


async def test_a_refused_prompt_after_tools_leaves_alone() -> None:
    """A text that was steered into a turn whose tools have run, and that is refused, leaves; all before it stays."""
    gate, steered = trio.Event(), trio.Event()

    @tool
    async def fetch() -> str:
        """Wait for the text."""
        gate.set()
        await steered.wait()
        return "a bone"

    model = Moody(lambda messages: POISON in repr(messages))
    async with open_runtime(model, tools=[fetch]) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "fetch it")
        await gate.wait()
        ask(nursery, partial(service.start_turn, session_id, POISON, mode="steer"))
        await trio.testing.wait_all_tasks_blocked()
        steered.set()
        await turn.ended.wait()
        assert isinstance(turn.error, ProviderError)
        assert (await service.start_turn(session_id, "b")).text == "done"
    prompt, told, _ = model.seen[-1]
    assert prompt == UserMessage("fetch it")
    assert isinstance(told, ContextMessage)
    assert "a bone" in told.content


async def test_calls_of_earlier_steps_stay_as_they_are() -> None:
    """A refusal is about what came since the last answer: calls that were answered stay calls."""

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        seen.append(list(request.messages))
        if len(seen) in (3, 4, 5):
            raise refusal()
        return reply("", ToolUseBlock(f"call-{len(seen)}", "fetch")) if len(seen) < 3 else reply("done")

    seen = list[list[Message]]()
    async with open_runtime(FunctionModel(answer), tools=[fetch]) as service:
        session_id = await new_session(service)
        await refused(service, session_id, "fetch")
        assert await marks(service, session_id) == [False, False, False, True, True, False, True]
        await service.start_turn(session_id, "b")
    assert [type(each) for each in seen[-1]] == [
        UserMessage,
        AssistantMessage,
        ToolResultsMessage,
        ContextMessage,
        UserMessage,
    ]


async def test_a_model_that_declines_after_tools_keeps_what_ran() -> None:
    """The exchange leaves, as the model would decline again, and a sentence says which calls ran."""

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        seen.append(list(request.messages))
        if len(seen) == 1:
            return reply("", CALL)
        stop: StopReason = "content_filter" if len(seen) == 2 else "end_turn"
        return ModelReply(AssistantMessage((TextBlock("said"),), stop), USAGE)

    seen = list[list[Message]]()
    async with open_runtime(FunctionModel(answer), tools=[fetch]) as service:
        result = await service.create_session("fetch it")
        assert result.stop_reason == "content_filter"
        assert await marks(service, result.session_id) == [True, True, True, True, False]
        await service.start_turn(result.session_id, "b")
    told, prompt = seen[-1]
    assert prompt == UserMessage("b")
    assert isinstance(told, ContextMessage)
    assert "fetch({}): it succeeded" in told.content
    assert POISON not in told.content


async def test_it_survives_a_restart(tmp_path: Path) -> None:
    """The next process leaves out the same messages, in the session and in its forks."""
    async with open_runtime(Strict(refusal()), store=tmp_path) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "a")
        await refused(service, session_id)
    async with open_runtime(Strict(refusal()), store=tmp_path) as service:
        assert await marks(service, session_id) == [False, False, True]
        fork = (await service.fork(session_id)).state.session_id
        assert (await service.start_turn(session_id, "b")).text == "3 messages"
        assert (await service.start_turn(fork, "b")).text == "3 messages"
        assert await marks(service, fork) == [False, False, True, False, False]
        early = (await service.fork(session_id, at=2)).state.session_id
        assert await marks(service, early) == [False, False]


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("declines", [True, False])
async def test_a_fork_knows_the_calls_that_are_told_in_words_behind_its_cut(
    tmp_path: Path, *, stored: bool, declines: bool
) -> None:
    """A sentence of a later turn is not in the fork, so the messages of the calls are; one before the cut is enough."""

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        messages = list(request.messages)
        seen.append(messages)
        if messages == [UserMessage("fetch it")]:
            return reply("", CALL)
        if not lost and declines:
            return ModelReply(AssistantMessage((TextBlock("said"),), "content_filter"), USAGE)
        if not lost or any(isinstance(each, ToolResultsMessage) for each in messages):
            raise refusal("connection" if not lost else "bad_request")
        return reply("done")

    seen, lost = list[list[Message]](), False
    async with open_runtime(FunctionModel(answer), tools=[fetch], store=tmp_path if stored else None) as service:
        session_id = await new_session(service)
        with contextlib.suppress(ProviderError):
            await service.start_turn(session_id, "fetch it")
        lost = True
        await service.start_turn(session_id, "b")
        history = [each.message for each in (await service.history(session_id)).messages]
        told = next(at for at, each in enumerate(history) if isinstance(each, ContextMessage))
        for at in range(3, len(history) + 1):
            fork = (await service.fork(session_id, at=at)).state.session_id
            assert (await service.start_turn(fork, "c")).text == "done"
            text = repr(seen[-1])
            assert text.count("fetch({}): it succeeded") == 1, at
            tries = [any(isinstance(each, ToolResultsMessage) for each in request) for request in seen[-2:]]
            assert tries == [at <= told, False], at


async def test_a_fork_without_a_store_leaves_it_out_too() -> None:
    """A fork in memory begins with the same context."""
    async with open_runtime(Strict(refusal())) as service:
        session_id = await new_session(service)
        await refused(service, session_id)
        fork = (await service.fork(session_id)).state.session_id
        assert (await service.start_turn(fork, "b")).text == "1 messages"
        assert await marks(service, fork) == [True, False, False]


def no_schemas(cause: ProviderCause) -> FunctionModel:
    """Return a model that refuses schemas, and answers all else with data."""

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        if request.answer_schema is not None:
            raise refusal(cause)
        return reply('{"a": 1}')

    return FunctionModel(answer)


async def test_an_answer_that_is_refused_as_data_leaves_too() -> None:
    """The turn fails in the call that asks for the answer again, as it would in any other."""
    async with open_runtime(no_schemas("context_length")) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "a")
        with pytest.raises(ProviderError):
            await service.start_turn(session_id, "b", output_schema={"type": "object"})
        assert await marks(service, session_id) == [False, False, True, True]


async def test_a_schema_that_is_refused_is_no_answer_that_is() -> None:
    """A server without forced forms refuses the schema, and gives the data without it: the exchange stays."""
    async with open_runtime(no_schemas("bad_request")) as service:
        session_id = await new_session(service)
        result = await service.start_turn(session_id, "a", output_schema={"type": "object"})
        assert result.structured_output == {"a": 1}
        assert await marks(service, session_id) == [False, False]


async def test_an_answer_that_the_filter_ended_leaves_too() -> None:
    """A model that declines to answer declines again as long as it sees the exchange."""

    @attrs.define(eq=False)
    class Declining:
        seen: list[int] = attrs.field(factory=list)

        async def complete(self, request: ModelRequest, _emit: Emit) -> ModelReply:
            await trio.lowlevel.checkpoint()
            self.seen.append(len(request.messages))
            stop: StopReason = "content_filter" if len(self.seen) == 1 else "end_turn"
            return ModelReply(AssistantMessage((TextBlock("said"),), stop), USAGE)

    model = Declining()
    async with open_runtime(model) as service:
        result = await service.create_session("a")
        assert result.stop_reason == "content_filter"
        await service.start_turn(result.session_id, "b")
        assert model.seen == [1, 1]
        assert await marks(service, result.session_id) == [True, True, False, False]


@pytest.mark.parametrize("stored", [True, False])
async def test_compaction_passes_over_what_left(tmp_path: Path, *, stored: bool) -> None:
    """A summary is made without refused exchanges, before and after the new head, and later turns go on."""
    compaction = CompactionConfig(recent_turn_budget=1, min_turns_between_compactions=0)
    model = Strict(refusal())
    store = tmp_path if stored else None
    async with open_runtime(model, store=store, config=Config(compaction=compaction)) as service:
        session_id = await new_session(service)
        for prompt in ("a", "b"):
            await service.start_turn(session_id, prompt + " long" * 500)
            await refused(service, session_id)
        entry = await service.compact(session_id)
        assert (entry.messages_before, entry.messages_after, entry.head) == (4, 3, 3)
        assert (await service.start_turn(session_id, "c")).text == "4 messages"
        assert POISON not in repr(model.seen[-1])
        assert await marks(service, session_id) == [False, False, True, False, False, True, False, False]


async def test_a_script_goes_on_behind_calls_that_were_refused() -> None:
    """The step that follows calls of tools fails as refused: it is asked three times, and the calls ran once."""
    model = ScriptedModel(
        Script(
            (
                ScriptedStep(tool_calls=(ScriptedCall("fetch"),)),
                ScriptedStep("after", error=ScriptedError("no", cause="bad_request", retryable=False, times=3)),
            )
        )
    )
    recorder = Recorder()
    async with open_runtime(model, tools=[fetch]) as service:
        session_id = await new_session(service)
        with pytest.raises(ProviderError):
            await service.start_turn(session_id, "fetch it", on_event=recorder)
        assert len(recorder.only(ToolExecutionStarted)) == 1
        assert (await service.start_turn(session_id, "b")).text == "after"
