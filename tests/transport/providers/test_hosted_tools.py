"""Tools that the provider runs itself: asked for, read, and sent back to the model that called them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import httpx
import pytest

from tests.support.runtime import Recorder, new_session, open_runtime
from tests.transport.providers.byte_server import events
from tests.transport.providers.calls import (
    CLAUDE,
    GEMINI,
    GPT,
    RESPONSES,
    SSE,
    WEATHER,
    environ,
    over,
    request,
    streamed,
)
from tests.transport.providers.dialects import STOP, body, more, opened, start, stopped
from tests.transport.providers.targets import provider
from warren.actors.calls.service import Service
from warren.base.errors import BudgetExhaustedError, InvalidParamsError
from warren.conversation import codec
from warren.conversation.budget import Budget
from warren.conversation.events import TurnCompleted
from warren.conversation.messages import (
    AssistantMessage,
    HostedToolBlock,
    Message,
    ReasoningBlock,
    TextBlock,
    UserMessage,
)
from warren.conversation.options import ModelOptions
from warren.settings.config import Config, ModelServer
from warren.transport.providers import open_providers

SEARCH: Final = {"web_search": {"max_uses": 2}}
SCHEMA: Final = {"type": "object", "properties": {"a": {"type": "string"}}}
USE: Final = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "rabbits"}}
FOUND: Final[Mapping[str, Any]] = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {
            "type": "web_search_result",
            "url": "https://example.com/a",
            "title": "A",
            "encrypted_content": "EqgfCioI",
            "page_age": "April 30, 2025",
        }
    ],
}
CITED: Final = {
    "type": "web_search_result_location",
    "url": "https://example.com/a",
    "title": "A",
    "encrypted_index": "Eo8BCioI",
    "cited_text": "Rabbits dig",
}
CALLED: Final = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {"type": "search", "query": "rabbits"},
}
SOURCE: Final = {"type": "url_citation", "start_index": 0, "end_index": 4, "url": "https://example.com/a", "title": "A"}
THOUGHT: Final = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
GROUNDED: Final = {
    "webSearchQueries": ["rabbits"],
    "groundingChunks": [{"web": {"uri": "https://example.com/a", "title": "A"}}],
    "groundingSupports": [{"segment": {"endIndex": 4, "text": "They dig."}, "groundingChunkIndices": [0]}],
}
ASKED: Final = {"toolCall": {"toolType": "GOOGLE_SEARCH_WEB", "args": {"queries": ["rabbits"]}, "id": "t1"}}
TOLD: Final = {
    "toolResponse": {"toolType": "GOOGLE_SEARCH_WEB", "response": {"results": 1}, "id": "t1"},
    "thoughtSignature": "sig==",
}


def item(index: int, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the event of OpenAI's protocol with a whole item."""
    return {"type": "response.output_item.done", "output_index": index, "item": data}


MESSAGE: Final = {"type": "message", "role": "assistant"}
EVENTS: Final[Mapping[str, list[Any]]] = {
    CLAUDE: [
        start(input_tokens=9),
        opened(0, "server_tool_use", id="srvtoolu_1", name="web_search", input={}),
        more(0, partial_json='{"query": "rab'),
        more(0, partial_json='bits"}'),
        opened(1, kind=FOUND["type"], **{name: FOUND[name] for name in ("tool_use_id", "content")}),
        opened(2, "text", text="", citations=[]),
        {"type": "content_block_delta", "index": 2, "delta": {"type": "citations_delta", "citation": CITED}},
        more(2, text="They dig."),
        stopped(output_tokens=3),
        STOP,
    ],
    RESPONSES: [
        item(0, THOUGHT),
        {"type": "response.output_item.added", "output_index": 1, "item": CALLED | {"status": "in_progress"}},
        {"type": "response.web_search_call.searching", "output_index": 1, "item_id": "ws_1"},
        item(1, CALLED),
        {"type": "response.output_item.added", "output_index": 2, "item": MESSAGE | {"content": []}},
        {"type": "response.output_text.delta", "output_index": 2, "item_id": "m", "delta": "They dig."},
        item(2, MESSAGE | {"content": [{"type": "output_text", "text": "They dig.", "annotations": [SOURCE]}]}),
        {"type": "response.completed", "response": {"status": "completed", "output": [], "usage": {}}},
    ],
    GEMINI: [
        {"candidates": [{"content": {"role": "model", "parts": [ASKED, TOLD]}}]},
        {"candidates": [{"content": {"parts": [{"text": "They dig."}]}}]},
        {"candidates": [{"finishReason": "STOP", "groundingMetadata": GROUNDED}]},
    ],
}
CITATIONS: Final = {CLAUDE: [CITED], RESPONSES: [SOURCE], GEMINI: [GROUNDED]}
BACK: Final[Mapping[str, list[Any]]] = {
    CLAUDE: [
        {"role": "assistant", "content": [USE, FOUND, {"type": "text", "text": "They dig.", "citations": [CITED]}]}
    ],
    RESPONSES: [THOUGHT, CALLED, MESSAGE | {"content": "They dig."}],
    GEMINI: [{"role": "model", "parts": [ASKED, TOLD, {"text": "They dig."}]}],
}
"""The answers as they go back."""


