"""What a command printed, as far as a model is shown it: the end of it, in bounded memory."""

from typing import Final

import attrs
import trio

CHUNK: Final = 64 * 1024
CONTINUES: Final = range(0x80, 0xC0)
"""The bytes that only go on with a character of UTF-8."""


@attrs.define
class Tail:
    """The last bytes of a stream.

    Attributes:
        limit: how many are kept.
        cut: how many came before those.
    """

    limit: int
    cut: int = 0
    _kept: bytearray = attrs.field(factory=bytearray, repr=False)

    async def read(self, stream: trio.abc.ReceiveStream) -> None:
        """Take in a stream until its end."""
        async for data in stream:
            self.add(data)

    def add(self, data: bytes | bytearray) -> None:
        """Take in bytes; those too many are dropped now and then, so that each is moved once or twice at most."""
        self._kept += data
        if len(self._kept) > 2 * self.limit + CHUNK:
            self._drop()

    def text(self) -> str:
        """Return what is kept, with what is no UTF-8 replaced; a character whose beginning was cut is cut whole."""
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
