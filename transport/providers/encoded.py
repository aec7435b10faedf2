"""The messages and the tools of requests in the form of a protocol: encoded once, and kept as bytes. No I/O."""

import copy
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, ClassVar, Final, Literal, Self, cast

import attrs
import msgspec

from warren.base.values import define, frozen
from warren.conversation import codec
from warren.conversation.attachments import Attachment, Kind
from warren.conversation.messages import (
    AssistantMessage,
    ContextMessage,
    FileBlock,
    Message,
    SystemMessage,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
)
from warren.models.model import ModelReply, ModelRequest, Repaired
from warren.models.tools import ToolSpec
from warren.settings.config import MEMBERS
from warren.transport.providers import wire
from warren.transport.providers.kept import Maker
from warren.transport.providers.omitted import WHOLE, Omitted
from warren.transport.providers.tool_rules import ToolRules
from warren.transport.providers.tool_schemas import FittedTool, UnfitToolError, fitted, restored

PIECE: Final = 256 * 1024
"""Bytes of a piece of a request: the newest one is copied for each request, and TLS encrypts it in one step."""
MOST_PARTS: Final = 64
"""Parts of the newest piece that each request joins anew: joining a thousand takes as long as sending them."""
SMALL: Final = 64 * 1024
"""Bytes of messages that are copied into one piece for each request: as fast as sending three pieces."""
MOST_TOOLS: Final = 1024
"""Definitions of tools that are kept encoded for each protocol."""
SHOWN: Final = 8
"""Names of tools that are left out for one reason, of those that are told of."""
KINDS: Final[Mapping[str, Kind]] = {"images": "image", "files": "pdf", "audio": "audio"}
"""The kinds of files by the switches that turn them off."""
NO_INSERTS: Final[Mapping[int, bytes]] = {}


Role = Literal["user", "tool", "assistant"]
"""Whose a message is; "tool" for results."""
Part = bytes | Attachment
"""A part of a request: bytes; or a file, whose bytes follow in base64, those of a text as JSON has them in quotes."""
MARK: Final = b"\x01"
"""Stands around a file in bytes that are written. JSON has no such byte: it escapes control characters."""


def _place(cut: tuple[int, Part]) -> int:
    return cut[0]


def _mark(file: Attachment) -> bytes:
    return MARK + b64encode(codec.encode(file)) + MARK


def base64(file: Attachment, before: str = "") -> msgspec.Raw:
    """Return a JSON text with the bytes of a file in base64, behind some other text."""
    return msgspec.Raw(b'"' + letters(before) + _mark(file) + b'"')


def data_url(file: Attachment) -> str | msgspec.Raw:
    """Return the address of a file: its own, or one that has its bytes."""
    return file.url or base64(file, f"data:{file.media_type};base64,")


def quoted(words: Iterable[bytes]) -> msgspec.Raw:
    """Return the JSON of a text that has some letters, with an empty line between two of them."""
    return msgspec.Raw(b'"' + BETWEEN.join(words) + b'"')


def letters(text: str) -> bytes:
    """Return a text as JSON has it between the quotes."""
    return codec.encode_whole(text)[1:-1]


BETWEEN: Final = letters("\n\n")
"""The letters between texts that are merged."""


