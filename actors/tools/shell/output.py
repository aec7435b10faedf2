"""The end of a command's output, in bounded memory."""

from typing import Final

import attrs
import trio

from warren.base.values import define

CHUNK: Final = 64 * 1024
CONTINUES: Final = range(0x80, 0xC0)
"""The continuation bytes of UTF-8."""


@define
class OutputTail:
    """The last bytes of a stream.

    Attributes:
        limit: number of bytes that are kept.
        cut: number of bytes before those.
    """

    limit: int
    cut: int = 0
    _kept: bytearray = attrs.field(factory=bytearray, repr=False)

    async def read(self, stream: trio.abc.ReceiveStream) -> None:
        """Read a stream until its end."""
        async for data in stream:
            self.add(data)

    def add(self, data: bytes | bytearray) -> None:
        """Add bytes. Old bytes are dropped only now and then, so that each byte is moved twice at most."""
        self._kept += data
        if len(self._kept) > 2 * self.limit + CHUNK:
            self._drop()

    def text(self) -> str:
        """Return the kept bytes as text, with invalid UTF-8 replaced; a character that was cut is left out."""
        self._drop()
        if self.cut:
            begin = next((at for at, byte in enumerate(self._kept[:3]) if byte not in CONTINUES), len(self._kept[:3]))
            self.cut += begin
            del self._kept[:begin]
        return self._kept.decode("utf-8", "replace")

    def _drop(self) -> None:
        surplus = max(0, len(self._kept) - self.limit)
        self.cut += surplus
        del self._kept[:surplus]
