"""The Anthropic messages protocol. No I/O."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
    Message,
    ReasoningBlock,
    StopReason,
    SystemMessage,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
    UnknownBlock,
)
from warren.conversation.options import CacheTime, ModelOptions
from warren.models.catalog import entry_of
from warren.models.model import ModelRequest, Piece, ReasoningPiece, TextPiece, joined
from warren.models.tools import ToolSpec
from warren.transport.providers import claude, failures, pictures, wire
from warren.transport.providers.accumulate import Answer, Arriving, Call, Counts, Ids, stop_of
from warren.transport.providers.dialect import (
    DEFAULT_CACHE,
    OUTPUT,
    WEB_SEARCH,
    ModelDialect,
    forced_schema,
    sampling,
    with_hosted,
)
from warren.transport.providers.encoded import Encoded, EncodedTools, Part, Role, base64, quoted
from warren.transport.providers.kept import CITATIONS, MODEL, PROVIDER, Maker
from warren.transport.providers.settings import ModelEndpoint
from warren.transport.providers.tool_rules import ANTHROPIC
from warren.transport.providers.tool_schemas import FittedTool, UnfitToolError, fitted, restored

VERSION: Final = "2023-06-01"
MAX_TOKENS: Final = 32_000
"""The cap of answers for which nobody has chosen one, of models that can give more: the protocol wants a cap."""
MOST_MARKS: Final = 4
"""Cache marks that a request may have."""
LOOKBACK: Final = 20
"""Blocks up to a mark, its own included, at which the server looks for the end of a cached row of blocks."""
MARKS: Final[Mapping[CacheTime, bytes]] = {
    "off": b"",
    "5m": b',"cache_control":{"type":"ephemeral"}',
    "1h": b',"cache_control":{"type":"ephemeral","ttl":"1h"}',
}
"""The members of a block that ask the server to keep the request up to the end of the block."""
PROTOCOL: Final = "anthropic"
"""The name under which blocks have the data that goes back verbatim."""

SEARCH: Final = "web_search_20250305"
"""The search that all models have that have any."""
_DATE: Final = re.compile(r"_\d{8}$")
_PLAIN: Final = frozenset({"text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", "document"})
"""Blocks that are no business of the server's own tools; all others of an answer go back as they came."""
_CALLS: Final = ("server_tool_use", "mcp_tool_use")
_WAIT: Final = ("pause_turn", "tool_use")
"""Stop reasons of answers whose calls of the server's tools may get their results in the next answer."""
CONTAINER: Final = "container"
"""Names, in the data of a call, the container in which the server's code waits for its result."""
SHUT: Final = b"}]}"
"""Closes a block and its message."""
_THOUGHTS: Final = ("thinking", "redacted_thinking")
_STOP: Final[Mapping[str, StopReason]] = {
    "end_turn": "end_turn",
    "tool_use": "tool_use",
    "pause_turn": "pause_turn",
    "max_tokens": "max_tokens",
    "length": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "stop_sequence": "stop_sequence",
    "refusal": "content_filter",
}


_Turn = tuple[Role, list[dict[str, Any]]]
"""Whose a message is, and its blocks."""


def _tool(tool: FittedTool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.schema}


def _output(schema: Mapping[str, Any]) -> FittedTool:
    """Return the tool whose arguments are the answer as data."""
    try:
        return fitted(ToolSpec(OUTPUT, "Takes the final answer.", schema), ANTHROPIC)
    except UnfitToolError:  # it is nested too deeply: the server decides
        return FittedTool(OUTPUT, "Takes the final answer.", schema, {})


def _forces(request: ModelRequest) -> bool:
    """Return whether the answer is forced into a call of a tool."""
    schema = forced_schema(request)
    return schema is not None and claude.forces_tools(request.model, schema)


