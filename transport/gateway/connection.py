"""One WebSocket connection: its messages, its end, and the JSON-RPC endpoint that speaks in them."""

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Final

import trio
import trio_websocket

from warren.actors.streams import GONE
from warren.transport.access.config import GatewayConfig
from warren.transport.access.pace import wait_for_all
from warren.transport.gateway.handshake import Opening
from warren.transport.gateway.heartbeat import Heartbeat
from warren.transport.gateway.stream import PART, PASSED_OVER, FrameStream
from warren.transport.http.wire import Wire
from warren.transport.rpc.dialect import Native
from warren.transport.rpc.endpoint import Endpoint, EndpointBounds, Unreadable
from warren.transport.rpc.methods import Host
from warren.transport.rpc.server import serve_client

NORMAL: Final = 1000
SILENT: Final = 1011
"""The client has not answered a ping."""
RESTART: Final = 1012
TRY_LATER: Final = 1013
"""The client has left more replies unread than there is room for."""
UNAUTHORIZED: Final = 4401
"""The client's token has expired or was revoked. It has the digits of HTTP's 401, in the range of applications."""
CHUNK: Final = 64 * 1024
QUEUE: Final = 4
"""Messages that are read ahead: while more wait to be handled, pings are not answered."""

Headers = list[tuple[bytes, bytes]]


class WebSocketConnection:
    """A client on a WebSocket.

    Attributes:
        serving: cancel it to end the connection in good order, with close code 1012.
    """

    serving: trio.CancelScope

    def __init__(self, wire: Wire, host: Host, config: GatewayConfig) -> None:
        bounds = EndpointBounds(
            config.max_in_flight,
            max_batch=config.max_in_flight,
            outbox_events=config.outbox_events,
            close_timeout=config.close_timeout,
            needs_reader=False,
        )
        self._host = host
        self._config = config
        self._messages = Messages(wire, config.max_message_bytes)
        self._endpoint = Endpoint(self._messages, bounds, admit=partial(wait_for_each, wire))
        self.serving = self._endpoint.serving
        self._ended_with = RESTART

    def end(self, code: int) -> None:
        """End the connection as `serving` does, with another close code."""
        self._ended_with = code
        self.serving.cancel()

    async def run(self, opening: Opening, headers: Headers, heartbeat: Heartbeat) -> None:
        """Answer the client's request, and serve it until it leaves, breaks a rule, or `serving` is cancelled.

        The connection is then closed within a bound; turns that the client started go on. Cancelling `run` itself drops
        the connection.

        Args:
            opening: the request.
            headers: headers of the answer besides those of the handshake.
            heartbeat: pings the client when it is silent; one that stays silent is left with close code 1011.
        """
        async with trio.open_nursery() as nursery:
            await self._messages.open(nursery, opening, headers)
            with heartbeat.watches(self._messages.stream, partial(self.end, SILENT)):
                await serve_client(self._endpoint, self._host, Native(), self._config.max_subscriptions)
            with trio.move_on_after(self._config.close_timeout):
                code = TRY_LATER if self._endpoint.let_go else self._ended_with
                await self._messages.close(code if self.serving.cancelled_caught else NORMAL)
            nursery.cancel_scope.cancel()


async def wait_for_each(wire: Wire, requests: int) -> None:
    """Wait until the paces of a client let some more requests through, which have come in one message."""
    await wait_for_all(wire.paces, requests)


class Messages:
    """A channel of text messages. A client that breaks the WebSocket protocol gets the close code that says so.

    Attributes:
        stream: the frames, once the channel is open.
    """

    stream: FrameStream
    _socket: trio_websocket.WebSocketConnection

    def __init__(self, wire: Wire, max_bytes: int) -> None:
        self._wire = wire
        self._max_bytes = max_bytes
        self._received: str | bytes | None = None

    async def open(self, nursery: trio.Nursery, opening: Opening, headers: Headers) -> None:
        """Answer the request. A task in the nursery reads frames from then on, until it is cancelled."""
        self.stream = FrameStream(self._wire, opening.head, self._max_bytes)
        request = await trio_websocket.wrap_server_stream(
            nursery,
            self.stream,
            message_queue_size=QUEUE,
            max_message_size=self._max_bytes,
            receive_buffer_size=CHUNK,
        )
        self._socket = await request.accept(subprotocol=opening.subprotocol, extra_headers=headers)
        self.stream.socket = self._socket
        await self.stream.flush()

    async def receive(self) -> str | Unreadable | None:
        """Return the next message, None once the connection is closing."""
        if self._received is None:
            try:
                self._received = await self._socket.get_message()
            except trio_websocket.ConnectionClosed:
                return None
        if self._wire.paces:
            await wait_for_all(self._wire.paces, 1)
        message, self._received = self._received, None
        if message == PASSED_OVER and self.stream.passed_over:
            return self.stream.passed_over.popleft()
        return message if isinstance(message, str) else Unreadable("is a binary frame: send text")

    async def send(self, frames: Sequence[bytes]) -> None:
        """Send messages; all but long ones leave in one piece. Raises one of `GONE` once the connection is closing."""
        last = len(frames) - 1
        try:
            for number, frame in enumerate(frames):
                if len(frame) > PART:
                    await self.stream.send_long(frame)
                elif number < last:
                    self.stream.add(frame)
                else:
                    await self._socket.send_message(frame.decode())
        except trio_websocket.ConnectionClosed as exc:
            raise trio.BrokenResourceError("the connection is closed") from exc
        await self.stream.flush()

    async def close(self, code: int) -> None:
        """Close with a code, if nobody has begun to, and wait until the client has closed too."""
        self.stream.say_goodbye(code)
        with contextlib.suppress(trio_websocket.ConnectionClosed, *GONE):
            await self.stream.flush()
            while True:
                await self._socket.get_message()
