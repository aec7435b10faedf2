"""What Warren reads in a recording, in the form in which a vendor's own client tells it."""

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from hashlib import sha256
from typing import Any, Final

import attrs
import httpx
import trio

from tests.recorded.corpus import Recording
from tests.recorded.official import sources
from tests.recorded.replay import Replay
from tests.transport.providers.byte_server import serve
from warren.base.errors import ProviderError
from warren.conversation.attachments import Attachment
from warren.conversation.messages import (
    AssistantMessage,
    FileBlock,
    HostedToolBlock,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
    files_of,
)
from warren.models.model import Files, ModelReply, ModelRequest, Provider, ReasoningPiece, TextPiece, WholePieces
from warren.settings.config import ModelServer
from warren.transport.providers import open_providers

KEY: Final = "sk-not-a-real-key"
PATHS: Final = {"openai-chat": "/v1", "openai-responses": "/v1", "gemini": "/v1beta", "anthropic": ""}
NOTE: Final = re.compile(r"\s*\[The (model asks for|MCP server) [^\]]*\]\s*")
"""Stands in an answer for a call that neither the server nor the runtime runs."""
ASKED: Final = UserMessage("hello")


def _row(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(values)


@attrs.frozen
class Normal:
    """What was read.

    Attributes:
        text: the text.
        reasoning: the readable reasoning.
        calls: the calls of tools: names and arguments.
        stop: the reason of the end, in Warren's words.
        usage: tokens of the input, of the output, and of those that came from a cache; None if the server tells none.
        sources: the addresses of the sources, each once.
        hosted: the kinds of the blocks of tools that the server runs.
        files: the number of its files, such as pictures.
        error: the status of a refusal, or where the error was.
    """

    text: str = ""
    reasoning: str = ""
    calls: Sequence[dict[str, Any]] = attrs.field(default=(), converter=_row)
    stop: str | None = None
    usage: Sequence[int] | None = attrs.field(default=None, converter=attrs.converters.optional(_row))
    sources: Sequence[str] = attrs.field(default=(), converter=_row)
    hosted: Sequence[str] = attrs.field(default=(), converter=_row)
    files: int = 0
    error: int | str | None = None


@attrs.frozen
class Read:
    """What Warren has read in a recording.

    Attributes:
        normal: the answer.
        shown: whether the pieces that came while it was read make the same texts.
        following: the body of the request that follows; None after a failure.
        cause: the cause of the failure.
    """

    normal: Normal
    shown: bool = True
    following: dict[str, Any] | None = None
    cause: str | None = None


async def read(recordings: Sequence[Recording], seed: int | None = None, *, slow: bool = False) -> list[Read]:
    """Call a server that answers with each of the recordings, and ask it once more after each answer."""
    replay = Replay(recordings, seed, slow)
    async with serve(replay) as url:
        servers = [
            ModelServer(
                name=f"r{number}",
                base_url=f"{url}/{number}{PATHS[each.protocol]}",
                key_env="KEY",
                dialect=each.protocol,
            )
            for number, each in enumerate(recordings)
        ]
        async with open_providers({"KEY": KEY}, servers=servers) as providers:
            found = []
            for number, each in enumerate(recordings):
                name = model_of(each)
                provider = providers.resolve(f"r{number}:{name}", f"r{number}").provider
                found.append(await _read(provider, name, replay.asked.setdefault(number, [])))
            return found


def model_of(recording: Recording) -> str:
    """Return the model to ask for."""
    return recording.model.removeprefix("models/") or "some-model"


async def _read(provider: Provider, model: str, asked: list[Any]) -> Read:
    pieces: list[Any] = []
    try:
        reply = await _answer(provider, ModelRequest(model, [ASKED]), pieces)
    except ProviderError as exc:
        return Read(Normal(error=_place(exc)), cause=exc.cause)
    normal, blocks = _normal(reply), reply.message.blocks
    shown = tuple(
        "".join(each.text for each in pieces if isinstance(each, kind)) for kind in (TextPiece, ReasoningPiece)
    )
    whole = reply.message.text, "".join(block.text for block in blocks if isinstance(block, ReasoningBlock))
    message, files = _stored(reply)
    request = ModelRequest(model, [ASKED, message, *_after(message)], files=files)
    await _answer(provider, request, [])
    return Read(normal, shown == whole, asked[-1])


async def _answer(provider: Provider, request: ModelRequest, pieces: list[Any]) -> ModelReply:
    """Call a model; once more, as the runtime does, if its stream seems to be broken."""
    whole = WholePieces(pieces.append)
    try:
        try:
            return await provider.complete(request, whole)
        except ProviderError as exc:
            if exc.cause != "stream_broken":
                raise
        pieces.clear()
        return await provider.complete(request, whole)
    finally:
        whole.end()


def _stored(reply: ModelReply) -> tuple[AssistantMessage, Files]:
    """Return an answer with references to its files, as if they had been stored."""
    kept: dict[str | None, bytes] = {}
    rest = iter(getattr(reply, "files", ()))

    def stored(block: Any) -> Any:
        if not hasattr(block, "file"):
            return block
        data = next(rest).data
        found = attrs.evolve(block.file, sha256=sha256(data).hexdigest(), size=len(data))
        kept[found.sha256] = data
        return attrs.evolve(block, file=found)

    async def read(file: Attachment, start: int, size: int) -> bytes:
        await trio.lowlevel.checkpoint()
        return kept[file.sha256][start : start + size]

    message = attrs.evolve(reply.message, blocks=tuple(map(stored, reply.message.blocks)))
    return message, Files(frozenset({"image"}), read)


def _place(error: ProviderError) -> int | str:
    """Return the status of a refusal, or whether the server has told an error in its answer."""
    if (status := error.details.get("status")) is not None:
        return int(status)
    return "broken" if error.cause == "stream_broken" else "in the answer"


def _normal(reply: ModelReply) -> Normal:
    blocks, usage = reply.message.blocks, reply.usage
    metadata = [block.metadata or {} for block in blocks if isinstance(block, TextBlock | FileBlock)]
    return Normal(
        NOTE.sub("", reply.message.text),
        "".join(block.text for block in blocks if isinstance(block, ReasoningBlock)),
        [_call(block) for block in reply.message.tool_calls],
        reply.message.stop_reason,
        None if usage.estimated else [usage.input_tokens, usage.output_tokens, usage.cache_read_tokens],
        sources([[*each.get("citations", ())] for each in metadata]),
        [block.kind for block in blocks if isinstance(block, HostedToolBlock)],
        len(files_of(reply.message)),
    )


def _call(block: ToolUseBlock) -> dict[str, Any]:
    return {"name": block.name, "args": dict(block.args) if block.invalid_args is None else block.invalid_args}


def _after(message: AssistantMessage) -> list[Message]:
    """Return what follows an answer: the results of its calls, or another prompt."""
    if message.tool_calls:
        return [ToolResultsMessage(tuple(ToolResult(call.id, "done") for call in message.tool_calls))]
    return [] if message.stop_reason == "pause_turn" else [UserMessage("go on")]


async def read_in_parts(recording: Recording, parts: Iterable[bytes]) -> Normal:
    """Return what Warren reads in a recording whose body comes in these parts, without a socket."""
    parts = [*parts]

    async def body() -> AsyncIterator[bytes]:
        for part in parts:
            await trio.lowlevel.checkpoint()
            yield part

    def answer(_: httpx.Request) -> httpx.Response:
        headers = {"content-type": recording.kind, **recording.headers}
        return httpx.Response(recording.status, headers=headers, content=body())

    server = ModelServer(name="r", base_url="http://127.0.0.1:9", key_env="KEY", dialect=recording.protocol)
    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client,
        open_providers({"KEY": KEY}, client=client, servers=[server]) as providers,
    ):
        name = model_of(recording)
        provider = providers.resolve(f"r:{name}", "r").provider
        try:
            return _normal(await _answer(provider, ModelRequest(name, [ASKED]), []))
        except ProviderError as exc:
            return Normal(error=_place(exc))
