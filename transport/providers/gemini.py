"""Google's protocol for Gemini models. No I/O."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final
from urllib.parse import quote

import attrs
import msgspec

from warren.base.errors import ProviderError
from warren.base.fields import FieldValueError
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
    UnknownBlock,
)
from warren.conversation.options import Effort, ModelOptions
from warren.models.model import ModelRequest, ReasoningPiece, TextPiece, joined
from warren.transport.providers import failures, pictures, wire
from warren.transport.providers.accumulate import Answer, Arriving, Counts, Ids, parse_arguments
from warren.transport.providers.dialect import (
    SURE_TOKENS,
    WEB_SEARCH,
    ModelDialect,
    forced_schema,
    sampling,
    with_hosted,
)
from warren.transport.providers.encoded import Encoded, EncodedTools, Part, Role, base64, letters, quoted
from warren.transport.providers.kept import Maker
from warren.transport.providers.settings import ModelEndpoint
from warren.transport.providers.tool_rules import GEMINI
from warren.transport.providers.tool_schemas import FittedTool

PROTOCOL: Final = "gemini"
"""The name under which blocks have the data that goes back verbatim."""
SIGNATURE: Final = "thoughtSignature"
FOREIGN: Final = "skip_thought_signature_validator"
"""The signature, by Google's documentation, of a call that another model made."""
SEARCH: Final = "google_search"
DATA: Final = "inlineData"
"""The member of a part that is a file."""
PLAIN: Final = frozenset({"text", "thought", SIGNATURE, "functionCall", DATA})
"""The members of parts that are read; a part with another one and without a text is about a tool of the server."""
_STOP: Final[Mapping[str, StopReason]] = {
    "STOP": "end_turn",
    "MAX_TOKENS": "max_tokens",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "LANGUAGE": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "IMAGE_SAFETY": "content_filter",
    "IMAGE_PROHIBITED_CONTENT": "content_filter",
    "IMAGE_RECITATION": "content_filter",
    "MODEL_ARMOR": "content_filter",
}
_MEMBERS: Final = frozenset({"candidates", "promptFeedback", "usageMetadata"})
"""Members of a chunk, one of which each has that is no error."""
# The model made a mistake that it may not make again.
_BROKEN: Final = frozenset(
    {
        "IMAGE_OTHER",
        "MALFORMED_FUNCTION_CALL",
        "MALFORMED_RESPONSE",
        "MISSING_THOUGHT_SIGNATURE",
        "NO_IMAGE",
        "OTHER",
        "TOO_MANY_TOOL_CALLS",
        "UNEXPECTED_TOOL_CALL",
    }
)
# These models reason by a budget of tokens, or not at all; later ones by levels, and they want signatures.
_BUDGETED: Final = re.compile(r"gemini-[12]")
_UNREASONING: Final = re.compile(r"gemini-(1|2\.0)")
_PRO: Final = re.compile(r"gemini-2\.5-pro")
# The budgets that models take, by Google's page on thinking, November 2026.
_BOUNDS: Final = (
    (_PRO, range(128, 32_768 + 1)),
    (re.compile(r"gemini-2\.5-flash-lite"), range(512, 24_576 + 1)),
    (re.compile(r"gemini-2\.5-flash"), range(1, 24_576 + 1)),
)
_BUDGETS: Final[Mapping[Effort, int]] = {
    "none": 0,
    "minimal": 512,
    "low": 2048,
    "medium": 8192,
    "high": 16384,
    "xhigh": 24576,
    "max": 24576,
}
_LEVELS: Final[Mapping[Effort, str]] = {
    "minimal": "minimal",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}


def _tool(tool: FittedTool) -> dict[str, Any]:
    schema = {} if tool.schema is None else {"parametersJsonSchema": tool.schema}
    return {"name": tool.name, "description": tool.description, **schema}


def wants_signature(model: str) -> bool:
    """Return whether a model wants the first call of each answer signed."""
    return _BUDGETED.search(model) is None


def _thinking(model: str, options: ModelOptions) -> dict[str, Any]:
    effort, budget = options.effort, options.reasoning_tokens
    if budget is None and effort is None:
        return {}
    if effort is None or _BUDGETED.search(model):
        tokens = budget if effort is None else _BUDGETS[effort]
        return {"thinkingBudget": tokens} | ({"includeThoughts": True} if tokens else {})
    return {"thinkingLevel": _LEVELS[effort], "includeThoughts": True}


