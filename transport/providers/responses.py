"""OpenAI's responses protocol, stateless: the server stores nothing, and reasoning goes back encrypted. No I/O."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import attrs
import msgspec

from warren.base.values import define
from warren.conversation import codec
from warren.conversation.attachments import Attachment
from warren.conversation.messages import (
    AssistantMessage,
    Block,
    FileBlock,
    HostedToolBlock,
    ReasoningBlock,
    StopReason,
    TextBlock,
    ToolResult,
    ToolUseBlock,
)
from warren.models.model import ModelRequest, ReasoningPiece, TextPiece, joined
from warren.transport.providers import failures, pictures, unanswered, wire
from warren.transport.providers.accumulate import Answer, Arriving, Call, Counts, Ids
from warren.transport.providers.dialect import (
    OUTPUT,
    SURE_TOKENS,
    cache_key,
    forced_schema,
    sampling,
    with_hosted,
)
from warren.transport.providers.encoded import (
    Encoded,
    EncodedTools,
    Part,
    Role,
    base64,
    data_url,
    letters,
    quoted,
)
from warren.transport.providers.kept import Maker
from warren.transport.providers.openai import OpenAIDialect
from warren.transport.providers.settings import ModelEndpoint
from warren.transport.providers.tool_rules import MANY, RESPONSES
from warren.transport.providers.tool_schemas import FittedTool

PROTOCOL: Final = "openai"
"""The name under which blocks have the data that goes back verbatim."""
LEAST_CAP: Final = 16
"""The smallest cap of an answer that the protocol takes."""
_PLAIN: Final = ("message", "reasoning", "function_call")
"""Items that are read; all others are about what the server runs, and go back as they came."""
PICTURE: Final = "image_generation_call"
# What items of answers have and those of requests have not, by the types in openai-python 3.57.0, November 2026.
_OF_ANSWERS: Final[Mapping[str, frozenset[str]]] = {"custom_tool_call_output": frozenset({"created_by", "status"})}
_OF_ALL_ANSWERS: Final = frozenset({"created_by"})
CUSTOM: Final = "custom_tool_call"
"""The calls of the program's own tools at OpenAI, and of a search of the server's at xAI."""
RAN: Final = "ran"
"""Says, in the data of a call, that the server has run it."""
COMPLETED: Final = "completed"
_STOP: Final[Mapping[str, StopReason]] = {
    COMPLETED: "end_turn",
    "max_output_tokens": "max_tokens",
    "max_tokens": "max_tokens",
    "length": "max_tokens",
    "content_filter": "content_filter",
}
# Others refuse to be asked for encrypted reasoning.
_REASONS: Final = re.compile(r"(^|/)(o\d|gpt-([5-9]|\d\d|oss)(?!.*-chat)|codex)")


def _tool(tool: FittedTool) -> dict[str, Any]:
    # Strict is the default of the protocol, and refuses most schemas.
    own = {"name": tool.name, "description": tool.description, "parameters": tool.schema, "strict": False}
    return {"type": "function", **own}


@define
class _Item(Arriving):
    """An item of the answer that is still arriving.

    Attributes:
        ended: the text of those of its parts that have ended.
        call: its call of a tool.
        whole: the item as the server has sent it last.
        done: whether the server has sent its end.
        ran: whether the server has run it, as the answer has gone on behind it.
    """

    ended: str = ""
    call: Call = attrs.field(factory=Call)
    whole: dict[str, Any] = attrs.field(factory=dict)
    done: bool = False
    ran: bool = False

    def block(self, maker: Maker, ids: Ids) -> Block | None:
        """Return the block, or None if it is empty."""
        text = joined(self.text)
        match self.kind:
            case "message":
                phase = wire.as_text(self.whole.get("phase"))
                parts = _content_of(self.whole)
                sources = [source for part in parts for source in wire.objects_in(part, "annotations")]
                own = maker.keep({"phase": phase} if phase else {}, sources)
                return TextBlock(text, own) if text else None
            case "reasoning":
                names = ("id", "encrypted_content") if self.whole.get("encrypted_content") else ()
                own = maker.keep({name: wire.as_text(self.whole.get(name)) for name in names})
                return ReasoningBlock(text, own) if text or own else None
            case "function_call":
                return self._called(maker, ids)
            case "image_generation_call" if self.file is not None:
                media_type = f"image/{wire.as_text(self.whole.get('output_format')) or 'png'}"
                return FileBlock(pictures.reference_of(media_type), maker.keep(_as_input(self.whole)))
            case kind:
                own = maker.keep(self.whole)
                return HostedToolBlock(kind, {**own, RAN: True} if own and self.ran else own) if own else None

    def _called(self, maker: Maker, ids: Ids) -> Block:
        """Return the call of a tool. One without arguments, and without an end, is no call without arguments."""
        if not self.call.begun:
            self.call.add("", wire.arguments_in(self.whole, "arguments"))
        call = maker.signed(self.call.block(ids))
        return call if self.done or self.call.arguments.strip() else attrs.evolve(call, invalid_args="")


class _TextDelta(msgspec.Struct, tag="response.output_text.delta", tag_field="type"):
    delta: str
    output_index: int


_text_delta: Final = codec.parser_of(_TextDelta, b"response.output_text.delta")
"""Returns the event if it has the next part of the text, in the form that the vendor sends; else None."""


@define
class ResponsesAnswer(Answer):
    """An answer, assembled from its events."""

    PROTOCOL: ClassVar[str] = PROTOCOL
    STOP: ClassVar[Mapping[str, StopReason]] = _STOP
    _items: dict[int, _Item] = attrs.field(factory=dict)

    @property
    def blocks(self) -> int:
        """The number of its items that have begun."""
        return len(self._items)

    def feed(self, data: bytes) -> None:
        """Add the next event of the stream. Raises ProviderError for an error or a bad event."""
        if (delta := _text_delta(data)) is not None:  # nearly every event; the others are read member by member
            self._say(self._item(delta.output_index, "message"), delta.delta)
            return
        if self.closed or not data.strip() or data.strip() == b"[DONE]":
            return
        event = wire.with_halves(data, wire.parse_object(data))
        kind = wire.as_text(event.get("type"))
        if (found := _OF_ITEMS.get(kind)) is not None:
            item_kind, add = found
            add(self, self._item(self._index(event), item_kind), event)
        elif (take := _EVENTS.get(kind)) is not None:
            take(self, event)
        else:
            failures.check(self._endpoint, event)

    def whole(self, data: bytes) -> None:
        """Add an answer that was not streamed, as plain JSON. Raises ProviderError if it is malformed or an error."""
        response = wire.parse_object(data)
        if "output" not in response:
            failures.check(self._endpoint, response)
            raise wire.bad_response("JSON that is no response")
        self._end({"response": response})

    def _parts(self) -> list[_Item]:
        return [self._items[index] for index in sorted(self._items)]

    def _item(self, index: int, kind: str) -> _Item:
        return self._items.setdefault(index, _Item(kind))

    def _index(self, event: dict[str, Any], *, is_new: bool = False) -> int:
        """Return the place of the item that an event is about: without an index its id tells, or it is the newest."""
        if type(index := event.get("output_index")) is int:
            return index
        data, newest = wire.as_object(event.get("item")), max(self._items, default=0)
        own, call = event.get("item_id") or data.get("id"), (data.get("type"), data.get("call_id"))
        named = (
            place
            for place, item in self._items.items()
            if (own and item.whole.get("id") == own) or (call[1] and (item.kind, item.whole.get("call_id")) == call)
        )
        item = self._items.get(newest)
        begins = data and item is not None and (is_new or item.done or item.kind != data.get("type"))
        return next(named, newest + 1 if begins else newest)

    def _item_added(self, event: dict[str, Any]) -> None:
        item = wire.object_in(event, "item")
        self._begin(self._item(self._index(event, is_new=True), wire.as_text(item.get("type"))), item)

    def _begin(self, kept_item: _Item, item: dict[str, Any]) -> None:
        kept_item.whole = item
        kept_item.call.id = kept_item.call.id or joined([wire.as_text(item.get("call_id"))])
        if not kept_item.call.name:
            kept_item.call.add(joined([wire.as_text(item.get("name"))]), "")
        self._size += 1

    def _item_done(self, event: dict[str, Any]) -> None:
        """Take a whole item; those of its parts that did not come before are said now."""
        data = wire.object_in(event, "item")
        item = self._item(self._index(event), wire.as_text(data.get("type")))
        if item.kind == PICTURE and (result := wire.text_in(data, "result")):
            data = {name: value for name, value in data.items() if name != "result"}
            item.file = pictures.file_of(result, "")
        self._begin(item, data)
        item.done = True
        if item.kind == "function_call":
            self._call_arguments(item, wire.arguments_in(data, "arguments"))
        else:
            self._rest(item, _text_in(data))

    def _call_arguments(self, item: _Item, arguments: str) -> None:
        """Take the whole arguments of a call, in place of fragments that have gaps."""
        if arguments and item.call.arguments != arguments:
            item.call = Call(item.call.id, item.call.name)
            item.call.add("", arguments)
            self._size += len(arguments)

    def _arguments_done(self, item: _Item, event: dict[str, Any]) -> None:
        item.done = True
        self._call_arguments(item, wire.arguments_in(event, "arguments"))

    def _part_done(self, item: _Item, event: dict[str, Any]) -> None:
        """Take the whole text of a part of an item."""
        between = "\n\n" if item.kind == "reasoning" and item.ended else ""
        item.ended += between + (wire.text_in(event, "text") or wire.text_in(event, "refusal"))
        self._rest(item, item.ended)

    def _rest(self, item: _Item, whole: str) -> None:
        """Say the end of a text of which the beginning has been shown; another text replaces it if it is longer."""
        if len(whole) <= sum(map(len, item.text)):
            return
        shown = joined(item.text)
        if whole.startswith(shown):
            self._say(item, whole.removeprefix(shown))
        else:
            item.text = [whole]
            self._size += len(whole) - len(shown)

    def _part(self, item: _Item, event: dict[str, Any]) -> None:
        self._say(item, wire.text_in(event, "delta"))

    def _next_summary(self, item: _Item, _event: dict[str, Any]) -> None:
        self._say(item, "\n\n" if item.text else "")

    def _arguments(self, item: _Item, event: dict[str, Any]) -> None:
        arguments = wire.text_in(event, "delta")
        item.call.add("", arguments)
        self._size += len(arguments)

    def _say(self, item: _Item, text: str) -> None:
        if text:
            item.text.append(text)
            self._size += len(text)
            self.said.add(ReasoningPiece if item.kind == "reasoning" else TextPiece, text)

    def _end(self, event: dict[str, Any]) -> None:
        """Take the end of the answer, and those of its items that did not come before."""
        response = wire.object_in(event, "response")
        if response.get("error") or response.get("status") == "failed":
            self._error(response)
        for index, data in enumerate(wire.objects_in(response, "output")):
            if (place := self._open_place(index, data)) is not None:
                self._item_done({"output_index": place, "item": data})
        texts = [place for place, item in self._items.items() if item.kind == "message" and item.text]
        hosted = {place: item for place, item in self._items.items() if item.kind not in _PLAIN}
        for place, item in hosted.items():
            item.ran = item.kind == CUSTOM and not self._endpoint.official and place < max(texts, default=-1)
        waiting = [item.whole for item in hosted.values() if not item.ran]
        if waiting and (notes := unanswered.notes(waiting)):
            self._say(self._item(max(self._items) + 1, "message"), ("\n\n" if texts else "") + notes)
        reason = wire.as_text(wire.object_in(response, "incomplete_details").get("reason"))
        self._note_counts(_counts(wire.as_object(response.get("usage"))))
        self.closed = True
        self._complete(reason or COMPLETED)

    def _open_place(self, index: int, data: dict[str, Any]) -> int | None:
        """Return the index of an item of the whole answer if its end has not come; None if it has."""
        named = (place for place, item in self._items.items() if item.whole.get("id") == data.get("id") is not None)
        place = next(named, index)
        item = self._items.get(place)
        if item is None:
            return place
        return None if (item.done and item.whole) or item.kind != data.get("type") else place

    def _error(self, event: dict[str, Any]) -> None:
        raise failures.in_stream(self._endpoint, event.get("error") or event)


_EVENTS: Final[Mapping[str, Callable[[ResponsesAnswer, dict[str, Any]], None]]] = {
    "response.output_item.added": ResponsesAnswer._item_added,  # noqa: SLF001 - the table belongs to the class
    "response.output_item.done": ResponsesAnswer._item_done,  # noqa: SLF001
    "response.completed": ResponsesAnswer._end,  # noqa: SLF001
    "response.done": ResponsesAnswer._end,  # noqa: SLF001 - of OpenRouter
    "response.incomplete": ResponsesAnswer._end,  # noqa: SLF001
    "response.failed": ResponsesAnswer._end,  # noqa: SLF001
    "error": ResponsesAnswer._error,  # noqa: SLF001
}
_OF_ITEMS: Final[Mapping[str, tuple[str, Callable[[ResponsesAnswer, _Item, dict[str, Any]], None]]]] = {
    "response.output_text.delta": ("message", ResponsesAnswer._part),  # noqa: SLF001
    "response.output_text.done": ("message", ResponsesAnswer._part_done),  # noqa: SLF001
    "response.refusal.delta": ("message", ResponsesAnswer._part),  # noqa: SLF001
    "response.refusal.done": ("message", ResponsesAnswer._part_done),  # noqa: SLF001
    "response.reasoning_summary_part.added": ("reasoning", ResponsesAnswer._next_summary),  # noqa: SLF001
    "response.reasoning_summary_text.delta": ("reasoning", ResponsesAnswer._part),  # noqa: SLF001
    "response.reasoning_summary_text.done": ("reasoning", ResponsesAnswer._part_done),  # noqa: SLF001
    "response.reasoning_text.delta": ("reasoning", ResponsesAnswer._part),  # noqa: SLF001
    "response.reasoning_text.done": ("reasoning", ResponsesAnswer._part_done),  # noqa: SLF001
    "response.function_call_arguments.delta": ("function_call", ResponsesAnswer._arguments),  # noqa: SLF001
    "response.function_call_arguments.done": ("function_call", ResponsesAnswer._arguments_done),  # noqa: SLF001
}
"""The events about one item, and the kind of the item that they begin if it is not there."""


def _content_of(item: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a message; some servers have its text in their place."""
    content = item.get("content")
    return [{"text": content}] if isinstance(content, str) else wire.objects_in(item, "content")