class Encoded(ABC):
    """The messages of a context in the form of a protocol, to which its dialect adds one message after another.

    Written bytes never change, so that the prompt cache of a server finds it in the next request. The newest
    message stays open, because a protocol may merge the next one with it.

    Attributes:
        maker: the model that gets the messages: it gets its own data back.
        end: the position in the conversation of the next message to add, which the reader of the conversation sets; -1
            at first.
        calls: the ids of the tool calls in the messages.
        kinds: the kinds of attachments that the model takes, which the reader sets before the first message.
        without: the switches of what the server does not take, which the reader sets before the first message.
        omitted: the parts of the conversation that the server has refused, which the reader sets likewise.
        left_out: the tools that were left out of the newest request with these messages, see `Changes`.
    """

    __slots__ = (
        *("_files", "_made", "_newest", "_newest_size", "_own_ids", "_pieces", "_shut", "_system"),
        *("calls", "end", "kinds", "left_out", "maker", "omitted", "without"),
    )
    PROTOCOL: ClassVar[str]
    MEMBER: ClassVar[str] = "messages"
    SYSTEM: ClassVar[tuple[bytes, bytes] | None] = None
    """The text around the system messages, if they are a member that is the same in every request; else None."""
    MAKES_FILES: ClassVar[bool] = False
    """Whether files of answers go back to the model that made them."""
    calls: set[str]
    end: int
    kinds: frozenset[Kind]
    left_out: Mapping[str, str]
    maker: Maker
    omitted: Omitted
    without: frozenset[str]

    def __init__(self, provider: str, model: str) -> None:
        self.maker = Maker(self.PROTOCOL, provider, model)
        self.end = -1
        self.calls = set()
        self.kinds = frozenset()
        self.without = frozenset()
        self.omitted = WHOLE
        self._made: tuple[Attachment, ...] = ()  # files of answers that wait for the next message of the user
        self._own_ids: frozenset[str] = frozenset()  # ids of calls that go out as their maker has chosen them
        self.left_out = {}
        self._files: list[tuple[int, Attachment]] = []  # the files, and the places of their bytes
        self._pieces: list[bytes] = []
        self._newest: list[bytes] = []
        self._newest_size = 0
        self._shut = b""  # the bytes that close the newest message
        self._system = b""  # the system messages as JSON has them between the quotes, where they have a member

    @property
    def size(self) -> int:
        """Bytes of the messages, without those of their files."""
        return len(self._pieces) * PIECE + self._newest_size

    def add(self, message: Message) -> None:
        """Add the next message of the context."""
        if isinstance(message, AssistantMessage):
            if calls := message.tool_calls:
                self.calls.update(call.id for call in calls)
            for block in message.blocks:
                if isinstance(block, FileBlock) and not self.own_file(block):
                    self._made = (*self._made, block.file)
        elif self._made:
            message = self._with_made(message)
        self._write(message)

    def copy(self) -> Self:
        """Return a copy that grows apart from this one. They share the bytes."""
        other = copy.copy(self)
        other.calls = {*self.calls}
        other._pieces, other._newest = [*self._pieces], [*self._newest]  # noqa: SLF001 - of the same class
        other._files = [*self._files]  # noqa: SLF001 - as above
        return other

    def end_head(self) -> None:  # noqa: B027 - most protocols do not care
        """Note that the messages so far are the head of the context, which stays the same until a compaction."""

    def between(
        self,
        head: Mapping[str, Any],
        tail: Mapping[str, Any],
        inserts: Mapping[int, bytes] = NO_INSERTS,
        *,
        tools: bytes = b"",
        system: bytes = b"",
    ) -> list[Part]:
        """Return an object with the messages between its other members, in pieces of about `PIECE` bytes.

        The bytes of a file are to be sent in its place, as `Part` says.

        Args:
            head: the members in front of them.
            tail: the members behind them.
            inserts: bytes of this request alone, by their places in the bytes of the messages.
            tools: the JSON list of the tools; may be empty.
            system: the member with the system messages and a comma before it, where `SYSTEM` does not say it.
        """
        if self._system and self.SYSTEM is not None:
            system = self._system.join(self.SYSTEM)
        if self.without and (gone := self.without & OF_BODIES):
            head, tail, tools = pruned(head, gone), pruned(tail, gone), _pruned_tools(tools, gone)
        before = [_members(head), b'"tools":' + tools if tools else b"", system.removeprefix(b",")]
        begin = b"{" + b",".join([*filter(None, before), b'"%s":[' % self.MEMBER.encode()])
        behind = b"]," + _members(tail) if tail else b"]"
        if len(self._newest) > MOST_PARTS:
            self._newest = [b"".join(self._newest)]
        end = (self._shut, self._last(), behind, b"}")
        # Of the newest piece the first part is large: it is copied no more than the pieces before.
        pieces = [*self._pieces, *self._newest[:1], b"".join((*self._newest[1:], *end))]
        if not (self._files or inserts):
            return [b"".join((begin, *pieces))] if self.size < SMALL else [begin, *pieces]
        parts = [begin, *self._cut(pieces, inserts)]
        if self._files or self.size >= SMALL:
            return parts
        return [b"".join(cast("list[bytes]", parts))]

    def _add_system(self, content: str) -> None:
        """Add to the system messages of a protocol that has a member for them."""
        if content.strip():
            self._system += (BETWEEN if self._system else b"") + letters(content)

    def _cut(self, pieces: Sequence[bytes], inserts: Mapping[int, bytes]) -> Iterator[Part]:
        """Yield the pieces with the files and the inserts in their places."""
        cuts: list[tuple[int, Part]] = sorted([*inserts.items(), *self._files], key=_place)
        begin, last = 0, len(pieces) - 1
        for number, piece in enumerate(pieces):
            done, end = 0, begin + len(piece)
            while cuts and (number == last or cuts[0][0] < end):
                place, part = cuts.pop(0)
                if place - begin > done:
                    yield piece[done : place - begin]
                done = place - begin
                yield part
            if done < len(piece):
                yield piece[done:]
            begin = end

    # -- ids of calls

    def _call_id(self, call: ToolUseBlock) -> str:
        """Return the id of a call in a form that the server takes: for its maker the own one."""
        sent = wire.call_id(call.id)
        if sent == call.id or not (call.metadata and self.maker.made(call)):
            return sent
        self._own_ids |= {call.id}
        return call.id

    def _id_of_result(self, call_id: str) -> str:
        """Return the id of the call that a result belongs to, as `_call_id` has returned it."""
        return call_id if call_id in self._own_ids else wire.call_id(call_id)

    # -- attachments

    def own_file(self, block: FileBlock) -> dict[str, Any]:
        """Return the data that goes back with a file of an answer to the model that made it; empty for another model.

        Texts are words for each model, and so is a file that the server has refused.
        """
        file = block.file
        if not self.MAKES_FILES or file.kind == "text" or file in self.omitted.files:
            return {}
        if any(kind == file.kind for switch, kind in KINDS.items() if switch in self.without):
            return {}
        return self.maker.kept(block)

    def _with_made(self, message: Message) -> Message:
        """Return a message with the files that wait for it. Those of prompts come before the prompt's own."""
        made, self._made = self._made, ()
        if isinstance(message, UserMessage):
            return attrs.evolve(message, attachments=made + message.attachments)
        if isinstance(message, ToolResultsMessage) and message.results:
            last = message.results[-1]
            last = attrs.evolve(last, attachments=last.attachments + made)
            return attrs.evolve(message, results=(*message.results[:-1], last))
        self._made = made
        return message

    def _told(self, files: Iterable[Attachment]) -> tuple[list[dict[str, Any]], list[bytes]]:
        """Return the parts of a message that files make, and the letters of those that are told in words.

        Texts are words for each model, and a file that the model or its server does not take is a note.
        """
        parts, words = list[dict[str, Any]](), list[bytes]()
        for file in files:
            if file in self.omitted.files:
                words.append(letters(self.omitted.note(file)))
                continue
            part = self._part(file) if file.kind in self.kinds else None
            if part is not None:
                parts.append(part)
            elif file.kind == "text" and file.kind in self.kinds:
                words.append(letters(f"[{file.label}]\n") + _mark(file))
            else:
                words.append(letters(f"[{file.label}: it is not shown to you, as this model does not take it]"))
        return parts, words

    def _part(self, file: Attachment) -> dict[str, Any] | None:  # noqa: ARG002 - of the protocols
        """Return the part of a message that a file makes; None if the protocol has none for it."""
        return None

    def _grow(self, data: bytes) -> None:
        if data.find(MARK) >= 0:  # `in` first makes an error that it is no number
            data = self._placed(data)
        self._newest.append(data)
        self._newest_size += len(data)
        if self._newest_size >= PIECE:
            whole = b"".join(self._newest)
            full = len(whole) // PIECE * PIECE
            self._pieces += [whole[at : at + PIECE] for at in range(0, full, PIECE)]
            self._newest, self._newest_size = [whole[full:]], len(whole) - full

    def _placed(self, data: bytes) -> bytes:
        """Note the places of the files in some bytes, and return these without the marks."""
        first, *marked = data.split(MARK)
        parts, size = [first], self.size + len(first)
        for file, text in zip(marked[::2], marked[1::2], strict=True):
            self._files.append((size, codec.decode_stored(Attachment, b64decode(file))))
            parts.append(text)
            size += len(text)
        return b"".join(parts)

    # -- the messages

    def _write(self, message: Message) -> None:
        if isinstance(message, SystemMessage):
            self._add_system(message.content)
        else:
            self._put(*self._turn(message))

    def _turn(
        self, message: UserMessage | ContextMessage | ToolResultsMessage | AssistantMessage
    ) -> tuple[Role, list[dict[str, Any]]]:
        """Return a message in the form of the protocol, and whose it is."""
        if isinstance(message, AssistantMessage):
            return "assistant", self._said(message)
        if isinstance(message, ToolResultsMessage):
            return "tool", self._results(message.results)
        files = message.attachments if isinstance(message, UserMessage) else ()
        return "user", self._prompt(message.content, files)

    @abstractmethod
    def _prompt(self, text: str, files: Sequence[Attachment]) -> list[dict[str, Any]]:
        """Return words of the user in the form of the protocol, with their files."""

    @abstractmethod
    def _results(self, results: Sequence[ToolResult]) -> list[dict[str, Any]]:
        """Return the results of tools in the form of the protocol."""

    @abstractmethod
    def _said(self, message: AssistantMessage) -> list[dict[str, Any]]:
        """Return an answer in the form of the protocol; nothing if the protocol can express nothing of it."""

    @abstractmethod
    def _put(self, role: Role, made: list[dict[str, Any]]) -> None:
        """Write a message by `_grow`, without the bytes that close it; these go into `_shut`."""

    @abstractmethod
    def _needed(self) -> dict[str, Any] | None:
        """Return the message that a request needs behind those of the context; None if it needs none."""

    def _last(self) -> bytes:
        """Return that message with a comma before it."""
        if (needed := self._needed()) is None:
            return b""
        return (b"," if self.size or self._shut else b"") + codec.encode_whole(needed)