@define
class _Part(Arriving):
    """A content block that is still arriving.

    Attributes:
        start: the block as it began.
        signs: whether the server signs all reasoning; that of other makers' servers goes back unsigned.
    """

    start: dict[str, Any] = attrs.field(kw_only=True)
    signs: bool = attrs.field(kw_only=True)
    signature: list[str] = attrs.field(factory=list)
    call: Call = attrs.field(factory=Call)
    citations: list[dict[str, Any]] = attrs.field(factory=list)

    def block(self, maker: Maker, ids: Ids) -> Block | None:  # noqa: PLR0911 - one for each kind
        """Return the block, or None if it is empty."""
        text = joined(self.text)
        match self.kind:
            case "text":
                return TextBlock(text, maker.keep({}, self.citations)) if text else None
            case "thinking":
                signed, own = "".join(self.signature), {"type": "thinking"} | _rest(self.start, "thinking")
                own = _rest(own, "signature") | ({"signature": signed} if signed or self.signs else {})
                return ReasoningBlock(text, maker.keep(own)) if text or signed else None
            case "redacted_thinking":
                return ReasoningBlock("", maker.keep(self.start))
            case "tool_use":
                caller = wire.as_object(self.start.get("caller"))
                own = {"caller": caller} if "tool_id" in caller else {}
                return maker.signed(attrs.evolve(self._called().block(ids), metadata=maker.keep(own)))
            case "image" if self.file is not None:
                return FileBlock(pictures.reference_of(wire.as_text(self.start.get("media_type"))))
            case kind if not text:
                args = {"input": self._called().block(ids).args} if "input" in self.start else {}
                return HostedToolBlock(kind, maker.keep(self.start | args))
            case _:  # its text came in a form that nobody knows how to put together
                return UnknownBlock(self.kind, _rest(self.start, "type"))

    def _called(self) -> Call:
        """Return the call; some servers send its arguments whole at the start instead of in fragments."""
        if not self.call.begun and self.start.get("input"):
            self.call.add("", wire.arguments_in(self.start, "input"))
        return self.call


class _Delta(msgspec.Struct):
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    citation: dict[str, Any] | None = None
    content: str | None = None
    encrypted_content: str | None = None


class _BlockDelta(msgspec.Struct, tag="content_block_delta", tag_field="type"):
    delta: _Delta
    index: int = 0


_block_delta: Final = codec.parser_of(_BlockDelta, b"content_block_delta")
"""Returns the event if it has the next part of a block, in the form that the vendor sends; else None."""


_PIECES: Final[Mapping[str, type[Piece]]] = {"text": TextPiece, "thinking": ReasoningPiece}
"""The pieces that the texts of blocks become, by the kind of the block; those of other kinds are not shown."""


