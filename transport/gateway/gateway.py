"""The gateway: on one port, JSON-RPC over WebSocket at `/ws`, the console at `/console/`, and REST everywhere else."""

import math
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import lru_cache, partial
from typing import Final

import attrs
import trio
from starlette.types import ASGIApp

from warren.actors.supervision import background
from warren.base.extras import installed
from warren.base.principals import METRICS, Principal, check_right
from warren.base.values import frozen
from warren.calls.facade import Health, RuntimeService
from warren.reports.audit import AuditEntry, calling_from
from warren.reports.health import worst
from warren.reports.metrics import Metric, Metrics, Series
from warren.settings.config import Limits
from warren.transport.access.access import Access, check_access, open_access
from warren.transport.access.addresses import LOOPBACK, path_in
from warren.transport.access.auth import NODE_PROOF
from warren.transport.access.config import GatewayConfig
from warren.transport.access.head import Head
from warren.transport.access.logins import Login
from warren.transport.access.refusals import RefusedError
from warren.transport.cluster.door import NodeService
from warren.transport.console.pages import console_pages
from warren.transport.gateway.handshake import check
from warren.transport.gateway.heartbeat import Heartbeat
from warren.transport.gateway.websocket import ESCAPED, UNAUTHORIZED, WebSocketConnection
from warren.transport.http.accepting import OpenFiles, serve_all
from warren.transport.http.connection import HttpConnection
from warren.transport.http.crowd import Crowd
from warren.transport.http.http_server import HttpServer
from warren.transport.http.probes import probes
from warren.transport.http.shutdown import Shutdown
from warren.transport.http.sockets import listen_at, port_of, removing
from warren.transport.mcp.late import LateMcp
from warren.transport.rest.app import metrics_app, rest_app
from warren.transport.rpc.behalf import TENANT_HEADER
from warren.transport.rpc.methods import Host
from warren.transport.rpc.opened import Opened
from warren.transport.rpc.unread import UnreadReplies

__all__ = ["GatewayConfig", "listen", "serve_gateway"]

MCP_PATH: Final = "/mcp"
MAX_HOSTS: Final = 1_024
"""Logins whose hosts are kept: making one takes as long as the look-up of the token."""


