"""The assembly of an answer from its pieces: tool calls from fragments, token counts. No I/O."""

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import attrs

from warren.base.errors import ProviderError
from warren.base.values import define, frozen
from warren.conversation import codec
from warren.conversation.attachments import File
from warren.conversation.messages import (
    MAX_NAME,
    AssistantMessage,
    Block,
    ReasoningBlock,
    StopReason,
    TextBlock,
    ToolUseBlock,
    UnknownBlock,
)
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, Piece, TextPiece, joined
from warren.transport.providers import wire
from warren.transport.providers.kept import Maker
from warren.transport.providers.settings import ModelEndpoint

BYTES_PER_TOKEN: Final = 4
MOST_PARSED: Final = 4 * 1024 * 1024
"""Characters of a call's arguments that are parsed, again and again, to find out whether they are whole."""
_REFUSES: Final = re.compile(
    r"armor|block|filter|guardrail|polic|prohibit|recitation|refus|safety|sensitive", re.IGNORECASE
)
"""Reasons of tomorrow for which a server holds an answer back."""


@define
class Said:
    """The texts of an answer that nobody has taken yet.

    Neighbours of one kind become one piece: each piece is an event for the log, the store and all readers.
    """

    _kind: type[Piece] = TextPiece  # of the newest texts
    _texts: list[str] = attrs.field(factory=list)
    _pieces: list[Piece] = attrs.field(factory=list)  # before them

    def add(self, kind: type[Piece], text: str) -> None:
        """Add the next text."""
        if kind is not self._kind:
            self._pieces, self._kind = self.taken(), kind
        self._texts.append(text)

    def taken(self) -> list[Piece]:
        """Return the pieces since the last call."""
        pieces, self._pieces = self._pieces, []
        if self._texts:
            pieces.append(self._kind("".join(self._texts)))
            self._texts.clear()
        return pieces


@define
class Ids:
    """Gives each tool call of one answer an id that no other call of the conversation has.

    Attributes:
        known: the ids of the calls before this answer.
    """

    known: Collection[str]
    _given: set[str] = attrs.field(factory=set)

    def unique(self, own: str) -> str:
        """Return the call's own id if it has one that is new, or else a random one."""
        chosen = own if own and own not in self.known and own not in self._given else f"call_{uuid.uuid4().hex}"
        self._given.add(chosen)
        return chosen


@define
class Call:
    """A tool call that is still arriving.

    Attributes:
        id: the id that the server gave it.
        name: the name of the tool.
        metadata: the opaque data of the provider that goes back with the call.
    """

    id: str = ""
    name: str = ""
    metadata: Mapping[str, Any] | None = None
    _fragments: list[str] = attrs.field(factory=list)
    _parsed: int = 0

    @property
    def begun(self) -> bool:
        """Whether a fragment of the arguments has arrived."""
        return bool(self._fragments)

    @property
    def arguments(self) -> str:
        """The JSON of the arguments, as far as it has arrived."""
        return joined(self._fragments)

    def add(self, name: str, arguments: str) -> None:
        """Add a fragment. Servers send the name once, in every fragment, or in parts."""
        if name.startswith(self.name):
            self.name = name
        elif name and len(self.name) <= MAX_NAME:
            self.name += name
        if arguments:
            self._fragments.append(arguments)

    def is_whole(self) -> bool:
        """Return whether the arguments are a whole JSON object already, so that no fragment can follow."""
        if not self._fragments or not self._fragments[-1].rstrip().endswith("}"):
            return False  # spares parsing after nearly every fragment
        if self._parsed > MOST_PARSED:
            return False
        self._parsed += len(self.arguments)
        return parse_arguments(self.arguments)[1] is None

    def block(self, ids: Ids) -> ToolUseBlock:
        """Return the call under an id of its own."""
        args, invalid = parse_arguments(self.arguments)
        return ToolUseBlock(ids.unique(self.id), self.name, args, invalid, self.metadata)


