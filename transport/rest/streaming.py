"""A response of server-sent events: it goes on until the client or the gateway ends, or there is no more to send."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Final

import trio
from starlette.types import Receive, Send

from warren.base.values import frozen
from warren.transport.http.leaving import until_gone
from warren.transport.http.shutdown import Shutdown

MEDIA_TYPE: Final = "text/event-stream"
HEARTBEAT: Final = b":\n\n"
HEADERS: Final = (
    (b"content-type", MEDIA_TYPE.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # a proxy that collects what it passes on would keep events from the client
)
Tell = Callable[[bytes], Awaitable[None]]
"""Sends a part of the stream."""


@frozen
class Streaming:
    """The bounds of a stream.

    Attributes:
        heartbeat: seconds of silence before `HEARTBEAT` says that the stream is there; whoever relays sends it.
        shutdown: its begin ends the stream.
        stays: calls a function once the client may not stay, during a block: the stream ends then, too.
        head_only: whether the stream ends before its first part.
    """

    heartbeat: float
    shutdown: Shutdown
    stays: Callable[[Callable[[], None]], AbstractContextManager[None]]
    head_only: bool = False

    async def answer(self, receive: Receive, send: Send, relay: Callable[[Tell], Awaitable[None]]) -> None:
        """Send a response whose parts come from `relay`, until that returns or one of them ends the stream."""

        async def tell(body: bytes) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": True})

        await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
        if self.head_only:
            await send({"type": "http.response.body"})
            return
        async with trio.open_nursery() as tasks:
            end = tasks.cancel_scope.cancel
            with self.shutdown.cancels(tasks.cancel_scope), self.stays(end):
                tasks.start_soon(until_gone, receive, tasks.cancel_scope)
                await relay(tell)
                end()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