async def serve_gateway(
    service: RuntimeService,
    config: GatewayConfig,
    listeners: Sequence[trio.SocketListener] = (),
    *,
    metrics: Sequence[trio.SocketListener] = (),
    early: Sequence[trio.SocketStream] = (),
    early_scrapers: Sequence[trio.SocketStream] = (),
    hangups: AsyncIterable[object] | None = None,
    files: OpenFiles | None = None,
    crowd: Crowd | None = None,
    latest: Callable[[], float] = lambda: math.inf,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve sessions over WebSocket and HTTP until cancelled.

    Cancelling it closes every WebSocket with code 1012, ends every stream of events and answers every request that
    waits, within twice `close_timeout` seconds. Turns that clients started go on: they are the service's.

    Args:
        service: the sessions; the caller closes it after the gateway. Without tokens every client is its principal.
        config: the address, the access rules and the bounds of one client.
        listeners: the sockets to accept clients from; they are closed at the end. Without any the address of the
            settings is bound, and a Unix socket removed at the end.
        metrics: the sockets for `/metrics` alone, as above.
        early: connections that were accepted before.
        early_scrapers: those for `/metrics` alone.
        hangups: signals at which the files of tokens and keys are read at once, and the log says what is new.
        files: the files that the server may open, as the health shows them.
        crowd: the other workers that accept clients from the same sockets.
        latest: returns when all connections have to be closed at the latest, on trio's clock.
        task_status: gets the port once clients can connect; 0 of a Unix socket.

    Raises:
        InvalidParamsError: others than this machine reach the address, and there is no token, or the file of the tokens
            is bad, or there are tokens and the service is bound to a principal; nothing is bound then.
        OSError: the address cannot be bound.
    """
    check_access(config, service.principal)
    files, shutdown = files or OpenFiles(), Shutdown()
    accepting = list(listeners) or await listen(config)
    scraped = list(metrics)
    with nullcontext() if listeners else removing(accepting):
        try:
            scraped = scraped or await listen_for_metrics(config)
            async with (
                _servers(service, config, shutdown, files, hangups) as (server, scraping),
                trio.open_nursery() as nursery,
            ):
                try:
                    if scraped:
                        nursery.start_soon(_accept, scraping, scraped, early_scrapers, files, nursery)
                    task_status.started(port_of(accepting[0]))
                    await _accept(server, accepting, early, files, nursery, crowd=crowd)
                finally:
                    server.shut_down(latest())
                    scraping.shut_down(latest())
        finally:
            for listener in (*accepting, *scraped):
                listener.socket.close()


async def _accept(
    server: HttpServer,
    listeners: Sequence[trio.SocketListener],
    early: Sequence[trio.SocketStream],
    files: OpenFiles,
    nursery: trio.Nursery,
    *,
    crowd: Crowd | None = None,
) -> None:
    """Serve the early connections of a server and those that its sockets accept, until cancelled."""
    connections = await nursery.start(server.hold_connections)
    for stream in early:
        connections.start_soon(server.serve, stream)
    await serve_all(server.serve, listeners, files, connections, crowd)


@asynccontextmanager
async def _servers(
    service: RuntimeService,
    config: GatewayConfig,
    shutdown: Shutdown,
    files: OpenFiles,
    hangups: AsyncIterable[object] | None,
) -> AsyncIterator[tuple[HttpServer, HttpServer]]:
    """Open the server of the port, and that of the port for the metrics, with all that they answer from."""
    node = service if isinstance(service, NodeService) else None
    proves, notes_tokens = (None, True) if node is None else (node.proof_for, node.is_first)
    heartbeat, noted = Heartbeat(config.heartbeat), service.note if notes_tokens else _silent
    async with (
        open_access(config, service.principal, proves, service.note, noted) as access,
        background(heartbeat.run) as nursery,
    ):
        if hangups is not None:
            nursery.start_soon(access.look_again, hangups)

        async def with_clients(own: Metrics) -> Metrics:
            return _with_connections(own, server.connections)

        async def whole_metrics(own: Metrics) -> Metrics:
            found = _with_connections(own, server.connections)
            return found if node is None else await node.metrics_of_group(found)

        limits = Limits() if config.runtime is None else config.runtime.limits
        host = Host(
            service,
            config.public(),
            metrics=whole_metrics,
            max_message_bytes=config.max_message_bytes,
            max_attachment=limits.max_attachment,
            unread=UnreadReplies(limits.max_unread),
            opened=Opened(limits, lambda: access.policy.authenticator.is_alone),
        )
        own = None
        if node is not None:
            own = attrs.evolve(
                host,
                service=node.own,
                metrics=with_clients,
                of_nodes=True,
                max_message_bytes=_of_nodes(config).max_message_bytes,
                unread=None,
            )
        host_of = _hosts(host, access, files)
        mounts = _mcp(host, config, shutdown, nursery)
        pages = console_pages(config.prefix) if config.console else {}
        app = rest_app(host_of, access, config, shutdown, mounts=mounts, pages=pages)
        probe = probes(lambda: service.ready and not shutdown.begun)
        sockets = _WebSockets(host_of, own, access, config, shutdown, heartbeat)
        server = HttpServer(config, shutdown, app, probe, sockets.serve)
        yield server, HttpServer(config, shutdown, metrics_app(host_of, service.principal), probe, _no_websocket)


def _mcp(host: Host, config: GatewayConfig, shutdown: Shutdown, nursery: trio.Nursery) -> Mapping[str, ASGIApp]:
    """Return the app of MCP by its path, which a task in the nursery serves; none without its extra."""
    if not installed("mcp"):
        return {}
    mcp, node = LateMcp(), host.service if isinstance(host.service, NodeService) else None
    bounds = {"max_body": config.max_message_bytes, "max_calls": config.max_in_flight, "opened": host.opened}
    nursery.start_soon(partial(mcp.hold, host.service, shutdown, nodes=node, **bounds))
    return {MCP_PATH: mcp}


def _silent(_entry: AuditEntry) -> None:
    """Leave an entry to the first worker of the command: each of them reads the file of the tokens."""


def _with_connections(metrics: Metrics, connections: Mapping[str, int]) -> Metrics:
    series = tuple(Series((surface,), count) for surface, count in connections.items())
    metric = Metric("warren_connections", "gauge", "Connections of clients, by surface.", ("surface",), series=series)
    return attrs.evolve(metrics, metrics=(*metrics.metrics, metric))


def _of_nodes(config: GatewayConfig) -> GatewayConfig:
    """Return the bounds of another node: what a client may send has to fit with its escapes, and with who sent it."""
    return attrs.evolve(config, max_message_bytes=ESCAPED * config.max_message_bytes)


async def _no_websocket(_connection: HttpConnection, _head: Head) -> None:
    raise RefusedError(404, "$.path: only the metrics are here", field="$.path")


async def listen(config: GatewayConfig) -> list[trio.SocketListener]:
    """Bind the address of the settings. Raises OSError.

    A name with several addresses gets one of them if the port is to be picked: each would get its own. The caller has a
    Unix socket removed, see `removing`.
    """
    if (path := path_in(config.host)) is not None:
        return [trio.SocketListener(trio.socket.from_stdlib_socket(listen_at(path)))]
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


def _hosts(host: Host, access: Access, files: OpenFiles) -> Callable[[Login], Host]:
    """Return the function that gives each client its host: the service of its principal."""
    authenticator = access.policy.authenticator
    tokens = authenticator.tokens

    def host_of(login: Login) -> Host:
        nonlocal tokens
        if tokens is not authenticator.tokens:  # the hosts of tokens that are gone keep their limits in use
            tokens = authenticator.tokens
            make.cache_clear()
        return make(login)

    @lru_cache(MAX_HOSTS)
    def make(login: Login) -> Host:
        own = host.of(login.principal)
        node = own.service if isinstance(own.service, NodeService) else None
        health = partial(_health, login.principal, own.service, node, access, files)
        return attrs.evolve(own, health=health, load=None if node is None else node.load_of_nodes)

    return host_of


async def _health(
    principal: Principal, service: RuntimeService, node: NodeService | None, access: Access, files: OpenFiles
) -> Health:
    """Return the health of all processes that serve the port, and of the tokens and the files of this one.

    Raises PermissionDeniedError without the scope `metrics:read`.
    """
    check_right(principal, METRICS)
    found = service.health() if node is None else await node.health_of_group()
    tokens, room = access.health, files.health()
    status = worst(found.status, *(part.status for part in (tokens, room) if part is not None))
    return attrs.evolve(found, status=status, access=tokens, files=room)


@frozen
class _WebSockets:
    """Opens WebSockets on connections that ask for one.

    Attributes:
        host_of: returns the host whose methods a client calls.
        own: runs the methods that other nodes of the cluster call; None if the runtime is no node.
        access: the access rules.
        config: the bounds of one client.
        shutdown: its begin closes all of them with code 1012.
        heartbeat: pings the silent ones.
    """

    host_of: Callable[[Login], Host]
    own: Host | None
    access: Access
    config: GatewayConfig
    shutdown: Shutdown
    heartbeat: Heartbeat

    async def serve(self, http: HttpConnection, head: Head) -> None:
        """Answer an upgrade request and serve its client. Raises RefusedError before the answer."""
        policy, authorization = self.access.policy, head.lines("authorization")
        proof = policy.proof_for(authorization)
        opening = check(head, policy)
        headers = [] if proof is None else [(NODE_PROOF.encode(), proof.encode())]
        if self.own is not None and proof is not None:
            host, login, config = self.own, None, _of_nodes(self.config)
            calling_from.set(None)  # its callers are clients of the other node
        else:
            login = await policy.login(authorization, head.values("sec-websocket-protocol"), head.lines(TENANT_HEADER))
            self.access.places.take(http.place, login.principal, http=False)
            host, config = self.host_of(login), self.config
        wire = http.unread()
        if login is not None:
            wire.paces = self.access.paces.of(login)
        connection = WebSocketConnection(wire, host, config)
        stays = nullcontext() if login is None else self.access.stays.ends(login, partial(connection.end, UNAUTHORIZED))
        with self.shutdown.cancels(connection.serving), stays:
            await connection.run(opening, headers, self.heartbeat)
