"""An exchange that the provider refuses for good leaves the model's context, and stays in the history."""

from pathlib import Path

import attrs
import pytest
import trio

from tests.support.models import USAGE, Emit, FunctionModel, reply
from tests.support.runtime import new_session, open_runtime
from warren.compaction import CompactionConfig
from warren.config import Config
from warren.errors import ProviderCause, ProviderError
from warren.messages import AssistantMessage, Message, StopReason, SystemMessage, TextBlock, ToolUseBlock, UserMessage
from warren.model import ModelReply, ModelRequest
from warren.service import SessionService
from warren.tools import tool

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


async def test_tool_results_that_are_refused_leave_with_their_turn(tmp_path: Path) -> None:
    """A refusal in a later step takes the whole exchange along, and no call stays without its result."""
    model = Strict(refusal())
    async with open_runtime(model, store=tmp_path, tools=[fetch]) as service:
        session_id = await new_session(service)
        await refused(service, session_id, "fetch it")
        assert await marks(service, session_id) == [True, True, True]
        assert (await service.start_turn(session_id, "b")).text == "1 messages"


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
