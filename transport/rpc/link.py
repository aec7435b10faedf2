"""One client from its first message to its last: a reader that hands messages over, a writer that keeps their order."""

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, Protocol

import attrs
import trio

from warren.events import Envelope
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.dialect import Dialect
from warren.transport.rpc.feeds import Feeds
from warren.transport.rpc.methods import Host
from warren.transport.rpc.outbox import MAX_BYTES, Item, Outbox, Over
from warren.transport.rpc.peer import Peer

BATCH: Final = 256
"""Messages that leave in one piece: at the end, each piece shows that the client still reads."""
PIECE: Final = 256 * 1024
"""Bytes after which a piece takes no more messages."""
LAST_ANSWERS: Final = 0.5
"""Seconds that requests have to be answered once `serving` is cancelled; then they are told that the server ends."""

logger: Final = logging.getLogger(__name__)


@attrs.frozen
class Unreadable:
    """A message that was not read; `problem` goes on from "the message"."""

    problem: str


class Channel(Protocol):
    """What carries the messages of one client."""

    async def receive(self) -> str | bytes | Unreadable | None:
        """Return the next message, None when there will be no more. Must be safe to cancel."""
        ...

    async def send(self, frames: Sequence[bytes]) -> None:
        """Send messages, in order. Raises trio.BrokenResourceError where the client is gone.

        Cancelling it may leave half a message behind: nothing is sent after that.
        """
        ...


@attrs.frozen
class Bounds:
    """What one client may do; times in seconds.

    Attributes:
        max_in_flight: requests that may be unanswered.
        max_subscriptions: sessions that it may follow.
        outbox_events: events that may wait for it; the others stay in the logs of their sessions until it has read.
        outbox_bytes: bytes of replies that may wait for it; past it no more is read from it, and no large result made.
            Events that wait may have as many besides.
        close_timeout: how long the last messages may take to leave.
        linger: how long requests may go on after the client's last message.
    """

    max_in_flight: int
    max_subscriptions: int
    outbox_events: int
    close_timeout: float
    linger: float = 0.0
    outbox_bytes: int = MAX_BYTES


class Link:
    """Serves one client over a channel.

    Attributes:
        serving: cancel it to end the link in good order.
    """

    serving: trio.CancelScope

    def __init__(
        self,
        channel: Channel,
        host: Host,
        dialect: Dialect,
        bounds: Bounds,
        serving: trio.CancelScope | None = None,
        *,
        end_turns: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> None:
        """Serve a client; `end_turns` is awaited when requests still run `linger` seconds after its last message."""
        self.serving = serving or trio.CancelScope()
        self._channel = channel
        self._host = host
        self._dialect = dialect
        self._bounds = bounds
        self._end_turns = end_turns
        self._outbox = Outbox(bounds.outbox_events, self._notify, bounds.outbox_bytes)
        self._waiting = trio.Event()
        self._moved = trio.lowlevel.ParkingLot()
        self._leaving = 0
        self._sending = False
        self._reading = True
        self._peer: Peer | None = None
        self._farewell = trio.CancelScope()
        self._settling = trio.CancelScope()

    async def run(self) -> None:
        """Serve the client until it has no more to say or `serving` is cancelled; then send what waits, within bounds.

        A client that goes on reading slowly gets everything, unless `serving` was cancelled. Turns that it started go
        on; each request that still runs is answered with AgentError(cause="shutting_down"). Cancelling `run` itself
        drops what waits.
        """
        try:
            async with trio.open_nursery() as writing:
                writing.start_soon(self._write)
                await self._read()
                self._reading = False
                self._notify()
                self._farewell.deadline = trio.current_time() + self._bounds.close_timeout
        finally:
            self._outbox.close()

    async def _read(self) -> None:
        async with trio.open_nursery() as tasks:
            feeds = Feeds(self._host.service, self._outbox, self._moved, tasks, self._bounds.max_subscriptions)
            most = self._bounds.max_in_flight
            self._peer = peer = Peer(self._host, self._dialect, feeds, self._outbox, tasks, most, self._room)
            with self.serving:
                await self._hear(peer)
                with trio.move_on_after(self._bounds.linger) as lingering:
                    await peer.settle()
                if lingering.cancelled_caught:
                    await self._end_turns()
            if self.serving.cancelled_caught or self._bounds.linger:
                # A runtime that has ended answers every call at once, and ends every subscription.
                with self._settling:
                    patience = min(LAST_ANSWERS, self._bounds.close_timeout)
                    self._settling.deadline = trio.current_time() + patience
                    if self._sending:  # the client is still to read events that its requests wait for
                        self._wait_on()
                    await peer.settle()
                    await feeds.settle()
            tasks.cancel_scope.cancel()

    async def _hear(self, peer: Peer) -> None:
        """Take messages until there are no more."""
        try:
            while (message := await self._next()) is not None:
                if isinstance(message, Unreadable):
                    self._outbox.reply(jsonrpc.invalid_request(f"the message {message.problem}"))
                else:
                    peer.receive(message)
        finally:
            peer.hang_up()

    async def _next(self) -> str | bytes | Unreadable | None:
        """Return the next message, once there is room for its reply; None at the end."""
        while self._outbox.replies >= self._bounds.max_in_flight or self._crowded:
            await self._moved.park()
        return await self._channel.receive()

    @property
    def _crowded(self) -> bool:
        """Whether the client has to read before there may be more to read for it."""
        return self._outbox.reply_bytes + self._leaving > self._bounds.outbox_bytes

    async def _room(self) -> None:
        while self._crowded:
            await self._moved.park()

    async def _write(self) -> None:
        try:
            with self._farewell:
                while self._reading or self._outbox:
                    await self._waiting.wait()
                    self._waiting = trio.Event()
                    await self._send(self._outbox.take())
        except trio.BrokenResourceError as exc:
            logger.debug("a client reads no more: %s", exc)
        finally:
            self._outbox.close()
            self._leaving = 0
            self._moved.unpark_all()
            if self._peer is not None:
                self._peer.hang_up()

    async def _send(self, items: Sequence[Item]) -> None:
        self._leaving = sum(len(item) for item in items if isinstance(item, bytes))
        self._sending = True
        self._moved.unpark_all()
        for piece in _pieces(chain.from_iterable(map(self._frames, items))):
            await self._channel.send(piece)
            self._wait_on()
        self._sending = False
        self._leaving = 0
        self._moved.unpark_all()

    def _wait_on(self) -> None:
        """Give a client that has just read something more time to read the rest, unless `serving` was cancelled."""
        if self.serving.cancel_called:
            return
        deadline = trio.current_time() + self._bounds.close_timeout
        if not self._reading:
            self._farewell.deadline = deadline
        elif self._settling.deadline < math.inf:
            self._settling.deadline = max(deadline, self._settling.deadline)

    def _frames(self, item: Item) -> Sequence[bytes]:
        match item:
            case Envelope():
                return self._dialect.frames(item)
            case Over(session_id):
                return self._dialect.ended(session_id)
        return (item,)

    def _notify(self) -> None:
        self._waiting.set()


def _pieces(frames: Iterable[bytes]) -> Iterator[list[bytes]]:
    piece, size = list[bytes](), 0
    for frame in frames:
        piece.append(frame)
        size += len(frame)
        if len(piece) >= BATCH or size >= PIECE:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
