"""The chat completions protocol, of OpenAI and of most other servers. No I/O."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

import attrs
import msgspec

from warren.base.errors import ProviderError
from warren.base.values import define
from warren.conversation import codec
from warren.conversation.attachments import Attachment, File
from warren.conversation.messages import (
    AssistantMessage,
    Block,
    FileBlock,
    ReasoningBlock,
    StopReason,
    TextBlock,
    ToolResult,
    ToolUseBlock,
)
from warren.conversation.options import ModelOptions
from warren.models.model import ModelRequest, ReasoningPiece, TextPiece, joined
from warren.transport.providers import failures, pictures, wire
from warren.transport.providers.accumulate import Answer, Counts, Ids, ToolCalls, stop_of
from warren.transport.providers.dialect import (
    OUTPUT,
    SURE_TOKENS,
    ModelDialect,
    cache_key,
    forced_schema,
    no_hosted_tools,
    no_reasoning_cap,
    sampling,
)
from warren.transport.providers.encoded import (
    BETWEEN,
    Encoded,
    EncodedTools,
    Part,
    Role,
    base64,
    data_url,
    letters,
    quoted,
)
from warren.transport.providers.gemini import FOREIGN, wants_signature
from warren.transport.providers.settings import ModelEndpoint
from warren.transport.providers.tags import THINK, Head, parted
from warren.transport.providers.tool_rules import MANY, OPENAI
from warren.transport.providers.tool_schemas import FittedTool

PROTOCOL: Final = "chat"
"""The name under which blocks have the data that goes back verbatim."""
REASONING: Final = ("reasoning_content", "reasoning")
"""The members of a message that have its reasoning, by server. DeepSeek refuses calls without theirs (its guide to the
thinking mode, April 2026), and takes an empty one."""
FIELD: Final = "field"
"""Names, in the data of reasoning, the member of the message that it came in, and goes back in."""
TAG: Final = "tag"
"""Names, in the data of reasoning, the tag that it stood in, and goes back in, before the text."""
LISTS: Final = ("reasoning_details", "thinking_blocks")
"""Members with reasoning in parts, of OpenRouter and of LiteLLM."""
_SHOWN: Final = ("text", "summary", "thinking")
EXTRA: Final = "extra_content"
"""The member of texts and calls in which Gemini has its signatures."""
NO_EXTRA: Final[Mapping[str, Any]] = {}
PARTS: Final = "parts"
"""The role, among those of the messages so far, of a user's message whose content is a list."""
_SHUT: Final[Mapping[str, bytes]] = {"user": b'"}', PARTS: b"]}"}
_STOP: Final[Mapping[str, StopReason]] = {
    "stop": "end_turn",
    "end_turn": "end_turn",
    "eos": "end_turn",
    "stop_sequence": "stop_sequence",
    "max_tokens": "max_tokens",
    "length": "max_tokens",
    "model_length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "content_filter",
}
# Of OpenRouter; of Zhipu; of DeepSeek; of vLLM and SGLang; of Moonshot.
_BROKEN: Final = frozenset({"error", "network_error", "insufficient_system_resource", "abort", "engine_overloaded"})
# These models refuse `max_tokens`, which is what the servers of other makers understand.
_COMPLETION_TOKENS: Final = re.compile(r"o\d|gpt-[5-9]")
# From 5.4 on, the chat protocol accepts tools only if reasoning is off.
_TOOLS_WITHOUT_REASONING: Final = re.compile(r"gpt-(5\.([4-9]|\d\d)|[6-9])")


