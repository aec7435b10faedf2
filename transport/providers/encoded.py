"""The messages and the tools of requests in the form of a protocol: encoded once, and kept as bytes. No I/O."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final, Self

import attrs

from warren import codec
from warren.messages import AssistantMessage, Message
from warren.tools import ToolSpec
from warren.values import define

PIECE: Final = 256 * 1024
"""Bytes of a piece of a request: the newest one is copied for each request, and TLS encrypts it in one step."""
MOST_PARTS: Final = 64
"""Parts of the newest piece that each request joins anew: joining a thousand takes as long as sending them."""
MOST_TOOLS: Final = 1024
"""Definitions of tools that are kept encoded for each protocol."""
NO_INSERTS: Final[Mapping[int, bytes]] = {}


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
        provider: the name of the provider that gets the messages.
        model: the model that gets them.
        end: the position in the conversation of the next message to add, which the reader of the conversation sets; -1
            at first.
        calls: the ids of the tool calls in the messages.
    """

    __slots__ = ("_newest", "_newest_size", "_pieces", "_shut", "calls", "end", "model", "provider")
    MEMBER: ClassVar = "messages"
    calls: set[str]
    end: int
    model: str
    provider: str

    def __init__(self, provider: str, model: str) -> None:
        self.provider = provider
        self.model = model
        self.end = -1
        self.calls = set()
        self._pieces: list[bytes] = []
        self._newest: list[bytes] = []
        self._newest_size = 0
        self._shut = b""  # the bytes that close the newest message

    @property
    def size(self) -> int:
        """Bytes of the messages."""
        return len(self._pieces) * PIECE + self._newest_size

    def add(self, message: Message) -> None:
        """Add the next message of the context."""
        if isinstance(message, AssistantMessage):
            self.calls.update(call.id for call in message.tool_calls)
        self._write(message)

    def copy(self) -> Self:
        """Return a copy that grows apart from this one. They share the bytes."""
        other = copy.copy(self)
        other.calls = {*self.calls}
        other._pieces, other._newest = [*self._pieces], [*self._newest]  # noqa: SLF001 - of the same class
        return other

    def end_head(self) -> None:  # noqa: B027 - most protocols do not care
        """Note that the messages so far are the head of the context, which stays the same until a compaction."""

    def between(self, head: bytes, tail: bytes, inserts: Mapping[int, bytes] = NO_INSERTS) -> list[bytes]:
        """Return the messages as a member between other members of an object, in pieces of about `PIECE` bytes.

        `inserts` are bytes of this request alone, by their places in the bytes of the messages.
        """
        comma = b"" if head == b"{" else b","
        begin = head + comma + b'"%s":[' % self.MEMBER.encode()
        if len(self._newest) > MOST_PARTS:
            self._newest = [b"".join(self._newest)]
        pieces = [*self._pieces, b"".join((*self._newest, self._shut, self._last(), b"]", tail))]
        for place in sorted(inserts, reverse=True):  # from the end on, so that the places before stay where they are
            number = min(place // PIECE, len(self._pieces))
            inside, piece = place - number * PIECE, pieces[number]
            pieces[number] = b"".join((piece[:inside], inserts[place], piece[inside:]))
        return [begin, *pieces] if self._pieces else [begin + pieces[0]]

    @abstractmethod
    def _write(self, message: Message) -> None:
        """Write a message by `_grow`, without the bytes that close it; these go into `_shut`."""

    @abstractmethod
    def _last(self) -> bytes:
        """Return a message that a request needs behind those of the context, with a comma before it; or nothing."""

    def _grow(self, data: bytes) -> None:
        self._newest.append(data)
        self._newest_size += len(data)
        if self._newest_size >= PIECE:
            whole = b"".join(self._newest)
            full = len(whole) // PIECE * PIECE
            self._pieces += [whole[at : at + PIECE] for at in range(0, full, PIECE)]
            self._newest, self._newest_size = [whole[full:]], len(whole) - full


def members(fields: Mapping[str, Any]) -> bytes:
    """Return the members of a JSON object, without its braces."""
    return codec.encode_whole(fields)[1:-1]


@define
class EncodedTools:
    """The definitions of tools in the form of a protocol. Sessions share most of them, so they are encoded once.

    Attributes:
        form: returns the definition of a tool as plain data.
    """

    form: Callable[[ToolSpec], Mapping[str, Any]]
    _made: dict[int, tuple[ToolSpec, bytes]] = attrs.field(factory=dict, repr=False)

    def encoded(self, specs: Iterable[ToolSpec]) -> bytes:
        """Return the JSON list of the definitions. A definition must not change after its first use."""
        return b"[" + b",".join(map(self._one, specs)) + b"]"

    def _one(self, spec: ToolSpec) -> bytes:
        made = self._made.get(id(spec))
        if made is None:
            if len(self._made) >= MOST_TOOLS:
                self._made.clear()
            made = self._made[id(spec)] = (spec, codec.encode_whole(self.form(spec)))  # keeps it, and so its id
        return made[1]