@define
class _Part(Arriving):
    """A part of the answer; texts that arrive one after the other are one part, unless one is signed."""

    call: dict[str, Any] = attrs.field(factory=dict)
    signature: str = ""
    citations: list[dict[str, Any]] = attrs.field(factory=list)

    def block(self, maker: Maker, ids: Ids) -> Block | None:
        """Return the block, or None if it is empty."""
        signed = {SIGNATURE: self.signature} if self.signature else {}
        own, text = maker.keep(signed), joined(self.text)
        if self.kind == "call":
            args, name = self.call.get("args"), joined([wire.as_text(self.call.get("name"))])
            call_id = ids.unique(joined([wire.as_text(self.call.get("id"))]))
            whole, invalid = (args, None) if isinstance(args, dict) else parse_arguments(codec.encode(args).decode())
            return maker.signed(ToolUseBlock(call_id, name, whole, invalid, own))
        if self.kind == DATA:
            media_type = wire.as_text(self.call[DATA].get("mimeType"))
            return FileBlock(pictures.reference_of(media_type), maker.keep(self.call, self.citations))
        if self.call:
            return HostedToolBlock(self.kind, maker.keep(self.call))
        if self.kind == "text" and text:
            return TextBlock(text, maker.keep(signed, self.citations))
        return ReasoningBlock(text, own) if text or own else None


@define
class GeminiAnswer(Answer):
    """An answer, assembled from its chunks."""

    PROTOCOL: ClassVar[str] = PROTOCOL
    STOP: ClassVar[Mapping[str, StopReason]] = _STOP
    _begun: list[_Part] = attrs.field(factory=list)
    _newest: _Part | None = None  # of the parts that are shown, which the sources belong to
    _sources: list[dict[str, Any]] = attrs.field(factory=list)  # that came before any of these

    @property
    def blocks(self) -> int:
        """The number of its parts that have begun."""
        return len(self._begun)

    def feed(self, data: bytes) -> None:
        """Add the next event of the stream. Raises ProviderError for an error or a bad event."""
        if data.strip() not in (b"", b"[DONE]"):
            self._take(wire.with_halves(data, wire.parse_object(data)))

    def whole(self, data: bytes) -> None:
        """Add an answer that was not streamed, as plain JSON. Raises ProviderError if it is malformed or an error."""
        parsed = wire.parse_all(data)
        for response in parsed:
            self._take(response)
        if not any({"candidates", "promptFeedback"} & response.keys() for response in parsed):
            raise wire.bad_response("JSON that is no answer")
        self.closed = True
        self._complete(self.reason or "STOP")

    def _parts(self) -> list[_Part]:
        return self._begun

    def _take(self, chunk: dict[str, Any]) -> None:
        if chunk.get("error") or not _MEMBERS & chunk.keys():
            failures.check(self._endpoint, chunk)
        if usage := wire.object_in(chunk, "usageMetadata"):
            self._note_counts(_counts(usage))
        if wire.object_in(chunk, "promptFeedback").get("blockReason"):
            self._complete("PROHIBITED_CONTENT")
        for candidate in wire.objects_in(chunk, "candidates"):
            if not candidate.get("index"):
                self._candidate(candidate)

    def _candidate(self, candidate: dict[str, Any]) -> None:
        for part in wire.objects_in(wire.object_in(candidate, "content"), "parts"):
            self._part(part)
        if sources := wire.object_in(candidate, "groundingMetadata"):
            (self._sources if self._newest is None else self._newest.citations).append(sources)
        if finish := wire.text_in(candidate, "finishReason"):
            if finish in _BROKEN:
                said = wire.as_text(candidate.get("finishMessage"))
                problem = f"the model broke off with {finish}" + (f": {said[: failures.LONGEST_QUOTE]}" if said else "")
                raise ProviderError(problem, cause="bad_response", retryable=True)
            self._complete(finish)

    def _part(self, data: dict[str, Any]) -> None:
        signature, text = wire.text_in(data, SIGNATURE), wire.text_in(data, "text")
        if call := wire.object_in(data, "functionCall"):
            self._begun.append(_Part("call", call=call, signature=signature))
            self._size += len(codec.encode(call))
            return
        kind = "thought" if data.get("thought") else "text"
        if (own := wire.object_in(data, DATA)) and not text:
            self._size += 1
            if kind == "text":  # the drafts of pictures that the model makes while it thinks are not shown
                rest = {name: value for name, value in own.items() if name != "data"}
                file = pictures.file_of(wire.text_in(own, "data"), wire.text_in(own, "mimeType"))
                self._begun.append(_Part(DATA, call=data | {DATA: rest}, file=file))
                if self._newest is None:
                    self._show(self._begun[-1])
            return
        if not text and (hosted := next((name for name in data if name not in PLAIN), None)):
            self._begun.append(_Part(hosted, call=data))
            self._size += len(codec.encode(data))
            return
        last = self._begun[-1] if self._begun else None
        if last is None or last.kind != kind or last.signature or (signature and not text):
            last = _Part(kind)
            self._begun.append(last)
        if text and kind == "text" and last is not self._newest:
            self._show(last)
        last.signature = signature
        last.text.append(text)
        self._size += len(text)
        if text:
            self.said.add(ReasoningPiece if kind == "thought" else TextPiece, text)

    def _show(self, part: _Part) -> None:
        """Let the sources belong to a part: the newest text, or the first picture of an answer without a text."""
        part.citations, self._sources, self._newest = self._sources, [], part


