"""A symmetric JSON-RPC endpoint: it answers the requests of its peer and sends requests of its own.

Every stream of JSON-RPC messages is served by this module: WebSockets, pipes, editors, MCP clients, and the load
tester's own connections. A channel carries the messages, a `Dispatcher` has the methods. The endpoint does the rest: it
bounds the requests that run and the bytes that wait for a slow reader, keeps the order of the messages, and shuts down.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import attrs
import trio

from warren.actors.io.streams import GONE
from warren.base.errors import CapacityExceededError, WarrenError
from warren.base.values import define, frozen
from warren.reports.tracing import here
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.outbox import MAX_BYTES, Outbox, is_large, pieces_of
from warren.transport.rpc.traces import META, place_in
from warren.transport.rpc.unread import Share, UnreadReplies

COUNTED: Final = 64 * 1024
"""Bytes of replies on their way from which on they count as unread at once, and not when the next one comes."""
GRACE: Final = 0.5
"""Seconds that requests have to end once the endpoint stops; after that they are answered with an error."""
RESERVE: Final = 2
"""The limit of urgent requests, as a multiple of the limit of the others."""
BULKY: Final = 2
"""Requests with large results that run at once for one client."""

logger: Final = logging.getLogger(__name__)


class GoneError(Exception):
    """The peer is gone: a request to it gets no answer."""


@frozen
class Unreadable:
    """A message that was not read.

    Attributes:
        problem: why, as the rest of a sentence that begins with "the message".
        request_id: its id, if that is known.
        answers: whether it is a response to a request of this side.
    """

    problem: str
    request_id: jsonrpc.Id = None
    answers: bool = False

    @classmethod
    def too_long(cls, most: int, head: bytes, tail: bytes) -> "Unreadable":
        """Return a message of more than `most` bytes, with its beginning and its end."""
        return cls(f"has more than {most} bytes", *jsonrpc.outline(head, tail))


class Channel(Protocol):
    """The carrier of the messages of one connection."""

    async def receive(self) -> str | bytes | Unreadable | None:
        """Return the next message; None if there will be no more. A cancelled call must not lose a message."""

    async def send(self, frames: Sequence[bytes]) -> None:
        """Send messages, in order. Raises one of `GONE` if the peer no longer reads. It need not be a checkpoint.

        Cancelling it may leave half a message in the stream: nothing may be sent after that.
        """


@frozen
class EndpointBounds:
    """Limits of one connection; times in seconds.

    Attributes:
        max_in_flight: requests that may be unanswered.
        max_batch: messages that a batch may have; 0 refuses batches.
        outbox_events: notifications that may wait to be sent; the sender of another one waits.
        outbox_bytes: bytes of replies that may wait to be sent. Beyond it no message is read, and no large result made.
            Notifications that wait may have as many bytes in addition.
        close_timeout: time for the last messages to be sent. Each piece that the peer reads restarts it, unless
            `serving` was cancelled.
        linger: time that requests have to end by themselves after the last message of the peer.
        needs_reader: whether the endpoint stops when the peer no longer reads. If not, requests are still handled.
    """

    max_in_flight: int
    max_batch: int = 0
    outbox_events: int = 256
    outbox_bytes: int = MAX_BYTES
    close_timeout: float = 2.0
    linger: float = 0.0
    needs_reader: bool = True


class Work(NamedTuple):
    """A request that was accepted.

    Attributes:
        run: handles the request. Returns the result, or the encoded reply as bytes, or None if no reply is to be sent.
            Raises WarrenError.
        bulky: whether the result may be large: few such requests run at once, and none while the peer has much to read.
    """

    run: Callable[[], Awaitable[Any]]
    bulky: bool = False


class Dispatcher:
    """The methods behind an endpoint, for one connection."""

    def begin(self, method: str, params: Any, request_id: jsonrpc.Id) -> Work | bytes | None:
        """Accept a request, or a notification if `request_id` is None.

        It is called in the order of the messages and must not block. A notification gets no reply, whatever this
        returns or raises.

        Returns:
            The work that answers the request, or the encoded reply, or None if there is nothing more to do.

        Raises:
            WarrenError: if the request is refused.
        """
        raise NotImplementedError(method, params, request_id)

    def refuse(self, request_id: jsonrpc.Id, error: WarrenError) -> bytes:
        """Return the reply to a request that failed."""
        return jsonrpc.error(request_id, error)

    def hang_up(self) -> None:
        """Handle the end of the input: the peer sends nothing more."""

    def abandon(self) -> None:
        """Handle the end of the grace period: requests that still run have to end now."""

    async def drain(self) -> None:
        """Return when everything that belongs to ended requests is in the outbox."""

    def close(self) -> None:
        """Handle the end of all requests: nothing more is put into the outbox."""


@define(eq=False)
class _Batch:
    """The replies to a batch, which are sent as one message when the last of them is ready.

    Attributes:
        missing: replies that are not ready. A batch that begins with 0 is never sent, and drops those to
            notifications.
    """

    missing: int
    frames: list[bytes] = attrs.field(factory=list)


@define(eq=False)
class _OwnRequest:
    """A request to the peer. `response` is None until it comes, and stays None if the peer is gone."""

    done: trio.Event = attrs.field(factory=trio.Event)
    response: jsonrpc.Response | None = None


class Endpoint:
    """One end of a connection.

    Attributes:
        serving: cancel it to shut down in good order.
        outbox: the messages that wait to be sent.
        moved: tasks parked here are woken whenever the outbox was emptied. It is mostly empty, and looked at first:
            trio takes twenty times as long to find that out.
        let_go: whether it was stopped because of the replies that its peer has not read.
    """

    def __init__(
        self,
        channel: Channel,
        bounds: EndpointBounds,
        serving: trio.CancelScope | None = None,
        *,
        end_turns: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
        admit: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        """Prepare an endpoint.

        Args:
            channel: carries the messages.
            bounds: the limits.
            serving: the scope to cancel for a shutdown; None makes one.
            end_turns: awaited if requests still run `linger` seconds after the last message of the peer.
            admit: awaited with the number of messages of a batch besides the first before any of them is handled.
        """
        self.serving: trio.CancelScope = serving or trio.CancelScope()
        self.moved: trio.lowlevel.ParkingLot = trio.lowlevel.ParkingLot()
        self._waiting = trio.lowlevel.ParkingLot()
        self.outbox: Outbox = Outbox(bounds.outbox_events, self._waiting.unpark_all, bounds.outbox_bytes)
        self._channel = channel
        self._bounds = bounds
        self._end_turns = end_turns
        self._admit = admit
        self._bulky = trio.CapacityLimiter(BULKY)
        self._running = 0
        self._ended = trio.lowlevel.ParkingLot()
        self.let_go: bool = False
        self._share: Share | None = None
        self._batched = 0  # bytes of replies to batches that wait for others
        self._own_requests: dict[jsonrpc.Id, _OwnRequest] = {}
        self._last_id = 0
        self._gone = False
        self._transit_bytes = 0  # of replies that have left the outbox, and that the channel has not accepted yet
        self._reading = True
        self._ending = False
        self._farewell = trio.CancelScope()
        self._draining = trio.CancelScope()

    async def run(self, open_dispatcher: Callable[[trio.Nursery], Dispatcher]) -> None:
        """Serve until the input ends or `serving` is cancelled; then send the messages that wait, within bounds.

        At the end requests have `linger` and `GRACE` seconds to end. Those that still run then are answered with
        AgentError(cause="shutting_down"); turns that they started go on. A slow reader gets all messages, unless
        `serving` was cancelled. Cancelling `run` itself drops the messages that wait.

        Args:
            open_dispatcher: makes the dispatcher; it gets the nursery of the requests, which is cancelled at the end.
        """
        try:
            async with trio.open_nursery() as writing:
                async with trio.open_nursery() as tasks:
                    dispatcher = open_dispatcher(tasks)
                    writing.start_soon(self._write)
                    try:
                        await self._serve(dispatcher, tasks)
                    finally:
                        dispatcher.close()
                    tasks.cancel_scope.cancel()
                self._reading = False
                self._ending = True
                if self._waiting:
                    self._waiting.unpark_all()
                self._farewell.deadline = trio.current_time() + self._bounds.close_timeout
        finally:
            self.outbox.close()
            if self._share is not None:
                self._share.hold(0)

    def count_in(self, unread: UnreadReplies) -> None:
        """Count the replies that wait for the peer among those of all connections of the process."""
        self._share = unread.share(self._end_unread)

    def _end_unread(self) -> None:
        self.let_go = True
        self.serving.cancel()

    def _count_unread(self) -> None:
        if self._share is not None:
            self._share.hold(self.outbox.reply_bytes + self._transit_bytes + self._batched)

    async def ask(self, method: str, params: object, sent: Callable[[], None] = lambda: None) -> jsonrpc.Response:
        """Send a request to the peer, and return its response.

        Cancelling it forgets the request: a response that comes later is dropped.

        Args:
            method: the method.
            params: the parameters, as plain data or a domain object.
            sent: called once the request is in the outbox, or the peer is known to be gone.

        Raises:
            GoneError: if the peer is gone, or leaves before it answers.
            ValueError: if JSON cannot hold the parameters.
        """
        self._last_id += 1
        number, request = self._last_id, _OwnRequest()
        self._own_requests[number] = request
        try:
            if self._gone:
                request.done.set()
            else:
                self.outbox.reply(jsonrpc.request(number, method, params))
            sent()
            await request.done.wait()
        finally:
            del self._own_requests[number]
        if request.response is None:
            raise GoneError
        return request.response

    async def tell(self, frame: bytes) -> None:
        """Put a notification into the outbox, once there is room for it. If the peer is gone, it is dropped."""
        while not self.outbox.room and not self.outbox.closed:
            await self.moved.park()
        self.outbox.tell(frame)

    async def room(self) -> None:
        """Return when the peer has read most of the replies that wait for it."""
        while self.outbox.reply_bytes + self._transit_bytes > self._bounds.outbox_bytes:
            await self.moved.park()

    async def wait_idle(self) -> None:
        """Return when no request runs."""
        while self._running:
            await self._ended.park()

    def check_room(self, *, urgent: bool = False) -> None:
        """Raise CapacityExceededError if the limit of running requests is reached."""
        if self._running >= self._bounds.max_in_flight * (RESERVE if urgent else 1):
            raise unanswered(self._running)

    # -- reading

    async def _serve(self, dispatcher: Dispatcher, tasks: trio.Nursery) -> None:
        with self.serving:
            try:
                await self._read(dispatcher, tasks)
            finally:
                self._hang_up()
                dispatcher.hang_up()
            with trio.move_on_after(self._bounds.linger) as lingering:
                await self.wait_idle()
            if lingering.cancelled_caught:
                await self._end_turns()
        dispatcher.abandon()
        if self.serving.cancelled_caught or self._bounds.linger:
            # A runtime that has ended answers every call at once, and ends every subscription.
            with self._draining:
                self._draining.deadline = trio.current_time() + min(GRACE, self._bounds.close_timeout)
                self._ending = True
                if self.outbox.stalled:  # requests may wait until the peer has read the events before their replies
                    self._extend()
                await self.wait_idle()
                await dispatcher.drain()

    async def _read(self, dispatcher: Dispatcher, tasks: trio.Nursery) -> None:
        outbox, most, most_bytes = self.outbox, self._bounds.max_in_flight, self._bounds.outbox_bytes
        while True:
            while outbox.replies >= most or outbox.reply_bytes + self._transit_bytes > most_bytes:
                await self.moved.park()
            raw = await self._channel.receive()
            if raw is None:
                return
            if isinstance(raw, Unreadable):
                self._refuse(raw)
                continue
            message = jsonrpc.read_batch(raw, self._bounds.max_batch)
            if isinstance(message, list):
                if self._admit is not None:
                    await self._admit(len(message) - 1)
                batch = _Batch(sum(isinstance(each, jsonrpc.Request | jsonrpc.Malformed) for each in message))
                for each in message:
                    self._handle(each, batch, dispatcher, tasks)
            else:
                self._handle(message, None, dispatcher, tasks)

    def _handle(
        self, message: jsonrpc.Incoming, batch: _Batch | None, dispatcher: Dispatcher, tasks: trio.Nursery
    ) -> None:
        """Handle one message. Never waits and never raises: an error becomes the reply."""
        request_id: jsonrpc.Id = None
        if isinstance(message, jsonrpc.Request):
            request_id = message.id
        elif isinstance(message, jsonrpc.Notification):
            batch = _Batch(0)
        elif isinstance(message, jsonrpc.Response):
            self._receive_response(message)
            return
        else:
            self._reply(jsonrpc.error(message.id, message.error, message.number), batch)
            return
        try:
            work = dispatcher.begin(message.method, message.params, request_id)
        except WarrenError as exc:
            if request_id is None:
                logger.info("the notification %s is refused: %s", jsonrpc.shorten(message.method), exc)
            work = dispatcher.refuse(request_id, exc)
        if isinstance(work, Work):
            self._running += 1
            params = message.params
            place = place_in(params[META]) if type(params) is dict and META in params else None
            before = None if place is None else here.set(place)  # the task begins with it
            tasks.start_soon(self._answer, work, request_id, batch, dispatcher, name=message.method)
            if before is not None:
                here.reset(before)
        elif work is not None:
            self._reply(work, batch)

    def _refuse(self, message: Unreadable) -> None:
        """Answer a message that was not read; a response ends its request with an error."""
        problem = f"the message {message.problem}"
        if message.answers:
            self._receive_response(jsonrpc.Response(message.request_id, None, {"message": problem}))
        else:
            self.outbox.reply(jsonrpc.invalid_request(problem, message.request_id))

    def _receive_response(self, response: jsonrpc.Response) -> None:
        """Hand a response to the task that waits for it; drop one to an unknown request, and a second one."""
        request = self._own_requests.get(response.id)
        if request is None:
            logger.debug("a response to an unknown request is dropped")
        elif request.response is None:
            request.response = response
            request.done.set()

    def _hang_up(self) -> None:
        """Fail the requests to the peer that wait: no response can come any more."""
        self._gone = True
        for request in self._own_requests.values():
            request.done.set()

    # -- answering

    async def _answer(self, work: Work, request_id: jsonrpc.Id, batch: _Batch | None, dispatcher: Dispatcher) -> None:
        try:
            if work.bulky:
                reply = await self._large(work, request_id, batch)
            else:
                reply = await work.run()
                if reply is not None and not isinstance(reply, bytes):
                    reply = jsonrpc.result(request_id, reply)
        except WarrenError as exc:
            reply = dispatcher.refuse(request_id, exc)
        except Exception:
            logger.exception("%s failed", trio.lowlevel.current_task().name)
            reply = jsonrpc.internal_error(request_id)
        except BaseException:  # cancelled
            self._reply(dispatcher.refuse(request_id, jsonrpc.abandoned()), batch)
            raise
        finally:
            # The reply is added only below. There is no checkpoint until then, so a task that `wait_idle` wakes here
            # runs when the reply is in the outbox.
            self._running -= 1
            if self._ended:
                self._ended.unpark_all()
        if reply is not None:
            self._reply(reply, batch)

    async def _large(self, work: Work, request_id: jsonrpc.Id, batch: _Batch | None) -> bytes:
        """Run work with a result that may be large, once the peer has read most of the replies that wait for it."""
        async with self._bulky:
            await self.room()
            if batch is not None and sum(map(len, batch.frames)) >= MAX_BYTES:
                raise CapacityExceededError(
                    "the replies to this batch are too large: ask for less", cause="batch", retryable=False
                )
            result = await work.run()
            if is_large(result):
                return await trio.to_thread.run_sync(jsonrpc.large_result, request_id, result)
            return jsonrpc.result(request_id, result)

    def _reply(self, frame: bytes, batch: _Batch | None) -> None:
        if batch is None:
            self.outbox.reply(frame)
        elif not batch.missing:  # a notification gets no reply
            return
        else:
            batch.frames.append(frame)
            batch.missing -= 1
            self._batched += len(frame)
            if not batch.missing:
                self._batched -= sum(map(len, batch.frames))
                self.outbox.reply(jsonrpc.batch(batch.frames))
        if self.outbox.stalled or batch is not None:
            self._count_unread()

    # -- writing

    async def _write(self) -> None:
        """Send the messages that wait, in a task of its own: a cancelled send would leave half a message behind."""
        outbox = self.outbox
        try:
            with self._farewell:
                while True:
                    while not outbox.items:
                        if not self._reading:
                            return
                        await self._waiting.park()
                        if not outbox.replies:
                            # A model that answers at once does so a pass after the turn's first events: one send less.
                            await trio.lowlevel.checkpoint()
                    await self._send_all()
                    if outbox.items:
                        await trio.lowlevel.checkpoint()  # a channel may send without one
        except GONE as exc:
            logger.debug("the peer no longer reads: %s", exc)
            if self._bounds.needs_reader:
                self.serving.cancel()
        finally:
            outbox.close()
            self._transit_bytes = 0
            if self.moved:
                self.moved.unpark_all()
            self._hang_up()

    async def _send_all(self) -> None:
        """Send the messages that wait, in pieces."""
        outbox = self.outbox
        self._transit_bytes = outbox.reply_bytes
        items = outbox.take()
        outbox.stalled = True
        if self.moved:
            self.moved.unpark_all()
        if self._transit_bytes > COUNTED:
            self._count_unread()
        for number, piece in enumerate(pieces_of(items)):
            if number:
                await trio.lowlevel.checkpoint()  # as above
            await self._channel.send(piece)
            if self._ending:
                self._extend()
        outbox.stalled = False
        self._transit_bytes = 0
        if self._share is not None and (self._share.size or self._batched):
            self._count_unread()
        if self.moved:
            self.moved.unpark_all()

    def _extend(self) -> None:
        """Restart the time of a peer that has just read a piece, unless `serving` was cancelled."""
        if self.serving.cancel_called:
            return
        deadline = trio.current_time() + self._bounds.close_timeout
        if self._reading:
            self._draining.deadline = max(deadline, self._draining.deadline)
        else:
            self._farewell.deadline = deadline


def unanswered(running: int) -> CapacityExceededError:
    """Return the error of a request beside this number of unanswered ones of its client."""
    problem = f"{running} requests of this connection are not answered yet, which is the limit: wait for a reply"
    return CapacityExceededError(problem, cause="max_in_flight")
