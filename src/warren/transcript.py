"""A session's conversation in memory: encoded messages, decoded where they are looked at."""

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from warren import codec
from warren.messages import Message


class Transcript(Sequence[Message]):
    """Messages kept as their JSON: idle conversations cost the garbage collector nothing.

    Trap: each index decodes. `len` and `bodies` are free.
    """

    __slots__ = ("bodies",)

    def __init__(self, bodies: Iterable[bytes] = ()) -> None:
        self.bodies = list(bodies)

    def append(self, message: Message) -> bytes:
        """Add a message; return its JSON, which is also its row in the store."""
        body = codec.encode(message)
        self.bodies.append(body)
        return body

    def __len__(self) -> int:
        return len(self.bodies)

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...

    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return [codec.decode_message(body) for body in self.bodies[index]]
        return codec.decode_message(self.bodies[index])

    def __iter__(self) -> Iterator[Message]:
        return map(codec.decode_message, self.bodies)
