"""The Anthropic messages protocol. No I/O."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from warren import codec
from warren.messages import (
    AssistantMessage,
    Block,
    ContextMessage,
    Message,
    ReasoningBlock,
    StopReason,
    SystemMessage,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
    UnknownBlock,
    UserMessage,
)
from warren.model import ModelReply, ModelRequest, Piece, ReasoningPiece, TextPiece, joined
from warren.tools import ToolSpec
from warren.transport.providers import failures, wire
from warren.transport.providers.accumulate import Call, Counts, reply
from warren.transport.providers.dialect import OUTPUT, forced_schema, known_calls
from warren.transport.providers.settings import Endpoint

VERSION: Final = "2023-06-01"
MAX_TOKENS: Final = 32_000
MAX_TOKENS_OF_OLD_MODELS: Final = 4_096
METADATA: Final = "anthropic"
"""The key of the part of a reasoning block's metadata that the protocol wants back verbatim."""

_STOP: Final[Mapping[str, StopReason]] = {
    "tool_use": "tool_use",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "stop_sequence": "stop_sequence",
    "refusal": "content_filter",
}


@attrs.frozen
class MessagesDialect:
    """Anthropic's messages protocol, streamed."""

    def url(self, endpoint: Endpoint) -> str:
        """Return the address for requests; the base URL may or may not end with the version."""
        return f"{endpoint.url.removesuffix('/v1')}/v1/messages"

    def headers(self, key: str | None) -> dict[str, str]:
        """Return the headers of every request."""
        return {"anthropic-version": VERSION} | ({"x-api-key": key} if key else {})

    def payload(self, request: ModelRequest, endpoint: Endpoint) -> dict[str, Any]:  # noqa: ARG002 - of the protocol
        """Return the body of a request. It always has a cap of the answer, which this protocol requires."""
        most = _most_tokens(request.model)
        system = (message.content for message in request.messages if isinstance(message, SystemMessage))
        body: dict[str, Any] = {
            "model": request.model,
            "messages": to_wire(request.messages),
            "max_tokens": request.answer_cap(most) or most,
            "stream": True,
        }
        if instructions := "\n\n".join(text for text in system if text.strip()):
            body["system"] = instructions
        if request.tools:
            body["tools"] = [_tool(spec) for spec in request.tools]
        if request.options.temperature is not None:
            body["temperature"] = request.options.temperature
        if request.options.top_p is not None:
            body["top_p"] = request.options.top_p
        if (schema := forced_schema(request)) is not None:
            body["tools"] = [_tool(ToolSpec(OUTPUT, "Takes the final answer.", schema))]
            body["tool_choice"] = {"type": "tool", "name": OUTPUT}
        return body

    def answer(self, request: ModelRequest, endpoint: Endpoint) -> "MessagesAnswer":
        """Return the empty answer to a request, to be fed with the events of the stream."""
        return MessagesAnswer(endpoint, known_calls(request), forced=forced_schema(request) is not None)


@attrs.define
class _Part:
    """A content block that is still arriving."""

    kind: str
    start: dict[str, Any]
    text: list[str] = attrs.field(factory=list)
    signature: list[str] = attrs.field(factory=list)
    call: Call = attrs.field(factory=Call)

    def block(self, taken: set[str]) -> Block | None:
        """Return the block, or None if it is empty."""
        text = joined(self.text)
        match self.kind:
            case "text":
                return TextBlock(text) if text else None
            case "thinking":
                kept = {"type": "thinking", **_rest(self.start, "thinking"), "signature": "".join(self.signature)}
                return ReasoningBlock(text, {METADATA: kept}) if text or kept["signature"] else None
            case "redacted_thinking":
                return ReasoningBlock("", {METADATA: self.start})
            case "tool_use":
                return self._called().block(taken)
            case _:
                return UnknownBlock(self.kind, _rest(self.start, "type"))

    def _called(self) -> Call:
        """Return the call; some servers send its arguments whole at the start instead of in fragments."""
        if not self.call.arguments and (given := wire.as_object(self.start.get("input"))):
            self.call.add("", codec.encode(given).decode())
        return self.call