@define
class ToolCalls:
    """The tool calls of one answer, whose fragments name their call by an index, by its id, or not at all."""

    _calls: list[Call] = attrs.field(factory=list)
    _open: dict[int, Call] = attrs.field(factory=dict)  # the call at an index that goes on
    _named: dict[tuple[int, str], Call] = attrs.field(factory=dict)  # the calls at an index by their ids
    _last: int = 0
    _ids_change: bool = False  # whether each fragment of a call has an id of its own, which then tells nothing

    def add(self, index: object, call_id: str, name: str, arguments: str) -> Call:
        """Add a fragment, and return its call. An index may be missing, or be the same for every call."""
        if type(index) is int:
            self._last = index
        call = self._open.get(self._last)
        if call is not None and call_id and call_id != call.id:  # fragments of several calls may take turns
            call = self._named.get((self._last, call_id), call)
        if call is None or self._begins_another(call, call_id, name, arguments):
            if call is not None and call_id and (call_id, name, arguments) == (call.id, call.name, call.arguments):
                return call  # the server repeats a whole call at its end
            call = Call()
            self._calls.append(call)
        self._open[self._last] = call
        if call_id:
            self._named[self._last, call_id] = call
            self._ids_change = self._ids_change or bool(call.id and call.id != call_id)
            call.id = call.id or call_id
        call.add(name, arguments)
        return call

    def _begins_another(self, call: Call, call_id: str, name: str, arguments: str) -> bool:
        """Return whether a fragment begins another call at the index of this one."""
        if not name:
            return False
        another_id = bool(call_id and call.id and call_id != call.id) and not self._ids_change
        if another_id and not call.begun:
            return name != call.name or not arguments.strip()
        return (another_id or bool(arguments.strip())) and call.is_whole()

    def __len__(self) -> int:
        return len(self._calls)

    def blocks(self, ids: Ids) -> Iterator[ToolUseBlock]:
        """Yield the calls in the order of their first fragments, each under an id of its own."""
        return (call.block(ids) for call in self._calls)


def parse_arguments(raw: str) -> tuple[dict[str, Any], str | None]:
    """Return the arguments of a call, and the raw text if it is no JSON object. Blank and `null` are no arguments.

    Some models write the object as a text within the JSON.
    """
    if raw.strip() in ("", "null"):
        return {}, None
    try:
        args = wire.parse(raw)
    except ValueError:
        return {}, raw
    if isinstance(args, str):  # an object within a text
        try:
            args = wire.parse(args)
        except ValueError:
            return {}, raw
    return (args, None) if isinstance(args, dict) else ({}, raw)