class GeminiContext(Encoded):
    """A transcript in the form of the protocol.

    Unknown blocks and reasoning of other models are left out, and so are answers that hold nothing else. Signatures go
    back with the parts that came with them. Prompts of the user in a row are merged; results of tools stay apart,
    because the next prompt begins another turn. The protocol wants the system messages beside the others.
    """

    __slots__ = ("_names", "_role")
    PROTOCOL: ClassVar[str] = PROTOCOL
    MEMBER: ClassVar[str] = "contents"
    SYSTEM: ClassVar[tuple[bytes, bytes] | None] = (b',"systemInstruction":{"parts":[{"text":"', b'"}]}')
    MAKES_FILES: ClassVar[bool] = True

    def __init__(self, provider: str, model: str) -> None:
        super().__init__(provider, model)
        self._role = ""  # of the newest message
        self._names: dict[str, str] = {}  # of the newest answer's calls, by their ids

    def _add_system(self, content: str) -> None:
        if "system_role" in self.without:
            self._put("user", self._prompt(content, ()))
        else:
            super()._add_system(content)

    def _put(self, role: Role, parts: list[dict[str, Any]]) -> None:
        if not parts:
            return
        before = b","
        if role != self._role:
            name = b"model" if role == "assistant" else b"user"
            before = (self._shut + b"," if self._role else b"") + b'{"role":"%s","parts":[' % name
        self._grow(before + codec.encode_whole(parts)[1:-1])
        self._role, self._shut = role, b"]}"

    def _needed(self) -> dict[str, Any] | None:
        return None if self._role in ("user", "tool") else {"role": "user", "parts": [{"text": wire.CONTINUE}]}

    def _prompt(self, text: str, files: Sequence[Attachment]) -> list[dict[str, Any]]:
        return [*self._shown(files), *([{"text": text}] if text else [])]

    def _results(self, results: Sequence[ToolResult]) -> list[dict[str, Any]]:
        # Models with budgets take the files of results beside these, later ones within them.
        beside = results if _BUDGETED.search(self.maker.model) else ()
        files = [file for result in beside for file in result.attachments]
        return [*map(self._result, results), *self._shown(files)]

    def _said(self, message: AssistantMessage) -> list[dict[str, Any]]:
        self._names = {call.id: GEMINI.name(call.name) for call in message.tool_calls}
        return [*self._answer(message)]

    def _answer(self, message: AssistantMessage) -> Iterator[dict[str, Any]]:
        first = wants_signature(self.maker.model)
        for block in message.blocks:
            own = {} if isinstance(block, UnknownBlock) else self.maker.kept(block)
            match block:
                case FileBlock() if own := self.own_file(block):
                    yield own | {DATA: own[DATA] | {"data": base64(block.file)}}
                case HostedToolBlock() if own:
                    yield own
                case ToolUseBlock():
                    # The first call of an answer has to be signed, also if another model made it.
                    signed = own or ({SIGNATURE: FOREIGN} if first else {})
                    first = False
                    call = {**self._named(self._call_id(block)), "name": GEMINI.name(block.name), "args": block.args}
                    yield {"functionCall": call} | signed
                case TextBlock() if block.text:
                    yield {"text": block.text} | own
                case ReasoningBlock() if own:
                    yield {"text": block.text, "thought": True} | own if block.text else {"text": ""} | own

    def _shown(self, files: Sequence[Attachment]) -> list[dict[str, Any]]:
        if not files:
            return []
        parts, words = self._told(files)
        return [*parts, *({"text": quoted([each])} for each in words)]

    def _part(self, file: Attachment) -> dict[str, Any] | None:
        if file.kind == "text":
            return None
        if file.url is not None:
            return {"fileData": {"mimeType": file.media_type, "fileUri": file.url}}
        return {"inlineData": {"mimeType": file.media_type, "data": base64(file)}}

    def _result(self, result: ToolResult) -> dict[str, Any]:
        name = self._names.get(result.tool_use_id, "unknown")
        content = wire.content_of(result)
        text: str | msgspec.Raw = content
        within: dict[str, Any] = {}
        if result.attachments and _BUDGETED.search(self.maker.model) is None:
            parts, words = self._told(result.attachments)
            text = quoted([letters(content), *words]) if words else text
            within = {"parts": parts} if parts else {}
        said = {"error" if result.is_error else "output": text}
        own = self._named(self._id_of_result(result.tool_use_id))
        return {"functionResponse": {**own, "name": name, "response": said, **within}}

    def _named(self, call_id: str) -> dict[str, str]:
        return {} if "ids" in self.without else {"id": call_id}