def _text_in(item: dict[str, Any]) -> str:
    """Return the text of a whole message, or that of reasoning: its summary, or all of it if the server shows it."""
    if item.get("type") == "message":
        parts = _content_of(item)
        return "".join(wire.text_in(part, "text") + wire.text_in(part, "refusal") for part in parts)
    if item.get("type") == "reasoning":
        parts = wire.objects_in(item, "summary") or wire.objects_in(item, "content")
        return "\n\n".join(wire.text_in(part, "text") for part in parts)
    return ""


class ResponsesContext(Encoded):
    """A transcript as items of the protocol.

    Unknown blocks are left out, and so is reasoning of other models or providers, and reasoning that nothing of its
    answer follows: the server refuses these. The system messages go beside the items.
    """

    __slots__ = ("_ends_with_answer",)
    MEMBER: ClassVar[str] = "input"
    PROTOCOL: ClassVar[str] = PROTOCOL
    SYSTEM: ClassVar[tuple[bytes, bytes] | None] = (b',"instructions":"', b'"')
    MAKES_FILES: ClassVar[bool] = True

    def __init__(self, provider: str, model: str) -> None:
        super().__init__(provider, model)
        self._ends_with_answer = True

    def _put(self, role: Role, items: list[dict[str, Any]]) -> None:
        if items:
            self._grow((b"," if self.size else b"") + codec.encode_whole(items)[1:-1])
            self._ends_with_answer = role == "assistant"

    def _needed(self) -> dict[str, Any] | None:
        return _message("user", wire.CONTINUE) if self._ends_with_answer else None

    def _prompt(self, text: str, files: Sequence[Attachment]) -> list[dict[str, Any]]:
        return [_message("user", self._content(text, files))]

    def _results(self, results: Sequence[ToolResult]) -> list[dict[str, Any]]:
        return [*map(self._result, results)]

    def _said(self, message: AssistantMessage) -> list[dict[str, Any]]:
        return [*self._answer(message)]

    def _answer(self, message: AssistantMessage) -> Iterator[dict[str, Any]]:
        waiting: list[dict[str, Any]] = []  # reasoning that nothing follows yet
        hosted = [block for block in message.blocks if isinstance(block, HostedToolBlock)]
        items = [*map(self.maker.kept, hosted)]
        for block in message.blocks:
            if isinstance(block, ReasoningBlock):
                summary = [{"type": "summary_text", "text": block.text}] if block.text else []
                own = self.maker.kept(block)
                waiting += [{"type": "reasoning", "summary": summary, **own}] if own else []
            elif found := [*self._items(block, items)]:
                yield from (*waiting, *found)
                waiting = []

    def _items(self, block: Block, items: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield a block that is no reasoning, with the answer to it if one of `items` is none."""
        match block:
            case HostedToolBlock() if item := self.maker.kept(block):
                yield _as_input(item)
                if RAN not in (block.metadata or {}) and (answer := unanswered.answer(item, items)) is not None:
                    yield answer
            case FileBlock() if own := self.own_file(block):
                yield own | {"result": base64(block.file)}
            case ToolUseBlock():
                arguments = codec.encode_whole(block.args).decode()
                call = {"call_id": self._call_id(block), "name": RESPONSES.name(block.name), "arguments": arguments}
                yield {"type": "function_call", **call}
            case TextBlock() if block.text:
                yield _message("assistant", block.text) | self.maker.kept(block)

    def _content(self, text: str, files: Sequence[Attachment]) -> str | list[dict[str, Any]]:
        if not files:
            return text
        parts, words = self._told(files)
        return [*parts, {"type": "input_text", "text": quoted([*words, letters(text)])}]

    def _part(self, file: Attachment) -> dict[str, Any] | None:
        match file.kind:
            case "image":
                return {"type": "input_image", "detail": "auto", "image_url": data_url(file)}
            case "pdf" if file.url is not None:
                return {"type": "input_file", "file_url": file.url}
            case "pdf":
                return {"type": "input_file", "filename": file.name or "file.pdf", "file_data": data_url(file)}
            case _:
                return None

    def _result(self, result: ToolResult) -> dict[str, Any]:
        call_id = self._id_of_result(result.tool_use_id)
        output = self._content(wire.result_text(result), result.attachments)
        return {"type": "function_call_output", "call_id": call_id, "output": output}


def _as_input(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item of an answer as requests may have it."""
    kind = wire.as_text(item.get("type"))
    if kind == PICTURE:  # servers refuse `action` and others
        return {"type": kind, "id": item.get("id"), "status": item.get("status"), "result": item.get("result")}
    without = _OF_ANSWERS.get(kind, _OF_ALL_ANSWERS)
    return {name: value for name, value in item.items() if name not in without}


def _message(role: str, content: str | list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


def _counts(usage: dict[str, Any]) -> Counts:
    details = wire.as_object(usage.get("input_tokens_details"))
    read, created = (wire.as_count(details.get(name)) or 0 for name in ("cached_tokens", "cache_write_tokens"))
    counted = wire.as_count(usage.get("input_tokens")), wire.as_count(usage.get("output_tokens"))
    return Counts(*counted, created, read)


class ResponsesDialect(OpenAIDialect):
    """OpenAI's responses protocol, streamed."""

    tools: ClassVar[EncodedTools] = EncodedTools(RESPONSES, _tool)
    contexts: ClassVar[type[Encoded]] = ResponsesContext
    answers: ClassVar[type[Answer]] = ResponsesAnswer

    def url(self, endpoint: ModelEndpoint, model: str) -> str:  # noqa: ARG002 - of the protocol
        """Return the address for requests."""
        return f"{endpoint.url}/responses"

    def body(self, request: ModelRequest, endpoint: ModelEndpoint, context: Encoded) -> list[Part]:
        """Return the body of a request, in pieces."""
        head: dict[str, Any] = {"model": request.model, "stream": True, "store": False}
        if _REASONS.search(request.model):
            head["include"] = ["reasoning.encrypted_content"]
        if (key := cache_key(request, endpoint)) is not None:
            head["prompt_cache_key"] = key
        tail: dict[str, Any] = {}
        if (cap := request.answer_cap(SURE_TOKENS)) is not None:
            tail["max_output_tokens"] = max(LEAST_CAP, cap)
        tail |= sampling(request.options)
        if request.options.effort is not None:
            tail["reasoning"] = {"effort": request.options.effort}
        if (schema := forced_schema(request)) is not None:
            # Strict mode refuses most schemas.
            tail["text"] = {"format": {"type": "json_schema", "name": OUTPUT, "schema": schema, "strict": False}}
        hosted = {} if request.answer_schema is not None else request.options.hosted_tools or {}
        tools = with_hosted(self.tools.encoded(request), [{"type": name, **own} for name, own in hosted.items()])
        return context.between(head, tail, tools=tools)


class CompatibleResponses(ResponsesDialect):
    """The protocol at servers of other makers."""

    tools: ClassVar[EncodedTools] = EncodedTools(attrs.evolve(RESPONSES, most=MANY), _tool)
