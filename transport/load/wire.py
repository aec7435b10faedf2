"""A JSON-RPC client of a gateway over one WebSocket: requests in any number at once, events as they come."""

import itertools
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
import msgspec
import trio
import trio_websocket

from warren.errors import ErrorCode, InvalidParamsError
from warren.transport.load.target import LOST, RefusedError

PORTS: Final = {"ws": 80, "wss": 443}
SCHEMES: Final = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
QUEUE: Final = 1_000
MAX_MESSAGE: Final = 64 * 1024 * 1024
CHUNK: Final = 64 * 1024
INVALID: Final = -32602
PATIENCE: Final = 10.0
"""Seconds until a connection that does not open has failed."""


@attrs.frozen
class Address:
    """Where a gateway is.

    Attributes:
        secure: whether it speaks TLS.
        host: the name.
        port: the port.
        path: of its WebSocket.
        token: what clients have to know.
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


@attrs.define(eq=False)
class _Call:
    """A request that waits; `answer` stays None where the connection ends first."""

    done: trio.Event = attrs.field(factory=trio.Event)
    answer: Mapping[str, Any] | None = None

    def settle(self, answer: Mapping[str, Any] | None) -> None:
        self.answer = answer
        self.done.set()


@attrs.define(eq=False)
class Wire:
    """An open connection.

    Attributes:
        socket: the WebSocket.
        stream: the bytes under it.
        on_event: takes the envelope of each event; it must not block.
    """

    socket: trio_websocket.WebSocketConnection
    stream: trio.abc.Stream
    on_event: Callable[[Mapping[str, Any]], None]
    _ids: "itertools.count[int]" = attrs.field(factory=lambda: itertools.count(1))
    _waiting: dict[int, _Call] = attrs.field(factory=dict)
    _open: bool = True
    _out: trio.MemorySendChannel[str] = attrs.field(init=False)
    _queued: trio.MemoryReceiveChannel[str] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make room for what is to be written: a send that is cancelled would tear a frame."""
        self._out, self._queued = trio.open_memory_channel[str](QUEUE)

    async def call(self, method: str, **params: Any) -> Any:
        """Make a request and return its result. Raises RefusedError."""
        number, call = next(self._ids), _Call()
        if self._open:
            self._waiting[number] = call
            request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            await self._out.send(msgspec.json.encode(request).decode())
            await call.done.wait()
        if call.answer is None:
            raise RefusedError(LOST, "the connection ended")
        if "error" in call.answer:
            raise _refused(call.answer["error"])
        return call.answer["result"]

    async def read(self) -> None:
        """Take what comes until the connection ends."""
        try:
            while True:
                self._take(msgspec.json.decode(await self.socket.get_message()))
        except (trio_websocket.ConnectionClosed, msgspec.DecodeError):
            pass
        finally:
            self._end()

    async def write(self) -> None:
        """Send what is queued until the connection ends."""
        try:
            async for text in self._queued:
                await self.socket.send_message(text)
        except (trio_websocket.ConnectionClosed, trio.BrokenResourceError, trio.ClosedResourceError):
            self._end()

    async def cut(self) -> None:
        """Go away without a word, as a client does whose cable is pulled."""
        self._end()
        await trio.aclose_forcefully(self.stream)

    def _take(self, message: Mapping[str, Any]) -> None:
        if message.get("method") == "session/event":
            self.on_event(message["params"])
        elif "method" not in message and (call := self._waiting.pop(message["id"], None)) is not None:
            call.settle(message)

    def _end(self) -> None:
        self._open = False
        self._out.close()
        while self._waiting:
            self._waiting.popitem()[1].settle(None)


def _refused(error: Mapping[str, Any]) -> RefusedError:
    data = error.get("data") or {}
    code = data.get("code") or (ErrorCode.INVALID_PARAMS if error["code"] == INVALID else str(error["code"]))
    return RefusedError(code, error["message"], (data.get("details") or {}).get("cause", ""))


async def open_wire(address: Address, on_event: Callable[[Mapping[str, Any]], None], tasks: trio.Nursery) -> Wire:
    """Connect; what reads and writes runs in `tasks` until the connection ends. Raises RefusedError."""
    try:
        with trio.fail_after(PATIENCE):
            stream = await open_stream(address)
            wire: Wire = await tasks.start(_hold, address, stream, on_event)
    except (OSError, trio.TooSlowError, trio.BrokenResourceError) as exc:
        raise RefusedError(LOST, f"{address.url}: {str(exc) or type(exc).__name__}") from None
    return wire


async def _hold(
    address: Address,
    stream: trio.abc.Stream,
    on_event: Callable[[Mapping[str, Any]], None],
    task_status: trio.TaskStatus[Wire],
) -> None:
    """Keep a connection, in a nursery of its own: trio-websocket's reader raises what a server says into it.

    Raises RefusedError where it does not open; what ends it later is told to who waits for an answer.
    """
    wire, refused = None, None
    try:
        async with trio.open_nursery() as nursery:
            socket = await _handshake(address, stream, nursery)
            wire = Wire(socket, stream, on_event)
            nursery.start_soon(wire.read)
            nursery.start_soon(wire.write)
            task_status.started(wire)
    except* trio_websocket.ConnectionRejected as group:
        refused = RefusedError(f"HTTP_{_first(group).status_code}", f"{address.url} refused the connection")
    except* (trio_websocket.HandshakeError, trio.BrokenResourceError, trio.ClosedResourceError, OSError) as group:
        refused = RefusedError(LOST, f"{address.url}: {_first(group)!r}")
    finally:
        await trio.aclose_forcefully(stream)
    if wire is None and refused is not None:
        raise refused


def _first(group: BaseException) -> Any:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


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
