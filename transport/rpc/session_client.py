"""Sessions over JSON-RPC: the methods of one client, its events and its tools, in the protocol of a dialect."""

from functools import partial
from typing import Any

import attrs
import trio

from warren.base.values import define
from warren.calls.facade import RuntimeService
from warren.calls.reading import WatchRequest
from warren.conversation import codec
from warren.conversation.views import TurnResult
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.behalf import carried
from warren.transport.rpc.client_tools import ClientTools
from warren.transport.rpc.dialect import Dialect
from warren.transport.rpc.endpoint import Dispatcher, Endpoint, Work
from warren.transport.rpc.feeds import Feeds
from warren.transport.rpc.methods import Caller, Host, RunTurn
from warren.transport.rpc.traces import META
from warren.transport.rpc.uploads import Uploads
from warren.transport.rpc.watching import ClientWatch


async def serve_client(endpoint: Endpoint, host: Host, dialect: Dialect, max_subscriptions: int) -> None:
    """Serve one client until it leaves or the endpoint is stopped; see `Endpoint.run`.

    Args:
        endpoint: the connection.
        host: the runtime, and the settings that clients may know.
        dialect: the methods, and the form of events.
        max_subscriptions: sessions that the client may follow.
    """

    def open_dispatcher(tasks: trio.Nursery) -> Dispatcher:
        shares = None if host.of_nodes else host.opened.subscriptions  # a node counts those of its own clients
        outbox, moved = endpoint.outbox, endpoint.moved
        limits = max_subscriptions, shares
        return SessionClient(host.service, outbox, dialect, moved, tasks, *limits, endpoint=endpoint, host=host)

    if host.unread is not None:
        endpoint.count_in(host.unread)
    await endpoint.run(open_dispatcher)


@define(eq=False)
class SessionClient(Feeds, Dispatcher):
    """The client at the other end of a connection: the methods that it calls, and the receiver of its events.

    Attributes:
        endpoint: the connection.
        host: the runtime.
        tools: the tools that it runs itself.
        uploads: the files that it has sent ahead of its prompts.
    """

    endpoint: Endpoint = attrs.field(kw_only=True)
    host: Host = attrs.field(kw_only=True)
    tools: ClientTools = attrs.field(init=False)
    uploads: Uploads = attrs.field(init=False)
    _watch: ClientWatch = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.tools = ClientTools(self.endpoint.ask)
        self.uploads = Uploads(self.host.opened.room)
        self._watch = ClientWatch(
            self.tasks, self.endpoint.tell, None if self.host.of_nodes else self.host.opened.watches
        )

    def begin(self, method: str, params: Any, request_id: jsonrpc.Id) -> Work | bytes:
        found = self.dialect.methods.get(method)
        if found is None:
            return jsonrpc.unknown_method(request_id, method)
        host = self.host
        caller: Caller = self
        if type(params) is dict and META in params:
            params = {name: value for name, value in params.items() if name != META}
        if host.of_nodes:
            principal, params = carried(params)
            host = attrs.evolve(host, service=host.service.as_(principal))
            caller = _OnBehalf(self, host.service)
        decoded = codec.from_data(found.decoded, params)
        self.endpoint.check_room(urgent=found.urgent)
        return Work(partial(found.handler, host, caller, decoded), found.bulky)

    def close(self) -> None:
        self._watch.end()
        self.uploads.close()
        super().close()

    async def watch(self, wanted: WatchRequest, service: RuntimeService | None = None) -> None:
        """Begin a watch, with the service of another node's caller if the call came through that node."""
        await self._watch.begin(service or self.service, wanted)

    def unwatch(self) -> bool:
        return self._watch.end()


@define(eq=False)
class _OnBehalf(Caller):
    """Another node, which calls on behalf of one of its own callers.

    Attributes:
        node: the connection of the node.
        service: the sessions of the node's caller.
    """

    node: SessionClient
    service: RuntimeService

    async def stream(self, session_id: str | None, run: RunTurn) -> TurnResult:
        return await self.node.stream(session_id, run)

    async def subscribe(self, session_id: str, after_seq: int | None) -> int:
        """Subscribe for a caller of the node, and check its right: the node may follow the session for another."""
        await self.service.read(session_id)
        return await self.node.subscribe(session_id, after_seq, self.service)

    def unsubscribe(self, session_id: str) -> bool:
        return self.node.unsubscribe(session_id)

    async def watch(self, wanted: WatchRequest) -> None:
        await self.node.watch(wanted, self.service)

    def unwatch(self) -> bool:
        return self.node.unwatch()

    @property
    def tools(self) -> ClientTools:
        return self.node.tools

    @property
    def uploads(self) -> Uploads:
        return self.node.uploads