def _tool(tool: FittedTool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": function}


_Nothing = Annotated[list[Any], msgspec.Meta(max_length=0)] | None


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: _Nothing = None
    images: _Nothing = None
    audio: None = None
    reasoning_details: _Nothing = None
    thinking_blocks: _Nothing = None
    extra_content: None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta
    index: Literal[0] | None = None
    message: None = None
    finish_reason: str | None = None
    error: None = None
    usage: None = None


class _Chunk(msgspec.Struct, gc=False):
    """A chunk that has one delta with texts, and maybe the reason of its end; the parser refuses any other."""

    choices: tuple[_Choice]
    usage: None = None
    error: None = None
    base_resp: None = None
    x_groq: None = None


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Details(msgspec.Struct):
    cached_tokens: _Count | None = None
    cache_write_tokens: _Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Count
    completion_tokens: _Count
    prompt_tokens_details: _Details | None = None


class _UsageChunk(msgspec.Struct):
    """The chunk behind the answer, which has its token counts alone; the parser refuses any other."""

    choices: tuple[()]
    usage: _Usage
    error: None = None


_text_chunk: Final = codec.parser_of(_Chunk, b'"delta"')
"""Returns a chunk that has texts and a reason alone; None for any other event."""
_usage_chunk: Final = codec.parser_of(_UsageChunk, b'"choices":[]')
"""Returns a chunk that has token counts alone; None for any other event."""


@define
class ChatAnswer(Answer):
    """An answer, assembled from its chunks."""

    PROTOCOL: ClassVar[str] = PROTOCOL
    STOP: ClassVar[Mapping[str, StopReason]] = _STOP
    _begun: bool = False
    _text: list[str] = attrs.field(factory=list)
    _reasoning: list[str] = attrs.field(factory=list)
    _kept: dict[str, Any] = attrs.field(factory=dict)  # what goes back with the reasoning
    _extra: Mapping[str, Any] = NO_EXTRA  # what goes back with the text
    _calls: ToolCalls | None = None
    _pictures: list[File] = attrs.field(factory=list)
    _sound: list[str] = attrs.field(factory=list)  # its base64
    _at_head: bool = attrs.field(init=False)  # whether no text has come that is certainly the answer's
    _head: Head | None = None  # once there is a text that may begin with a tag

    @_at_head.default
    def _may_have_tags(self) -> bool:
        return self._endpoint.has_think_tags

    @property
    def blocks(self) -> int:
        """The number of its calls that have begun."""
        return 0 if self._calls is None else len(self._calls)

    def feed(self, data: bytes) -> None:
        """Add the next event of the stream. Raises ProviderError for an error or a bad event."""
        if self.closed:
            return
        if (chunk := _text_chunk(data)) is not None:  # nearly every event; the others are read member by member
            self._begun, choice = True, chunk.choices[0]
            delta = choice.delta
            text = delta.content
            if text and not (self._at_head or delta.refusal or delta.reasoning_content or delta.reasoning):  # as above
                self._size += len(text)
                self._text.append(text)
                self.said.add(TextPiece, text)
            elif text or delta.refusal or delta.reasoning or delta.reasoning_content is not None:
                self._texts(delta)
            if choice.finish_reason:
                self._finish(choice.finish_reason)
        elif (last := _usage_chunk(data)) is not None:
            usage, details = last.usage, last.usage.prompt_tokens_details or _Details()
            created, read = details.cache_write_tokens or 0, details.cached_tokens or 0
            counts = Counts(usage.prompt_tokens, usage.completion_tokens, created, read)
            self._note_counts(counts, alone=usage.completion_tokens > 0)
        elif data.strip() == b"[DONE]":
            self._end()
        elif data.strip():
            self._take(wire.with_halves(data, wire.parse_object(data)))

    def whole(self, data: bytes) -> None:
        """Add an answer that was not streamed, as plain JSON. Raises ProviderError if it is malformed or an error."""
        self._take(wire.parse_object(data))
        self._end()
        self._complete(self.reason or "stop")

    def _end(self) -> None:
        if not self._begun:
            raise wire.bad_response("the end of an answer, and no answer")
        self.closed = True
        self._end_head(self.reason)

    def _end_head(self, reason: str) -> None:
        """Say what has waited for more of the head of the text: the answer has ended."""
        self._at_head = False
        if self._head is not None:
            (reasoning, text), self._head = self._head.end(), None
            self._say("", reasoning, text)
        self._complete(reason)

    def _stopped(self, blocks: Sequence[Block]) -> tuple[StopReason, str]:
        if not self.reason and any(isinstance(each, ToolUseBlock) and each.invalid_args for each in blocks):
            return "max_tokens", ""  # servers that never give reasons: it was cut within a call
        return stop_of(_STOP, self.reason.lower())

    def _files(self) -> list[File]:
        return [*self._pictures, *([pictures.sound_of("".join(self._sound))] if self._sound else [])]

    def _take(self, chunk: dict[str, Any]) -> None:
        if chunk.get("error") or chunk.get("base_resp") or not chunk.get("choices"):
            failures.check(self._endpoint, chunk)
        choices = [choice for choice in wire.objects_in(chunk, "choices") if not choice.get("index")]
        for place in (chunk, wire.as_object(chunk.get("x_groq")), *choices):  # Groq's place, and Moonshot's
            if isinstance(place.get("usage"), dict):
                self._note_counts(_counts(place["usage"]), alone=not choices)
        self._begun = self._begun or bool(choices)
        for choice in choices:
            self._choice(choice)

    def _choice(self, choice: dict[str, Any]) -> None:
        if choice.get("error"):
            raise failures.in_stream(self._endpoint, choice["error"])
        whole = wire.object_in(choice, "message")
        delta = wire.object_in(choice, "delta") or whole
        if delta is whole and self._size:  # MiniMax ends a stream with the whole message
            delta = whole = {name: value for name, value in whole.items() if name in self._unsaid()}
        fragments = wire.objects_in(delta, "tool_calls")
        for position, fragment in enumerate(fragments):
            index = fragment.get("index")
            self._call(fragment, position if delta is whole or (index is None and len(fragments) > 1) else index)
        self._delta(self._without_files(delta), whole=delta is whole)
        if finish := wire.text_in(choice, "finish_reason"):
            self._finish(finish)

    def _unsaid(self) -> Collection[str]:
        """Return the members of a whole message that may have what its stream has not said."""
        text = () if self._text or self._head is not None or TAG in self._kept else ("content", "refusal")
        return ("images", *text, *(("tool_calls",) if self._calls is None else ()))

    def _without_files(self, delta: dict[str, Any]) -> dict[str, Any]:
        """Take the files of a delta; return it with texts in the places of lists of parts, as Mistral has them."""
        content, images = delta.get("content"), wire.objects_in(delta, "images")
        audio = wire.object_in(delta, "audio")
        if not (images or audio or isinstance(content, list)):
            return delta
        parts = [each for each in content if isinstance(each, dict)] if isinstance(content, list) else []
        thoughts = "".join(wire.as_text(each.get("thinking")) for each in parts if each.get("type") == "thinking")
        links = [self._picture(each) for each in (*parts, *images) if "image_url" in each]
        text = "".join([wire.as_text(content), *links]) or wire.text_in(audio, "transcript")
        if data := wire.text_in(audio, "data"):
            self._sound.append(data)
            self._size += 1
        return delta | {"content": text} | ({"thinking": thoughts} if thoughts else {})

    def _picture(self, part: dict[str, Any]) -> str:
        """Take a picture that has its data with it; return the text for one that is somewhere else."""
        place = part["image_url"]
        url = place if isinstance(place, str) else wire.text_in(wire.object_in(part, "image_url"), "url")
        file = pictures.file_at(url)
        self._size += 1
        if file is None:
            return f"\n![picture]({url})\n"
        if file not in self._pictures:  # some servers repeat them at the end
            self._pictures.append(file)
        return ""

    def _finish(self, reason: str) -> None:
        if reason.lower() in _BROKEN:
            raise ProviderError(f"the model broke off with {reason}", cause="server_error", retryable=True)
        self._end_head(reason)

    def _delta(self, delta: dict[str, Any], *, whole: bool) -> None:
        shown = wire.text_in(delta, "thinking")
        for name in LISTS:
            if parts := [part for part in wire.as_list(delta.get(name)) if isinstance(part, dict)]:
                self._kept.setdefault(name, []).extend([part] if whole else part for part in parts)
                self._size += codec.weight(parts)
                shown = "".join(wire.as_text(part.get(own)) for part in parts for own in _SHOWN)
        if extra := wire.as_object(delta.get(EXTRA)):
            self._extra = {EXTRA: extra}
        given = (wire.text_in(delta, name) if delta.get(name) is not None else None for name in REASONING)
        field, reasoning = _reasoning_of(*given)
        self._say(field, reasoning or shown, wire.text_in(delta, "content") + wire.text_in(delta, "refusal"))

    def _texts(self, delta: _Delta) -> None:
        text = (delta.content or "") + (delta.refusal or "")
        if self._at_head and text and self._head is None and text[0] != "<" and not text[0].isspace():  # as most begin
            self._at_head = False
        self._say(*_reasoning_of(delta.reasoning_content, delta.reasoning), text)

    def _say(self, field: str, reasoning: str, text: str) -> None:
        self._size += len(reasoning) + len(text)
        if field:
            self._kept.setdefault(FIELD, field)
        if text and self._at_head:
            head = self._head = self._head or Head()
            thought, text = head.feed(text)
            reasoning += thought
            if head.tag:
                self._kept[TAG] = head.tag
            if head.done:
                self._at_head, self._head = False, None
        if reasoning:
            self._reasoning.append(reasoning)
            self.said.add(ReasoningPiece, reasoning)
        if text:
            self._text.append(text)
            self.said.add(TextPiece, text)

    def _call(self, fragment: dict[str, Any], index: object) -> None:
        function = wire.object_in(fragment, "function")
        name, text = joined([wire.text_in(function, "name")]), wire.arguments_in(function, "arguments")
        self._size += len(name) + len(text)
        if self._calls is None:
            self._calls = ToolCalls()
        call = self._calls.add(index, joined([wire.as_text(fragment.get("id"))]), name, text)
        if extra := wire.as_object(fragment.get(EXTRA)):
            self._size += codec.weight(extra)
            call.metadata = self._keep({EXTRA: extra})

    def _keep(self, data: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return self._maker.keep(wire.mended(data)) if data else None

    def _blocks(self, ids: Ids) -> Iterator[Block]:
        reasoning, text = joined(self._reasoning), joined(self._text)
        own = self._kept and {name: _merged(value) if name in LISTS else value for name, value in self._kept.items()}
        if not reasoning and "</think>" in text and self._endpoint.has_think_tags:
            reasoning, text = parted(text)
            own |= {TAG: THINK} if reasoning else {}
        if self._extra and not text:
            own = {**own, **self._extra}
        # Without reasoning a server may still want its member back, with calls.
        if reasoning or (own and (self._calls or not own.keys() <= {FIELD, TAG})):
            yield ReasoningBlock(reasoning, self._keep(own))
        if text:
            yield TextBlock(text, self._keep(self._extra))
        for file in self._files():
            yield FileBlock(pictures.reference_of(file.media_type or ""))
        if self._calls:
            yield from map(self._maker.signed, self._calls.blocks(ids))


def _reasoning_of(reasoning_content: str | None, reasoning: str | None) -> tuple[str, str]:
    """Return the name of the member that has reasoning, and the reasoning; an empty name for none."""
    if reasoning and not reasoning_content:
        return REASONING[1], reasoning
    return REASONING[0] if reasoning_content is not None else "", reasoning_content or ""


def _merged(parts: list[Any]) -> list[dict[str, Any]]:
    """Return reasoning in parts as it was before it came in fragments; a part that came whole is a list of one."""
    found: list[list[dict[str, Any]]] = []
    for part in parts:
        if isinstance(part, dict) and found and _goes_on(found[-1], part):
            found[-1].append(part)
        else:
            found.append([part] if isinstance(part, dict) else part)
    return [_one(fragments) for fragments in found]


def _goes_on(fragments: list[dict[str, Any]], part: dict[str, Any]) -> bool:
    """Return whether a fragment belongs to the same part as those before it."""
    first, says = fragments[0], any(part.get(name) for name in _SHOWN)
    if any(first.get(name) != part.get(name) for name in ("type", "index")):
        return False
    if first.get("id") and part.get("id") and first["id"] != part["id"]:
        return False
    if says and any(each.get("signature") for each in fragments):  # the signature is the end of a part
        return False
    return "index" in part or says or bool(part.get("signature"))


def _one(fragments: list[dict[str, Any]]) -> dict[str, Any]:
    whole = fragments[0].copy()
    for part in fragments[1:]:
        whole |= {name: value for name, value in part.items() if value is not None}
    for name in (*_SHOWN, "data"):
        if isinstance(whole.get(name), str):
            whole[name] = joined(wire.as_text(part.get(name)) for part in fragments)
    return whole


BLANK: Final = " "
"""The reasoning of an answer that has none, for servers that want one: some of them take no empty text."""


class ChatContext(Encoded):
    """A transcript in the form of the protocol.

    The protocol has no place for reasoning: what a server adds to it for that goes back to the model that made it, as
    several want it. Other reasoning and unknown blocks are left out, and so are answers that hold nothing else.
    Consecutive user messages are merged, because many chat templates want the roles to alternate.
    """

    __slots__ = ("_field", "_role", "wants_signatures")
    PROTOCOL: ClassVar[str] = PROTOCOL

    def __init__(self, provider: str, model: str) -> None:
        super().__init__(provider, model)
        self.wants_signatures: bool = False
        self._role = ""  # of the newest message
        self._field = ""  # the member in which the model has its reasoning, as far as it is known

    def _add_system(self, content: str) -> None:
        self._put("user", [{"role": "system", "content": content}] if content else [])

    def _put(self, _role: Role, turns: list[dict[str, Any]]) -> None:
        for turn in turns if not self.without else _adapted(turns, self._role, self.without):
            role, content = turn["role"], turn["content"]
            if role == "user" and isinstance(content, list):
                role = PARTS
            if role == self._role == "user":
                self._grow(BETWEEN + _inside(content))
                continue
            if self._role == PARTS and role in ("user", PARTS):
                parts = content if role == PARTS else [{"type": "text", "text": content}]
                self._grow(b"," + codec.encode_whole(parts)[1:-1])
                continue
            before = self._shut + b"," if self._role else b""
            self._shut = _SHUT.get(role, b"}")
            self._grow(before + codec.encode_whole(turn).removesuffix(self._shut))
            self._role = role

    def _needed(self) -> dict[str, Any] | None:
        return None if self._role in ("user", PARTS, "tool") else {"role": "user", "content": wire.CONTINUE}

    def _prompt(self, text: str, files: Sequence[Attachment]) -> list[dict[str, Any]]:
        return [{"role": "user", "content": self._content(text, files)}]

    def _content(self, text: str, files: Sequence[Attachment]) -> str | msgspec.Raw | list[dict[str, Any]]:
        """Return a text; with files it is a list of parts, or a text alone if all of them are told in words."""
        if not files:
            return text
        parts, words = self._told(files)
        whole = quoted([*words, letters(text)])
        return [*parts, {"type": "text", "text": whole}] if parts else whole

    def _results(self, results: Sequence[ToolResult]) -> list[dict[str, Any]]:
        """Return the results, and behind them their files, as the user's: results are texts in this protocol."""
        files = [file for result in results for file in result.attachments]
        return [*map(self._result, results), *(self._prompt(wire.FILES, files) if files else ())]

    def _part(self, file: Attachment) -> dict[str, Any] | None:
        match file.kind:
            case "image":
                return {"type": "image_url", "image_url": {"url": data_url(file)}}
            case "pdf" if file.url is None:
                own = {"filename": file.name or "file.pdf", "file_data": data_url(file)}
                return {"type": "file", "file": own}
            case "audio" if file.url is None:
                form = "wav" if file.media_type == "audio/wav" else "mp3"
                return {"type": "input_audio", "input_audio": {"data": base64(file), "format": form}}
            case _:
                return None

    def _said(self, message: AssistantMessage) -> list[dict[str, Any]]:
        calls, text = [self._called(call) for call in message.tool_calls], message.text
        if not calls and not text:
            return []
        turn: dict[str, Any] = {"role": "assistant", "content": text or None}
        for block in message.blocks:
            if isinstance(block, TextBlock | ReasoningBlock) and block.metadata:
                own = self.maker.kept(block)
                turn |= {name: value for name, value in own.items() if name not in (FIELD, TAG)}
                if TAG in own:
                    turn["content"] = f"<{own[TAG]}>\n{block.text}\n</{own[TAG]}>\n\n{text}"
                elif FIELD in own:
                    self._field = own[FIELD]
                    turn[self._field] = block.text
        if "reasoning_back" in self.without and not turn.get(REASONING[0]):
            turn[REASONING[0]] = BLANK
        if calls:
            turn["tool_calls"] = calls
            if self.wants_signatures:  # of the first call of an answer, also if another model made it
                calls[0].setdefault(EXTRA, {"google": {"thought_signature": FOREIGN}})
            if self._field == REASONING[0]:  # DeepSeek wants it with each answer that calls tools, also of others
                turn.setdefault(self._field, "")
        return [turn]

    def _called(self, call: ToolUseBlock) -> dict[str, Any]:
        function = {"name": OPENAI.name(call.name), "arguments": codec.encode_whole(call.args).decode()}
        return {"id": self._call_id(call), "type": "function", "function": function, **self.maker.kept(call)}

    def _result(self, result: ToolResult) -> dict[str, Any]:
        call_id = self._id_of_result(result.tool_use_id)
        return {"role": "tool", "tool_call_id": call_id, "content": wire.result_text(result)}


def _adapted(turns: list[dict[str, Any]], before: str, without: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield messages as a server takes them that does not take all of the protocol; `before` is the role before."""
    apart = "user_after_tool" in without or "tool_role" in without
    for turn in turns:
        made = _in_words(turn) if "tool_role" in without else turn
        if made["role"] == "system" and "system_role" in without:
            made = made | {"role": "user"}
        if "ids" in without:
            made = made | _with_short_ids(made)
        if "reasoning_content" in without:
            made = _without_reasoning(made)
        if "null_content" in without and made["content"] is None:
            made = made | {"content": ""}
        role = made["role"]
        if role == "user" and before == "tool" and apart:
            yield {"role": "assistant", "content": wire.READ}
        if role == "assistant" and before in ("assistant", "system", "") and apart:
            yield {"role": "user", "content": wire.CONTINUE}
        yield made
        before = role


def _without_reasoning(turn: dict[str, Any]) -> dict[str, Any]:
    """Return a message without the members that servers add to the protocol for their reasoning."""
    own = {name: value for name, value in turn.items() if name not in (*REASONING, *LISTS, EXTRA)}
    if "tool_calls" in own:
        calls = own["tool_calls"]
        own["tool_calls"] = [{name: value for name, value in call.items() if name != EXTRA} for call in calls]
    return own


def _in_words(turn: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its calls, or a result, in words."""
    if turn["role"] == "tool":
        return {"role": "user", "content": f"[result of {turn['tool_call_id']}]\n{turn['content']}"}
    if "tool_calls" not in turn:
        return turn
    calls = (
        f"[{each['id']}: {each['function']['name']} {each['function']['arguments']}]" for each in turn["tool_calls"]
    )
    return {"role": "assistant", "content": "\n\n".join(filter(None, [turn["content"], *calls]))}


def _with_short_ids(turn: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a message that have ids of calls, as Mistral takes them: of nine letters and digits."""
    if "tool_call_id" in turn:
        return {"tool_call_id": wire.short_id(turn["tool_call_id"])}
    calls = turn.get("tool_calls")
    return {} if calls is None else {"tool_calls": [each | {"id": wire.short_id(each["id"])} for each in calls]}


def _inside(content: str | msgspec.Raw) -> bytes:
    """Return the letters of a text."""
    return letters(content) if isinstance(content, str) else bytes(content)[1:-1]


def _counts(usage: dict[str, Any]) -> Counts:
    details = wire.as_object(usage.get("prompt_tokens_details"))
    read = wire.as_count(details.get("cached_tokens")) or 0
    created = wire.as_count(details.get("cache_write_tokens")) or 0
    counted = wire.as_count(usage.get("prompt_tokens")), wire.as_count(usage.get("completion_tokens"))
    return Counts(*counted, created, read)


class OpenAIDialect(ModelDialect):
    """What the protocols of OpenAI have in common."""

    def listing(self, endpoint: ModelEndpoint) -> str:
        """Return the address of the list of the server's models."""
        return f"{endpoint.url}/models"

    def headers(self, key: str | None, model: str) -> dict[str, str]:  # noqa: ARG002 - of the protocol
        """Return the headers of every request to a model."""
        return {"authorization": f"Bearer {key}"} if key else {}

    def check(self, model: str, options: ModelOptions) -> None:  # noqa: ARG002 - of the protocol
        """Refuse options that the protocols do not have."""
        no_reasoning_cap(options, "OpenAI's protocol")


class ChatDialect(OpenAIDialect):
    """OpenAI's chat completions protocol, streamed."""

    tools: ClassVar[EncodedTools] = EncodedTools(OPENAI, _tool)
    contexts: ClassVar[type[Encoded]] = ChatContext
    answers: ClassVar[type[Answer]] = ChatAnswer

    def url(self, endpoint: ModelEndpoint, model: str) -> str:  # noqa: ARG002 - of the protocol
        """Return the address for requests."""
        return f"{endpoint.url}/chat/completions"

    def check(self, model: str, options: ModelOptions) -> None:
        """Refuse options that the protocol does not have."""
        super().check(model, options)
        no_hosted_tools(options, "the protocol of OpenAI's chat completions")

    def context(self, endpoint: ModelEndpoint, model: str) -> ChatContext:
        """Return an empty context for a model of a provider, to which messages are added."""
        context = ChatContext(endpoint.vendor.name, model)
        context.wants_signatures = endpoint.host.endswith(".googleapis.com") and wants_signature(model)
        return context

    def body(self, request: ModelRequest, endpoint: ModelEndpoint, context: Encoded) -> list[Part]:
        """Return the body of a request, in pieces."""
        head: dict[str, Any] = {
            "model": request.model,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if (key := cache_key(request, endpoint)) is not None:
            head["prompt_cache_key"] = key
        tail: dict[str, Any] = {}
        if request.tools and endpoint.official and _TOOLS_WITHOUT_REASONING.match(request.model):
            head["reasoning_effort"] = "none"
        elif request.options.effort is not None:
            head["reasoning_effort"] = request.options.effort
        if (cap := request.answer_cap(SURE_TOKENS)) is not None:
            own = endpoint.official or _COMPLETION_TOKENS.match(request.model)
            tail["max_completion_tokens" if own else "max_tokens"] = cap
        tail |= sampling(request.options)
        if (schema := forced_schema(request)) is not None:
            # Strict mode refuses most schemas.
            form = {"name": OUTPUT, "schema": schema, "strict": False}
            tail["response_format"] = {"type": "json_schema", "json_schema": form}
        return context.between(head, tail, tools=self.tools.encoded(request))


class CompatibleChat(ChatDialect):
    """The protocol at servers of other makers."""

    tools: ClassVar[EncodedTools] = EncodedTools(attrs.evolve(OPENAI, most=MANY), _tool)