def _counts(usage: dict[str, Any]) -> Counts:
    """Return the counts; the protocol reports those of reasoning and of results of its own tools beside the others."""
    sent, said = wire.as_count(usage.get("promptTokenCount")), wire.as_count(usage.get("candidatesTokenCount"))
    thought, used = (wire.as_count(usage.get(name)) or 0 for name in ("thoughtsTokenCount", "toolUsePromptTokenCount"))
    read = wire.as_count(usage.get("cachedContentTokenCount")) or 0
    output = None if said is None and not thought else (said or 0) + thought
    return Counts(None if sent is None else sent + used, output, read=read)


class GeminiDialect(ModelDialect):
    """Google's `streamGenerateContent`."""

    tools: ClassVar[EncodedTools] = EncodedTools(GEMINI, _tool)
    contexts: ClassVar[type[Encoded]] = GeminiContext
    answers: ClassVar[type[Answer]] = GeminiAnswer

    def url(self, endpoint: ModelEndpoint, model: str) -> str:
        """Return the address for requests to a model."""
        name = quote(model.removeprefix("models/"), safe="")
        return f"{endpoint.url}/models/{name}:streamGenerateContent?alt=sse"

    def listing(self, endpoint: ModelEndpoint) -> str:
        """Return the address of the list of the server's models."""
        return f"{endpoint.url}/models?pageSize=1000"

    def headers(self, key: str | None, model: str) -> dict[str, str]:  # noqa: ARG002 - of the protocol
        """Return the headers of every request to a model."""
        return {"x-goog-api-key": key} if key else {}

    def check(self, model: str, options: ModelOptions) -> None:
        """Refuse options that a model does not have."""
        budgeted = _BUDGETED.search(model)
        for name in ("effort", "reasoning_tokens"):
            if getattr(options, name) is not None and _UNREASONING.search(model):
                raise FieldValueError(name, f"{model} does not reason")
        if options.reasoning_tokens is not None and budgeted is None:
            raise FieldValueError("reasoning_tokens", f"{model} has no such cap; use `effort`")
        if options.effort == "none" and (budgeted is None or _PRO.search(model)):
            raise FieldValueError("effort", f"{model} cannot turn its reasoning off")
        bounds = next((bounds for pattern, bounds in _BOUNDS if pattern.search(model)), None)
        if options.reasoning_tokens is not None and bounds is not None and options.reasoning_tokens not in bounds:
            problem = f"must be from {bounds.start} to {bounds.stop - 1} for {model}"
            raise FieldValueError("reasoning_tokens", problem)

    def body(self, request: ModelRequest, endpoint: ModelEndpoint, context: Encoded) -> list[Part]:  # noqa: ARG002 - of the protocol
        """Return the body of a request, in pieces."""
        own = self.tools.encoded(request)
        tools = b'[{"functionDeclarations":' + own + b"}]" if own else b""
        named = {} if request.answer_schema is not None else request.options.hosted_tools or {}
        hosted = [{SEARCH if name == WEB_SEARCH else name: options} for name, options in named.items()]
        config: dict[str, Any] = {}
        if (cap := request.answer_cap(SURE_TOKENS)) is not None:
            config["maxOutputTokens"] = cap
        config |= sampling(request.options, "topP")
        if thinking := _thinking(request.model, request.options):
            config["thinkingConfig"] = thinking
        if (schema := forced_schema(request)) is not None:
            config |= {"responseMimeType": "application/json", "responseJsonSchema": schema}
        head = {"toolConfig": {"includeServerSideToolInvocations": True}} if own and hosted else {}
        tail = {"generationConfig": config} if config else {}
        return context.between(head, tail, tools=with_hosted(tools, hosted))
