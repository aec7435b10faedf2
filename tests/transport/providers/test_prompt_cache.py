"""Prompt caching: each request begins with the one before, and is marked so that the server finds that one."""

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import cached_property, partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Final

import attrs
import httpx
import pytest
import trio

from tests.support.prompt_cache import PromptCache, RefusedError
from tests.support.runtime import new_session, open_runtime
from tests.transport.providers.byte_server import events
from tests.transport.providers.calls import CLAUDE, GPT, SSE, WEATHER, environ, over, provider_of, request, servers
from tests.transport.providers.dialects import DONE, STOP, call, delta, more, opened, start, stopped, used
from warren.compaction import PROMPT, CompactionConfig
from warren.conversation import codec
from warren.conversation.messages import (
    AssistantMessage,
    Message,
    ReasoningBlock,
    SystemMessage,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
)
from warren.conversation.transcript import Transcript
from warren.conversation.usage import Usage
from warren.models.model import ModelRequest, Provider
from warren.models.tools import tool
from warren.settings.config import Config
from warren.transport.providers import open_providers

MARK: Final = re.compile(rb',"cache_control":\{[^}]*\}')
TURNS: Final = 200
WIDE: Final = 30
"""Calls of an exchange that has more blocks than a server looks back."""
RESTART: Final = 30
STEP_SECONDS: Final = 10.0


@attrs.frozen
class Asked:
    """A request of a conversation.

    Attributes:
        body: its bytes.
        usage: the tokens that the server reported.
        summary: whether it asks for a summary.
    """

    body: bytes
    usage: dict[str, int]
    summary: bool

    @cached_property
    def messages(self) -> bytes:
        """The body without marks, up to the end of its messages' content."""
        return re.sub(rb'("\}|"|\}\]\})\](,"[a-z_]+":[^\[\]]*)?\}$', b"", MARK.sub(b"", self.body))

    @property
    def marks(self) -> int:
        """Number of marks."""
        return len(MARK.findall(self.body))