WITHIN: Final = ("generationConfig", "toolConfig", "output_config", "text")
"""Members of bodies that have members which a server may not take."""
OF_BODIES: Final = frozenset({*MEMBERS, "cache_control"})
"""The switches that are members of bodies."""
INSTEAD: Final = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
"""Members of which one goes out in place of the other."""


def pruned(body: Mapping[str, Any], without: Collection[str]) -> dict[str, Any]:
    """Return the members of a body without those that its server does not take."""
    made = dict[str, Any]()
    for name, value in body.items():
        if name not in without:
            made[name] = value
        elif (instead := INSTEAD.get(name)) and instead not in without:
            made[instead] = value
    for name in WITHIN:
        if isinstance(inside := made.get(name), dict):
            made[name] = pruned(inside, without)
    return made


def _pruned_tools(tools: bytes, without: Collection[str]) -> bytes:
    """Return a JSON list of tools without some members. They are many, and are parsed only if one may have these."""
    if all(tools.find(b'"%s":' % name.encode()) < 0 for name in without):
        return tools
    return codec.encode_whole([_pruned_tool(tool, without) for tool in codec.parse(tools)])


def _pruned_tool(tool: Any, without: Collection[str]) -> Any:
    if not isinstance(tool, dict):
        return tool
    made = {name: value for name, value in tool.items() if name not in without}
    if isinstance(function := made.get("function"), dict):
        made["function"] = {name: value for name, value in function.items() if name not in without}
    return made


