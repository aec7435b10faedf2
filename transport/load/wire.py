"""A JSON-RPC client of a gateway over one WebSocket: requests in any number at once, events as they come."""

import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
import trio
import trio_websocket

from warren.actors.streams import GONE
from warren.actors.supervision import first_error
from warren.errors import ErrorCode, InvalidParamsError
from warren.transport.load.target import LOST, TargetError
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.dialect import EVENT
from warren.transport.rpc.endpoint import Dispatcher, Endpoint, EndpointBounds, GoneError
from warren.values import frozen

PORTS: Final = {"ws": 80, "wss": 443}
SCHEMES: Final = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
QUEUE: Final = 1_000
MAX_MESSAGE: Final = 64 * 1024 * 1024
CHUNK: Final = 64 * 1024
INVALID: Final = -32602
PATIENCE: Final = 10.0
"""Seconds until a connection that does not open has failed."""


@frozen
class Address:
    """The address of a gateway.

    Attributes:
        secure: whether it uses TLS.
        host: the host.
        port: the port.
        path: the path of its WebSocket.
        token: the token of its clients.
    """

    secure: bool
    host: str
    port: int
    path: str = "/ws"
    token: str | None = attrs.field(default=None, repr=False)

    @property
    def url(self) -> str:
        """The address of the WebSocket."""
        return f"{'wss' if self.secure else 'ws'}://{self.host}:{self.port}{self.path}"


def address_of(url: str, token: str | None = None) -> Address:
    """Return the address in a URL; `http` and no scheme mean `ws`. Raises InvalidParamsError (path `$.url`)."""
    try:
        parts = urlsplit(url if "://" in url else f"ws://{url}")
        scheme, port, host = SCHEMES[parts.scheme], parts.port, parts.hostname
    except (KeyError, ValueError):
        host = None
    if not host:
        raise InvalidParamsError(f"$.url: {url!r} is not like ws://127.0.0.1:8420", path="$.url")
    path = parts.path if parts.path not in ("", "/") else "/ws"
    return Address(scheme == "wss", host, port or PORTS[scheme], path, token)


@frozen
class RpcConnection:
    """An open connection.

    Attributes:
        endpoint: makes the requests.
        stream: the bytes under it.
    """

    endpoint: Endpoint
    stream: trio.abc.Stream

    async def call(self, method: str, **params: Any) -> Any:
        """Make a request and return its result. Raises TargetError."""
        try:
            answer = await self.endpoint.ask(method, params)
        except GoneError:
            raise TargetError(LOST, "the connection ended") from None
        if answer.error is not None:
            raise _refused(answer.error)
        return answer.result

    async def cut(self) -> None:
        """Drop the connection without a close, like a client with its cable pulled."""
        await trio.aclose_forcefully(self.stream)


@frozen
class _Events(Dispatcher):
    """Takes the events; the gateway has nothing to ask of a client that offers no tools."""

    on_event: Callable[[Mapping[str, Any]], None]

    def begin(self, method: str, params: Any, request_id: jsonrpc.Id) -> bytes | None:
        if method == EVENT:
            self.on_event(params)
            return None
        return jsonrpc.unknown_method(request_id, method)


@frozen
class _Socket:
    """A channel of WebSocket messages."""

    _socket: trio_websocket.WebSocketConnection

    async def receive(self) -> str | bytes | None:
        try:
            return await self._socket.get_message()
        except trio_websocket.ConnectionClosed:
            return None

    async def send(self, frames: Sequence[bytes]) -> None:
        try:
            for frame in frames:
                await self._socket.send_message(frame.decode())
        except (trio_websocket.ConnectionClosed, *GONE) as exc:
            raise trio.BrokenResourceError("the connection ended") from exc


def _refused(error: Mapping[str, Any]) -> TargetError:
    data = error.get("data") or {}
    code = data.get("code") or (ErrorCode.INVALID_PARAMS if error["code"] == INVALID else str(error["code"]))
    return TargetError(code, error["message"], (data.get("details") or {}).get("cause", ""))


async def open_connection(
    address: Address, on_event: Callable[[Mapping[str, Any]], None], tasks: trio.Nursery
) -> RpcConnection:
    """Connect; the connection is served in `tasks` until it ends. Raises TargetError.

    Args:
        address: the gateway.
        on_event: takes the envelope of each event; it must not block.
        tasks: serves the connection.
    """
    try:
        with trio.fail_after(PATIENCE):
            stream = await open_stream(address)
            connection: RpcConnection = await tasks.start(_hold, address, stream, on_event)
    except (OSError, trio.TooSlowError, trio.BrokenResourceError) as exc:
        raise TargetError(LOST, f"{address.url}: {str(exc) or type(exc).__name__}") from None
    return connection


async def _hold(
    address: Address,
    stream: trio.abc.Stream,
    on_event: Callable[[Mapping[str, Any]], None],
    task_status: trio.TaskStatus[RpcConnection],
) -> None:
    """Keep a connection, in a nursery of its own: trio-websocket's reader raises errors of the server into it.

    Raises TargetError if it does not open; a request that waits gets the error that ends it later.
    """
    opened, refused = False, None
    try:
        async with trio.open_nursery() as nursery:
            endpoint = Endpoint(_Socket(await _handshake(address, stream, nursery)), EndpointBounds(QUEUE))
            opened = True
            task_status.started(RpcConnection(endpoint, stream))
            await endpoint.run(lambda _tasks: _Events(on_event))
    except* trio_websocket.ConnectionRejected as group:
        status = getattr(first_error(group), "status_code", "")
        refused = TargetError(f"HTTP_{status}", f"{address.url} refused the connection")
    except* (trio_websocket.HandshakeError, OSError, *GONE) as group:
        refused = TargetError(LOST, f"{address.url}: {first_error(group)!r}")
    finally:
        await trio.aclose_forcefully(stream)
    if not opened and refused is not None:
        raise refused


async def open_stream(address: Address) -> trio.abc.Stream:
    """Connect. Raises OSError."""
    stream = await trio.open_tcp_stream(address.host, address.port)
    if not address.secure:
        return stream
    context = ssl.create_default_context()
    return trio.SSLStream(stream, context, server_hostname=address.host, https_compatible=True)


async def _handshake(
    address: Address, stream: trio.abc.Stream, tasks: trio.Nursery
) -> trio_websocket.WebSocketConnection:
    headers = [] if address.token is None else [(b"Authorization", f"Bearer {address.token}".encode())]
    return await trio_websocket.wrap_client_stream(
        tasks,
        stream,  # type: ignore[arg-type]
        f"{address.host}:{address.port}",
        address.path,
        extra_headers=headers,
        message_queue_size=QUEUE,
        max_message_size=MAX_MESSAGE,
        receive_buffer_size=CHUNK,
    )
