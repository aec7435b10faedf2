"""Server-sent events: the changes of the list of sessions, as a stream."""

from functools import partial
from typing import Final

import trio
from starlette.types import Receive, Scope, Send

from warren.base.values import frozen
from warren.calls.facade import RuntimeService
from warren.calls.reading import WatchRequest
from warren.calls.streams import ChangeReader
from warren.conversation import codec
from warren.transport.rest.streaming import HEARTBEAT, Streaming, Tell
from warren.transport.rpc.shares import Shares, counted

KIND: Final = b"event: changes\ndata: "


@frozen
class ChangeStream:
    """The response that brings the changes of the list of sessions until the client or the gateway ends.

    The messages have no ids: a client that comes back lists the sessions again.

    Attributes:
        service: the runtime.
        wanted: the filter.
        streaming: the bounds of the stream.
        shares: the watches of all clients.
    """

    service: RuntimeService
    wanted: WatchRequest
    streaming: Streaming
    shares: Shares

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        wanted = self.wanted
        with counted(self.shares, self.service):
            async with self.service.watch(labels=wanted.labels, include_archived=wanted.include_archived) as reader:
                await self.streaming.answer(receive, send, partial(self._relay, reader))

    async def _relay(self, reader: ChangeReader, tell: Tell) -> None:
        """Send changes, and a sign of life after each silence, until the runtime ends."""
        while True:
            body = HEARTBEAT
            with trio.move_on_after(self.streaming.heartbeat):
                try:
                    body = KIND + codec.encode(await anext(reader)) + b"\n\n"
                except StopAsyncIteration:
                    return
            await tell(body)
