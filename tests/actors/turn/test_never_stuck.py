"""Whatever a model and its provider do, a session goes on with the next prompt, and knows what ran."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.models import USAGE, Emit, reply
from tests.support.runtime import new_session, open_runtime
from warren.base.errors import ProviderError, WarrenError
from warren.conversation.messages import (
    AssistantMessage,
    Message,
    TextBlock,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
)
from warren.models.model import ModelReply, ModelRequest, TextPiece
from warren.models.tools import ToolError, tool
from warren.settings.config import Config, RetryPolicy

pytestmark = pytest.mark.virtual_time
Mood = Literal[
    "fine", "bad_request", "context_length", "forbidden", "overloaded", "connection", "empty", "blank", "cut", "decline"
]
MOODS: Sequence[Mood] = (
    *("fine", "fine", "bad_request", "context_length", "forbidden", "overloaded", "connection"),
    *("empty", "blank", "cut", "decline"),
)
Poison = Literal["", "text", "form", "fails"]
"""The result of a call: taken, refused wherever its text is, refused as the result of a call, or a failure."""
TEXT = "poisoned text"


@attrs.define(eq=False)
class World:
    """A model with moods, its tool, and a provider that is strict about the messages of a request.

    Attributes:
        moods: those of the next requests; afterwards it is fine.
        poisons: the kinds of the next results; afterwards they are taken.
        ran: the calls that ran, by name.
        finished: the calls whose results were there.
        given: the number of the newest call.
        wrong: what was wrong with requests.
        seen: the messages of the newest request.
    """

    moods: list[Mood] = attrs.field(factory=list)
    poisons: list[Poison] = attrs.field(factory=list)
    ran: Counter[str] = attrs.field(factory=Counter)
    finished: list[str] = attrs.field(factory=list)
    given: int = 0
    wrong: list[str] = attrs.field(factory=list)
    seen: list[Message] = attrs.field(factory=list)

    def work(self, name: str) -> str:
        """Do the work of the tool."""
        self.ran[name] += 1
        self.finished.append(name)
        kind = self.poisons.pop(0) if self.poisons else ""
        if kind == "fails":
            raise ToolError("broken")
        return f"{kind} {TEXT}" if kind == "text" else f"{kind} result"

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """Check the request, and answer it in the next mood."""
        await trio.sleep(0.1)
        messages = self.seen = list(request.messages)
        self._check(messages)
        mood = self.moods.pop(0) if self.moods else "fine"
        if TEXT in repr(messages) or any("form result" in each for each in _results(messages)):
            raise ProviderError("no", cause="bad_request", retryable=False)
        match mood:
            case "bad_request" | "context_length" | "forbidden":
                raise ProviderError("no", cause=mood, retryable=False)
            case "overloaded" | "connection":
                raise ProviderError("later", cause=mood, retryable=True)
            case "empty":
                return ModelReply(AssistantMessage(()), USAGE)
            case "blank":
                emit(TextPiece(" "))
                return ModelReply(AssistantMessage((TextBlock(" "),)), USAGE)
            case "decline":
                return ModelReply(AssistantMessage((TextBlock("I will not"),), "content_filter"), USAGE)
            case "cut":
                call = ToolUseBlock(self._name(), "work", {}, '{"na')
                return ModelReply(AssistantMessage((*self._calls(messages), call), "max_tokens"), USAGE)
        calls = self._calls(messages)
        return reply("" if calls else "done", *calls)

    def _name(self) -> str:
        self.given += 1
        return f"job-{self.given}-"

    def _calls(self, messages: Sequence[Message]) -> Iterable[ToolUseBlock]:
        """Return the calls of the next answer: as many as the newest prompt wants in each of its steps."""
        prompts = [at for at, each in enumerate(messages) if isinstance(each, UserMessage)]
        prompt = messages[prompts[-1]]
        assert isinstance(prompt, UserMessage)
        steps = [int(each) for each in prompt.content.split()] if prompt.content != "hello" else []
        done = len(messages) - prompts[-1] - 1
        names = [self._name() for _ in range(steps[done // 2] if done // 2 < len(steps) else 0)]
        return [ToolUseBlock(each, "work", {"name": each}) for each in names]

    def _check(self, messages: Sequence[Message]) -> None:
        for at, each in enumerate(messages):
            calls = each.tool_calls if isinstance(each, AssistantMessage) else ()
            after = messages[at + 1] if at + 1 < len(messages) else None
            results = after.results if isinstance(after, ToolResultsMessage) else ()
            if [call.id for call in calls] != [result.tool_use_id for result in results]:
                self.wrong.append(f"calls and results do not fit at {at}: {messages}")
            if isinstance(each, AssistantMessage) and not calls and not each.text.strip():
                self.wrong.append(f"an empty answer at {at}: {messages}")


def _results(messages: Sequence[Message]) -> list[str]:
    found = [each for each in messages if isinstance(each, ToolResultsMessage)]
    return [result.content for each in found for result in each.results]


async def check_turns(turns: Sequence[tuple[str, list[Mood], list[Poison]]], store: Any = None) -> None:
    """Run turns with their moods; after each one a plain prompt is answered and all finished calls are known."""
    world, crashed = World(), 0

    @tool
    async def work(name: str) -> str:
        """Work."""
        await trio.sleep(0.1)
        return world.work(name)

    config = Config(retry=RetryPolicy(max_attempts=2, jitter=0))
    async with open_runtime(world, tools=[work], config=config, store=store) as service:
        session_id = await new_session(service)
        for prompt, moods, poisons in turns:
            world.moods, world.poisons = list(moods), list(poisons)
            try:
                await service.start_turn(session_id, prompt)
            except WarrenError as exc:
                crashed += exc.cause == "crash"
            world.moods.clear()
            world.poisons.clear()
            result = await service.start_turn(session_id, "hello")
            assert (result.text, result.stop_reason) == ("done", "end_turn")
            known = repr(world.seen)
            assert not [each for each in world.finished if each not in known]
            assert not world.wrong
        assert not crashed
        assert not [name for name, times in world.ran.items() if times > 1]


TURNS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 2), min_size=1, max_size=3).map(lambda steps: " ".join(map(str, steps))),
        st.lists(st.sampled_from(MOODS), max_size=10),
        st.lists(st.sampled_from(["", "text", "form", "fails"]), max_size=4),
    ),
    min_size=1,
    max_size=3,
)


@given(turns=TURNS)
@settings(max_examples=150)
async def test_no_session_is_ever_stuck(turns: list[tuple[str, list[Mood], list[Poison]]]) -> None:
    """The next plain prompt is answered, no finished call is forgotten, no call runs twice, no request is malformed."""
    await check_turns(turns)


@pytest.mark.parametrize("poison", ["text", "form", ""])
async def test_what_is_refused_again_and_again(poison: Poison) -> None:
    """Also if the forms without what the provider dislikes were refused for another reason, once."""
    for moods in (["fine", "bad_request", "bad_request", "bad_request"], ["fine", "fine", "fine", "bad_request"]):
        await check_turns([("1", moods, [poison]), ("1 1", moods, [poison, poison])])  # type: ignore[list-item]