async def answer(model: str) -> AssistantMessage:
    """Return what a model answers with a search, as it is after a restart."""
    pieces: list[Any] = []
    outcome = await streamed(request(model, hosted_tools=SEARCH), *EVENTS[model], pieces=pieces)
    assert "".join(piece.text for piece in pieces) == "They dig."
    message = codec.decode_message(codec.encode(outcome.reply.message))
    assert isinstance(message, AssistantMessage)
    return message


def told(model: str, message: AssistantMessage) -> list[Any]:
    """Return the answer in the next request to a model."""
    target = provider(model)
    context = target.dialect.context(target.endpoint, model)
    read: list[Any] = body(context, [UserMessage("a"), message, UserMessage("b")])[context.MEMBER]
    return read[1:-1]


@pytest.mark.parametrize("model", EVENTS)
async def test_a_search_goes_back_to_the_model_that_made_it(model: str) -> None:
    """Verbatim, with the sources of the text, which callers find in its metadata; the answer calls no tool of ours."""
    message = await answer(model)
    assert (message.text, message.stop_reason, message.tool_calls) == ("They dig.", "end_turn", ())
    (said,) = [block for block in message.blocks if isinstance(block, TextBlock)]
    assert (said.metadata or {})["citations"] == CITATIONS[model]
    assert told(model, message) == BACK[model]


@pytest.mark.parametrize("model", EVENTS)
async def test_another_model_gets_the_text_alone(model: str) -> None:
    """Of any protocol, and of the same one."""
    message = await answer(model)
    plain = AssistantMessage((TextBlock("They dig."),))
    for other in (*EVENTS, GPT, f"{model}-other"):
        if other != model:
            target = provider(other) if not other.endswith("-other") else provider(model)
            context = target.dialect.context(target.endpoint, other)
            bare = target.dialect.context(target.endpoint, other)
            asked: list[Message] = [UserMessage("a"), message, UserMessage("b")]
            assert body(context, asked) == body(bare, [asked[0], plain, asked[2]]), other


async def test_a_call_of_the_server_without_a_result_does_not_go_back() -> None:
    """The server refuses it, as after an interrupt."""
    message = await answer(CLAUDE)
    blocks = [block for block in message.blocks if not (isinstance(block, HostedToolBlock) and "result" in block.kind)]
    assert told(CLAUDE, attrs.evolve(message, blocks=tuple(blocks))) == [
        {"role": "assistant", "content": BACK[CLAUDE][0]["content"][2:]}
    ]
    assert not any(isinstance(block, ReasoningBlock) for block in message.blocks)


def paused() -> list[Any]:
    """Return the events of an answer that is paused within its second search."""
    return [
        *EVENTS[CLAUDE][:5],
        opened(2, "text", text="Hm. "),
        opened(3, "server_tool_use", id="srvtoolu_2", name="web_search", input={}),
        more(3, partial_json='{"query": "burrows"}'),
        stopped("pause_turn", output_tokens=2),
        STOP,
    ]


OPEN: Final = USE | {"id": "srvtoolu_2", "input": {"query": "burrows"}}
ENDED: Final = [
    start(input_tokens=9),
    opened(0, kind=FOUND["type"], tool_use_id="srvtoolu_2", content=[]),
    opened(1, "text", text="They dig."),
    stopped(output_tokens=3),
    STOP,
]


@attrs.define
class Pausing:
    """A server that pauses its first answers, and keeps the requests.

    Attributes:
        pauses: number of the pauses.
        bodies: the bodies of the requests.
    """

    pauses: int
    bodies: list[bytes] = attrs.field(factory=list)

    def __call__(self, asked: httpx.Request) -> httpx.Response:
        """Answer a request."""
        self.bodies.append(asked.content)
        data = paused() if len(self.bodies) <= self.pauses else ENDED
        return httpx.Response(200, headers=SSE, content=events(*data))

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Service]:
        """Open a runtime whose sessions have this server's model."""
        async with (
            httpx.AsyncClient(transport=httpx.MockTransport(self)) as client,
            open_providers(environ(), client=client) as providers,
            open_runtime(
                models={"http": providers.resolve(CLAUDE, None).provider}, config=Config(model=CLAUDE, provider="http")
            ) as service,
        ):
            yield service

    def told(self, number: int) -> list[Any]:
        """Return the messages of a request."""
        told: list[Any] = codec.parse(self.bodies[number])["messages"]
        return told