@define
class MessagesAnswer(Answer):
    """An answer, assembled from its events."""

    PROTOCOL: ClassVar[str] = PROTOCOL
    STOP: ClassVar[Mapping[str, StopReason]] = _STOP
    _forced: Mapping[str, str] | None = attrs.field(default=None, kw_only=True)  # the members of a forced answer
    _begun: bool = False
    _all: list[_Part] = attrs.field(factory=list)
    _open: dict[int, _Part] = attrs.field(factory=dict)  # the newest part of each index
    _early: list[dict[str, Any]] = attrs.field(factory=list)  # the content of the newest `message_start`
    _container: str = ""
    _usage: dict[str, Any] = attrs.field(factory=dict)

    @property
    def blocks(self) -> int:
        """The number of its content blocks that have begun."""
        return len(self._all)

    def feed(self, data: bytes) -> None:
        """Add the next event of the stream. Raises ProviderError for an error or a bad event."""
        if (found := _block_delta(data)) is not None:  # nearly every event; the others are read member by member
            delta = found.delta
            if delta.text is None:
                if delta.citation is not None:
                    self._cite(found.index, [delta.citation])
                    return
                if delta.content is not None or delta.encrypted_content is not None:
                    self._summarised(found.index, delta)
                    return
            text = delta.text or delta.thinking or ""
            self._add(found.index, delta.signature or "", delta.partial_json or "", text)
            return
        if data.strip() in (b"", b"[DONE]"):
            return
        event = wire.parse_object(data)
        kind = wire.as_text(event.get("type"))
        if kind == "content_block_delta":
            event = wire.with_halves(data, event)
        if (take := _EVENTS.get(kind)) is not None:
            take(self, event)
        else:
            failures.check(self._endpoint, event)

    def whole(self, data: bytes) -> None:
        """Add an answer that was not streamed, as plain JSON. Raises ProviderError if it is malformed or an error."""
        message = wire.parse_object(data)
        if "content" not in message:
            failures.check(self._endpoint, message)
        if "content" not in message:
            raise wire.bad_response("JSON that is no message")
        self._message_start({"message": message})
        self._message_delta({"delta": message})
        self._message_stop({})

    def _parts(self) -> list[_Part]:
        return self._all

    def _blocks(self, ids: Ids) -> list[Block | None]:
        blocks = [*super()._blocks(ids)]
        if self._forced is not None:
            blocks = [_spoken(block, self._forced) for block in blocks]
        waits = self._container and self._stopped(blocks)[0] in _WAIT
        return [*map(self._in_container, blocks)] if waits else blocks

    def _stopped(self, blocks: Sequence[Block | None]) -> tuple[StopReason, str]:
        stopped, unknown = stop_of(_STOP, self.reason)
        # A paused answer of which nothing runs would be asked for again and again.
        idle = stopped == "pause_turn" and not any(isinstance(block, HostedToolBlock) for block in blocks)
        return "end_turn" if idle or (stopped == "tool_use" and self._forced is not None) else stopped, unknown

    def _in_container(self, block: Block | None) -> Block | None:
        """Return a block of an answer; if it is a call, with the container in which the server's code waits."""
        if not isinstance(block, HostedToolBlock | ToolUseBlock):
            return block
        own = block.metadata or {PROVIDER: self._endpoint.vendor.name, MODEL: self._model}
        return attrs.evolve(block, metadata={**own, CONTAINER: self._container})

    def _message_start(self, event: dict[str, Any]) -> None:
        """Begin the answer; if a proxy begins another one, its blocks come behind those that have been shown.

        Calls of the first one are dropped: none has run yet, and the second one makes them again.
        """
        self._take_early()
        if self._begun:
            self._all = [part for part in self._all if part.kind != "tool_use"]
        self._begun = True
        message = wire.object_in(event, "message")
        self._count(message)
        self._take_container(message)
        self._early = wire.objects_in(message, "content")
        self._open.clear()

    def _take_early(self) -> None:
        """Take the blocks that a message had at its start; its later events may have begun them themselves."""
        early, self._early = self._early, []
        for block in [each for index, each in enumerate(early) if index not in self._open]:
            self._begin(block)

    def _block_start(self, event: dict[str, Any]) -> None:
        self._begin(wire.object_in(event, "content_block"))
        self._open[_index(event)] = self._all[-1]

    def _begin(self, start: dict[str, Any]) -> None:
        """Begin a block; in an answer that was not streamed it has its whole content already."""
        part = _Part(wire.as_text(start.get("type")), start=start, signs=self._endpoint.official)
        self._all.append(part)
        part.call = Call(id=wire.as_text(start.get("id")))
        part.call.add(wire.as_text(start.get("name")), "")
        part.signature.append(wire.as_text(start.get("signature")))
        part.citations += wire.objects_in(start, "citations")
        source = wire.as_object(start.get("source")) if part.kind == "image" else {}
        if data := wire.as_text(source.get("data")):
            part.start = {"media_type": wire.as_text(source.get("media_type"))}
            part.file = pictures.file_of(data, part.start["media_type"])
        self._begun = True
        self._size += 1 + codec.weight(wire.as_object(start.get("input")))
        self._say(part, wire.text_in(start, "text") or wire.text_in(start, "thinking"))

    def _block_delta(self, event: dict[str, Any]) -> None:
        delta = wire.object_in(event, "delta")
        if citation := wire.object_in(delta, "citation"):
            self._cite(_index(event), [citation])
            return
        signature, arguments = joined([wire.text_in(delta, "signature")]), wire.text_in(delta, "partial_json")
        text = wire.text_in(delta, "text") or wire.text_in(delta, "thinking")
        self._add(_index(event), signature, arguments, text)

    def _cite(self, index: int, citations: list[dict[str, Any]]) -> None:
        """Add sources of a text."""
        if (part := self._open.get(index)) is not None:
            part.citations += citations
            self._size += 1

    def _summarised(self, index: int, delta: _Delta) -> None:
        """Add to the summary that the server has made of a context."""
        if (part := self._open.get(index)) is not None:
            for name in ("content", "encrypted_content"):
                if text := getattr(delta, name):
                    part.start[name] = wire.as_text(part.start.get(name)) + text
                    self._size += len(text)

    def _add(self, index: int, signature: str, arguments: str, text: str) -> None:
        """Add the next parts of a block."""
        if (part := self._open.get(index)) is not None:
            part.signature.append(signature)
            part.call.add("", arguments)
            self._size += len(signature) + len(arguments) + len(text)
            self._say(part, text)

    def _say(self, part: _Part, text: str) -> None:
        if text:
            part.text.append(text)
            if (kind := _PIECES.get(part.kind)) is not None:
                self.said.add(kind, text)

    def _message_delta(self, event: dict[str, Any]) -> None:
        """Note the stop reason, and the token counts, which replace those of the start."""
        self._count(event)
        delta = wire.object_in(event, "delta")
        self._take_container(delta)
        if stop := wire.text_in(delta, "stop_reason"):
            self._take_early()
            self._complete(stop)

    def _count(self, data: dict[str, Any]) -> None:
        self._usage |= {name: count for name, count in wire.as_object(data.get("usage")).items() if count is not None}
        self._note_counts(_counts(self._usage))

    def _take_container(self, data: dict[str, Any]) -> None:
        self._container = wire.as_text(wire.as_object(data.get(CONTAINER)).get("id")) or self._container

    def _message_stop(self, _event: dict[str, Any]) -> None:
        if not self._begun:
            raise wire.bad_response("the end of an answer, and no answer")
        self._take_early()
        self.closed = True
        self._complete(self.reason or "end_turn")

    def _error(self, event: dict[str, Any]) -> None:
        raise failures.in_stream(self._endpoint, event)


