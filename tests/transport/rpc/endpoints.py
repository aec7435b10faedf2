"""An endpoint with the other side in a test's hand."""

import json
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from warren.transport.rpc.endpoint import Dispatcher, Endpoint, EndpointBounds, Unreadable


@attrs.define(eq=False)
class Line:
    """A channel in memory.

    Attributes:
        sent: messages that the endpoint has sent.
        reads: whether the test reads; if not, a send waits until it is set.
        gone: whether nothing reads at the other end any more.
    """

    sent: list[Any] = attrs.field(factory=list)
    reads: trio.Event = attrs.field(factory=trio.Event)
    gone: bool = False
    _said: tuple[trio.MemorySendChannel[Any], trio.MemoryReceiveChannel[Any]] = attrs.field(
        factory=lambda: trio.open_memory_channel[Any](math.inf)
    )

    def say(self, message: object) -> None:
        """Send the endpoint a message: bytes as they are, all else as JSON."""
        ready = isinstance(message, bytes | Unreadable)
        self._said[0].send_nowait(message if ready else json.dumps(message).encode())

    def call(self, request_id: object, method: str, **params: object) -> None:
        """Send the endpoint a request."""
        self.say({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})

    def hang_up(self) -> None:
        """Say no more."""
        self._said[0].close()

    async def receive(self) -> bytes | Unreadable | None:
        try:
            message: bytes | Unreadable = await self._said[1].receive()
        except trio.EndOfChannel:
            return None
        return message

    async def send(self, frames: Sequence[bytes]) -> None:
        await self.reads.wait()
        if self.gone:
            raise trio.BrokenResourceError
        self.sent += map(json.loads, frames)


@asynccontextmanager
async def opened(
    side: Dispatcher, *, reads: bool = True, bounds: EndpointBounds | None = None, **options: Any
) -> AsyncIterator[tuple[Endpoint, Line]]:
    """Serve a side for as long as the body lasts; then the other side hangs up, and the endpoint ends."""
    line = Line()
    endpoint = Endpoint(line, bounds or EndpointBounds(max_in_flight=8, max_batch=8), **options)
    if reads:
        line.reads.set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(endpoint.run, lambda _tasks: side)
        yield endpoint, line
        line.hang_up()