@attrs.define
class MessagesAnswer:
    """An answer, assembled from its events; see `dialect.Answer`."""

    _endpoint: Endpoint
    _taken: set[str]
    _forced: bool = attrs.field(default=False, kw_only=True)
    complete: bool = False
    closed: bool = False
    size: int = 0
    _begun: bool = False
    _parts: dict[int, _Part] = attrs.field(factory=dict)
    _stop_reason: StopReason = "end_turn"
    _usage: dict[str, Any] = attrs.field(factory=dict)

    def feed(self, data: str) -> list[Piece]:
        """Add the next event of the stream, and return its pieces. Raises ProviderError for an error or a bad event."""
        if not data.strip():
            return []
        event = wire.parse_object(data)
        kind = wire.as_text(event.get("type"))
        if kind == "content_block_delta":
            event = wire.with_halves(data, event)
        take = _EVENTS.get(kind)
        return take(self, event) if take is not None else []

    def whole(self, data: str) -> list[Piece]:
        """Add an answer that was not streamed, as plain JSON. Raises ProviderError if it is malformed or an error."""
        message = wire.parse_object(data)
        if message.get("error"):
            self._error(message)
        pieces = self._message_start({"message": message})
        if "content" not in message:
            raise wire.bad_response("JSON that is no message")
        for index, block in enumerate(wire.objects_in(message, "content")):
            pieces += self._block_start({"index": index, "content_block": block})
        self._message_delta({"delta": message})
        self.complete = self.closed = True
        return pieces

    def reply(self, sent: int) -> ModelReply:
        """Return the whole answer; `sent` is the size of the request in bytes, for estimates."""
        parts = (self._parts[index].block(self._taken) for index in sorted(self._parts))
        blocks = tuple(_spoken(block) if self._forced else block for block in parts if block is not None)
        stopped = "end_turn" if self._forced and self._stop_reason == "tool_use" else self._stop_reason
        return reply(blocks, stopped, _counts(self._usage), sent)

    def _message_start(self, event: dict[str, Any]) -> list[Piece]:
        self._begun = True
        self._usage |= wire.as_object(wire.object_in(event, "message").get("usage"))
        return []

    def _block_start(self, event: dict[str, Any]) -> list[Piece]:
        """Begin a block; in an answer that was not streamed it has its whole content already."""
        start = wire.object_in(event, "content_block")
        part = _Part(wire.as_text(start.get("type")), start)
        self._parts[_index(event)] = part
        part.call = Call(id=wire.as_text(start.get("id")))
        part.call.add(wire.as_text(start.get("name")), "")
        part.signature.append(wire.as_text(start.get("signature")))
        self._begun = True
        self.size += 1
        return _said(part, wire.text_in(start, "text") or wire.text_in(start, "thinking"))

    def _block_delta(self, event: dict[str, Any]) -> list[Piece]:
        part = self._parts.get(_index(event))
        delta = wire.object_in(event, "delta")
        if part is None:
            return []
        signature, arguments = joined([wire.text_in(delta, "signature")]), wire.text_in(delta, "partial_json")
        part.signature.append(signature)
        part.call.add("", arguments)
        text = wire.text_in(delta, "text") or wire.text_in(delta, "thinking")
        self.size += len(signature) + len(arguments) + len(text)
        return _said(part, text)

    def _message_delta(self, event: dict[str, Any]) -> list[Piece]:
        """Note the stop reason, and the token counts, which replace those of the start."""
        self._usage |= {name: count for name, count in wire.as_object(event.get("usage")).items() if count is not None}
        if stop := wire.text_in(wire.object_in(event, "delta"), "stop_reason"):
            self._stop_reason = _STOP.get(stop, "end_turn")
            self.complete = True
        return []

    def _message_stop(self, _event: dict[str, Any]) -> list[Piece]:
        if not self._begun:
            raise wire.bad_response("the end of an answer, and no answer")
        self.complete = self.closed = True
        return []

    def _error(self, event: dict[str, Any]) -> list[Piece]:
        raise failures.in_stream(self._endpoint, event.get("error"))