_EVENTS: Final[Mapping[str, Callable[[MessagesAnswer, dict[str, Any]], None]]] = {
    "message_start": MessagesAnswer._message_start,  # noqa: SLF001 - the table belongs to the class
    "content_block_start": MessagesAnswer._block_start,  # noqa: SLF001
    "content_block_delta": MessagesAnswer._block_delta,  # noqa: SLF001
    "message_delta": MessagesAnswer._message_delta,  # noqa: SLF001
    "message_stop": MessagesAnswer._message_stop,  # noqa: SLF001
    "error": MessagesAnswer._error,  # noqa: SLF001
}


def _spoken(block: Block | None, members: Mapping[str, str]) -> Block | None:
    """Return the text of an answer that was forced into a tool call, with the members' own names."""
    if not isinstance(block, ToolUseBlock):
        return block
    args = restored(block.args, members) if members else block.args
    return TextBlock(codec.encode(args).decode() if block.invalid_args is None else block.invalid_args)


def _index(event: dict[str, Any]) -> int:
    index = event.get("index")
    return index if type(index) is int else 0


class MessagesContext(Encoded):
    """A transcript in the form of the protocol.

    Consecutive messages of one role are merged. Blank text, unknown blocks and reasoning of other models are left out,
    because the server refuses them; so are messages that are empty without them. The protocol wants the system
    messages beside the others.

    The server may leave calls of its own tools without a result until the next request: when it pauses an answer, and
    when it wants the results of the program's tools first. Such an answer goes back as it is, and the results of the
    program's tools behind it, until an answer goes on with it. All of this is held back from the written messages,
    because a conversation that goes on otherwise must not have calls without a result.

    The last block stays open for a cache mark. A request marks the end of its messages, so that the next one finds
    it in the cache, and the places to which a request falls back that does not: a compaction changes all behind the
    head, and another session may share the system prompt or the tools alone.
    """

    __slots__ = (
        "_asked",
        "_blocks",
        "_calls",
        "_head",
        "_held",
        "_paused",
        "_role",
        "_thinks",
        "_written",
        "container",
    )
    PROTOCOL: ClassVar[str] = PROTOCOL

    def __init__(self, provider: str, model: str) -> None:
        super().__init__(provider, model)
        self._role = ""  # of the newest message
        self._blocks = 0
        self._asked: tuple[int, int] | None = None  # place and blocks at the end of the user's messages before
        self._head: int | None = None  # place at the end of the head
        self._thinks = False  # whether the newest answer begins with reasoning
        self._calls = False  # whether the newest answer calls tools
        self._paused = False  # whether the server goes on with the newest answer
        self._held: list[_Turn] = []  # the end of the context, from an answer on that has calls without a result
        self._written = 0  # the files in front of these
        self.container: str = ""  # in which these calls run

    @property
    def has_bare_calls(self) -> bool:
        """Whether the newest answer calls tools and does not begin with reasoning."""
        before, thinks, calls = self._role, self._thinks, self._calls
        for role, content in self._held:
            thinks, calls = _begun(before, role, content, thinks=thinks, calls=calls)
            before = role
        return calls and not thinks

    def end_head(self) -> None:
        """Note the place of the mark behind the head."""
        if self._role == "user":
            self._head = self.size

    def marked(self, head: Mapping[str, Any], tools: bytes, tail: Mapping[str, Any], mark: bytes) -> list[Part]:
        """Return the body of a request in pieces: members, tools, system messages, the others, and more members.

        Args:
            head: the members in front of all others.
            tools: the JSON list of the tools; may be empty.
            tail: the members behind them.
            mark: the members that mark a block; nothing for a request without marks.
        """
        places = self._places() if mark else []
        free = MOST_MARKS - len(places)
        system = b""
        if self._system:
            system = b',"system":[{"type":"text","text":"' + self._system + b'"' + mark + b"}]"
            free -= 1
        if tools and free:
            tools = tools[:-2] + mark + tools[-2:]
        return self.between(head, tail, dict.fromkeys(places, mark), tools=tools, system=system)

    def _places(self) -> list[int]:
        """Return the places of the marks within the messages.

        The previous request has marked the end of the user's messages before. The server finds that mark by itself,
        unless the newest exchange has too many blocks.
        """
        asked = [] if self._asked is None else [self._asked[0]]
        if self._role == "user":
            far = self._asked is not None and self._blocks - self._asked[1] >= LOOKBACK
            asked = [self.size, *(asked if far else [])]
        return asked if self._head is None else list({*asked, self._head})

    def _write(self, message: Message) -> None:
        if isinstance(message, SystemMessage):
            self._add_system(message.content)
            return
        whose, content = self._turn(message)
        role: Role = "assistant" if whose == "assistant" else "user"
        self._paused = False
        if self._held or any(part["type"] not in _PLAIN or "caller" in part for part in content):
            self._hold(message, [*self._held, (role, content)])
            return
        self._put(role, content)
        if self._role:
            self._shut = SHUT

    def _hold(self, message: Message, turns: Sequence[_Turn]) -> None:
        """Hold messages back that the next answer may go on with, or write them."""
        stop = message.stop_reason if isinstance(message, AssistantMessage) else ""
        waits = stop in _WAIT or isinstance(message, ToolResultsMessage)
        if self._held:
            del self._files[self._written :]
        self._held = [turn for turn in turns if turn[1]] if waits and _open_calls(turns) else []
        self._paused = stop == "pause_turn" and any(part["type"] not in _PLAIN for part in _parts(turns))
        self.container = (_container(message, self.maker) or self.container) if self._held else ""
        for role, content in [] if self._held else _paired(turns):
            self._put(role, content)
        self._written = len(self._files)
        held, before = list[bytes](), self._role
        for role, content in self._held:
            held += _between(before, role), codec.encode_whole(content)[1:-2]
            before = role
        self._shut = self._placed(b"".join((*held, SHUT))) if before else b""

    def _put(self, role: Role, content: list[dict[str, Any]]) -> None:
        if not content:
            return
        self._thinks, self._calls = _begun(self._role, role, content, thinks=self._thinks, calls=self._calls)
        if role != self._role and self._role == "user":
            self._asked = self.size, self._blocks
        self._grow(_between(self._role, role) + codec.encode_whole(content)[1:-2])
        self._role = role
        self._blocks += len(content)

    def _needed(self) -> dict[str, Any] | None:
        role = self._held[-1][0] if self._held else self._role
        return None if role == "user" or self._paused else {"role": "user", "content": _text(wire.CONTINUE)}

    def _prompt(self, text: str, files: Sequence[Attachment]) -> list[dict[str, Any]]:
        """Return the files, as the vendor advises, and then the text."""
        parts, words = self._told(files)
        return [*parts, *({"type": "text", "text": quoted([each])} for each in words), *_text(text)]

    def _results(self, results: Sequence[ToolResult]) -> list[dict[str, Any]]:
        return [*map(self._result, results)]

    def _said(self, message: AssistantMessage) -> list[dict[str, Any]]:
        return [part for block in message.blocks for part in self._block(block)]

    def _block(self, block: Block) -> Sequence[dict[str, Any]]:
        match block:
            case TextBlock():
                sources = (block.metadata or {}).get(CITATIONS) if self.maker.made(block) else None
                return [each | {"citations": sources} for each in _text(block.text)] if sources else _text(block.text)
            case HostedToolBlock():
                own = self.maker.kept(block)
                return [own] if own else []
            case ToolUseBlock():
                args = {ANTHROPIC.member(name): each for name, each in block.args.items()}
                call = {"id": self._call_id(block), "name": ANTHROPIC.name(block.name), "input": args}
                return [{"type": "tool_use", **call, **self.maker.kept(block)}]
            case ReasoningBlock():
                return _thought(self.maker.kept(block), block.text)
            case FileBlock() | UnknownBlock():
                return []

    def _part(self, file: Attachment) -> dict[str, Any] | None:
        source: dict[str, Any] = {"type": "url", "url": file.url}
        if file.url is None:
            source = {"type": "base64", "media_type": file.media_type, "data": base64(file)}
        match file.kind:
            case "image":
                return {"type": "image", "source": source}
            case "pdf":
                return {"type": "document", "source": source} | ({"title": file.name} if file.name else {})
            case _:
                return None

    def _result(self, result: ToolResult) -> dict[str, Any]:
        text = wire.content_of(result)
        content = self._prompt(text, result.attachments) if result.attachments else text
        answer = {"type": "tool_result", "tool_use_id": self._id_of_result(result.tool_use_id), "content": content}
        return answer | ({"is_error": True} if result.is_error else {})