def _members(fields: Mapping[str, Any]) -> bytes:
    """Return the members of a JSON object, without its braces."""
    return codec.encode_whole(fields)[1:-1]


@frozen
class Changes:
    """The differences between the tools of a request and those that the server gets.

    Attributes:
        names: the own names of the tools that have another one there.
        members: by the tool's own name, the own names of the members of its arguments that have another one there.
        left_out: the reasons of the tools that the server does not get, by their names.
    """

    names: Mapping[str, str]
    members: Mapping[str, Mapping[str, str]]
    left_out: Mapping[str, str]

    def told(self, context: Encoded) -> Iterator[Repaired]:
        """Yield what is to be said of the tools that are left out: once, unless it changes, for each context."""
        if self.left_out != context.left_out:
            for reason, names in groupby(sorted(self.left_out, key=self.left_out.__getitem__), self.left_out.get):
                yield Repaired("left_out", _listed([*names]), reason or "")
        context.left_out = self.left_out

    def undone(self, reply: ModelReply) -> ModelReply:
        """Return an answer whose calls have the own names of the tools and their members."""
        if not self.names:
            return reply
        blocks = reply.message.blocks
        own = tuple([self._undone(each) if isinstance(each, ToolUseBlock) else each for each in blocks])
        return attrs.evolve(reply, message=attrs.evolve(reply.message, blocks=own))

    def _undone(self, call: ToolUseBlock) -> ToolUseBlock:
        name = self.names.get(call.name, call.name)
        members = self.members.get(name)
        args = restored(call.args, members) if members else call.args
        return attrs.evolve(call, name=name, args=args)


