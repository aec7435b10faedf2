"""One JSON-RPC client, whatever carries its messages: requests run side by side, replies follow their events."""

import logging
from typing import Any, Final

import attrs
import trio

from warren.errors import CapacityExceededError, WarrenError
from warren.transport import jsonrpc
from warren.transport.methods import METHODS, Caller, Host, Method
from warren.transport.outbox import Outbox

RESERVE: Final = 2

logger: Final = logging.getLogger(__name__)


@attrs.define(eq=False)
class Peer:
    """Answers one client's messages into its outbox.

    Attributes:
        host: what the methods act on.
        caller: where the client's events go.
        outbox: takes the replies. Put no more messages in while as many replies wait as may run.
        tasks: where the requests run; cancelling it gives them up, not the turns they started.
        max_in_flight: requests that may run at once; `urgent` methods are let through up to twice as many.
    """

    host: Host
    caller: Caller
    outbox: Outbox
    tasks: trio.Nursery
    max_in_flight: int
    _running: int = attrs.field(default=0, init=False)

    def receive(self, raw: str | bytes) -> None:
        """Take one message. Never waits and never raises: whatever is wrong with it is answered."""
        message = jsonrpc.read(raw)
        if isinstance(message, jsonrpc.Refusal):
            self.outbox.reply(jsonrpc.error(message.id, message.error, message.number))
        elif (method := METHODS.get(message.method)) is not None:
            self._start(method, message)
        else:
            self._reply(message, jsonrpc.unknown_method(_id_of(message), message.method))

    def _start(self, method: Method[Any], message: jsonrpc.Request | jsonrpc.Notification) -> None:
        try:
            params = method.decode(message.params)
            self._check_room(method)
        except WarrenError as exc:
            self._reply(message, jsonrpc.error(_id_of(message), exc))
        else:
            self._running += 1
            self.tasks.start_soon(self._run, method, params, message, name=method.name)

    def _check_room(self, method: Method[Any]) -> None:
        if self._running >= self.max_in_flight * (RESERVE if method.urgent else 1):
            raise CapacityExceededError(
                f"{self._running} requests of this connection are not answered yet: that is its limit",
                cause="max_in_flight",
            )

    async def _run(self, method: Method[Any], params: object, message: jsonrpc.Request | jsonrpc.Notification) -> None:
        try:
            frame = await self._answer(method, params, _id_of(message))
            self._reply(message, frame)
        finally:
            self._running -= 1

    async def _answer(self, method: Method[Any], params: object, request_id: jsonrpc.Id) -> bytes:
        try:
            return await self._try(method, params, request_id)
        except Exception:
            logger.exception("%s failed", method.name)
            return jsonrpc.internal_error(request_id)

    async def _try(self, method: Method[Any], params: object, request_id: jsonrpc.Id) -> bytes:
        try:
            return jsonrpc.result(request_id, await method.call(self.host, self.caller, params))
        except WarrenError as exc:
            return jsonrpc.error(request_id, exc)

    def _reply(self, message: jsonrpc.Request | jsonrpc.Notification, frame: bytes) -> None:
        if isinstance(message, jsonrpc.Request):
            self.outbox.reply(frame)


def _id_of(message: jsonrpc.Request | jsonrpc.Notification) -> jsonrpc.Id:
    return message.id if isinstance(message, jsonrpc.Request) else None
