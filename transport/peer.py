"""One JSON-RPC client, whatever carries its messages: requests run side by side, replies follow their events."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import attrs
import trio

from warren.errors import CapacityExceededError, WarrenError
from warren.service import OnEvent
from warren.tools import Tool, ToolSpec
from warren.transport import jsonrpc
from warren.transport.client_tools import ClientTools
from warren.transport.dialect import Dialect
from warren.transport.feeds import Feeds
from warren.transport.methods import Caller, Host, Method, given_up
from warren.transport.outbox import Outbox
from warren.views import TurnResult

Reply = Callable[[bytes], None]
RESERVE: Final = 2

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
    """

    host: Host
    dialect: Dialect
    feeds: Feeds
    outbox: Outbox
    tasks: trio.Nursery
    max_in_flight: int
    _client_tools: ClientTools = attrs.field(init=False)
    _running: int = attrs.field(default=0, init=False)
    _ended: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def __attrs_post_init__(self) -> None:
        self._client_tools = ClientTools(self.outbox.reply)

    def receive(self, raw: str | bytes) -> None:
        """Take one message, or a batch. Never waits and never raises: whatever is wrong with it is answered."""
        said = jsonrpc.read_batch(raw, self.max_in_flight)
        if isinstance(said, list):
            batch = _Batch(sum(isinstance(each, jsonrpc.Request | jsonrpc.Refusal) for each in said), self.outbox.reply)
            for each in said:
                self._take(each, batch.reply)
        else:
            self._take(said, self.outbox.reply)

    def _take(self, message: jsonrpc.Said, reply: Reply) -> None:
        if isinstance(message, jsonrpc.Refusal):
            reply(jsonrpc.error(message.id, message.error, message.number))
        elif isinstance(message, jsonrpc.Response):
            self._client_tools.answer(message)
        else:
            # A notification gets no reply, whatever comes of it.
            respond = reply if isinstance(message, jsonrpc.Request) else _keep_to_oneself
            method = self.dialect.methods.get(message.method)
            if method is not None:
                self._start(method, message, respond)
            else:
                respond(jsonrpc.unknown_method(_id_of(message), message.method))

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

    def _start(self, method: Method[Any, Any], message: jsonrpc.Request | jsonrpc.Notification, reply: Reply) -> None:
        try:
            params = method.decode(message.params)
            self._check_room(method)
        except WarrenError as exc:
            reply(jsonrpc.error(_id_of(message), exc))
        else:
            self._running += 1
            self.tasks.start_soon(self._run, method, params, _id_of(message), reply, name=method.name)

    def _check_room(self, method: Method[Any, Any]) -> None:
        if self._running >= self.max_in_flight * (RESERVE if method.urgent else 1):
            raise CapacityExceededError(
                f"{self._running} requests of this connection are not answered yet: that is its limit",
                cause="max_in_flight",
            )

    async def _run(self, method: Method[Any, Any], params: object, request_id: jsonrpc.Id, reply: Reply) -> None:
        try:
            reply(await self._answer(method, params, request_id))
        except BaseException:  # cancelled
            reply(jsonrpc.error(request_id, given_up()))
            raise
        finally:
            self._running -= 1
            self._ended.unpark_all()

    async def _answer(self, method: Method[Any, Any], params: object, request_id: jsonrpc.Id) -> bytes:
        try:
            return await self._try(method, params, request_id)
        except Exception:
            logger.exception("%s failed", method.name)
            return jsonrpc.internal_error(request_id)

    async def _try(self, method: Method[Any, Any], params: object, request_id: jsonrpc.Id) -> bytes:
        try:
            return jsonrpc.result(request_id, await method.call(self.host, self, params))
        except WarrenError as exc:
            return jsonrpc.error(request_id, exc)


@attrs.define(eq=False)
class _Batch:
    """Collects the replies to a batch; they leave as one once the last of them is there.

    Attributes:
        missing: replies that are still to come.
        send: takes the reply.
    """

    missing: int
    send: Reply
    _replies: list[bytes] = attrs.field(factory=list, init=False)

    def reply(self, frame: bytes) -> None:
        """Add a reply."""
        self._replies.append(frame)
        self.missing -= 1
        if not self.missing:
            self.send(jsonrpc.batch(self._replies))


def _keep_to_oneself(_frame: bytes) -> None:
    pass


def _id_of(message: jsonrpc.Request | jsonrpc.Notification) -> jsonrpc.Id:
    return message.id if isinstance(message, jsonrpc.Request) else None
