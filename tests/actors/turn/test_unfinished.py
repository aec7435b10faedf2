"""Answers that are none: empty ones, and those that their cap has cut within a tool call."""

from collections.abc import Sequence

import attrs
import pytest
import trio

from tests.support.models import USAGE, Emit
from tests.support.runtime import Recorder, new_session, open_runtime, transcript
from warren.base.errors import ProviderError
from warren.conversation.events import Retrying, RunFailed, TextComplete, TextDelta
from warren.conversation.messages import (
    AssistantMessage,
    Block,
    ContextMessage,
    Message,
    ReasoningBlock,
    StopReason,
    TextBlock,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
)
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, TextPiece
from warren.models.tools import tool
from warren.settings.config import Config, RetryPolicy

pytestmark = pytest.mark.virtual_time
RAN = list[str]()


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


@tool
async def dig(where: str = "here") -> str:
    """Dig a hole."""
    RAN.append(where)
    return "dug"


@tool
async def rest() -> str:
    """Rest."""
    RAN.append("rest")
    return "rested"


def answer(*blocks: Block, stop: StopReason = "end_turn", usage: Usage = USAGE) -> ModelReply:
    """Return an answer of some blocks."""
    return ModelReply(AssistantMessage(blocks, stop), usage)


def cut(*blocks: Block) -> ModelReply:
    """Return an answer that its cap of 16 tokens has ended."""
    return answer(*blocks, stop="max_tokens", usage=Usage(3, 16))


@attrs.define(eq=False)
class Steps:
    """A model that gives one answer after another.

    Attributes:
        replies: the answers.
        seen: the messages of each request.
    """

    replies: list[ModelReply]
    seen: list[Sequence[Message]] = attrs.field(factory=list)

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """Give the next answer."""
        await trio.lowlevel.checkpoint()
        self.seen.append(list(request.messages))
        said = self.replies.pop(0)
        if said.message.text:
            emit(TextPiece(said.message.text))
        return said


NOTHING: Sequence[tuple[Block, ...]] = (
    (),
    (TextBlock(" \n"),),
    (TextBlock("", {"signature": "s"}),),
    (ReasoningBlock("hm", {"signature": "s"}),),
)


@pytest.mark.parametrize("stop", ["end_turn", "max_tokens"])
@pytest.mark.parametrize("blocks", NOTHING, ids=repr)
async def test_an_empty_answer_is_asked_for_once_more(blocks: tuple[Block, ...], stop: StopReason) -> None:
    """The second answer counts, both are paid, and the first one leaves nothing behind."""
    model, recorder = Steps([answer(*blocks, stop=stop), answer(TextBlock("yes"))]), Recorder()
    async with open_runtime(model) as service:
        result = await service.create_session("hello", on_event=recorder)
        assert (result.text, result.usage.output_tokens) == ("yes", 2 * USAGE.output_tokens)
        assert await transcript(service, result.session_id) == [
            UserMessage("hello"),
            AssistantMessage((TextBlock("yes"),)),
        ]
    assert model.seen[0] == model.seen[1]
    assert len(recorder.only(Retrying)) == 1
    assert recorder.only(TextComplete) == [TextComplete("yes")]
    assert "".join(each.delta for each in recorder.only(TextDelta)).strip() == "yes"


@pytest.mark.parametrize("attempts", [1, 2, 3, 9])
@pytest.mark.parametrize("blocks", NOTHING, ids=repr)
async def test_two_empty_answers_are_an_error(blocks: tuple[Block, ...], attempts: int) -> None:
    """However often failed calls are retried, the second one fails the turn, and the next prompt is answered."""
    model, recorder = Steps([answer(*blocks), answer(*blocks), answer(TextBlock("yes"))]), Recorder()
    async with open_runtime(model, config=Config(retry=RetryPolicy(max_attempts=attempts))) as service:
        session_id = await new_session(service)
        with pytest.raises(ProviderError, match="empty") as caught:
            await service.start_turn(session_id, "hello", on_event=recorder)
        assert caught.value.cause == "empty_answer"
        assert len(model.seen) == 2
        assert isinstance(failed := recorder.events[-1], RunFailed)
        assert failed.cause == "provider_error"
        assert (await service.start_turn(session_id, "again")).text == "yes"
    assert model.seen[-1] == [UserMessage("hello"), UserMessage("again")]


async def test_an_empty_answer_at_the_cap_says_so() -> None:
    """A model that thinks until its cap is reached fails with the cap, and with what helps."""
    thought = cut(ReasoningBlock("hm"))
    async with open_runtime(Steps([thought, thought])) as service:
        with pytest.raises(ProviderError, match="cut at 16 tokens before its first word; raise max_tokens"):
            await service.create_session("hello")


