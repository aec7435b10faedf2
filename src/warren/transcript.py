"""A session's conversation in memory: encoded messages, decoded where they are looked at."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import overload

from warren import codec
from warren.messages import Message
from warren.records import Span, within


class Transcript(Sequence[Message]):
    """What a model sees of a session: a prefix that stands for what was compacted, and the rows from `head` on.

    Messages are kept as their JSON: idle conversations cost the garbage collector nothing.

    Trap: each index decodes. `len`, `end` and `size` are free.

    Attributes:
        prefix: the system message and the summary of what is before `head`; empty as long as nothing was compacted.
        head: position in the whole conversation of the first row.
        rows: the messages from there on.
        left_out: positions of rows that the model does not see: its provider refused their exchange.
        size: bytes of what the model sees; kept as it changes, so that an estimate costs the same at any length.
        refused: the step at which memory or store did not let go of the oldest messages; None since they did. It lasts
            as long as the transcript is in memory.
    """

    __slots__ = ("head", "left_out", "prefix", "refused", "rows", "size")
    prefix: list[bytes]
    head: int
    rows: list[bytes]
    left_out: set[int]
    size: int
    refused: int | None

    def __init__(
        self,
        rows: Iterable[bytes] = (),
        *,
        head: int = 0,
        prefix: Iterable[bytes] = (),
        left_out: Iterable[Span] = (),
    ) -> None:
        self.prefix = list(prefix)
        self.head = head
        self.rows = list(rows)
        self.left_out = set()
        self.size = self._measure()
        self.refused = None
        self.leave_out(left_out)

    @property
    def end(self) -> int:
        """Messages of the whole conversation; also the position of the next one."""
        return self.head + len(self.rows)

    @property
    def bodies(self) -> list[bytes]:
        """The JSON of what the model sees."""
        return [*self.prefix, *self._seen()]

    @property
    def positions(self) -> Sequence[int]:
        """The positions of the rows that the model sees."""
        every = range(self.head, self.end)
        return [at for at in every if at not in self.left_out] if self.left_out else every

    def _seen(self) -> Sequence[bytes]:
        if not self.left_out:
            return self.rows
        return [body for at, body in enumerate(self.rows, self.head) if at not in self.left_out]

    def _measure(self) -> int:
        return sum(map(len, self.prefix)) + sum(map(len, self._seen()))

    def leave_out(self, spans: Iterable[Span]) -> None:
        """Hide the rows at these positions from the model; what was hidden before and is not named is seen again."""
        gone = within(spans, self.head, self.end)
        if gone != self.left_out:
            self.left_out = gone
            self.size = self._measure()

    def append(self, message: Message) -> None:
        """Add a message at the end."""
        body = codec.encode(message)
        self.rows.append(body)
        self.size += len(body)

    def since(self, position: int) -> list[bytes]:
        """Return the rows from a position of the conversation on, which must not be before `head`."""
        return self.rows[position - self.head :]

    def truncate(self, count: int) -> None:
        """Take back what was added after the conversation had `count` messages."""
        self.size -= sum(map(len, self.since(count)))
        del self.rows[count - self.head :]

    def move_head(self, head: int, prefix: Iterable[bytes]) -> list[bytes]:
        """Let the prefix stand for all before `head`; return the rows that are no longer here."""
        gone, self.rows = self.rows[: head - self.head], self.rows[head - self.head :]
        self.head, self.prefix = head, list(prefix)
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
        inside = index if index >= 0 else index + len(self)
        if not 0 <= inside < len(self):
            raise IndexError("no such message")
        before = len(self.prefix)
        return codec.decode_message(self.prefix[inside] if inside < before else self._seen()[inside - before])

    def __iter__(self) -> Iterator[Message]:
        return map(codec.decode_message, chain(self.prefix, self._seen()))
