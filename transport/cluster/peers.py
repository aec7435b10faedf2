"""The other nodes: one client a node, opened when a call needs it and closed when the node is gone."""

import logging
from collections.abc import Awaitable, Callable, Collection, Generator
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import urlsplit

import attrs
import httpx
import trio
from anyio.abc import TaskGroup

from warren.base.nodes import Node
from warren.base.values import define, frozen
from warren.calls.facade import Capabilities
from warren.transport.access.addresses import OVER_UNIX, path_in
from warren.transport.access.auth import NODE_CHALLENGE, NODE_PROOF
from warren.transport.client.connection import PING_INTERVAL, Dial, RefusedError
from warren.transport.client.links import Links
from warren.transport.client.service import RemoteService, address_of
from warren.transport.client.socket import UPGRADED
from warren.transport.cluster.passing import Passing
from warren.transport.cluster.token import NodeTokens

ANSWER_TIMEOUT: Final = 2.0
"""Seconds within which a node has to open a connection. One that hangs has a few more until its leases run out."""

logger: Final = logging.getLogger(__name__)


@frozen
class _Peer:
    links: Links
    service: RemoteService

    def close(self) -> None:
        """Close the connections. A call that is about to open one fails with the cause `unreachable`."""
        self.links.closed = True
        self.links.close()


@define(eq=False)
class Peers:
    """The clients of the other nodes.

    Attributes:
        tokens: makes the token that this node shows.
        capabilities: those of the cluster, which all of its nodes have.
        tasks: serves the connections.
        lease: seconds after which a node that does not renew its leases has lost its sessions. A link that has been
            silent for so long is given up within half of that again.
    """

    tokens: NodeTokens
    capabilities: Capabilities
    tasks: trio.Nursery
    lease: float
    _peers: dict[int, _Peer] = attrs.field(factory=dict)
    _closed: bool = False

    def service(self, node: Node) -> RemoteService:
        """Return the client of a node with an address. It connects when it is called."""
        return self._of(node).service

    def passing(self, node: Node, path: str) -> Passing:
        """Return the way to a path of a node's gateway."""
        peer = self._of(node)
        return Passing(peer.links.dial.http, httpx.URL(peer.links.dial.url).join(path.lstrip("/")), self._proves)

    def _proves(self, response: httpx.Response) -> bool:
        token = response.request.headers["Authorization"].removeprefix("Bearer ")
        return self.tokens.proves(token, response.headers.get(NODE_PROOF, ""))

    def _of(self, node: Node) -> _Peer:
        peer = self._peers.get(node.key)
        if peer is None:
            dial = self.dial(node)
            links = Links(dial, cast("TaskGroup", _Guarded(self.tasks, dial.http)), patience=0, closed=self._closed)
            peer = self._peers[node.key] = _Peer(links, RemoteService(links, self.capabilities))
        return peer

    def dial(self, node: Node) -> Dial:
        """Return the address of a node, and a new client that opens connections to it."""
        url = node.address or ""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        path = path_in(url)
        # Without TLS no certificates are read, which would hold up the loop. A link goes through no proxy.
        encrypted = urlsplit(url).scheme in ("wss", "https")
        transport = httpx.AsyncHTTPTransport(uds=path, limits=limits, verify=encrypted, trust_env=encrypted)
        timeout = httpx.Timeout(ANSWER_TIMEOUT)
        http = httpx.AsyncClient(auth=_Bearer(self.tokens, node.key), transport=transport, timeout=timeout)
        interval = min(self.lease / 2, PING_INTERVAL)
        return Dial(http, address_of(url) if path is None else OVER_UNIX, {}, ping_interval=interval, socket=path)

    def forget_others(self, living: Collection[int]) -> None:
        """Close the clients of nodes that are not among the living. Calls that wait for their answers fail."""
        for key in [key for key in self._peers if key not in living]:
            peer = self._peers.pop(key)
            peer.close()
            self.tasks.start_soon(peer.links.dial.http.aclose)

    async def aclose(self) -> None:
        """Close all clients, also those that are made later: a call may have found its node before this one ended."""
        self._closed = True
        # Shielded: the node may end by cancellation, and its connections have to be closed all the same.
        with trio.CancelScope(shield=True):
            for peer in self._peers.values():
                peer.close()
            for peer in self._peers.values():
                await peer.links.dial.http.aclose()
        self._peers.clear()


@frozen
class _Guarded:
    """A task group in which a connection that breaks ends alone: the node serves on.

    Attributes:
        tasks: the nursery of all connections.
        http: the client of the node.
    """

    tasks: trio.Nursery
    http: httpx.AsyncClient

    def start_soon(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        self.tasks.start_soon(_alone, self.http, function, args)

    async def start(self, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        return await self.tasks.start(_started_alone, self.http, function, args)


async def _alone(
    http: httpx.AsyncClient, function: Callable[..., Awaitable[Any]], args: tuple[Any, ...], **options: Any
) -> None:
    try:
        await function(*args, **options)
    except Exception as exc:
        if isinstance(exc, RefusedError):  # it did not open: its caller hears of it
            raise
        if not http.is_closed:  # else the node has died, and a call was on its way to it
            logger.exception("a connection to another node failed")


async def _started_alone(
    http: httpx.AsyncClient,
    function: Callable[..., Awaitable[Any]],
    args: tuple[Any, ...],
    *,
    task_status: trio.TaskStatus[Any],
) -> None:
    status = _Status(task_status)
    await _alone(http, function, args, task_status=status)
    if not status.opened:
        raise RefusedError("the node is gone", retryable=True)


@define(eq=False)
class _Status:
    """Notes whether a connection has opened.

    It may end before: the node is found to be gone meanwhile, and its client is closed.
    """

    told: trio.TaskStatus[Any]
    opened: bool = False

    def started(self, value: Any = None) -> None:
        """Note that the connection has opened, and pass its value on."""
        self.opened = True
        self.told.started(value)


def _without_body(request: httpx.Request) -> httpx.Request:
    if "Content-Length" not in request.headers:
        return request
    headers = request.headers.copy()
    headers["Content-Length"] = "0"
    return httpx.Request(request.method, request.url, headers=headers, extensions=request.extensions)


class _Bearer(httpx.Auth):
    """Adds a token to each request for a WebSocket, signs the challenge, and refuses the WebSocket of any other server.

    A node that has died leaves its port to whatever listens there next: a gateway of other sessions would answer that
    there is no such session, or run the turn in a session of its own.
    """

    def __init__(self, tokens: NodeTokens, callee: int) -> None:
        self._tokens = tokens
        self._callee = callee

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Send the request without a token, sign the challenge of the answer, and check the node's proof."""
        token = self._sign(request)
        response = yield _without_body(request)  # no node takes it: a node gives a challenge first
        if response.status_code == HTTPStatus.UNAUTHORIZED and NODE_CHALLENGE in response.headers:
            token = self._sign(request, response.headers[NODE_CHALLENGE])
            response = yield request
        if response.status_code == HTTPStatus.UNAUTHORIZED:
            problem = "the server at its address knows no token of this store: it is another one, or of another release"
            raise httpx.RemoteProtocolError(problem, request=request)
        proof = response.headers.get(NODE_PROOF, "")
        if response.status_code == UPGRADED and not self._tokens.proves(token, proof):
            raise httpx.RemoteProtocolError("another server has the address of the node now", request=request)

    def _sign(self, request: httpx.Request, challenge: str = "") -> str:
        token = self._tokens.make(self._callee, challenge)
        request.headers["Authorization"] = f"Bearer {token}"
        return token