async def test_nothing_after_tools_is_asked_for_with_a_word() -> None:
    """An empty answer behind results is asked for once more with a word to go on, which is not kept."""
    call = ToolUseBlock("a", "dig")
    model = Steps([answer(call, stop="tool_use"), answer(), answer(TextBlock("done"))])
    async with open_runtime(model, tools=[dig]) as service:
        result = await service.create_session("dig")
        assert result.text == "done"
        assert len(await transcript(service, result.session_id)) == 4
    assert isinstance(model.seen[2][-1], ContextMessage)
    assert model.seen[2][:-1] == model.seen[1]
    assert RAN == ["here"]


async def test_nothing_twice_after_tools_keeps_what_ran() -> None:
    """The turn fails, and the next one has the call and its result in its context."""
    model = Steps([answer(ToolUseBlock("a", "dig"), stop="tool_use"), answer(), answer(), answer(TextBlock("yes"))])
    async with open_runtime(model, tools=[dig]) as service:
        session_id = await new_session(service)
        with pytest.raises(ProviderError, match="empty"):
            await service.start_turn(session_id, "dig")
        await service.start_turn(session_id, "again")
    assert any(isinstance(each, ToolResultsMessage) for each in model.seen[-1])


@pytest.mark.parametrize("stop", ["stop_sequence", "content_filter"])
async def test_an_answer_that_may_be_empty(stop: StopReason) -> None:
    """A stop sequence or a filter may end an answer before its first word."""
    async with open_runtime(Steps([answer(stop=stop)])) as service:
        assert (await service.create_session("hello")).stop_reason == stop


PARTIAL: dict[str, ToolUseBlock] = {
    "partial": ToolUseBlock("a", "dig", {}, '{"where": "the gar'),
    "blank": ToolUseBlock("a", "dig"),
    "unknown": ToolUseBlock("a", "di"),
}


@pytest.mark.parametrize("call", PARTIAL.values(), ids=PARTIAL)
async def test_a_call_that_was_cut_does_not_run(call: ToolUseBlock) -> None:
    """Its result says where the answer was cut; whole calls before it run, and the turn goes on."""
    whole = ToolUseBlock("w", "dig", {"where": "there"})
    model = Steps([cut(whole, call), answer(TextBlock("done"))])
    async with open_runtime(model, tools=[dig]) as service:
        assert (await service.create_session("dig")).text == "done"
    assert RAN == ["there"]
    results = model.seen[-1][-1]
    assert isinstance(results, ToolResultsMessage)
    assert [each.is_error for each in results.results] == [False, True]
    assert "cut at 16 tokens" in results.results[1].content


@pytest.mark.parametrize(
    ("stop", "call"),
    [
        ("max_tokens", ToolUseBlock("a", "rest")),
        ("max_tokens", ToolUseBlock("a", "dig", {"where": "there"})),
        ("tool_use", ToolUseBlock("a", "dig")),
    ],
)
async def test_a_whole_call_runs(stop: StopReason, call: ToolUseBlock) -> None:
    """Also at the cap if its arguments are whole, or its tool has no parameters; and everywhere else."""
    async with open_runtime(Steps([answer(call, stop=stop), answer(TextBlock("done"))]), tools=[dig, rest]) as service:
        await service.create_session("dig")
    assert len(RAN) == 1


async def test_two_cut_answers_in_a_row_are_an_error() -> None:
    """The second one ends the turn and says why; all calls have results, and the session goes on."""
    call = PARTIAL["partial"]
    model = Steps([cut(call), cut(call), answer(TextBlock("yes"))])
    async with open_runtime(model, tools=[dig]) as service:
        session_id = await new_session(service)
        with pytest.raises(ProviderError, match="cut within a tool call, the last one at 16 tokens") as caught:
            await service.start_turn(session_id, "dig")
        assert caught.value.cause == "answer_cut"
        assert (await service.start_turn(session_id, "again")).text == "yes"
        results = [each for each in await transcript(service, session_id) if isinstance(each, ToolResultsMessage)]
        assert len(results) == 2
    assert not RAN


async def test_cut_answers_that_do_not_follow_each_other() -> None:
    """An answer whose calls are whole begins the count anew."""
    call, whole = PARTIAL["partial"], ToolUseBlock("w", "rest")
    model = Steps([cut(call), answer(whole, stop="tool_use"), cut(call), answer(TextBlock("yes"))])
    async with open_runtime(model, tools=[dig, rest]) as service:
        assert (await service.create_session("dig")).text == "yes"
    assert RAN == ["rest"]
