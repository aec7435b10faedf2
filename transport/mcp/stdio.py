"""The MCP server over the standard streams: one client, one message a line.

The official library knows the methods; our endpoint carries the messages, with the bounds and the end of every other
surface. A request is handed to the library and answered by what the library sends under its id.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import anyio
import attrs
import mcp_types as types
import trio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.dispatcher import as_request_id, coerce_request_id
from mcp.shared.message import SessionMessage

from warren.errors import CapacityExceededError, InvalidParamsError
from warren.service import SessionService
from warren.transport.mcp.resources import Resources
from warren.transport.mcp.server import Tools, server_of
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.endpoint import GRACE, Bounds, Endpoint, Side, Work
from warren.transport.rpc.lines import LineChannel

MAX_LINE: Final = 16 * 1024 * 1024
LINGER: Final = 1.5
"""Seconds that requests may go on after the end of the input; clients wait two before they kill."""
MAX_BYTES: Final = 4 * 1024 * 1024
"""Bytes that may wait for the client before no page is made, which may be large, and no request read."""
MAX_IN_FLIGHT: Final = 1024
"""Requests that may be unanswered, and answers that may wait to be read. Calls have a lower bound of their own."""
BACKLOG: Final = 2 * MAX_IN_FLIGHT
"""Messages that may wait for the library, which takes them at once unless it waits for the client to read."""
CANCELLED: Final = "notifications/cancelled"

logger: Final = logging.getLogger(__name__)


async def serve_mcp(
    service: SessionService,
    streams: tuple[trio.abc.ReceiveStream, trio.abc.SendStream],
    stop: trio.CancelScope | None = None,
    *,
    end_turns: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
) -> None:
    """Serve the client at the other end of two streams until it has no more to say, or `stop` is cancelled.

    At the end of the input, requests that run are given a moment, and `end_turns` is awaited if some still run then; at
    `stop` they are given up at once. Either way they are answered, and the turns they started go on: they are the
    service's, and a host that is about to end it passes `SessionService.stop`. Whatever a line has in it, the lines
    after it are answered.
    """

    async def end() -> None:
        await end_turns()
        with trio.move_on_after(GRACE):
            await endpoint.settle()

    bounds = Bounds(MAX_IN_FLIGHT, outbox_bytes=MAX_BYTES, linger=LINGER)
    endpoint = Endpoint(LineChannel(*streams, MAX_LINE), bounds, stop, end_turns=end)
    tools = Tools(service, room=endpoint.room)
    to_server, requests = anyio.create_memory_object_stream[SessionMessage | Exception](BACKLOG)
    to_client, answers = anyio.create_memory_object_stream[SessionMessage](0)
    side = _LibrarySide(endpoint, tools, to_server)

    def open_side(tasks: trio.Nursery) -> Side:
        server = server_of(tools, Resources(service, tasks))
        tasks.start_soon(partial(server.run, requests, to_client, server.create_initialization_options()))
        tasks.start_soon(side.listen, answers)
        return side

    try:
        await endpoint.run(open_side)
    finally:
        for stream in (to_server, requests, to_client, answers):
            stream.close()


@attrs.define(eq=False)
class _LibrarySide(Side):
    """The library's server behind an endpoint.

    Attributes:
        endpoint: the connection.
        tools: told when no more of their results are waited for.
        to_server: takes the messages for the library.
    """

    endpoint: Endpoint
    tools: Tools
    to_server: MemoryObjectSendStream[SessionMessage | Exception]
    _waiting: dict[types.RequestId, trio.MemorySendChannel[bytes]] = attrs.field(factory=dict, init=False)

    def begin(self, method: str, params: Any, request_id: jsonrpc.Id) -> Work | bytes | None:
        """See Side."""
        if request_id is None:
            self._note(method, params)
            return None
        if not isinstance(request_id, str | int):
            problem = InvalidParamsError("$.id: must be a string or an integer", path="$.id")
            return jsonrpc.error(None, problem, jsonrpc.INVALID_REQUEST)
        if not isinstance(params, dict):
            raise InvalidParamsError("$.params: must be an object", path="$.params")
        # The library takes "7" and 7 for one id. It would forget the first of two requests that have the same.
        key = coerce_request_id(request_id)
        if key in self._waiting:
            problem = InvalidParamsError("$.id: a request with this id is not answered yet", path="$.id")
            return jsonrpc.error(request_id, problem, jsonrpc.INVALID_REQUEST)
        self.endpoint.check_room()
        self._hand_over(types.JSONRPCRequest(jsonrpc="2.0", id=request_id, method=method, params=params))
        self._waiting[key], answer = trio.open_memory_channel[bytes](1)
        return Work(partial(_received, answer))

    def give_up(self) -> None:
        """See Side."""
        self.tools.close()

    async def listen(self, answers: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Send what the library has to say; its answers end the requests that wait for them."""
        async with answers:
            async for item in answers:
                frame = _frame(item.message)
                match item.message:
                    case types.JSONRPCResponse(id=name) | types.JSONRPCError(id=str() | int() as name):
                        waiting = self._waiting.pop(coerce_request_id(name), None)
                        if waiting is not None:
                            waiting.send_nowait(frame)
                    case _:
                        await self.endpoint.tell(frame)

    def _note(self, method: str, params: object) -> None:
        """Hand a notification over; one without sense is dropped. A request that it cancels gets no answer."""
        if not isinstance(params, dict):
            return
        self._hand_over(types.JSONRPCNotification(jsonrpc="2.0", method=method, params=params))
        name = as_request_id(params.get("requestId")) if method == CANCELLED else None
        waiting = None if name is None else self._waiting.pop(coerce_request_id(name), None)
        if waiting is not None:
            waiting.close()

    def _hand_over(self, message: types.JSONRPCMessage) -> None:
        try:
            self.to_server.send_nowait(SessionMessage(message))
        except anyio.WouldBlock:
            raise CapacityExceededError(
                "too many messages wait: read the answers first", cause="max_in_flight"
            ) from None


async def _received(answer: trio.MemoryReceiveChannel[bytes]) -> bytes | None:
    """Return the answer of the library; None for a request that its client has cancelled."""
    try:
        return await answer.receive()
    except trio.EndOfChannel:
        return None


def _frame(message: types.JSONRPCMessage) -> bytes:
    """Return a message as it goes out; one that JSON cannot hold becomes an error, and the client is not left alone."""
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode()
    except ValueError:
        logger.exception("a message cannot be sent")
        return jsonrpc.internal_error(message.id if isinstance(message, types.JSONRPCResponse) else None)
