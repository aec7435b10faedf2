"""One WebSocket connection: a reader that hands messages over, a writer that is never cancelled in mid-frame."""

import logging
from typing import Final

import attrs
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from warren.events import Envelope, StreamTruncated
from warren.transport import jsonrpc
from warren.transport.feeds import Feeds
from warren.transport.gateway_config import GatewayConfig
from warren.transport.methods import Host
from warren.transport.outbox import Outbox
from warren.transport.peer import Peer
from warren.transport.wire import Wire

EVENT: Final = "session/event"
NORMAL: Final = 1000
GOING_AWAY: Final = 1001
GONE: Final = (ConnectionClosed, trio.BrokenResourceError, trio.ClosedResourceError)

logger: Final = logging.getLogger(__name__)


class Connection:
    """A client on an open WebSocket.

    Attributes:
        serving: cancel it to end the connection in good order, with close code 1001.
    """

    serving: trio.CancelScope

    def __init__(self, socket: WebSocketConnection, wire: Wire, host: Host, config: GatewayConfig) -> None:
        self.serving = trio.CancelScope()
        self._socket = socket
        self._wire = wire
        self._host = host
        self._config = config
        self._outbox = Outbox(config.outbox_events, notify=self._notify)
        self._waiting = trio.Event()
        self._taken = trio.Event()
        self._reading = True
        self._code = NORMAL

    async def run(self) -> None:
        """Serve the client until it leaves, breaks a rule, or `serving` is cancelled; then close within a bound.

        Turns that it started go on. Cancelling `run` itself drops the connection.
        """
        try:
            async with trio.open_nursery() as writing:
                writing.start_soon(self._write)
                with self.serving:
                    await self._read()
                if self.serving.cancelled_caught:
                    self._code = GOING_AWAY
                self._reading = False
                self._notify()
                writing.cancel_scope.deadline = trio.current_time() + self._config.close_timeout
            with trio.move_on_after(self._config.close_timeout):
                await self._socket.aclose(self._code)
        finally:
            self._outbox.close()

    async def _read(self) -> None:
        async with trio.open_nursery() as tasks:
            feeds = Feeds(self._host.service, self._outbox.event, tasks, self._config.max_subscriptions)
            peer = Peer(self._host, feeds, self._outbox, tasks, self._config.max_in_flight)
            while (message := await self._next()) is not None:
                if self._too_big(message):
                    limit = self._config.max_message_bytes
                    self._outbox.reply(jsonrpc.invalid_request(f"the message has more than {limit} bytes"))
                elif isinstance(message, bytes):
                    self._outbox.reply(jsonrpc.invalid_request("binary frames are not understood: send text"))
                else:
                    peer.receive(message)
            tasks.cancel_scope.cancel()

    async def _next(self) -> str | bytes | None:
        """Return the next message, once there is room for its reply; None at the end."""
        while self._outbox.replies >= self._config.max_in_flight:
            self._taken = trio.Event()
            await self._taken.wait()
        try:
            message: str | bytes = await self._socket.get_message()
        except ConnectionClosed:
            return None
        return message

    def _too_big(self, message: str | bytes) -> bool:
        """Return whether a message is over the limit in bytes."""
        size = len(message) if isinstance(message, bytes) or message.isascii() else len(message.encode())
        return size > self._config.max_message_bytes

    async def _write(self) -> None:
        try:
            while self._reading or self._outbox:
                await self._waiting.wait()
                self._waiting = trio.Event()
                await self._send(self._outbox.take())
        except GONE as exc:
            logger.debug("connection dropped: %s", exc)
            self._outbox.close()
            self._reading = False
        finally:
            self._taken.set()

    async def _send(self, items: list[Envelope | bytes]) -> None:
        """Send everything in as few pieces as TCP takes."""
        self._taken.set()
        self._wire.cork()
        for item in items:
            frame = item if isinstance(item, bytes) else _event_frame(item)
            await self._socket.send_message(frame.decode())
        await self._wire.flush()

    def _notify(self) -> None:
        self._waiting.set()


def _event_frame(envelope: Envelope) -> bytes:
    """Return an event as it goes out; one that JSON cannot hold is reported missing, the connection goes on."""
    try:
        return jsonrpc.notification(EVENT, envelope)
    except Exception:
        logger.exception("session %s: event %d cannot be sent", envelope.session_id, envelope.seq)
        before = (envelope.first_seq or envelope.seq) - 1
        missing = StreamTruncated(envelope.seq - before, before)
        return jsonrpc.notification(EVENT, attrs.evolve(envelope, seq=before, event=missing, first_seq=None))
