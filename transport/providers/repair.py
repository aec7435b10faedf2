"""The repair of refused requests: one table says what a refusal is about, and the least change that helps. No I/O."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import attrs

from warren.base.values import frozen
from warren.conversation import codec
from warren.conversation.attachments import Attachment
from warren.conversation.events import RepairAction
from warren.conversation.messages import (
    AssistantMessage,
    Message,
    files_of,
)
from warren.conversation.records import OPAQUE, Span
from warren.conversation.transcript import Transcript
from warren.models.model import ModelRequest, Repaired
from warren.models.tools import ToolSpec
from warren.settings.config import MEMBERS
from warren.transport.providers import wire
from warren.transport.providers.encoded import INSTEAD, KINDS, WITHIN, Part
from warren.transport.providers.failures import Said
from warren.transport.providers.omitted import WHOLE, Omitted
from warren.transport.providers.tool_rules import ANTHROPIC, GEMINI, OPENAI, RESPONSES

MOST_REPAIRS: Final = 16
"""Repairs of one call that are not about one tool or file: each costs a request."""
MOST_PARTS: Final = 128
"""Repairs of one call: servers name one broken tool or file after another."""
NOT_REPAIRED: Final[frozenset[str]] = frozenset(
    {"context_length", "content_filter", "quota", "unauthorized", "rate_limited", "overloaded"}
)
"""Causes of refusals that are about the whole request, its words, or the account."""
LONGEST_WHY: Final = 300
SHORT: Final = 4
"""Letters at the end of an address that may stand in other words as well."""


@frozen
class Learned:
    """Parts of requests that a server has refused for a model, and does not get again for a while.

    Attributes:
        without: the switches: members of the body, and the other names of `warren.settings.config.SWITCHES`.
        tools: the definitions of tools that are left out, as JSON.
        most_tools: the most tools that it takes, its own ones among them; None if that is unknown.
        cap: the most tokens of an answer that it takes; None if that is unknown.
    """

    without: frozenset[str] = frozenset()
    tools: frozenset[bytes] = frozenset()
    most_tools: int | None = None
    cap: int | None = None

    def applied(self, request: ModelRequest) -> ModelRequest:
        """Return the request without the tools, under the cap, and for the kinds of files that the server takes."""
        changes: dict[str, Any] = {}
        if self.tools:
            changes["tools"] = [spec for spec in request.tools if _json_of(spec) not in self.tools]
        if self.most_tools is not None:
            tools = changes.get("tools", request.tools)
            changes["tools"] = tools[: max(0, self.most_tools - len(request.options.hosted_tools or ()))]
        if gone := {kind for switch, kind in KINDS.items() if switch in self.without}:
            changes["files"] = attrs.evolve(request.files, kinds=request.files.kinds - gone)
        own: dict[str, Any] = {}
        if self.cap is not None:
            changes["max_output"] = min(self.cap, request.max_output or self.cap)
            own["max_tokens"] = request.options.max_tokens and min(self.cap, request.options.max_tokens)
        if "cache_control" in self.without:
            own["prompt_cache"] = "off"
        if own:
            changes["options"] = attrs.evolve(request.options, **own)
        return attrs.evolve(request, **changes) if changes else request


NOTHING: Final = Learned()


class Refusals(NamedTuple):
    """Refused parts of the messages of a request."""

    without: frozenset[str]
    omitted: Omitted


NONE: Final = Refusals(frozenset(), WHOLE)


def _json_of(spec: ToolSpec) -> bytes:
    """Return the definition of a tool; nothing for one that is no JSON, which is not sent."""
    try:
        return codec.encode_whole([spec.name, spec.description, spec.input_schema])
    except (TypeError, ValueError, RecursionError):
        return b""


@frozen
class Change:
    """A request as it goes out next, and the words about it; see `Rule` for `guess`."""

    learned: Learned
    omitted: Omitted
    told: Repaired
    guess: bool = False


@frozen
class Refused:
    """A refused request.

    Attributes:
        said: the words of the server.
        request: the request, as the runtime has made it.
        body: its body, as it went out.
        end: the position behind its messages.
        learned: what the server has refused so far.
        omitted: the parts of the conversation that it has refused so far.
    """

    said: Said
    request: ModelRequest
    body: Sequence[Part]
    end: int
    learned: Learned
    omitted: Omitted

    @cached_property
    def words(self) -> str:
        """The words of the server in which the rules look."""
        return "\n".join([*self.said.kinds, self.told])

    @property
    def told(self) -> str:
        """The words of the server without its codes."""
        return f"{self.said.param}\n{self.said.text}"

    @property
    def passing(self) -> bool:
        """Whether the same request may be taken later."""
        if self.said.status is None:
            return not _OF_SERVERS.isdisjoint(self.said.kinds)
        return self.said.status == CONFLICT or self.said.status >= SERVER_FAULT

    @cached_property
    def sent(self) -> tuple[Any, list[Attachment]]:
        """The body as data, with a mark in the place of each file, and the files by the numbers of their marks."""
        files = [part for part in self.body if isinstance(part, Attachment)]
        number = iter(range(len(files)))
        text = b"".join(b"<file %d>" % next(number) if isinstance(each, Attachment) else each for each in self.body)
        try:
            return wire.parse(text), files
        except ValueError:
            return {}, files

    @cached_property
    def files(self) -> list[Attachment]:
        """The files that went out, the oldest first, each once."""
        found = (file for message in self.request.messages for file in files_of(message))
        kinds = self.request.files.kinds
        out = (file for file in found if file.kind != "text" and (file.kind in kinds or file in self.body))
        return [file for file in dict.fromkeys(out) if file not in self.omitted.files]

    def changed(self, action: RepairAction, what: str, **changes: Any) -> Change | None:
        """Return a change of what is known of the server; None if it is known already."""
        learned = attrs.evolve(self.learned, **changes)
        return None if learned == self.learned else Change(learned, self.omitted, self._told(action, what))

    def omit(self, action: RepairAction, what: str, **changes: Any) -> Change | None:
        """Return a change of the conversation; None if that part is omitted already."""
        omitted = attrs.evolve(self.omitted, **changes, why=self._why if "files" in changes else self.omitted.why)
        return None if omitted == self.omitted else Change(self.learned, omitted, self._told(action, what))

    @property
    def _why(self) -> str:
        return " ".join((self.said.text or f"status {self.said.status}").split())[:LONGEST_WHY]

    def _told(self, action: RepairAction, what: str) -> Repaired:
        return Repaired(action, what, self._why)


def parts_of(transcript: Transcript, omitted: Omitted, before: Omitted) -> Iterator[Span]:
    """Yield the messages of a conversation of which a part has been omitted."""
    if omitted.reasoning > before.reasoning:
        yield Span(0, omitted.reasoning, "reasoning")
    if gone := omitted.files - before.files:
        for at, body in enumerate(transcript.rows, transcript.head):
            if b'"media_type":' in body and gone.intersection(files_of(codec.decode_message(body))):
                yield Span(at, at + 1, "files")


def is_other(said: Said | None, before: Said | None) -> bool:
    """Return whether a server refuses a request for another reason; the ids of requests are none."""
    if said is None or before is None:
        return said != before
    return attrs.evolve(said, text=_ID.sub("", said.text)) != attrs.evolve(before, text=_ID.sub("", before.text))


# -- the repairs

Repair = Callable[[Refused, re.Match[str]], Change | None]


def _switch(name: str) -> Repair:
    def off(refused: Refused, _found: re.Match[str]) -> Change | None:
        return refused.changed("switched_off", f"`{name}`", without=refused.learned.without | {name})

    return off


def _in_chat(name: str, concerns: Callable[[Mapping[str, Any]], object]) -> Repair:
    """Return the repair that turns a form of chat completions off, if a message of the request has it."""

    def off(refused: Refused, found: re.Match[str]) -> Change | None:
        turns = map(wire.as_object, wire.as_list(wire.as_object(refused.sent[0]).get("messages")))
        return _switch(name)(refused, found) if any(map(concerns, turns)) else None

    return off


def _of_tool(turn: Mapping[str, Any]) -> bool:
    return turn.get("role") == "tool"


def _of_system(turn: Mapping[str, Any]) -> bool:
    return turn.get("role") == "system"


def _is_text(turn: Mapping[str, Any]) -> bool:
    """Return whether a message is one of chat completions: other protocols have lists alone."""
    return isinstance(turn.get("content"), str)


def _member(refused: Refused, _found: re.Match[str]) -> Change | None:
    """Leave out the member of the body that the server names and does not take."""
    body, _ = refused.sent
    for name in MEMBERS:
        if name not in refused.learned.without and _names(refused, name) and _has(body, name):
            instead = INSTEAD.get(name)
            action: RepairAction = "replaced" if instead and instead not in refused.learned.without else "switched_off"
            return refused.changed(action, f"`{name}`", without=refused.learned.without | {name})
    return None


def _answer_schema(refused: Refused, _found: re.Match[str]) -> Change | None:
    """Leave out the schema of the answer."""
    for name in _WITH_SCHEMA:
        if name not in refused.learned.without and _has(refused.sent[0], name):
            return refused.changed("switched_off", f"`{name}`", without=refused.learned.without | {name})
    return None


def _names(refused: Refused, name: str) -> bool:
    """Return whether the server names a member: as its param, in quotes, as a path, or by a name that is no word."""
    if re.split(r"[.\[]", refused.said.param)[0] == name or refused.said.param.endswith(f".{name}"):
        return True
    said = re.escape(name)
    plain = rf"(?<![\w-]){said}(?![\w-])"
    if "_" not in name and name.lower() == name and name != "temperature":
        plain = (
            rf"""(['"`.#/]|\bbody\.){said}['"`.:\s]|^{said}\s*[:.]|\b(parameter|argument|field|property):? {said}\b"""
        )
    return re.search(plain, refused.words, re.MULTILINE) is not None


def _has(body: Any, name: str) -> bool:
    tools = [tool for tool in wire.as_list(wire.as_object(body).get("tools")) if isinstance(tool, dict)]
    inside = [wire.as_object(body), *(wire.as_object(wire.as_object(body).get(each)) for each in WITHIN)]
    return any(name in each for each in [*inside, *tools, *(wire.as_object(tool.get("function")) for tool in tools)])


def _cap(refused: Refused, found: re.Match[str]) -> Change | None:
    most = int(next(filter(None, found.groups())).replace(",", ""))
    if not most or (refused.learned.cap or most + 1) <= most:
        return None
    return refused.changed("shortened", f"the cap of the answer, to {most} tokens", cap=most)


def _reasoning(refused: Refused, _found: re.Match[str]) -> Change | None:
    """Leave out the opaque data of all messages so far: that of one account is refused as a whole."""
    if not any(_is_signed(message) for message in refused.request.messages):
        return None
    return refused.omit("dropped", "the reasoning of earlier answers", reasoning=refused.end)


def _is_signed(message: Message) -> bool:
    if not isinstance(message, AssistantMessage):
        return False
    return any(isinstance(each, OPAQUE) or getattr(each, "metadata", None) for each in message.blocks)


def _files(refused: Refused, _found: re.Match[str]) -> Change | None:
    """Replace the files that the server means by notes: those it names, else all old ones, else all."""
    files = refused.files
    if not files or (refused.passing and not _named(refused, files)):
        return None
    newest = next(filter(None, (files_of(each) for each in reversed(refused.request.messages))), ())
    old = [file for file in files if file not in newest]
    return _noted(refused, _named(refused, files) or _surplus(refused, files) or old or files)


def _noted(refused: Refused, gone: Sequence[Attachment]) -> Change | None:
    if not gone:
        return None
    what = gone[0].label if len(gone) == 1 else f"{len(gone)} files"
    return refused.omit("replaced", f"{what}, by a note", files=refused.omitted.files | {*gone})


def _named(refused: Refused, files: Sequence[Attachment]) -> list[Attachment]:
    """Return the files that the words name: by their address, or by their place in the body."""
    if named := _addressed(refused, files):
        return named
    body, out = refused.sent
    for path in _PATH.findall(refused.told):
        text = codec.encode_whole(_at(body, path)).decode()
        marks = map(int, re.findall(r"<file (\d{1,9})>", text))  # the words of a user may look like one
        marked = [out[number] for number in marks if number < len(out)]
        found = [file for file in files if file in marked or (file.url and file.url in text)]
        if found:
            return found
    return []


def _addressed(refused: Refused, files: Sequence[Attachment]) -> list[Attachment]:
    return [file for file in files if file.url and (file.url in refused.told or _end_of(file.url) in refused.told)]


def _end_of(url: str) -> str:
    """Return the last part of an address, which some servers name alone; the whole one if that may be a word."""
    end = url.split("?", maxsplit=1)[0].rstrip("/").rpartition("/")[2]
    return end if len(end) > SHORT and not end.isalpha() else url


def _at(body: Any, path: str) -> Any:
    """Return the part of a body at a path, such as `messages.3.content.1.image`, as far as it goes to one part."""
    here = body
    for step in re.findall(r"\w+", path):
        if isinstance(here, list) and _INDEX.fullmatch(step):
            here = here[int(step)] if int(step) < len(here) else None
        elif isinstance(here, dict) and step in here:
            here = here[step]
        elif isinstance(here, dict) and "type" in here:  # the type of a part, as Anthropic names it
            continue
        else:
            break
    return here


def _surplus(refused: Refused, files: Sequence[Attachment]) -> list[Attachment]:
    """Return the oldest files, if the server says how many it takes."""
    found = _MOST_FILES.search(refused.said.text)
    most = int(next(filter(None, found.groups()))) if found else len(files)
    return [*files[: len(files) - most]] if most < len(files) else []


def _size(refused: Refused, found: re.Match[str]) -> Change | None:
    """Replace the files of a request that is too large."""
    return _files(refused, found) if refused.said.status == TOO_LARGE else None


def _fewer_tools(refused: Refused, _found: re.Match[str]) -> Change | None:
    """Leave out the last tools of those that are too many, or their second half if the server tells no number."""
    own, hosted = len(refused.request.tools), len(refused.request.options.hosted_tools or ())
    told = [number for number in map(int, _NUMBER.findall(refused.told)) if hosted < number < own + hosted]
    most = max(told) if told else hosted + own // 2
    if most <= hosted:
        return None
    return refused.changed("left_out", f"the last {own + hosted - most} tools", most_tools=most)


def _tool(refused: Refused, found: re.Match[str]) -> Change | None:
    """Leave out the tool that the server names, or whose number it says."""
    body, _ = refused.sent
    named = found.groupdict()
    name = named.get("name") or named.get("name2")
    if name is None:
        group, number = named.get("group"), int(named.get("inner") or named["number"])
        tools = wire.as_list(wire.as_object(body).get("tools"))
        if named.get("inner"):
            at = int(group or 0)
            tools = wire.as_list(wire.as_object(tools[at]).get("functionDeclarations")) if at < len(tools) else []
        tool = wire.as_object(tools[number]) if number < len(tools) else {}
        name = wire.as_text(wire.as_object(tool.get("function")).get("name") or tool.get("name"))
    for spec in refused.request.tools:
        sent = {rules.name(spec.name) for rules in (OPENAI, RESPONSES, ANTHROPIC, GEMINI)}
        if name in {spec.name, *sent} and _json_of(spec) not in refused.learned.tools:
            return refused.changed("left_out", f"the tool {spec.name}", tools=refused.learned.tools | {_json_of(spec)})
    return None


# -- the table

_WITH_SCHEMA: Final = ("response_format", "text", "output_config", "responseJsonSchema")
"""The members of bodies that have the schema of the answer, of all protocols."""
CONFLICT: Final = 409
TOO_LARGE: Final = 413
SERVER_FAULT: Final = 500
_OF_SERVERS: Final = frozenset({"api_error", "server_error", "internal_error", "INTERNAL", "UNAVAILABLE"})
"""Codes of faults of servers, which stand in streams."""
_ID: Final = re.compile(r"\b(?=\D*\d)[\w-]{16,}")
_NUMBER: Final = re.compile(r"(?<![\w.])\d{1,9}(?![\w.]\w)", re.ASCII)
_INDEX: Final = re.compile(r"\d{1,9}", re.ASCII)
_PATH: Final = re.compile(r"(?:messages|input|contents)(?:[.\[\]/]+\w+)+")
_MOST_FILES: Final = re.compile(
    r"(?:at most|maximum(?: of)?|up to|limit(?: is| of)?|only) (\d{1,9}) (?:image|file|document)"
    r"|(?:image|file|document)s?[^.\n]{0,40}?\d+ ?> ?(\d{1,9})",
    re.IGNORECASE,
)
_FILE: Final = (
    r"(?<![\w-])(images?|image_url|input_image|inline_?data|files?|input_file|file_data|documents?|pdfs?|media"
    r"|multi-?modal)(?![\w-])"
)
_OF_ONE: Final = (
    r"\b(formats?|mime|(?<!content )(?<!input )types?|(?<!_)urls?|links?|sizes?|resolutions?|dimensions?|encodings?"
    r"|extensions?|animated|larger|smaller|detail)\b"
)
"""Words about one image, not about images at all."""
_SCHEMA: Final = (
    r"(?<!\w)(response_format|text\.format|output_config(\.format)?|output_format|response_?(json_?)?schema"
    r"|structured_output)\b"
)
_NO: Final = (
    r"unsupported|not support|n't support|unrecogni[sz]ed|unknown|extra inputs|extra_forbidden|not permitted"
    r"|not allowed|unexpected|additional propert|cannot find field|cannot be used|cannot both|not available"
    r"|deprecated|invalid_?param"
    r"|only the default|not implemented|not enabled|must not be|not valid for"
)


def _words(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.DOTALL | re.MULTILINE)


@frozen
class Rule:
    """A row of the table.

    Attributes:
        about: what the refusal is about, and the repair, in words.
        servers: the servers that say so.
        says: their words.
        repair: makes the change.
        source: the public place in which the words are found; empty if none was.
        date: the month in which they were read there.
        coded: whether the words may be codes of the error, too.
        guess: whether the words do not tell that the repair will help: it is kept only if an answer follows.
    """

    about: str
    servers: str
    says: re.Pattern[str] = attrs.field(converter=_words)
    repair: Repair
    source: str
    date: str = "2026-11"
    coded: bool = True
    guess: bool = False


RULES: Final = (
    Rule(
        "encrypted reasoning that cannot be verified: reasoning and signatures of the answers so far are dropped",
        "OpenAI, Azure",
        r"invalid_encrypted_content|encrypted content.{0,200}could not be (verified|decrypted)"
        r"|thinking_signature_invalid",
        _reasoning,
        "github.com/openai/codex/issues/8145",
    ),
    Rule(
        "items that need a dropped or expired item: they are dropped too",
        "OpenAI, Azure",
        r"was provided without its required|Item with id \S+ not found|Item '\S+' of type '\S+'",
        _reasoning,
        "github.com/0xPlaygrounds/rig/issues/751",
    ),
    Rule(
        "a signature of reasoning that is not this account's: reasoning of the answers so far is dropped",
        "Anthropic, Bedrock, Vertex AI",
        r"invalid.{0,3}signature.{0,8}in.{0,3}.?thinking|thinking.{0,60}cannot be modified"
        r"|(thinking|redacted_thinking|signature|encrypted_content).{0,80}(invalid|could not be (verified|decrypted))"
        r"|expected .?thinking.? or .?redacted_thinking",
        _reasoning,
        "github.com/anthropics/anthropic-sdk-python/issues/1598",
    ),
    Rule(
        "a thought signature that is not valid: signatures of the answers so far are dropped",
        "Gemini, Vertex AI",
        r"thought.?signature",
        _reasoning,
        "github.com/anomalyco/opencode/issues/4832",
    ),
    Rule(
        "calls of the server's own tools that it cannot go on with: they are dropped, with the reasoning",
        "Anthropic",
        r"container(_id)?.{0,60}(is required|expired|not found|does not exist)"
        r"|srvtoolu_\w+.{0,80}without a corresponding"
        r"|unexpected .?tool_use_id.? found in .?(?!tool_result)\w+_tool_result",
        _reasoning,
        "github.com/anthropics/anthropic-sdk-python/issues/1801, github.com/anthropics/claude-code/issues/80439",
    ),
    Rule(
        "reasoning that the server does not take back: no answer's reasoning is sent",
        "Mistral, Groq and other compatible servers",
        rf"(reasoning_content|reasoning_details|extra_content).{{0,120}}({_NO})"
        rf"|({_NO}).{{0,80}}(reasoning_content|reasoning_details|extra_content)",
        lambda refused, found: (
            _switch("reasoning_content")(refused, found)
            if any(_is_signed(message) for message in refused.request.messages)
            else None
        ),
        "github.com/BerriAI/litellm/issues/30835",
    ),
    Rule(
        "reasoning that has to go back with answers of other models, too: they get an empty one",
        "DeepSeek, Moonshot",
        r"reasoning_content.{0,80}(must be (passed|provided|included)|is (missing|required)|cannot be empty)"
        r"|missing.{0,20}reasoning_content",
        _in_chat("reasoning_back", lambda turn: turn.get("role") == "assistant" and not turn.get("reasoning_content")),
        "github.com/earendil-works/pi/issues/3636, github.com/continuedev/continue/issues/11711",
    ),
    Rule(
        "an answer without a text beside its calls: it gets an empty one",
        "servers with OpenAI's chat completions",
        r"content.{0,100}(got null|null|<nil>|to be a string|must be a string"
        r"|None\b|NoneType|expected (a )?string|valid string|is required|missing)"
        r"|(null, expected a|not a) string",
        _in_chat("null_content", lambda turn: turn.get("content", "") is None),
        "github.com/ggml-org/llama.cpp/issues/13471",
    ),
    Rule(
        "a model or a server without images: images are told in words",
        "vLLM, llama.cpp, OpenRouter, DeepSeek",
        rf"\bimages?\b(?!/)(?:(?!{_OF_ONE}).){{0,40}}(not supported|not available)"
        rf"|does(n't| not) support (images?|vision|multi-?modal)\b(?!/)(?![^.\n]{{0,20}}{_OF_ONE})"
        r"|image_url.{0,20}(not supported|not available)|not a multimodal model|support image input"
        r"|unknown variant .?image_url|image_url is only supported"
        r"|multi-?modal.{0,60}text.only|image input modality is not"
        r"|content.{0,80}(must be|should be|expected)( a)?( valid)? string",
        lambda refused, found: _switch("images")(refused, found) if refused.files else None,
        "github.com/nexu-io/nexu/issues/875",
    ),
    Rule(
        "a schema of the answer that is refused: it is left out, and the answer is checked as before",
        "OpenAI, Azure, Gemini, Anthropic",
        rf"invalid schema for {_SCHEMA}|{_SCHEMA}\W.{{0,160}}(invalid|schema|unsupported|not support)"
        rf"|schema.{{0,80}}{_SCHEMA}",
        _answer_schema,
        "github.com/tldraw/ai-template/issues/2",
    ),
    Rule(
        "more tools than the server takes: the last ones are left out",
        "OpenAI and others behind a gateway",
        r"(too many|number of|(at most|maximum(?: of)?|up to|more than|limit of) \d{1,9}) (tools|functions)\b"
        r"|\btools\b(?![.\[]\d)[^\n]{0,20}(array too long|too many|at most \d{1,9} items)|\btools?\W+(count|number)\b"
        r"|\btools\W{1,3}\d{1,9} > \d",
        _fewer_tools,
        "github.com/anomalyco/opencode/issues/1814, github.com/microsoft/vscode-copilot-release/issues/9375",
    ),
    Rule(
        "a tool whose definition is refused: it is left out",
        "OpenAI, Anthropic, Gemini",
        r"tools\[(?P<group>\d{1,9})\]\.function_?declarations\[(?P<inner>\d{1,9})\]"
        r"|(invalid schema for function|invalid (function|tool)( name)?:?) ['\"`](?P<name>[^'\"`]+)"
        r"|tool ['\"`]?(?P<name2>[\w.-]+)['\"`]?.{0,40}(invalid|schema|not supported)"
        r"|\btools[.\[](?P<number>\d{1,9})",
        _tool,
        "github.com/openclaw/openclaw/issues/72183",
    ),
    Rule(
        "an answer's cap above that of the model: it is lowered",
        "Anthropic, OpenAI, DeepSeek, Groq",
        r"max(?:_completion|_output)?_tokens.{0,60}?\d+ > (\d[\d,]{0,15})"
        r"|supports at most (\d[\d,]{0,15}) (?:completion|output)? ?tokens"
        r"|valid range of max_tokens is \[\d+, (\d[\d,]{0,15})\]"
        r"|max\w*_tokens.{0,20}must be less than or equal to .?(\d[\d,]{0,15})",
        _cap,
        "",
    ),
    Rule(
        "cache marks that the server does not take: requests go without them",
        "servers with Anthropic's protocol",
        rf"cache_control.{{0,120}}({_NO})",
        _switch("cache_control"),
        "github.com/caozhiyuan/copilot-api/issues/145",
    ),
    Rule(
        "ids of calls in nine letters and digits: they are made so",
        "Mistral",
        r"tool call id.{0,80}must be.{0,40}length of 9|invalid_function_call.{0,80}id",
        _in_chat("ids", lambda turn: "tool_calls" in turn),
        "github.com/vllm-project/vllm/issues/9019",
    ),
    Rule(
        "ids of calls that the server does not know: they are left out",
        "Vertex AI and older servers with Google's protocol",
        r"unknown name .?id\b.{0,80}function_?(call|response)",
        _switch("ids"),
        "",
    ),
    Rule(
        "ids of calls that are too long, or have odd letters: all ids become short ones",
        "OpenAI and Anthropic behind a gateway that calls others, too",
        r"(tool_calls?|tool_use|input|messages)[\[\].\w]*\.(id|call_id|tool_call_id|tool_use_id)\b.{0,60}"
        r"(too long|match pattern|maximum length)",
        lambda refused, found: (
            _in_chat("ids", lambda turn: "tool_calls" in turn)(refused, found) or _reasoning(refused, found)
        ),
        "",
    ),
    Rule(
        "a prompt behind results of tools: an answer is put between",
        "Mistral, vLLM",
        r"unexpected role .?user.? after role .?tool",
        _in_chat("user_after_tool", _of_tool),
        "github.com/NousResearch/hermes-agent/issues/20154",
    ),
    Rule(
        "no system prompt: it goes out as words of the user",
        "Gemma, Mistral and others over vLLM and llama.cpp",
        r"system role.{0,20}(not|n't) support|role.{0,20}['\"`]system['\"`].{0,40}(not|n't|unsupported|unexpected)"
        r"|(not|n't) support.{0,40}(['\"`]system['\"`]|system (role|message|prompt))"
        r"|role:? system\b|developer instruction is not enabled",
        lambda refused, found: (
            _in_chat("system_role", _of_system)(refused, found)
            or (_switch("system_role")(refused, found) if "systemInstruction" in refused.sent[0] else None)
        ),
        "github.com/huggingface/chat-ui/issues/1386",
    ),
    Rule(
        "roles that have to alternate: calls and results of tools go out as words, the system prompt as the user's",
        "chat templates of vLLM and llama.cpp",
        r"roles must alternate|alternat\w* (user|role)|unexpected role|only user(,| and) assistant",
        lambda refused, found: (
            _switch("user_after_tool")(refused, found)
            or _switch("tool_role")(refused, found)
            or _switch("system_role")(refused, found)
        ),
        "github.com/charmbracelet/crush/issues/279",
    ),
    Rule(
        "a member of the body that the server does not know or take: it is left out, or goes under its other name",
        "all",
        rf"{_NO}|use 'max|does not accept|no such",
        _member,
        "github.com/microsoft/semantic-kernel/issues/10510, github.com/FlowiseAI/Flowise/issues/2866",
    ),
    Rule(
        "a file that the server names by its address: a note replaces it",
        "OpenAI, OpenRouter, vLLM",
        r"",
        lambda refused, _found: _noted(refused, _addressed(refused, refused.files)),
        "github.com/anthropics/claude-code/issues/59133",
    ),
    Rule(
        "an image or a file that is gone, too large, broken, of an odd format, or one too many: a note replaces it",
        "OpenAI, Anthropic, Gemini, vLLM",
        rf"{_FILE}.{{0,160}}"
        r"(download|fetch|exceed|too (large|big|many|small)|maximum|at most|invalid|unsupported|not (valid|supported)"
        r"|could not|cannot|unable|failed|not found|expired|corrupt|process|>)"
        r"|(download|fetch|unable to (process|read)|could not process|invalid|too many|too large|at most|cannot|failed"
        rf"|unsupported|(not|n't) support).{{0,80}}{_FILE}",
        _files,
        "github.com/anthropics/claude-code/issues/59133",
        coded=False,
    ),
    Rule(
        "a code of an image that cannot be read: a note replaces it",
        "OpenAI, Azure",
        r"^(invalid|empty|unsupported|failed_to_\w+)_(\w+_)?image(_\w+)?$|^image_\w+$",
        _files,
        "github.com/anthropics/claude-code/issues/59133",
    ),
    Rule(
        "a request that is too large (413): notes replace its older files",
        "Anthropic, proxies",
        r"",
        _size,
        "github.com/earendil-works/pi/issues/401",
    ),
    Rule(
        "any other refusal with a word for reasoning in it: reasoning and signatures of the answers so far are dropped",
        "all",
        r"\b(thinking|reasoning|signatures?|encrypted)\b",
        _reasoning,
        "",
        guess=True,
    ),
    Rule(
        "any other refusal with a word for images, documents or the size: notes replace the older files",
        "all",
        r"\b(images?|pdfs?|documents?|mime|media.?types?|payload|pages|(multi-?)?modal(ity)?)\b|fetch content"
        r"|(access the|no such) file|request.{0,20}(size|too large)",
        _files,
        "",
        coded=False,
        guess=True,
    ),
    Rule(
        "a refusal that says nothing: notes replace the older files, then reasoning and signatures are dropped",
        "Gemini, proxies",
        r"contains an invalid argument|^\W*(bad request|invalid (request|input|argument|parameters?))\W*$",
        lambda refused, found: _files(refused, found) or _reasoning(refused, found),
        "",
        coded=False,
        guess=True,
    ),
)
_REPAIRABLE: Final = frozenset({400, 404, 405, 406, 409, 413, 415, 422, 500, 501, 502})
"""Statuses under which servers refuse a part of a request: templates fail with 500, gateways pass on 502."""


def change(refused: Refused) -> Change | None:
    """Return the least change that helps against a refusal; None if there is none."""
    if refused.said.status is not None and refused.said.status not in _REPAIRABLE:
        return None
    for rule in RULES:
        found = rule.says.search(refused.words if rule.coded else refused.told)
        if found and (made := rule.repair(refused, found)) is not None:
            return attrs.evolve(made, guess=rule.guess)
    return None
