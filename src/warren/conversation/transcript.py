"""A session's conversation in memory: encoded messages, which are decoded on access."""

import re
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Any, Final, overload

import attrs

from warren.conversation import codec
from warren.conversation.attachments import TOKENS
from warren.conversation.messages import AssistantMessage, Message, SystemMessage
from warren.conversation.records import Span, within

ATTACHED: Final = 4 * TOKENS
"""Bytes of text that have about as many tokens as an attachment counts for that is no text."""
NOTHING: Final = frozenset[int]()
_MARK: Final = b'"media_type":"'
_TEXT: Final = re.compile(rb'"media_type":"(?:text/|application/(?!pdf"))[^"]*","sha256":"[0-9a-f]{64}","size":(\d+)')


def weight_of(body: bytes) -> int:
    """Return the bytes of a message's JSON, with those that its attachments count for in estimates of tokens.

    A text counts by its bytes, because the model gets it as words; each other file as `ATTACHED`. An answer as data
    does not count, because the model does not get it.
    """
    if body.startswith(codec.WITH_DATA):
        body = codec.encode_message(with_data(codec.decode_message(body), None))
    count = body.count(_MARK)
    if not count:
        return len(body)
    texts = _TEXT.findall(body)
    return len(body) + ATTACHED * (count - len(texts)) + sum(map(int, texts))


def with_data(message: Message, data: Any) -> Message:
    """Return an answer as it is with this data, and any other message unchanged."""
    return attrs.evolve(message, structured_output=data) if isinstance(message, AssistantMessage) else message


