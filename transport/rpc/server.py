"""Sessions over JSON-RPC: what one client can call, and what it is told, in the words of a dialect."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

import attrs
import trio

from warren.service import OnEvent
from warren.tools import Tool, ToolSpec
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.client_tools import ClientTools
from warren.transport.rpc.dialect import Dialect
from warren.transport.rpc.endpoint import Endpoint, Side, Work
from warren.transport.rpc.feeds import Feeds
from warren.transport.rpc.methods import Caller, Host
from warren.transport.rpc.outbox import Item, Over
from warren.views import TurnResult


async def serve_client(endpoint: Endpoint, host: Host, dialect: Dialect, max_subscriptions: int) -> None:
    """Serve one client until it leaves or the endpoint is stopped; see `Endpoint.run`.

    Args:
        endpoint: the connection.
        host: the runtime, and the settings that clients may know.
        dialect: the methods, and the form of events.
        max_subscriptions: sessions that the client may follow.
    """

    def open_side(tasks: trio.Nursery) -> Side:
        feeds = Feeds(host.service, endpoint.outbox, endpoint.moved, tasks, max_subscriptions)
        return SessionClient(endpoint, host, dialect, feeds)

    await endpoint.run(open_side)


@attrs.define(eq=False)
class SessionClient(Side, Caller):
    """A client of the sessions of one runtime.

    Attributes:
        endpoint: its connection.
        host: the runtime.
        dialect: the methods, and the form of events.
        feeds: the events that it gets.
    """

    endpoint: Endpoint
    host: Host
    dialect: Dialect
    feeds: Feeds
    _tools: ClientTools = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._tools = ClientTools(self.endpoint.ask)

    def begin(self, method: str, params: Any, request_id: jsonrpc.Id) -> Work | bytes:
        """See Side."""
        found = self.dialect.methods.get(method)
        if found is None:
            return jsonrpc.unknown_method(request_id, method)
        decoded = found.decode(params)
        self.endpoint.check_room(urgent=found.urgent)
        return Work(partial(found.handler, self.host, self, decoded), found.bulky)

    def frames(self, items: Sequence[Item]) -> Iterator[bytes]:
        """See Side."""
        for item in items:
            if isinstance(item, bytes):
                yield item
            elif isinstance(item, Over):
                yield from self.dialect.ended(item.session_id)
            else:
                yield from self.dialect.frames(item)

    async def settle(self) -> None:
        """See Side."""
        await self.feeds.settle()

    async def stream(self, session_id: str | None, run: Callable[[OnEvent], Awaitable[TurnResult]]) -> TurnResult:
        """See Caller."""
        return await self.feeds.stream(session_id, run)

    async def subscribe(self, session_id: str, after_seq: int | None) -> None:
        """See Caller."""
        await self.feeds.subscribe(session_id, after_seq)

    def unsubscribe(self, session_id: str) -> bool:
        """See Caller."""
        return self.feeds.unsubscribe(session_id)

    def tools(self) -> Sequence[Tool]:
        """See Caller."""
        return self._tools.offered()

    def register(self, tools: Sequence[ToolSpec]) -> None:
        """See Caller."""
        self._tools.register(tools)