@frozen
class Counts:
    """The token counts that a server reports; None if it reports none. `input` includes cached tokens."""

    input: int | None = None
    output: int | None = None
    created: int = 0
    read: int = 0

    def usage(self, sent: int, blocks: Iterable[Block]) -> Usage:
        """Return the usage; missing counts are estimated at four bytes a token.

        An input of 0 counts as missing, because no request is empty.

        Args:
            sent: the size of the request in bytes.
            blocks: the answer.
        """
        if self.input and self.output is not None:
            return Usage(self.input, self.output, self.created, self.read)
        guess = -(-sum(_size(block) for block in blocks) // BYTES_PER_TOKEN)
        return Usage(
            self.input or sent // BYTES_PER_TOKEN, self.output or guess, self.created, self.read, estimated=True
        )


NO_COUNTS: Final = Counts()


def stop_of(known: Mapping[str, StopReason], reason: str) -> tuple[StopReason, str]:
    """Return the reason for which an answer ended, and the server's name for it if that is an unknown one.

    Args:
        known: the reasons of the protocol.
        reason: the server's name for it; empty if the server gave none.
    """
    if reason in known or not reason:
        return known.get(reason, "end_turn"), ""
    return ("content_filter", "") if _REFUSES.search(reason) else ("end_turn", reason)


@define
class Arriving(ABC):
    """A part of an answer that is still arriving.

    Attributes:
        kind: its type.
        text: its text, in pieces.
        file: the bytes of the file that it is.
    """

    kind: str
    text: list[str] = attrs.field(factory=list)
    file: File | None = None

    @abstractmethod
    def block(self, maker: Maker, ids: Ids) -> Block | None:
        """Return the block, or None if it is empty."""


@define
class Answer(ABC):
    """An answer, assembled from its events. No I/O.

    Attributes:
        complete: whether the stop reason has arrived, or the end of the stream: token counts may follow, or, from some
            servers, more text.
        closed: whether the last event of the protocol has arrived: nothing follows.
        ended_at: its size when it was complete.
        reason: the server's name of the stop reason; empty as long as it gave none.
        counted: whether the server has counted the tokens behind the answer, in an event of their own.
        counts: the token counts that have arrived, also of an answer that broke off.
        said: its texts that nobody has taken yet.
    """

    PROTOCOL: ClassVar[str]
    STOP: ClassVar[Mapping[str, StopReason]]
    """The reasons for which an answer ends, by the server's names."""
    _endpoint: ModelEndpoint
    _model: str
    _known: Collection[str]
    complete: bool = attrs.field(default=False)
    closed: bool = attrs.field(default=False)
    ended_at: int = attrs.field(default=0)
    _size: int = attrs.field(default=0)
    reason: str = attrs.field(default="")
    counted: bool = attrs.field(default=False)
    counts: Counts = attrs.field(default=NO_COUNTS)
    said: Said = attrs.field(factory=Said)

    @property
    def size(self) -> int:
        """Characters of the answer that have arrived; keep-alive events do not count."""
        return self._size

    @property
    @abstractmethod
    def blocks(self) -> int:
        """Blocks of the answer that have begun; some protocols count the calls of tools alone."""

    @abstractmethod
    def feed(self, data: bytes) -> None:
        """Add the next event of the stream. Raises ProviderError for an error or a bad event."""

    @abstractmethod
    def whole(self, data: bytes) -> None:
        """Add an answer that was not streamed, as plain JSON. Raises ProviderError if it is malformed or an error."""

    def reply(self, sent: int) -> ModelReply:
        """Return the whole answer. If it calls tools, its stop reason is `tool_use` even if the server says `end_turn`.

        Args:
            sent: the size of the request in bytes, for estimates.

        Raises:
            ProviderError: if the answer is empty, and ended for a reason that is unknown: it is none that worked.
        """
        blocks = tuple([block for block in self._blocks(Ids(self._known)) if block is not None])
        (reason, unknown), usage = self._stopped(blocks), self.counts.usage(sent, blocks)
        if unknown and all(isinstance(block, ReasoningBlock | UnknownBlock) for block in blocks):
            problem = f"the model broke off with {unknown[:MAX_NAME]}"
            raise ProviderError(problem, cause="bad_response", retryable=True, usage=usage)
        if reason == "end_turn" and any(isinstance(block, ToolUseBlock) for block in blocks):
            reason = "tool_use"
        return ModelReply(AssistantMessage(blocks, reason), usage, tuple(self._files()))

    @property
    def _maker(self) -> Maker:
        return Maker(self.PROTOCOL, self._endpoint.vendor.name, self._model)

    def _parts(self) -> Sequence[Arriving]:
        """Return the parts of the whole answer, of a protocol whose answers have parts."""
        return ()

    def _blocks(self, ids: Ids) -> Iterable[Block | None]:
        """Return the blocks of the whole answer; None for those that are empty."""
        maker = self._maker
        return [part.block(maker, ids) for part in self._parts()]

    def _files(self) -> Iterable[File]:
        """Return the bytes of the file blocks, in their order."""
        return [part.file for part in self._parts() if part.file is not None]

    def _stopped(self, blocks: Sequence[Block]) -> tuple[StopReason, str]:  # noqa: ARG002 - of some protocols
        """Return the reason for which the answer ended, as `stop_of` does."""
        return stop_of(self.STOP, self.reason)

    def _complete(self, reason: str) -> None:
        """Note the stop reason."""
        self.reason = reason
        self.complete, self.ended_at = True, self._size

    def _note_counts(self, counts: Counts, *, alone: bool = False) -> None:
        """Note the token counts; `alone`: they have come behind the answer, in an event of their own."""
        self.counts, self.counted = counts, alone


def _size(block: Block) -> int:
    match block:
        case TextBlock() | ReasoningBlock():
            return len(block.text.encode())
        case ToolUseBlock():
            return len(block.name) + len((block.invalid_args or "").encode() or codec.encode(block.args))
        case _:
            return 0
