"""The frames of a client, told apart: a short message in one frame is read here, all else by wsproto. No I/O.

wsproto decodes each text and we would encode it again; with its bookkeeping that takes a sixteenth of a turn.
"""

from typing import Final

FINAL: Final = 0x80
"""The bit of the first byte of a frame that ends a message."""
OPCODE: Final = 0x0F
"""The bits of the first byte that name the kind of a frame."""
TEXT: Final = 1
CONTROL: Final = 8
"""The least opcode of frames that are no part of a message."""
MASKED: Final = 0x80
LENGTH: Final = 0x7F
LONG: Final = 126
LONGER: Final = 127
"""Lengths in the head of a frame that say how many bytes the true length has: two, or eight."""
KEY: Final = 4
"""Bytes of the key that a frame is masked with."""


def frame_size(data: bytes, at: int) -> int | None:
    """Return the bytes of the frame that begins at a place of the data; None if its head is not there yet."""
    start = at + 2
    if len(data) < start:
        return None
    length, masked = data[at + 1] & LENGTH, data[at + 1] & MASKED
    if length >= LONG:
        start += 2 if length == LONG else 8
        if len(data) < start:
            return None
        length = int.from_bytes(data[at + 2 : start], "big")
    return start - at + (KEY if masked else 0) + length


def short_text(frame: bytes) -> bytes | None:
    """Return the text of a frame that is a whole message of less than 64 KiB, and has no fault; None for any other."""
    length = frame[1] & LENGTH
    if frame[0] != FINAL | TEXT or frame[1] < MASKED or length == LONGER:
        return None
    start = 2 + KEY if length < LONG else 4 + KEY
    size = len(frame) - start
    if length == LONG and size < LONG:  # it has to be the shortest head that there is
        return None
    key = (frame[start - KEY : start] * (size // KEY + 1))[:size]
    text = (int.from_bytes(frame[start:], "little") ^ int.from_bytes(key, "little")).to_bytes(size, "little")
    try:
        text.decode()
    except UnicodeDecodeError:
        return None
    return text


class Splitter:
    """Splits the bytes of a client, which arrive cut anywhere, into texts and into parts of frames for wsproto.

    wsproto gets whole frames, or a frame part by part: between two frames it holds nothing back.

    Args:
        most: bytes that a message may have; wsproto gets the longer ones.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._head = b""  # the beginning of a head that has not arrived whole
        self._left = 0  # bytes of a frame that are still to come
        self._open = False  # whether a message is going on, in frames that wsproto has

    def feed(self, data: bytes) -> list[tuple[bytes, bool]]:
        """Return texts and parts of frames, in order, each with whether it is a text."""
        data, self._head = self._head + data, b""
        found: list[tuple[bytes, bool]] = []
        at = 0
        while at < len(data):
            begins = not self._left
            size = frame_size(data, at) if begins else self._left
            if size is None:
                self._head = data[at:]
                break
            part = data[at : at + size]
            at += size
            self._left = size - len(part)
            short = begins and not (self._left or self._open) and size <= self._most
            text = short_text(part) if short else None
            if begins and part[0] & OPCODE < CONTROL:
                self._open = part[0] < FINAL
            found.append((part, False) if text is None else (text, True))
        return found
