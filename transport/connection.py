"""One WebSocket connection as a channel: messages are text frames, what waits leaves in as few pieces as TCP takes."""

from collections.abc import Sequence
from typing import Final

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection
from wsproto.connection import Connection as WsConnection
from wsproto.connection import ConnectionType
from wsproto.events import TextMessage

from warren.transport.dialect import Native
from warren.transport.gateway_config import GatewayConfig
from warren.transport.link import Bounds, Link, Unreadable
from warren.transport.methods import Host
from warren.transport.wire import Wire

NORMAL: Final = 1000
GOING_AWAY: Final = 1001


class Connection:
    """A client on an open WebSocket.

    Attributes:
        serving: cancel it to end the connection in good order, with close code 1001.
    """

    serving: trio.CancelScope

    def __init__(self, socket: WebSocketConnection, wire: Wire, host: Host, config: GatewayConfig) -> None:
        bounds = Bounds(config.max_in_flight, config.max_subscriptions, config.outbox_events, config.close_timeout)
        self._socket = socket
        self._config = config
        self._link = Link(_Frames(socket, wire, config.max_message_bytes), host, Native(), bounds)
        self.serving = self._link.serving

    async def run(self) -> None:
        """Serve the client until it leaves, breaks a rule, or `serving` is cancelled; then close within a bound.

        Turns that it started go on. Cancelling `run` itself drops the connection.
        """
        await self._link.run()
        code = GOING_AWAY if self.serving.cancelled_caught else NORMAL
        with trio.move_on_after(self._config.close_timeout):
            await self._socket.aclose(code)


class _Frames:
    """A channel of text frames."""

    def __init__(self, socket: WebSocketConnection, wire: Wire, max_bytes: int) -> None:
        self._socket = socket
        self._wire = wire
        self._max_bytes = max_bytes
        self._framer = WsConnection(ConnectionType.SERVER)

    async def receive(self) -> str | Unreadable | None:
        try:
            message: str | bytes = await self._socket.get_message()
        except ConnectionClosed:
            return None
        if self._too_big(message):
            return Unreadable(f"has more than {self._max_bytes} bytes")
        return Unreadable("is a binary frame: send text") if isinstance(message, bytes) else message

    async def send(self, frames: Sequence[bytes]) -> None:
        """Send messages in one piece. They pass by the WebSocket's own way out, which is a piece for each."""
        if self._socket.closed is not None:
            raise trio.BrokenResourceError("the connection is closed")
        try:
            await self._wire.send_all(b"".join(self._framer.send(TextMessage(frame.decode())) for frame in frames))
        except trio.ClosedResourceError as exc:
            raise trio.BrokenResourceError("the connection is closed") from exc

    def _too_big(self, message: str | bytes) -> bool:
        """Return whether a message is over the limit in bytes."""
        size = len(message) if isinstance(message, bytes) or message.isascii() else len(message.encode())
        return size > self._max_bytes