def _between(before: str, role: str) -> bytes:
    """Return the bytes between the newest block of a message and the first one of the next message."""
    if role == before:
        return b"},"
    return (SHUT + b"," if before else b"") + b'{"role":"%s","content":[' % role.encode()


def _begun(before: str, role: str, content: list[dict[str, Any]], *, thinks: bool, calls: bool) -> tuple[bool, bool]:
    """Return whether the newest answer begins with reasoning, and whether it calls tools, with these blocks."""
    if role != "assistant":
        return thinks, calls
    if role != before:
        thinks, calls = content[0]["type"] in _THOUGHTS, False
    return thinks, calls or any(part["type"] == "tool_use" for part in content)


def _parts(turns: Sequence[_Turn]) -> Iterator[dict[str, Any]]:
    return (part for _, content in turns for part in content)


def _open_calls(turns: Sequence[_Turn]) -> set[Any]:
    """Return the ids of the calls of the server's tools that have no result."""
    ended = {part.get("tool_use_id") for part in _parts(turns)}
    return {part.get("id") for part in _parts(turns) if part["type"] in _CALLS} - ended


def _paired(turns: Sequence[_Turn]) -> Iterator[_Turn]:
    """Yield messages without calls of the server's tools that have no result, and without results that have no call.

    The server refuses both, as after an interrupt. Calls of the program's tools that the server's code has made become
    the model's own if that code has not ended.
    """
    open_ = _open_calls(turns)
    ended = {part.get("id") for part in _parts(turns) if part["type"] in _CALLS} - open_
    for role, content in turns:
        whole = [part for part in content if _ids_of(part) <= ended]
        if whole := [_rest(part, "caller") if _caller(part) - ended else part for part in whole]:
            yield role, whole