_EVENTS: Final[Mapping[str, Callable[[MessagesAnswer, dict[str, Any]], list[Piece]]]] = {
    "message_start": MessagesAnswer._message_start,  # noqa: SLF001 - the table belongs to the class
    "content_block_start": MessagesAnswer._block_start,  # noqa: SLF001
    "content_block_delta": MessagesAnswer._block_delta,  # noqa: SLF001
    "message_delta": MessagesAnswer._message_delta,  # noqa: SLF001
    "message_stop": MessagesAnswer._message_stop,  # noqa: SLF001
    "error": MessagesAnswer._error,  # noqa: SLF001
}


def _spoken(block: Block) -> Block:
    """Return the text of an answer that was forced into a tool call."""
    if not isinstance(block, ToolUseBlock):
        return block
    return TextBlock(codec.encode(block.args).decode() if block.invalid_args is None else block.invalid_args)


def _said(part: _Part, text: str) -> list[Piece]:
    if not text:
        return []
    part.text.append(text)
    match part.kind:
        case "text":
            return [TextPiece(text)]
        case "thinking":
            return [ReasoningPiece(text)]
        case _:
            return []


def _index(event: dict[str, Any]) -> int:
    index = event.get("index")
    return index if type(index) is int else 0


def to_wire(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return a transcript in the form of the protocol, without its system messages.

    Consecutive messages of one role are merged. Blank text, unknown blocks and reasoning without this provider's
    signature are left out, because the server refuses them; so are messages that are empty without them.
    """
    turns: list[dict[str, Any]] = []
    for role, content in map(_turn, messages):
        if content and turns and turns[-1]["role"] == role:
            turns[-1]["content"] += content
        elif content:
            turns.append({"role": role, "content": content})
    if not turns or turns[-1]["role"] == "assistant":
        turns.append({"role": "user", "content": _text(wire.CONTINUE)})
    return turns


def _turn(message: Message) -> tuple[str, list[dict[str, Any]]]:
    match message:
        case SystemMessage():
            return "user", []
        case UserMessage() | ContextMessage():
            return "user", _text(message.content)
        case ToolResultsMessage():
            return "user", [_result(result) for result in message.results]
        case AssistantMessage():
            return "assistant", [part for block in message.blocks for part in _block(block)]


def _block(block: Block) -> Sequence[dict[str, Any]]:
    match block:
        case TextBlock():
            return _text(block.text)
        case ToolUseBlock():
            call = {"id": wire.call_id(block.id), "name": wire.call_name(block.name), "input": dict(block.args)}
            return [{"type": "tool_use", **call}]
        case ReasoningBlock():
            return _thought(block)
        case UnknownBlock():
            return []


def _thought(block: ReasoningBlock) -> list[dict[str, Any]]:
    kept = wire.as_object((block.metadata or {}).get(METADATA))
    if kept.get("type") == "redacted_thinking":
        return [kept]
    return [{**kept, "thinking": block.text}] if kept.get("signature") else []


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _result(result: ToolResult) -> dict[str, Any]:
    answer: dict[str, Any] = {"type": "tool_result", "tool_use_id": wire.call_id(result.tool_use_id)}
    if result.content:
        answer["content"] = result.content
    return answer | ({"is_error": True} if result.is_error else {})


def _tool(spec: ToolSpec) -> dict[str, Any]:
    return {"name": spec.name, "description": spec.description, "input_schema": spec.input_schema}


def _most_tokens(model: str) -> int:
    return MAX_TOKENS_OF_OLD_MODELS if model.startswith("claude-3") else MAX_TOKENS


def _rest(data: dict[str, Any], without: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != without}


def _counts(usage: dict[str, Any]) -> Counts:
    """Return the counts; the protocol reports cached input separately."""
    fresh = wire.as_count(usage.get("input_tokens"))
    created = wire.as_count(usage.get("cache_creation_input_tokens")) or 0
    read = wire.as_count(usage.get("cache_read_input_tokens")) or 0
    whole = None if fresh is None else fresh + created + read
    return Counts(whole, wire.as_count(usage.get("output_tokens")), created, read)
