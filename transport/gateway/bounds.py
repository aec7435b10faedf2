"""The bounds of a client's messages, kept by the heads of their frames. No I/O."""

from typing import Final

FINAL: Final = 0x80
"""The bit of a frame's first byte that ends a message."""
OPCODE: Final = 0x0F
CONTROL: Final = 8
"""The least opcode of frames that are no part of a message."""
CLOSE: Final = 8
MASKED: Final = 0x80
LENGTH: Final = 0x7F
LONG: Final = 126
LONGER: Final = 127
"""Lengths in a head that say how many bytes the true length has: two, or eight."""
KEY: Final = 4
"""Bytes of the key that a frame is masked with."""
LONGEST: Final = 10
"""Bytes of the longest head, without the key."""
AT_ONCE: Final = 256
"""Frames that are passed on in one go: 64 KiB may hold ten thousand empty ones."""
SPARE: Final = 4_096
"""Parts that any message may come in."""
PART: Final = 64
"""Bytes for which a longer message may come in one part more. trio-websocket keeps the parts, also empty ones."""


ESCAPED: Final = 6
"""Bytes of an escaped character for each byte that it has in UTF-8: a request that is too long may be so by escapes."""
TEXT: Final = 1


def parts_of(most: int) -> int:
    """Return how many parts a message of at most so many bytes may come in."""
    return SPARE + most // PART


class Bounds:
    """Follows the frames of one client, and finds the first that is too much.

    trio-websocket counts the characters of a message once it has them, and neither its bytes nor its parts. Frames that
    break the protocol are left to it.

    Args:
        most: bytes that a message may have.

    Attributes:
        problem: why the next frame may not be passed on; None if nothing is wrong.
        closed: whether the client has closed.
        long: bytes of the next frame, with its head: the whole text of a message that is too long, but not very much.
            Its bytes are not to be given again: whoever passes it over sets this to 0.
    """

    def __init__(self, most: int) -> None:
        self.problem: str | None = None
        self.closed: bool = False
        self.long: int = 0
        self._most = most
        self._most_parts = parts_of(most)
        self._size = 0  # announced bytes of the message
        self._parts = 0
        self._left = 0  # bytes of a frame, and of its key, that are still to come
        self._first = 0  # the first byte of that frame

    def take(self, data: bytes) -> int:
        """Follow some bytes, cut anywhere; return how many of them to pass on now.

        The others are to be given again, after a checkpoint; with a `problem` they are too much. If it is none, and
        nothing is wrong or `long`, they are the beginning of a head: more have to come with them.
        """
        at = frames = 0
        while at < len(data):
            if not self._left:
                if frames == AT_ONCE:
                    break
                frames += 1
                head = data[at : at + LONGEST]
                width = width_of(head)
                if width > len(head):
                    break
                self._begin(head, width)
                if self.problem is not None or self.long:
                    break
                at += width
            step = min(self._left, len(data) - at)
            at += step
            self._left -= step
            if self._first & OPCODE < CONTROL:
                self._parts += 1
                if not self._left and self._first & FINAL:
                    self._size = self._parts = 0
                elif self._parts > self._most_parts:
                    self.problem = f"the message comes in more than {self._most_parts} parts"
                    break
        return at

    def _begin(self, head: bytes, width: int) -> None:
        self._first, second = head[0], head[1]
        length = second & LENGTH if width == 2 else int.from_bytes(head[2:width], "big")  # noqa: PLR2004 - as RFC 6455
        self._left = length + (KEY if second & MASKED else 0)
        if self._first & OPCODE >= CONTROL:
            self.closed = self.closed or self._first & OPCODE == CLOSE
            return
        self._size += length
        if self._size <= self._most:
            return
        if head[0] == FINAL | TEXT and second & MASKED and not self._parts and length <= ESCAPED * self._most:
            self.long, self._left, self._size = width + self._left, 0, 0
        else:
            self.problem = f"the message has more than {self._most} bytes"


def width_of(head: bytes) -> int:
    """Return the bytes that a head has before its key; 2 if that cannot be told yet."""
    length = head[1] & LENGTH if len(head) > 1 else 0
    return 2 + (0 if length < LONG else 2 if length == LONG else 8)
