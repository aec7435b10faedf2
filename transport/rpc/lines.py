"""A channel of lines: one message a line, over two byte streams."""

from collections.abc import Sequence

import trio

from warren.actors.io.streams import LineReader, LineTooLongError
from warren.transport.rpc.endpoint import Unreadable


class LineChannel:
    """A channel whose messages are lines. Empty lines are ignored."""

    def __init__(self, source: trio.abc.ReceiveStream, sink: trio.abc.SendStream, max_bytes: int) -> None:
        """Use two streams. A line of more than `max_bytes` bytes is received as `Unreadable`."""
        self._lines = LineReader(source, max_bytes)
        self._sink = sink
        self._max_bytes = max_bytes

    async def receive(self) -> bytes | Unreadable | None:
        try:
            while (line := await self._lines.next()) is not None:
                if line.strip():
                    return line
        except LineTooLongError as exc:
            return Unreadable.too_long(self._max_bytes, exc.head, exc.tail)
        return None

    async def send(self, frames: Sequence[bytes]) -> None:
        await self._sink.send_all(b"".join([frame + b"\n" for frame in frames]))
