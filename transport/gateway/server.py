"""The gateway: on one port, JSON-RPC over WebSocket at `/ws`, the console at `/console/`, and REST everywhere else."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

import attrs
import trio
from starlette.types import ASGIApp

from warren.extras import installed
from warren.metrics import Metric, Metrics, Series
from warren.service import RuntimeService
from warren.transport.cluster.door import NodeService
from warren.transport.console.pages import console_pages
from warren.transport.gateway.connection import WebSocketConnection
from warren.transport.gateway.handshake import accept
from warren.transport.http.auth import AccessPolicy, read_token
from warren.transport.http.config import GatewayConfig
from warren.transport.http.connection import HttpConnection
from warren.transport.http.head import Head
from warren.transport.http.refusals import RefusedError
from warren.transport.http.server import HttpServer
from warren.transport.http.shutdown import Shutdown
from warren.transport.mcp.late import LateMcp
from warren.transport.rest.app import LOOPBACK, metrics_app, rest_app
from warren.transport.rpc.methods import Host
from warren.values import frozen

__all__ = ["GatewayConfig", "listen", "read_token", "serve_gateway"]

MCP_PATH: Final = "/mcp"


async def serve_gateway(
    service: RuntimeService,
    config: GatewayConfig,
    listeners: Sequence[trio.SocketListener] = (),
    *,
    metrics: Sequence[trio.SocketListener] = (),
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve sessions over WebSocket and HTTP until cancelled.

    Cancelling it closes every WebSocket with code 1012, ends every stream of events and answers every request that
    waits, within twice `close_timeout` seconds. Turns that clients started go on: they are the service's.

    Args:
        service: the sessions; the caller closes it after the gateway.
        config: the address, the access rules and the bounds of one client.
        listeners: the sockets to accept clients from; they are closed at the end. Without any the address of the
            settings is bound.
        metrics: the sockets for `/metrics` alone, as above.
        task_status: gets the port once clients can connect.

    Raises:
        InvalidParamsError: others than this machine reach the address, and there is no token; nothing is bound then.
        OSError: the address cannot be bound.
    """
    config.check_exposure()
    accepting = list(listeners) or await listen(config)
    scraped = list(metrics)
    try:
        scraped = scraped or await listen_for_metrics(config)
        await _serve(service, config, accepting, scraped, task_status)
    finally:
        for listener in (*accepting, *scraped):
            listener.socket.close()


async def _serve(
    service: RuntimeService,
    config: GatewayConfig,
    listeners: list[trio.SocketListener],
    scraped: list[trio.SocketListener],
    task_status: trio.TaskStatus[int],
) -> None:
    shutdown = Shutdown()

    async def with_clients(own: Metrics) -> Metrics:
        return _with_connections(own, server.connections)

    async def whole_metrics(own: Metrics) -> Metrics:
        found = await with_clients(own)
        return await service.metrics_of_group(found) if isinstance(service, NodeService) else found

    whole = service.health_of_group if isinstance(service, NodeService) else None
    host = Host(service, config.public(), whole, whole_metrics)
    async with trio.open_nursery() as nursery:
        mounts: dict[str, ASGIApp] = {}
        if installed("mcp"):  # it has an extra of its own
            mounts[MCP_PATH] = mcp = LateMcp()
            bounds = {"max_body": config.max_message_bytes, "max_calls": config.max_in_flight}
            nursery.start_soon(partial(mcp.hold, service, shutdown, **bounds))
        app = rest_app(host, config, shutdown, mounts, console_pages() if config.console else {})
        sockets = _sockets_of(service, host, with_clients, config, shutdown)
        server = HttpServer(config, shutdown, app, sockets.serve)
        scraping = HttpServer(config, shutdown, metrics_app(host), _no_websocket)
        try:
            connections = await nursery.start(server.hold_connections)
            if scraped:
                scrapers = await nursery.start(scraping.hold_connections)
                nursery.start_soon(partial(trio.serve_listeners, scraping.serve, scraped, handler_nursery=scrapers))
            task_status.started(listeners[0].socket.getsockname()[1])
            await trio.serve_listeners(server.serve, listeners, handler_nursery=connections)
        finally:
            server.shut_down()
            scraping.shut_down()


def _with_connections(metrics: Metrics, connections: Mapping[str, int]) -> Metrics:
    series = tuple(Series((surface,), count) for surface, count in connections.items())
    metric = Metric("warren_connections", "gauge", "Connections of clients, by surface.", ("surface",), series=series)
    return attrs.evolve(metrics, metrics=(*metrics.metrics, metric))


async def _no_websocket(_connection: HttpConnection, _head: Head) -> None:
    raise RefusedError(404, "$.path: only the metrics are here", field="$.path")


async def listen(config: GatewayConfig) -> list[trio.SocketListener]:
    """Bind the address of the settings. Raises OSError.

    A name with several addresses gets one of them if the port is to be picked: each would get its own.
    """
    listeners = await trio.open_tcp_listeners(config.port, host=config.host)
    if config.port == 0:
        for listener in listeners[1:]:
            listener.socket.close()
        del listeners[1:]
    return listeners


async def listen_for_metrics(config: GatewayConfig) -> list[trio.SocketListener]:
    """Bind the port for the metrics, on this machine's own address; without one return no listener. Raises OSError."""
    if config.metrics_port is None:
        return []
    return await trio.open_tcp_listeners(config.metrics_port, host=LOOPBACK)


def _sockets_of(
    service: RuntimeService | NodeService,
    host: Host,
    with_clients: Callable[[Metrics], Awaitable[Metrics]],
    config: GatewayConfig,
    shutdown: Shutdown,
) -> "_WebSockets":
    """Return the opener of WebSockets; that of a node also serves the other nodes of its cluster."""
    if not isinstance(service, NodeService):
        return _WebSockets(host, host, config.access, config, shutdown)
    access = attrs.evolve(config.access, proves_node=service.proof_for)
    own = Host(service.own, host.settings, metrics=with_clients, of_nodes=True)
    return _WebSockets(host, own, access, config, shutdown)


@frozen
class _WebSockets:
    """Opens WebSockets on connections that ask for one.

    Attributes:
        host: runs the methods that clients call.
        own: runs the methods that other nodes of the cluster call.
        access: the access rules.
        config: the bounds of one client.
        shutdown: its begin closes all of them with code 1012.
    """

    host: Host
    own: Host
    access: AccessPolicy
    config: GatewayConfig
    shutdown: Shutdown

    async def serve(self, http: HttpConnection, head: Head) -> None:
        """Answer an upgrade request and serve its client. Raises RefusedError before the answer."""
        answer = accept(head, self.access)
        host = self.host if self.access.proof_for(head.lines("authorization")) is None else self.own
        wire = http.unread()
        await wire.send_all(answer)
        connection = WebSocketConnection(wire, host, self.config)
        with self.shutdown.cancels(connection.serving):
            await connection.run()
