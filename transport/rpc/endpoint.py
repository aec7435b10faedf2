"""A symmetric JSON-RPC endpoint: it answers the requests of the other side and asks requests of its own.

Every stream of JSON-RPC messages is served by this module: WebSockets, pipes, editors, MCP clients, and the load
tester's own connections. A channel carries the messages, a `Side` knows the methods. The endpoint has the rest: how
many requests may run, how much may wait for a slow reader, the order of all that is sent, and the end.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast

import attrs
import trio

from warren.actors.tools.lines import GONE
from warren.errors import CapacityExceededError, WarrenError
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.outbox import MAX_BYTES, Item, Outbox, is_large

BATCH: Final = 256
"""Messages that leave in one piece. At the end of a connection, each piece shows that the other side still reads."""
PIECE: Final = 256 * 1024
"""Bytes after which a piece takes no more messages."""
GRACE: Final = 0.5
"""Seconds that requests have to end once the endpoint stops; after that they are answered with an error."""
RESERVE: Final = 2
"""Urgent requests are let through up to so many times the limit of the others."""
BULKY: Final = 2
"""Calls with large results that run at once for one client."""

logger: Final = logging.getLogger(__name__)


class GoneError(Exception):
    """The other side says nothing more: a request to it gets no answer."""


@attrs.frozen
class Unreadable:
    """A message that was not read; `problem` continues a sentence that begins with "the message"."""

    problem: str


class Channel(Protocol):
    """The carrier of the messages of one connection."""

    async def receive(self) -> str | bytes | Unreadable | None:
        """Return the next message, None when there will be no more. Must be safe to cancel."""
        ...

    async def send(self, frames: Sequence[bytes]) -> None:
        """Send messages, in order. Raises one of `GONE` if the other side reads no more.

        Cancelling it may leave half a message behind: nothing is sent after that.
        """
        ...


@attrs.frozen
class Bounds:
    """Limits of one connection; times in seconds.

    Attributes:
        max_in_flight: requests that may be unanswered.
        max_batch: messages that a batch may have; 0 refuses batches.
        outbox_events: events that may wait to be sent; the sender of another one waits.
        outbox_bytes: bytes of replies that may wait to be sent. Past it no message is read, and no large result made.
            Events that wait may have as many besides.
        close_timeout: time for the last messages to leave. Each piece that is read begins it anew, unless `serving`
            was cancelled.
        linger: time that requests have to end by themselves after the last message of the other side.
        needs_reader: whether the endpoint stops when the other side no longer reads. If not, its requests are still
            done.
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
        run: does it. Returns the result, or the whole reply as bytes, or None if no reply is to be sent. Raises
            WarrenError.
        bulky: whether the result may be large: then few of them run at once, and none while much waits to be read.
    """

    run: Callable[[], Awaitable[Any]]
    bulky: bool = False


class Side:
    """The methods behind an endpoint, for one connection."""

    def begin(self, method: str, params: Any, request_id: jsonrpc.Id) -> Work | bytes | None:
        """Accept a request, or a notification if `request_id` is None.

        It is called in the order of the messages and must not block. Returns the work that answers, or the reply, or
        None if there is nothing more to do. A notification gets no reply, whatever is returned or raised. Raises
        WarrenError for a request that is refused.
        """
        raise NotImplementedError(method, params, request_id)

    def refuse(self, request_id: jsonrpc.Id, error: WarrenError) -> bytes:
        """Return the reply to a request that failed."""
        return jsonrpc.error(request_id, error)

    def frames(self, items: Sequence[Item]) -> Iterable[bytes]:
        """Return the messages for items of the outbox, in their order. Must not raise.

        An iterator makes them as they leave: encoding a long queue in one go would hold up everybody.
        """
        return cast("Sequence[bytes]", items)  # all of them, unless the side puts in something else

    def hang_up(self) -> None:
        """Take note that the other side says nothing more."""

    def give_up(self) -> None:
        """Take note that requests which still run have to end now."""

    async def settle(self) -> None:
        """Return once everything that belongs to ended requests was handed to the outbox."""


@attrs.define(eq=False)
class _Batch:
    """The replies to a batch: they leave as one message once the last of them is there.

    Attributes:
        missing: replies that are still to come. A batch that begins with none is never sent: it takes what becomes of
            notifications.
    """

    missing: int
    frames: list[bytes] = attrs.field(factory=list)


@attrs.define(eq=False)
class _Question:
    """A request of ours; `answer` is None until it is answered, and for ever if the other side is gone."""

    done: trio.Event = attrs.field(factory=trio.Event)
    answer: jsonrpc.Response | None = None


class Endpoint:
    """One end of a connection.

    Attributes:
        serving: cancel it to stop in good order.
        outbox: everything that is to be sent.
        moved: woken whenever something has left the outbox.
    """

    def __init__(
        self,
        channel: Channel,
        bounds: Bounds,
        serving: trio.CancelScope | None = None,
        *,
        end_turns: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> None:
        """Prepare an endpoint; `end_turns` is awaited if requests still run `linger` seconds after the last message."""
        self.serving: trio.CancelScope = serving or trio.CancelScope()
        self.moved: trio.lowlevel.ParkingLot = trio.lowlevel.ParkingLot()
        self._waiting = trio.lowlevel.ParkingLot()
        self.outbox: Outbox = Outbox(bounds.outbox_events, self._waiting.unpark_all, bounds.outbox_bytes)
        self._channel = channel
        self._bounds = bounds
        self._end_turns = end_turns
        self._bulky = trio.CapacityLimiter(BULKY)
        self._running = 0
        self._ended = trio.lowlevel.ParkingLot()
        self._questions: dict[jsonrpc.Id, _Question] = {}
        self._asked = 0
        self._gone = False
        self._leaving = 0
        self._sending = False
        self._reading = True
        self._ending = False
        self._farewell = trio.CancelScope()
        self._settling = trio.CancelScope()

    async def run(self, open_side: Callable[[trio.Nursery], Side]) -> None:
        """Serve until the other side has no more to say or `serving` is cancelled; then send what waits, within bounds.

        At the end requests have `linger` and `GRACE` seconds to end. Those that still run then are answered with
        AgentError(cause="shutting_down"); turns that they started go on. A reader that is slow gets everything, unless
        `serving` was cancelled. Cancelling `run` itself drops what waits.

        Args:
            open_side: makes the side; it gets the nursery of the requests, which is cancelled at the end.
        """
        try:
            async with trio.open_nursery() as writing:
                async with trio.open_nursery() as tasks:
                    side = open_side(tasks)
                    writing.start_soon(self._write, side)
                    await self._serve(side, tasks)
                    tasks.cancel_scope.cancel()
                self._reading = False
                self._ending = True
                self._waiting.unpark_all()
                self._farewell.deadline = trio.current_time() + self._bounds.close_timeout
        finally:
            self.outbox.close()

    async def ask(self, method: str, params: object, sent: Callable[[], None] = lambda: None) -> jsonrpc.Response:
        """Send a request and return the answer to it; `sent` is called once it is on its way, or known to be in vain.

        Cancelling it forgets the request: an answer that comes later is dropped. Raises GoneError if the other side is
        gone or leaves before it answers, ValueError for parameters that JSON cannot hold.
        """
        self._asked += 1
        number, question = self._asked, _Question()
        self._questions[number] = question
        try:
            if self._gone:
                question.done.set()
            else:
                self.outbox.reply(jsonrpc.request(number, method, params))
            sent()
            await question.done.wait()
        finally:
            del self._questions[number]
        if question.answer is None:
            raise GoneError
        return question.answer

    async def tell(self, frame: bytes) -> None:
        """Send a notification, in order with all else; returns once there is room for it, or the reader is gone."""
        while not self.outbox.room and not self.outbox.closed:
            await self.moved.park()
        self.outbox.tell(frame)

    async def room(self) -> None:
        """Return once the other side has read most of the replies that wait for it."""
        while self.outbox.reply_bytes + self._leaving > self._bounds.outbox_bytes:
            await self.moved.park()

    async def settle(self) -> None:
        """Return once no request runs."""
        while self._running:
            await self._ended.park()

    def check_room(self, *, urgent: bool = False) -> None:
        """Raise CapacityExceededError if as many requests run as may."""
        check_room(self._running, self._bounds.max_in_flight, urgent=urgent)

    # -- reading

    async def _serve(self, side: Side, tasks: trio.Nursery) -> None:
        with self.serving:
            try:
                await self._read(side, tasks)
            finally:
                self._hang_up()
                side.hang_up()
            with trio.move_on_after(self._bounds.linger) as lingering:
                await self.settle()
            if lingering.cancelled_caught:
                await self._end_turns()
        side.give_up()
        if self.serving.cancelled_caught or self._bounds.linger:
            # A runtime that has ended answers every call at once, and ends every subscription.
            with self._settling:
                self._settling.deadline = trio.current_time() + min(GRACE, self._bounds.close_timeout)
                self._ending = True
                if self._sending:  # the other side is still to read events that its requests wait for
                    self._extend()
                await self.settle()
                await side.settle()

    async def _read(self, side: Side, tasks: trio.Nursery) -> None:
        outbox, most, max_bytes = self.outbox, self._bounds.max_in_flight, self._bounds.outbox_bytes
        while True:
            while outbox.replies >= most or outbox.reply_bytes + self._leaving > max_bytes:
                await self.moved.park()  # written out here as it is looked at for each message
            raw = await self._channel.receive()
            if raw is None:
                return
            if isinstance(raw, Unreadable):
                outbox.reply(jsonrpc.invalid_request(f"the message {raw.problem}"))
                continue
            said = jsonrpc.read_batch(raw, self._bounds.max_batch)
            if isinstance(said, list):
                batch = _Batch(sum(isinstance(each, jsonrpc.Request | jsonrpc.Refusal) for each in said))
                for each in said:
                    self._take(each, batch, side, tasks)
            else:
                self._take(said, None, side, tasks)

    def _take(self, message: jsonrpc.Said, batch: _Batch | None, side: Side, tasks: trio.Nursery) -> None:
        """Act on one message. Never waits and never raises: an error is the reply."""
        request_id: jsonrpc.Id = None
        if isinstance(message, jsonrpc.Request):
            request_id = message.id
        elif isinstance(message, jsonrpc.Notification):
            batch = _Batch(0)
        elif isinstance(message, jsonrpc.Response):
            self._hear(message)
            return
        else:
            self._reply(jsonrpc.error(message.id, message.error, message.number), batch)
            return
        try:
            work = side.begin(message.method, message.params, request_id)
        except WarrenError as exc:
            if request_id is None:
                logger.info("the notification %s: %s", jsonrpc.shorten(message.method), exc)
            work = side.refuse(request_id, exc)
        if isinstance(work, Work):
            self._running += 1
            tasks.start_soon(self._answer, work, request_id, batch, side, name=message.method)
        elif work is not None:
            self._reply(work, batch)

    def _hear(self, answer: jsonrpc.Response) -> None:
        """Take an answer; one that nothing waits for, or a second one, is dropped."""
        question = self._questions.get(answer.id)
        if question is None:
            logger.debug("an answer to no question of ours is dropped")
        elif question.answer is None:
            question.answer = answer
            question.done.set()

    def _hang_up(self) -> None:
        """End the requests of ours that wait, with an error: nobody answers them any more."""
        self._gone = True
        for question in self._questions.values():
            question.done.set()

    # -- answering

    async def _answer(self, work: Work, request_id: jsonrpc.Id, batch: _Batch | None, side: Side) -> None:
        try:
            if work.bulky:
                reply = await self._large(work, request_id, batch)
            else:
                reply = await work.run()
                if reply is not None and not isinstance(reply, bytes):
                    reply = jsonrpc.result(request_id, reply)
        except WarrenError as exc:
            reply = side.refuse(request_id, exc)
        except Exception:
            logger.exception("%s failed", trio.lowlevel.current_task().name)
            reply = jsonrpc.internal_error(request_id)
        except BaseException:  # cancelled
            self._reply(side.refuse(request_id, jsonrpc.given_up()), batch)
            raise
        finally:  # whoever waits for the end of requests goes on after a checkpoint: the reply is in the outbox then
            self._running -= 1
            self._ended.unpark_all()
        if reply is not None:
            self._reply(reply, batch)

    async def _large(self, work: Work, request_id: jsonrpc.Id, batch: _Batch | None) -> bytes:
        """Do work with a result that may be large: not before the other side has read most of what waits for it."""
        async with self._bulky:
            await self.room()
            if batch is not None and sum(map(len, batch.frames)) >= MAX_BYTES:
                raise CapacityExceededError("the replies to this batch are too large: ask for less", cause="batch")
            result = await work.run()
            if is_large(result):
                return await trio.to_thread.run_sync(jsonrpc.large_result, request_id, result)
            return jsonrpc.result(request_id, result)

    def _reply(self, frame: bytes, batch: _Batch | None) -> None:
        if batch is None:
            self.outbox.reply(frame)
            return
        batch.frames.append(frame)
        batch.missing -= 1
        if not batch.missing:
            self.outbox.reply(jsonrpc.batch(batch.frames))

    # -- writing

    async def _write(self, side: Side) -> None:
        """Send what waits, in a task of its own: a send that is cancelled would leave half a message behind."""
        outbox = self.outbox
        try:
            with self._farewell:
                while True:
                    while not outbox:
                        if not self._reading:
                            return
                        await self._waiting.park()
                    self._leaving = outbox.reply_bytes
                    items = outbox.take()
                    self._sending = True
                    self.moved.unpark_all()
                    for piece in _pieces(side.frames(items)):
                        await self._channel.send(piece)
                        if self._ending:
                            self._extend()
                    self._sending = False
                    self._leaving = 0
                    self.moved.unpark_all()
        except GONE as exc:
            logger.debug("the other side reads no more: %s", exc)
            if self._bounds.needs_reader:
                self.serving.cancel()
        finally:
            outbox.close()
            self._leaving = 0
            self.moved.unpark_all()
            self._hang_up()

    def _extend(self) -> None:
        """Give a reader that has just read something more time for the rest, unless `serving` was cancelled."""
        if self.serving.cancel_called:
            return
        deadline = trio.current_time() + self._bounds.close_timeout
        if self._reading:
            self._settling.deadline = max(deadline, self._settling.deadline)
        else:
            self._farewell.deadline = deadline


def check_room(running: int, limit: int, *, urgent: bool = False) -> None:
    """Raise CapacityExceededError if as many requests of a client run as may; urgent ones have a reserve."""
    if running >= limit * (RESERVE if urgent else 1):
        raise CapacityExceededError(
            f"{running} requests of this connection are not answered yet: that is its limit", cause="max_in_flight"
        )


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
