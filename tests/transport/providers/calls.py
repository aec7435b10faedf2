"""Calling the real providers: over canned bytes, or over the socket of a test server."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping

import attrs
import httpx
import trio

from tests.transport.providers.byte_server import Handler, event, serve
from warren.conversation.messages import Message, UserMessage
from warren.conversation.options import ModelOptions
from warren.models.model import Emitted, ModelReply, ModelRequest, Provider, TextPiece, WholePieces
from warren.models.tools import ToolSpec
from warren.settings.config import ModelServer
from warren.transport.providers import open_providers

KEY = "sk-not-a-real-key"
GPT, CLAUDE, RESPONSES, GEMINI = "gpt-test", "claude-test", "o9-test", "gemini-3-test"
OPENAI_URL = "https://api.openai.com/v1"
WEATHER = ToolSpec("weather", "tells the weather", {"type": "object", "properties": {"city": {"type": "string"}}})
SSE = {"content-type": "text/event-stream; charset=utf-8"}


@attrs.frozen
class Outcome:
    """The outcome of a call: its pieces and its reply, or the pieces alone if it failed."""

    pieces: list[Emitted]
    reply: ModelReply

    @property
    def text(self) -> str:
        """The pieces of text, joined."""
        return "".join(piece.text for piece in self.pieces if isinstance(piece, TextPiece))


def environ(url: str = "") -> dict[str, str]:
    """Return an environment with both keys, and with both base URLs where one is given."""
    keys = {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY, "GEMINI_API_KEY": KEY}
    urls = {"OPENAI_BASE_URL": f"{url}/v1", "ANTHROPIC_BASE_URL": url, "GOOGLE_GEMINI_BASE_URL": f"{url}/v1beta"}
    return keys | (urls if url else {})


def servers(url: str = "") -> list[ModelServer]:
    """Return the servers of models that no vendor's name leads to."""
    base = url or OPENAI_URL
    return [
        ModelServer(name="chat", base_url=base, key_env="OPENAI_API_KEY", dialect="openai-chat"),
        ModelServer(name="responses", base_url=base, key_env="OPENAI_API_KEY", dialect="openai-responses"),
    ]


def request(model: str, *messages: Message | str, **options: object) -> ModelRequest:
    """Return a request; a text is a user message, and without any message there is one."""
    context = [UserMessage(item) if isinstance(item, str) else item for item in messages or ("hello",)]
    names = attrs.fields_dict(ModelOptions)
    asked = ModelOptions(**{name: value for name, value in options.items() if name in names})  # type: ignore[arg-type]
    rest = {name: value for name, value in options.items() if name not in names}
    return attrs.evolve(ModelRequest(model, context, options=asked), **rest)  # type: ignore[arg-type]


async def heard(provider: Provider, asked: ModelRequest, pieces: list[Emitted]) -> Outcome:
    """Call a model as a turn does, which joins the halves of a character that two pieces have."""
    whole = WholePieces(pieces.append)
    try:
        return Outcome(pieces, await provider.complete(asked, whole))
    finally:
        whole.end()


async def over(
    transport: Callable[[httpx.Request], httpx.Response],
    asked: ModelRequest,
    pieces: list[Emitted] | None = None,
    settings: Mapping[str, str] | None = None,
) -> Outcome:
    """Call a model whose server is a function."""
    got = [] if pieces is None else pieces
    variables = dict(settings or {})
    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(transport)) as client,
        open_providers(environ() | variables, client=client, servers=servers()) as providers,
    ):
        provider = None if variables.get("OPENAI_BASE_URL") else provider_of(asked.model)
        choice = providers.resolve(asked.model, provider)
        return await heard(choice.provider, asked, got)


def provider_of(model: str) -> str | None:
    """Return the provider to name for a model of the tests, whose own name may say nothing of it."""
    names = {"kimi": "anthropic", "gpt": "chat", RESPONSES: "responses"}
    return next((provider for name, provider in names.items() if model.startswith(name)), None)


async def streamed(asked: ModelRequest, *data: object, pieces: list[Emitted] | None = None) -> Outcome:
    """Call a model that streams these events, each in a part of its own."""
    return await in_parts(asked, [event(each) for each in data], pieces)


async def in_parts(asked: ModelRequest, parts: Iterable[bytes], pieces: list[Emitted] | None = None) -> Outcome:
    """Call a model whose stream arrives in these parts."""

    async def body() -> AsyncIterator[bytes]:
        for part in parts:
            await trio.lowlevel.checkpoint()
            yield part

    return await over(lambda _: httpx.Response(200, headers=SSE, content=body()), asked, pieces)


async def answered(asked: ModelRequest, body: object, code: int = 200, **headers: str) -> Outcome:
    """Call a model that answers with plain JSON."""
    return await over(lambda _: httpx.Response(code, json=body, headers=headers), asked)


async def on_socket(handler: Handler, asked: ModelRequest, pieces: list[Emitted] | None = None) -> Outcome:
    """Call a model on a server of its own."""
    got = [] if pieces is None else pieces
    async with serve(handler) as url, open_providers(environ(url), servers=servers(f"{url}/v1")) as providers:
        choice = providers.resolve(asked.model, provider_of(asked.model))
        return await heard(choice.provider, asked, got)
