"""Server-sent events: the changes of the list of sessions, as a stream."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

import trio
from starlette.types import Receive, Scope, Send

from warren import codec
from warren.requests import WatchRequest
from warren.service import ChangeReader, SessionService
from warren.transport.http.shutdown import Shutdown
from warren.transport.rest.events import HEADERS, HEARTBEAT, until_gone
from warren.values import frozen

KIND: Final = b"event: changes\ndata: "


@frozen
class ChangeStream:
    """The response that brings the changes of the list of sessions until the client or the gateway ends.

    The messages have no ids: a client that comes back lists the sessions again.

    Attributes:
        service: the runtime.
        wanted: the filter.
        heartbeat: seconds of silence before a comment says that the stream is there.
        shutdown: its begin ends the stream.
        stays: calls a function once the client may not stay, during a block: the stream ends then, too.
    """

    service: SessionService
    wanted: WatchRequest
    heartbeat: float
    shutdown: Shutdown
    stays: Callable[[Callable[[], None]], AbstractContextManager[None]]

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        wanted = self.wanted
        async with self.service.watch(labels=wanted.labels, include_archived=wanted.include_archived) as reader:
            await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
            async with trio.open_nursery() as tasks:
                end = tasks.cancel_scope.cancel
                with self.shutdown.cancels(tasks.cancel_scope), self.stays(end):
                    tasks.start_soon(until_gone, receive, tasks.cancel_scope)
                    await self._relay(reader, send)
                    tasks.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _relay(self, reader: ChangeReader, send: Send) -> None:
        """Send changes, and a sign of life after each silence, until the runtime ends."""
        while True:
            body = HEARTBEAT
            with trio.move_on_after(self.heartbeat):
                try:
                    body = KIND + codec.encode(await anext(reader)) + b"\n\n"
                except StopAsyncIteration:
                    return
            await send({"type": "http.response.body", "body": body, "more_body": True})