NO_CHANGES: Final = Changes({}, {}, {})


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:SHOWN])
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"the tool {shown}" if len(names) == 1 else f"{len(names)} tools: {shown}{more}"


@frozen
class _Made:
    """A tool in the form of a protocol.

    Attributes:
        spec: the tool. It is kept here, and so its id.
        data: the definition as JSON; empty if the tool is left out.
        fitted: the tool as it is sent; None if that is under its own names, and if it is left out.
        problem: the reason if it is left out.
    """

    spec: ToolSpec
    data: bytes
    fitted: FittedTool | None = None
    problem: str = ""


@define
class EncodedTools:
    """The definitions of tools in the form of a protocol. Sessions share most of them, so they are encoded once.

    Attributes:
        rules: the rules of the protocol.
        form: returns the definition of a tool as plain data.
        changed: whether a tool of any request so far is left out, or sent under other names.
    """

    rules: ToolRules
    form: Callable[[FittedTool], Mapping[str, Any]]
    changed: bool = False
    _made: dict[int, _Made] = attrs.field(factory=dict, repr=False)

    def encoded(self, request: ModelRequest) -> bytes:
        """Return the JSON list of the tools of a request; nothing for none. A tool must not change after its use."""
        if not request.tools:
            return b""
        if len(self._made) >= MOST_TOOLS:
            self._made.clear()
        data = [self._one(spec).data for spec in request.tools]
        if self.changed or len(data) > self._room(request):
            self.changed = True
            data = [each for each in data if each][: self._room(request)]
        return b"[" + b",".join(data) + b"]" if data else b""

    def changes(self, request: ModelRequest) -> Changes:
        """Return the differences between the tools of a request and those that `encoded` has returned."""
        names, members, left_out = dict[str, str](), dict[str, Mapping[str, str]](), dict[str, str]()
        sent, room = 0, self._room(request)
        for made in map(self._one, request.tools):
            name = made.spec.name
            if made.problem:
                left_out[name] = made.problem
            elif sent == room:
                left_out[name] = f"the server takes {self.rules.most} tools at most, and there are {len(request.tools)}"
            else:
                sent += 1
                if made.fitted is not None:
                    names[made.fitted.name], members[name] = name, made.fitted.members
        return Changes(names, members, left_out)

    def _room(self, request: ModelRequest) -> int:
        """Return the number of tools that a request may have beside those that the server runs."""
        return self.rules.most - len(request.options.hosted_tools or ())

    def _one(self, spec: ToolSpec) -> _Made:
        made = self._made.get(id(spec))
        if made is None:
            made = self._made[id(spec)] = self._new(spec)
            self.changed = self.changed or not made.data or made.fitted is not None
        return made

    def _new(self, spec: ToolSpec) -> _Made:
        try:
            tool = fitted(spec, self.rules)
            data = codec.encode_whole(self.form(tool))
        except UnfitToolError as exc:
            return _Made(spec, b"", problem=str(exc))
        except (TypeError, ValueError, RecursionError) as exc:
            return _Made(spec, b"", problem=f"it cannot be sent as JSON: {exc}")
        return _Made(spec, data, tool if tool.name != spec.name or tool.members else None)