def _ids_of(part: dict[str, Any]) -> set[Any]:
    """Return the id of the call of the server's tools which a block is, or whose result it is."""
    if part["type"] in _PLAIN:
        return set()
    return {part.get("id")} if part["type"] in _CALLS else {part["tool_use_id"]} if "tool_use_id" in part else set()


def _caller(part: dict[str, Any]) -> set[Any]:
    caller = wire.as_object(part.get("caller"))
    return {caller["tool_id"]} if "tool_id" in caller and part["type"] == "tool_use" else set()


def _container(message: Message, maker: Maker) -> str:
    """Return the container in which the server runs the code of an answer."""
    blocks = message.blocks if isinstance(message, AssistantMessage) else ()
    calls = (each for each in blocks if isinstance(each, HostedToolBlock | ToolUseBlock) and maker.made(each))
    return next((wire.as_text((each.metadata or {}).get(CONTAINER)) for each in calls), "")


def _thought(own: dict[str, Any], text: str) -> list[dict[str, Any]]:
    if own.get("type") == "redacted_thinking":
        return [own]
    # A signature that is there and empty is one that never came, as older versions stored it.
    return [{"signature": "", **own, "thinking": text}] if own.get("signature", own) else []


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _rest(data: dict[str, Any], without: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != without}