class Transcript(Sequence[Message]):
    """The model's context of a session: a prefix for the compacted messages, and the messages from `head` on.

    Messages are kept as JSON, so the garbage collector has no objects of idle conversations to look through.

    Trap: each access by index decodes a message. `len`, `end` and `size` cost nothing.

    Attributes:
        prefix: the instructions and the summary of the messages before `head`; empty until the first compaction, or
            the first change of the instructions.
        head: position of the first row in the whole conversation.
        rows: the messages from `head` on, as JSON.
        left_out: positions of rows that are not in the context, as the provider refused their exchange.
        size: bytes of the context, its attachments counted as `weight_of` does. It is updated with each change, so that
            reading it costs the same at any length.
        turn: position of the first message of the turn that runs, or ran last; None while one only compacts. It is not
            stored.
        refused: the step at which the memory or the store refused to take the oldest messages; None if the newest try
            succeeded. It is not stored.
        counted: input tokens of the newest model call by the server's count, and the bytes that the context had then;
            None before the first call. It is not stored.
        futile: bytes of the context after the newest attempt to compact, if that has left it above the threshold,
            negative once that is told; None if it has not. It is not stored.
        form: a place for the provider's own form of the context, such as the bytes of its last request, which only that
            provider understands. Appending a message leaves it here, and every other change of the context drops it.
        system: position of the instructions that count, which are at the head of the context; those at other places
            are not in it.
        omitted: the parts of messages that providers have refused, by their names; each understands its own alone. It
            is not stored: a provider that refuses them once more is told by the refusal.
        parts: the messages of which providers have refused a part since the conversation was loaded.
    """

    __slots__ = (
        *("counted", "form", "futile", "head", "left_out", "omitted", "parts"),
        *("prefix", "refused", "rows", "size", "system", "turn"),
    )
    prefix: list[bytes]
    head: int
    rows: list[bytes]
    left_out: AbstractSet[int]
    size: int
    system: int
    turn: int | None
    refused: int | None
    counted: tuple[int, int] | None
    futile: int | None
    form: object
    omitted: dict[str, Any]
    parts: list[Span]

    def __init__(
        self,
        rows: Iterable[bytes] = (),
        *,
        head: int = 0,
        prefix: Iterable[bytes] = (),
        left_out: Iterable[Span] = (),
        system: int = 0,
    ) -> None:
        self.prefix = list(prefix)
        self.system = system
        self.head = head
        self.rows = list(rows)
        self.left_out = NOTHING
        self.size = self._measure()
        self.turn = None
        self.refused = None
        self.counted = None
        self.futile = None
        self.form = None
        self.omitted = {}
        self.parts = []
        self.leave_out(left_out)

    @property
    def end(self) -> int:
        """Number of messages of the whole conversation, which is the position of the next message."""
        return self.head + len(self.rows)

    @property
    def bodies(self) -> list[bytes]:
        """The JSON of the messages in the context."""
        return [*self.prefix, *self._seen()]

    @property
    def positions(self) -> Sequence[int]:
        """The positions of the rows in the context."""
        every = range(self.head, self.end)
        return [at for at in every if at not in self.left_out] if self.left_out else every

    def seen_from(self, position: int) -> int:
        """Return how many messages of the context are at a position or behind it; not those before `head`."""
        first = max(position, self.head)
        return self.end - first - sum(at >= first for at in self.left_out)

    @property
    def has_files(self) -> bool:
        """Whether a message of the context has a file. It costs a look at all of them."""
        return any(_MARK in body for body in self.bodies)

    def _seen(self) -> Sequence[bytes]:
        if not self.left_out:
            return self.rows
        return [body for at, body in enumerate(self.rows, self.head) if at not in self.left_out]

    def _measure(self) -> int:
        return sum(map(weight_of, self.prefix)) + sum(map(weight_of, self._seen()))

    def leave_out(self, spans: Iterable[Span]) -> None:
        """Leave the rows at these positions out of the context. Rows that were left out before come back."""
        gone = within(spans, self.head, self.end) | self._instructed()
        if gone != self.left_out:
            self.left_out, self.form = gone, None
            self.size = self._measure()

    def _instructed(self) -> set[int]:
        """Return the positions of rows with instructions, if those that count stand at the head of the context."""
        if not self.system:
            return set()
        return {at for at, body in enumerate(self.rows, self.head) if body.startswith(codec.SYSTEM)}

    @property
    def instructions(self) -> str:
        """The instructions that the model sees; empty if there are none."""
        first = next(iter(self.prefix or self.rows), b"")
        if not first.startswith(codec.SYSTEM) or (self.system and not self.prefix):
            return ""
        message = codec.decode_message(first)
        return message.content if isinstance(message, SystemMessage) else ""

    def instruct(self, message: SystemMessage) -> None:
        """Add instructions at the end, which take the place of those before them at the head of the context."""
        self.rows.append(codec.encode_message(message))
        self.system, self.form = self.end - 1, None
        if self.system:
            told = [body for body in self.prefix if not body.startswith(codec.SYSTEM)]
            self.prefix = [*([self.rows[-1]] if message.content else []), *told]
            self.left_out = self.left_out | self._instructed()
        self.size = self._measure()

    def append(self, message: Message) -> None:
        """Add a message at the end."""
        body = codec.encode_message(message)
        self.rows.append(body)
        self.size += weight_of(body)

    def note_data(self, data: Any) -> None:
        """Note the data of the last message, an answer. What the model sees stays the same."""
        self.rows[-1] = codec.encode_message(with_data(codec.decode_message(self.rows[-1]), data))

    def since(self, position: int) -> list[bytes]:
        """Return the rows from a position of the whole conversation on. It must not be before `head`."""
        return self.rows[position - self.head :]

    def bodies_from(self, position: int) -> Sequence[bytes]:
        """Return the JSON of the messages in the context from a position on; all of `bodies` for one before `head`.

        It costs what these messages cost, however long the context is.
        """
        if position < self.head:
            return self.bodies
        rows = self.since(position)
        return rows if not self.left_out else [row for at, row in enumerate(rows, position) if at not in self.left_out]

    def from_position(self, position: int) -> Iterator[tuple[int, Message]]:
        """Yield the rows from a position of the whole conversation on, each with its position; none before `head`."""
        first = max(position, self.head)
        for at, body in enumerate(self.since(first), first):
            yield at, codec.decode_message(body)

    def truncate(self, count: int) -> None:
        """Remove the messages after the first `count` of the whole conversation."""
        self.size -= sum(map(weight_of, self.bodies_from(count)))
        del self.rows[count - self.head :]
        self.left_out = {at for at in self.left_out if at < count}
        self.form = None

    def move_head(self, head: int, prefix: Iterable[bytes]) -> list[bytes]:
        """Replace the rows before `head` by the prefix, and return them."""
        gone, self.rows = self.rows[: head - self.head], self.rows[head - self.head :]
        self.head, self.prefix, self.form = head, list(prefix), None
        self.left_out = {at for at in self.left_out if at >= head}
        self.size = self._measure()
        return gone

    def __len__(self) -> int:
        return len(self.prefix) + len(self.rows) - len(self.left_out)

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...

    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return [codec.decode_message(body) for body in self.bodies[index]]
        if not (self.prefix or self.left_out):
            return codec.decode_message(self.rows[index])
        inside, before = range(len(self))[index], len(self.prefix)
        return codec.decode_message(self.prefix[inside] if inside < before else self._seen()[inside - before])

    def __iter__(self) -> Iterator[Message]:
        return map(codec.decode_message, chain(self.prefix, self._seen()))


class Continued(Sequence[Message]):
    """A context, and messages behind it for one request that are no part of the conversation. It copies none of them.

    Attributes:
        context: the context.
        asked: the messages behind it.
    """

    __slots__ = ("asked", "context")
    asked: Sequence[Message]
    context: Sequence[Message]

    def __init__(self, context: Sequence[Message], asked: Sequence[Message]) -> None:
        self.context = context
        self.asked = asked

    def __len__(self) -> int:
        return len(self.context) + len(self.asked)

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...

    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        places = range(len(self))[index]
        return self._at(places) if isinstance(places, int) else [self._at(place) for place in places]

    def _at(self, place: int) -> Message:
        behind = place - len(self.context)
        return self.context[place] if behind < 0 else self.asked[behind]

    def __iter__(self) -> Iterator[Message]:
        return chain(self.context, self.asked)