@attrs.define(eq=False)
class Server(httpx.AsyncBaseTransport):
    """A server of both protocols with a prompt cache; its model calls as many tools as a prompt asks for.

    Attributes:
        cache: the cache.
        asked: the requests so far.
    """

    cache: PromptCache = attrs.field(factory=PromptCache)
    asked: list[Asked] = attrs.field(factory=list)

    async def handle_async_request(self, asked: httpx.Request) -> httpx.Response:
        """Answer a request."""
        assert isinstance(asked.stream, httpx.AsyncByteStream)
        body = b"".join([piece async for piece in asked.stream])
        data, chat = codec.parse(body), asked.url.path.endswith("/chat/completions")
        last = data["messages"][-1]["content"]
        told = last if isinstance(last, str) else last[-1].get("text", "")
        self.cache.now += STEP_SECONDS
        usage = {"input_tokens": len(body) // 4} if chat else self.cache.usage(data)
        self.asked.append(Asked(body, usage, PROMPT in told))
        calls = int(told.split()[1]) if told.startswith("call ") and "tools" in data else 0
        answer = self._chat(calls) if chat else self._messages(calls, usage)
        return httpx.Response(200, headers=SSE, content=events(*answer))

    def _messages(self, calls: int, usage: dict[str, int]) -> Iterator[object]:
        number = len(self.asked)
        yield start(**usage)
        yield from (opened(0, "text"), more(0, text=f"answer {number} " + "and so on " * 20))
        for at in range(calls):
            yield opened(at + 1, "tool_use", id=f"call_{number}_{at}", name="weather", input={"city": f"Rome {at}"})
        yield from (stopped("tool_use" if calls else "end_turn", output_tokens=50), STOP)

    def _chat(self, calls: int) -> Iterator[object]:
        number = len(self.asked)
        yield delta(f"answer {number} " + "and so on " * 20)
        for at in range(calls):
            yield call(at, f'{{"city":"Rome {at}"}}', id=f"call_{number}_{at}", name="weather")
        yield from (delta(None, "tool_calls" if calls else "stop"), used(len(self.asked[-1].body) // 4, 50), DONE)

    @asynccontextmanager
    async def opened(self, model: str) -> AsyncIterator[Provider]:
        """Open the provider that calls this server."""
        async with (
            httpx.AsyncClient(transport=self) as client,
            open_providers(environ(), client=client, servers=servers()) as providers,
        ):
            yield providers.resolve(model, provider_of(model)).provider


async def converse(server: Server, model: str, folder: Path) -> str:
    """Have a stored session take turns with tools, steering, compactions and restarts; return its id."""
    session = ""
    for first in range(0, TURNS, RESTART):
        session = await some_turns(server, model, folder, session, range(first, min(TURNS, first + RESTART)))
    return session


async def some_turns(server: Server, model: str, folder: Path, session_id: str, numbers: range) -> str:
    """Have a session take turns in a runtime of their own; return its id. Each fifth call of a tool steers the turn."""
    compaction = CompactionConfig(auto_compact_threshold=12_000, window=100_000)
    config = Config(model=model, provider="http", compaction=compaction)
    called = count(1)

    @tool(name="weather")
    async def weather(city: str) -> str:
        """Tell the weather."""
        if next(called) % 5 == 0:
            nursery.start_soon(partial(service.start_turn, session, f"steered by {city}", mode="steer"))
        await trio.sleep(1)
        return f"sunny in {city}, " * 3

    async with (
        server.opened(model) as provider,
        trio.open_nursery() as nursery,
        open_runtime(store=folder, config=config, models={"http": provider}, tools=[weather]) as service,
    ):
        session = session_id or await new_session(service, system_prompt="Be brief. " * 500)
        for number in numbers:
            calls = WIDE if number % 25 == 0 else number % 3
            await service.start_turn(session, f"call {calls} times, " + "in many words, " * 20)
    return session


@pytest.mark.virtual_time
@pytest.mark.parametrize("model", [CLAUDE, GPT])
async def test_each_request_of_200_turns_begins_with_the_one_before(model: str, tmp_path: Path) -> None:
    """With tools, steering, compactions and restarts a request begins with the one before; a compaction alone ends it.

    Anthropic's marks move, and are no part of what the server compares.
    """
    server = Server()
    session = await converse(server, model, tmp_path)
    compacted = steered = 0
    steps = list(pairwise(each for each in server.asked if not each.summary))
    for before, after in steps:
        if not after.messages.startswith(before.messages):
            assert b"[Context compacted]" in after.messages
            compacted += 1
        steered += after.body.rsplit(b'"role"', 1)[-1].count(b"steered by")
    assert len(steps) > TURNS
    assert steered > 10
    assert 3 <= compacted == sum(each.summary for each in server.asked)
    if model == CLAUDE:
        check_cached(server.asked)
        assert all(each.marks <= 4 for each in server.asked)
    else:
        assert {codec.parse(each.body).get("prompt_cache_key") for each in server.asked} == {session, None}
        assert not any(each.marks for each in server.asked)


def check_cached(asked: Sequence[Asked]) -> None:
    """Check that each request reads all that the one before has left, or the system prompt after a compaction."""
    steps = [each for each in asked if not each.summary]
    left, system = 0, steps[0].usage["cache_creation_input_tokens"]
    for before, after in pairwise(steps):
        kept = before.usage["cache_read_input_tokens"] + before.usage["cache_creation_input_tokens"]
        grown = after.messages.startswith(before.messages)
        assert (
            after.usage["cache_read_input_tokens"] == kept if grown else after.usage["cache_read_input_tokens"] > 1024
        )
        left += after.usage["input_tokens"]
        assert after.usage["input_tokens"] == 0, "all is marked up to its end"
    assert system > 1024
    assert not left


SYSTEM: Final = SystemMessage("Be brief. " * 500)


def exchange(number: int, calls: int = 1) -> list[Message]:
    """Return an exchange: a prompt, an answer with calls, their results, and an answer."""
    uses = tuple(ToolUseBlock(f"call_{number}_{at}", "weather", {"city": "Rome"}) for at in range(calls))
    return [
        UserMessage(f"prompt {number} " * 200),
        AssistantMessage((TextBlock("see"), *uses), "tool_use"),
        ToolResultsMessage(tuple(ToolResult(use.id, "sunny") for use in uses)),
        AssistantMessage((TextBlock(f"answer {number}"),)),
    ]


async def used_by(provider: Provider, messages: Sequence[Message], **options: object) -> Usage:
    """Ask, and return the tokens of the call."""
    asked = request(CLAUDE, *messages, tools=(WEATHER,), **options)
    return (await provider.complete(asked, lambda _: None)).usage


def marked(body: bytes) -> list[str]:
    """Return the marked parts of a request: its kind, and the end of it."""
    data: Any = codec.parse(body)
    parts = [("tools", each) for each in data.get("tools", ())] + [("system", each) for each in data.get("system", ())]
    parts += [(message["role"], block) for message in data["messages"] for block in message["content"]]
    ends = [(role, block.get("name") or block.get("text") or block.get("content")) for role, block in parts]
    return [f"{role} {end.split()[0]}" for (role, end), (_, block) in zip(ends, parts, strict=True) if mark_of(block)]


def mark_of(block: dict[str, Any]) -> Any:
    """Return the mark of a block; None if it has none."""
    return block.get("cache_control")


async def test_the_marks_of_a_request() -> None:
    """A request marks its tools, its system prompt and its end, and the head after a compaction; it has four at most.

    If the newest exchange has more blocks than the server looks back, the end of the request before is marked too; then
    the mark of the tools goes, as that of the system prompt covers them.
    """
    server = Server()
    summary = UserMessage("summary " * 300)
    async with server.opened(CLAUDE) as provider:
        for prefix, calls in (((), 1), ((SYSTEM, summary), 1), ((SYSTEM, summary), WIDE)):
            transcript = Transcript(map(codec.encode, exchange(0)), prefix=map(codec.encode, prefix))
            for message in exchange(1, calls)[:3]:
                transcript.append(message)
            await provider.complete(ModelRequest(CLAUDE, transcript, (WEATHER,)), lambda _: None)
    assert [marked(each.body) for each in server.asked] == [
        ["tools weather", "user sunny"],
        ["tools weather", "system Be", "user summary", "user sunny"],
        ["system Be", "user summary", "user prompt", "user sunny"],
    ]


@pytest.mark.parametrize(("chosen", "mark"), [(None, "5m"), ("5m", "5m"), ("1h", "1h")])
async def test_the_time_of_the_cache(chosen: str | None, mark: str) -> None:
    """The option says how long a request is kept; without it that is five minutes."""
    server, messages = Server(), (SYSTEM, UserMessage("hello"))
    async with server.opened(CLAUDE) as provider:
        first = await used_by(provider, messages, prompt_cache=chosen)
        server.cache.now += 299 - STEP_SECONDS
        second = await used_by(provider, messages, prompt_cache=chosen)
        server.cache.now += 3_599 - STEP_SECONDS
        third = await used_by(provider, messages, prompt_cache=chosen)
    everything = first.input_tokens
    assert (first.cache_creation_tokens, first.cache_read_tokens) == (everything, 0)
    assert (second.cache_creation_tokens, second.cache_read_tokens) == (0, everything)
    assert third.cache_read_tokens == (everything if mark == "1h" else 0)


async def test_no_cache() -> None:
    """With the cache off a request to Anthropic has no marks, and one to OpenAI no key; another server gets no key."""
    server = Server()
    async with server.opened(CLAUDE) as provider:
        usage = await used_by(provider, [SYSTEM, UserMessage("hello")], prompt_cache="off")
    assert (usage.cache_creation_tokens, usage.cache_read_tokens, server.asked[0].marks) == (0, 0, 0)
    keys = []

    def openai(asked: httpx.Request) -> httpx.Response:
        keys.append(codec.parse(asked.content).get("prompt_cache_key"))
        return httpx.Response(200, headers=SSE, content=events(delta("hi", "stop"), DONE))

    for chosen, base in ((None, ""), ("off", ""), (None, "http://127.0.0.1:9/v1")):
        asked = request(GPT, prompt_cache=chosen, session_id="mine")
        await over(openai, asked, settings={"OPENAI_BASE_URL": base})
    assert keys == ["mine", None, None]


async def test_what_openai_writes_to_its_cache() -> None:
    """The tokens that OpenAI's newer models write are told apart from those that they read."""
    details = {"cached_tokens": 30, "cache_write_tokens": 50}

    def openai(_asked: httpx.Request) -> httpx.Response:
        counts = used(100, 7, prompt_tokens_details=details)
        return httpx.Response(200, headers=SSE, content=events(delta("hi", "stop"), counts, DONE))

    assert (await over(openai, request(GPT))).reply.usage == Usage(100, 7, 50, 30)


async def test_marks_in_a_large_request() -> None:
    """The places of the marks are right wherever they are in the pieces of a large request."""
    server = Server()
    for size in (1, 1_000, 131_072, 262_143 - 70, 262_144, 600_000):
        transcript = Transcript(prefix=map(codec.encode, (SYSTEM, UserMessage("s" * size))))
        async with server.opened(CLAUDE) as provider:
            for number in range(4):
                for message in exchange(number, calls=WIDE if number == 2 else 1):
                    transcript.append(message)
                    if isinstance(message, UserMessage | ToolResultsMessage):
                        asked = ModelRequest(CLAUDE, transcript, (WEATHER,))
                        await provider.complete(asked, lambda _: None)
                        assert f"user {'s' * size}" in marked(server.asked[-1].body)
        steps = server.asked[-8:]
        for before, after in pairwise(steps):
            assert after.messages.startswith(before.messages)
            assert after.usage["cache_read_input_tokens"] == sum(before.usage.values())


async def test_a_context_that_ends_with_an_answer() -> None:
    """No mark is put on the words that ask the model to go on, nor on its thoughts, which take none."""
    server = Server()
    thought = ReasoningBlock("hm", {"anthropic": {"type": "thinking", "signature": "s"}})
    told = [SYSTEM, *exchange(0), UserMessage("go on"), AssistantMessage((thought,))]
    async with server.opened(CLAUDE) as provider:
        await used_by(provider, told)
    assert marked(server.asked[0].body) == ["tools weather", "system Be", "user go"]


def test_the_server_of_these_tests_refuses_too_many_marks() -> None:
    """A fifth mark, and a mark on a thought, are refused as the documentation says."""
    cache, mark = PromptCache(), {"cache_control": {"type": "ephemeral"}}
    blocks = [{"type": "text", "text": "x", **mark}] * 5
    for content in (blocks, [{"type": "thinking", **mark}]):
        with pytest.raises(RefusedError):
            cache.usage({"model": CLAUDE, "messages": [{"role": "user", "content": content}]})