async def test_a_paused_answer_goes_on_in_the_same_turn() -> None:
    """As the vendor says: it goes back as it is, as the last message. Each step counts, and the bytes stay the same."""
    server, recorder = Pausing(1), Recorder()
    async with server.opened() as service:
        result = await service.create_session("Rabbits?", hosted_tools=SEARCH, prompt_cache="off", on_event=recorder)
        await service.start_turn(result.session_id, "And hares?")
    assert (result.text, result.stop_reason, result.steps) == ("Hm. They dig.", "end_turn", 2)
    assert (result.usage.input_tokens, result.usage.output_tokens) == (18, 5)
    stops = [event.stop_reason for event in recorder.only(TurnCompleted)]
    assert stops == ["pause_turn", "end_turn"]
    said = [USE, FOUND, {"type": "text", "text": "Hm. "}, OPEN]
    assert server.told(1)[1:] == [{"role": "assistant", "content": said}]
    result_of = {"type": FOUND["type"], "tool_use_id": "srvtoolu_2", "content": []}
    assert server.told(2)[1]["content"] == [*said, result_of, {"type": "text", "text": "They dig."}]
    until = server.bodies[1].index(b"}]}]")
    assert server.bodies[2].startswith(server.bodies[1][:until])


async def test_pauses_end_with_the_budget() -> None:
    """A server that pauses for ever uses the steps up; the next prompt goes without the search that has not ended."""
    server = Pausing(3)
    async with server.opened() as service:
        session = await new_session(service, hosted_tools=SEARCH, prompt_cache="off")
        with pytest.raises(BudgetExhaustedError, match="steps") as caught:
            await service.start_turn(session, "Rabbits?", budget=Budget(max_steps=3))
        assert caught.value.details["text"] == "Hm. Hm. Hm. "
        await service.start_turn(session, "And hares?")
    assert len(server.bodies) == 4
    answer, asked = server.told(3)[-2:]
    assert (answer["role"], asked) == (
        "assistant",
        {"role": "user", "content": [{"type": "text", "text": "And hares?"}]},
    )
    assert OPEN not in answer["content"]


async def test_only_its_model_goes_on_with_a_paused_answer() -> None:
    """Another one is asked to; so is the same one if the answer has no call of the server's tools."""
    blocks = (await streamed(request(CLAUDE, hosted_tools=SEARCH), *paused())).reply.message
    assert blocks.stop_reason == "pause_turn"
    target = provider(CLAUDE)
    for other in (CLAUDE, f"{CLAUDE}-other"):
        read = body(target.dialect.context(target.endpoint, other), [UserMessage("a"), blocks])["messages"]
        assert [each["role"] for each in read] == ["user", "assistant", "user"][: 2 if other == CLAUDE else 3]
    outcome = await streamed(request(CLAUDE), start(), opened(0, "text", text="a"), stopped("pause_turn"), STOP)
    assert outcome.reply.message.stop_reason == "end_turn"


async def sent(model: str, **options: object) -> dict[str, Any]:
    """Return the body of the request that a call sends."""
    bodies: list[dict[str, Any]] = []

    def server(asked: httpx.Request) -> httpx.Response:
        bodies.append(codec.parse(asked.content))
        return httpx.Response(200, json={"content": [], "output": [], "candidates": []})

    await over(server, request(model, **options))
    return bodies[0]


async def test_requests() -> None:
    """The name that all have is each vendor's own; other names and all settings go as they are, behind our tools."""
    claude = (await sent(CLAUDE, hosted_tools=SEARCH, tools=(WEATHER,)))["tools"]
    assert [tool["name"] for tool in claude] == [WEATHER.name, "web_search"]
    assert claude[1].pop("cache_control") == {"type": "ephemeral"}
    assert claude[1] == {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}
    newer = (await sent(CLAUDE, hosted_tools={"web_fetch_20260209": {}}, prompt_cache="off"))["tools"]
    assert newer == [{"type": "web_fetch_20260209", "name": "web_fetch"}]
    assert (await sent(RESPONSES, hosted_tools=SEARCH))["tools"] == [{"type": "web_search", "max_uses": 2}]
    assert len((await sent(RESPONSES, hosted_tools=SEARCH, tools=(WEATHER,)))["tools"]) == 2
    gemini = await sent(GEMINI, hosted_tools={"web_search": {}, "url_context": {}})
    assert (gemini["tools"], "toolConfig" in gemini) == ([{"google_search": {}}, {"url_context": {}}], False)
    gemini = await sent(GEMINI, hosted_tools={"web_search": {}}, tools=(WEATHER,))
    assert [*gemini["tools"][0], *gemini["tools"][1]] == ["functionDeclarations", "google_search"]
    assert gemini["toolConfig"] == {"includeServerSideToolInvocations": True}
    for model in (RESPONSES, GEMINI):
        assert "tools" not in await sent(model, hosted_tools=SEARCH, answer_schema=SCHEMA)
        assert "tools" not in await sent(model, hosted_tools={})


async def test_who_has_none_refuses_them_by_name() -> None:
    """Before anything is sent: chat completions, Claude on Bedrock and the echo. A script plays what was recorded."""
    chat = ModelServer(name="chat", base_url="http://127.0.0.1:9/v1", key_env="K", dialect="openai-chat")
    async with open_providers({"AWS_REGION": "us-east-1"}, servers=[chat]) as providers:
        for name, model in (("chat", "llama"), ("bedrock", "anthropic.claude-sonnet-5"), ("echo", "echo")):
            with pytest.raises(InvalidParamsError, match="has no tools of its own") as caught:
                providers.resolve(model, name).check(ModelOptions(hosted_tools=SEARCH))
            assert caught.value.details["path"] == "$.hosted_tools.web_search"
