"""One JSON-RPC client, whatever carries its messages: requests run side by side, replies follow their events."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import attrs
import trio

from warren.errors import CapacityExceededError, WarrenError
from warren.service import OnEvent
from warren.tools import Tool, ToolSpec
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.client_tools import ClientTools
from warren.transport.rpc.dialect import Dialect
from warren.transport.rpc.feeds import Feeds
from warren.transport.rpc.methods import Caller, Host, Method, given_up
from warren.transport.rpc.outbox import MAX_BYTES, Outbox, is_large
from warren.views import TurnResult

RESERVE: Final = 2
BULKY: Final = 2
"""Calls with large results that run at once for one client."""

logger: Final = logging.getLogger(__name__)


@attrs.define(eq=False)
class Peer(Caller):
    """Answers one client's messages into its outbox.

    Attributes:
        host: what the methods act on.
        dialect: which methods there are, and how events look.
        feeds: the client's events.
        outbox: takes the replies. Put no more messages in while as many replies wait as may run.
        tasks: where the requests run; cancelling it answers each with AgentError(cause="shutting_down"), and leaves
            the turns they started alone.
        max_in_flight: requests that may run at once; `urgent` methods are let through up to twice as many.
        room: awaited before a call with a large result; returns once the client has read enough of what waits.
    """

    host: Host
    dialect: Dialect
    feeds: Feeds
    outbox: Outbox
    tasks: trio.Nursery
    max_in_flight: int
    room: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
    _bulky: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(BULKY), init=False)
    _client_tools: ClientTools = attrs.field(init=False)
    _running: int = attrs.field(default=0, init=False)
    _ended: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def __attrs_post_init__(self) -> None:
        self._client_tools = ClientTools(self.outbox.reply)

    def receive(self, raw: str | bytes) -> None:
        """Take one message, or a batch. Never waits and never raises: whatever is wrong with it is answered."""
        said = jsonrpc.read_batch(raw, self.max_in_flight)
        if isinstance(said, list):
            answered = sum(isinstance(each, jsonrpc.Request | jsonrpc.Refusal) for each in said)
            batch = _Batch(self.outbox.reply, answered)
            for each in said:
                self._take(each, batch)
        else:
            self._take(said, _Replies(self.outbox.reply))

    def _take(self, message: jsonrpc.Said, replies: "_Replies") -> None:
        if isinstance(message, jsonrpc.Refusal):
            replies.add(jsonrpc.error(message.id, message.error, message.number))
        elif isinstance(message, jsonrpc.Response):
            self._client_tools.answer(message)
        else:
            # A notification gets no reply, whatever comes of it.
            replies = replies if isinstance(message, jsonrpc.Request) else _Replies(_keep_to_oneself)
            method = self.dialect.methods.get(message.method)
            if method is not None:
                self._start(method, message, replies)
            else:
                replies.add(jsonrpc.unknown_method(_id_of(message), message.method))

    def hang_up(self) -> None:
        """Take note that the client says nothing more: the calls of its tools end with an error."""
        self._client_tools.close()

    async def settle(self) -> None:
        """Return once no request runs."""
        while self._running:
            await self._ended.park()

    async def stream(self, session_id: str | None, run: Callable[[OnEvent], Awaitable[TurnResult]]) -> TurnResult:
        """See Caller."""
        return await self.feeds.stream(session_id, run)

    async def subscribe(self, session_id: str, after_seq: int | None) -> None:
        """See Caller."""
        await self.feeds.subscribe(session_id, after_seq)

    def unsubscribe(self, session_id: str) -> bool:
        """See Caller."""
        return self.feeds.unsubscribe(session_id)

    def tools(self) -> Sequence[Tool]:
        """See Caller."""
        return self._client_tools.offered()

    def register(self, tools: Sequence[ToolSpec]) -> None:
        """See Caller."""
        self._client_tools.register(tools)

    def _start(
        self, method: Method[Any, Any], message: jsonrpc.Request | jsonrpc.Notification, replies: "_Replies"
    ) -> None:
        try:
            params = method.decode(message.params)
            self._check_room(method)
        except WarrenError as exc:
            replies.add(jsonrpc.error(_id_of(message), exc))
        else:
            self._running += 1
            self.tasks.start_soon(self._run, method, params, _id_of(message), replies, name=method.name)

    def _check_room(self, method: Method[Any, Any]) -> None:
        if self._running >= self.max_in_flight * (RESERVE if method.urgent else 1):
            raise CapacityExceededError(
                f"{self._running} requests of this connection are not answered yet: that is its limit",
                cause="max_in_flight",
            )

    async def _run(self, method: Method[Any, Any], params: object, request_id: jsonrpc.Id, replies: "_Replies") -> None:
        try:
            if method.bulky:
                async with self._bulky:
                    await self.room()
                    replies.add(await self._answer(method, params, request_id, replies))
            else:
                replies.add(await self._answer(method, params, request_id, replies))
        except BaseException:  # cancelled
            replies.add(jsonrpc.error(request_id, given_up()))
            raise
        finally:
            self._running -= 1
            self._ended.unpark_all()

    async def _answer(
        self, method: Method[Any, Any], params: object, request_id: jsonrpc.Id, replies: "_Replies"
    ) -> bytes:
        try:
            return await self._try(method, params, request_id, replies)
        except WarrenError as exc:
            return jsonrpc.error(request_id, exc)
        except Exception:
            logger.exception("%s failed", method.name)
            return jsonrpc.internal_error(request_id)

    async def _try(
        self, method: Method[Any, Any], params: object, request_id: jsonrpc.Id, replies: "_Replies"
    ) -> bytes:
        if method.bulky and replies.full:
            raise CapacityExceededError("the replies to this batch are too large: ask for less", cause="batch")
        result = await method.handler(self.host, self, params)
        if method.bulky and is_large(result):
            return await trio.to_thread.run_sync(jsonrpc.large_result, request_id, result)
        return jsonrpc.result(request_id, result)


@attrs.define(eq=False)
class _Replies:
    """Where the replies to a message go.

    Attributes:
        send: takes what is to be sent.
    """

    send: Callable[[bytes], None]

    @property
    def full(self) -> bool:
        """Whether they have as many bytes as they may."""
        return False

    def add(self, frame: bytes) -> None:
        """Take a reply."""
        self.send(frame)


@attrs.define(eq=False)
class _Batch(_Replies):
    """Collects the replies to a batch; they leave as one once the last of them is there.

    Attributes:
        missing: replies that are still to come.
    """

    missing: int
    _frames: list[bytes] = attrs.field(factory=list, init=False)

    @property
    def full(self) -> bool:
        """See _Replies."""
        return sum(map(len, self._frames)) >= MAX_BYTES

    def add(self, frame: bytes) -> None:
        """See _Replies."""
        self._frames.append(frame)
        self.missing -= 1
        if not self.missing:
            self.send(jsonrpc.batch(self._frames))


def _keep_to_oneself(_frame: bytes) -> None:
    pass


def _id_of(message: jsonrpc.Request | jsonrpc.Notification) -> jsonrpc.Id:
    return message.id if isinstance(message, jsonrpc.Request) else None