def _counts(usage: dict[str, Any]) -> Counts:
    """Return the counts; the protocol reports cached input separately."""
    fresh = wire.as_count(usage.get("input_tokens"))
    created = wire.as_count(usage.get("cache_creation_input_tokens")) or 0
    read = wire.as_count(usage.get("cache_read_input_tokens")) or 0
    whole = None if fresh is None else fresh + created + read
    return Counts(whole, wire.as_count(usage.get("output_tokens")), created, read)


class MessagesDialect(ModelDialect):
    """Anthropic's messages protocol, streamed."""

    tools: ClassVar[EncodedTools] = EncodedTools(ANTHROPIC, _tool)
    contexts: ClassVar[type[Encoded]] = MessagesContext
    answers: ClassVar[type[Answer]] = MessagesAnswer

    def url(self, endpoint: ModelEndpoint, model: str) -> str:  # noqa: ARG002 - of the protocol
        """Return the address for requests; the base URL may or may not end with the version."""
        return f"{endpoint.url.removesuffix('/v1')}/v1/messages"

    def listing(self, endpoint: ModelEndpoint) -> str | None:
        """Return the address of the list of the server's models."""
        return f"{endpoint.url.removesuffix('/v1')}/v1/models?limit=1000"

    def headers(self, key: str | None, model: str) -> dict[str, str]:
        """Return the headers of every request to a model."""
        return {"anthropic-version": VERSION} | ({"x-api-key": key} if key else {}) | claude.headers(model)

    def check(self, model: str, options: ModelOptions) -> None:
        """Refuse options that a model does not have."""
        claude.check(model, options)

    def head(self, model: str) -> dict[str, Any]:
        """Return the members with which the body of a request begins."""
        return {"model": model, "stream": True}

    def body(self, request: ModelRequest, endpoint: ModelEndpoint, context: Encoded) -> list[Part]:  # noqa: ARG002 - of the protocol
        """Return the body of a request, in pieces. The server requires a cap."""
        assert isinstance(context, MessagesContext)  # noqa: S101 - for the type checker
        most = min(MAX_TOKENS, request.max_output or entry_of(request.model).max_output or MAX_TOKENS)
        tail: dict[str, Any] = {"max_tokens": request.answer_cap(most) or most}
        schema, forced = forced_schema(request), _forces(request)
        bare = context.has_bare_calls
        tail |= claude.reasoning(request.model, request.options, tail["max_tokens"], forced=forced, bare=bare)
        tail |= sampling(request.options)
        tools = self.tools.encoded(request)
        if schema is not None:  # without the tool, the server would refuse calls of tools in the context
            tools = codec.encode_whole([_tool(_output(schema))])
            tail["tool_choice"] = {"type": "tool", "name": OUTPUT} if forced else {"type": "none"}
            if not forced and (form := claude.output_format(schema)):
                tail["output_config"] = tail.get("output_config", {}) | form
        # The name of a hosted tool is its type without the date. They go out with data too: the context may have calls.
        named = (
            (SEARCH if name == WEB_SEARCH else name, own) for name, own in (request.options.hosted_tools or {}).items()
        )
        tools = with_hosted(tools, [{"type": kind, "name": _DATE.sub("", kind), **own} for kind, own in named])
        if context.container:
            tail[CONTAINER] = context.container
        mark = MARKS[request.options.prompt_cache or DEFAULT_CACHE]
        return context.marked(self.head(request.model), tools, tail, mark)

    def answer(self, request: ModelRequest, endpoint: ModelEndpoint, known: Collection[str]) -> MessagesAnswer:
        """Return the empty answer to a request, to be fed with the events of the stream."""
        schema = forced_schema(request) if _forces(request) else None
        forced = None if schema is None else _output(schema).members
        return MessagesAnswer(endpoint, request.model, known, forced=forced)
