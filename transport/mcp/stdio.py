"""The MCP server over the standard streams: one client, one message a line.

The official library handles the methods. Warren's endpoint carries the messages, with the bounds and the shutdown that
all surfaces share. A request is passed to the library, and the message that the library sends under its id answers it.
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

from warren.base.errors import CapacityExceededError, InvalidParamsError
from warren.base.values import define
from warren.calls.facade import RuntimeService
from warren.transport.mcp.client import McpClient
from warren.transport.mcp.mcp_server import Tools, server_of
from warren.transport.mcp.refusal import bad_id
from warren.transport.mcp.resources import Resources
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.endpoint import GRACE, Dispatcher, Endpoint, EndpointBounds, Work
from warren.transport.rpc.lines import LineChannel

MAX_LINE: Final = 16 * 1024 * 1024
LINGER: Final = 1.5
"""Seconds that requests may go on after the end of the input; clients wait two before they kill the server."""
MAX_BYTES: Final = 4 * 1024 * 1024
"""Bytes that may wait for the client. Beyond it no large result is made and no request is read."""
MAX_IN_FLIGHT: Final = 1024
"""Requests that may be unanswered, and answers that may wait to be read. Calls have a lower bound of their own."""
BACKLOG: Final = 2 * MAX_IN_FLIGHT
"""Messages that may wait for the library, which takes them at once unless the client reads too slowly."""
CANCELLED: Final = "notifications/cancelled"

logger: Final = logging.getLogger(__name__)


async def serve_mcp(
    service: RuntimeService,
    streams: tuple[trio.abc.ReceiveStream, trio.abc.SendStream],
    stop: trio.CancelScope | None = None,
    *,
    end_turns: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
) -> None:
    """Serve the client at the other end of two streams until its input ends, or `stop` is cancelled.

    After the end of the input, requests may run on for `LINGER` seconds; when `stop` is cancelled, they are abandoned
    at once. In both cases they are answered, and the turns that they started go on. A bad line is answered with an
    error, and the next line is read.

    Args:
        service: the runtime.
        streams: the input and the output.
        stop: cancel it to end; None makes one.
        end_turns: awaited if requests still run `LINGER` seconds after the end of the input. A host that ends its
            runtime then passes `RuntimeService.stop`.
    """

    async def end() -> None:
        await end_turns()
        with trio.move_on_after(GRACE):
            await endpoint.wait_idle()

    bounds = EndpointBounds(MAX_IN_FLIGHT, outbox_bytes=MAX_BYTES, linger=LINGER)
    endpoint = Endpoint(LineChannel(*streams, MAX_LINE), bounds, stop, end_turns=end)
    tools = Tools(service, room=endpoint.room)
    to_server, requests = anyio.create_memory_object_stream[SessionMessage | Exception](BACKLOG)
    to_client, answers = anyio.create_memory_object_stream[SessionMessage](0)
    dispatcher = _LibraryDispatcher(endpoint, tools, to_server)

    def open_dispatcher(tasks: trio.Nursery) -> Dispatcher:
        server = server_of(tools, Resources(service, tasks), McpClient())
        tasks.start_soon(partial(server.run, requests, to_client, server.create_initialization_options()))
        tasks.start_soon(dispatcher.listen, answers)
        return dispatcher

    try:
        await endpoint.run(open_dispatcher)
    finally:
        for stream in (to_server, requests, to_client, answers):
            stream.close()


@define(eq=False)
class _LibraryDispatcher(Dispatcher):
    """The library's server behind an endpoint.

    Attributes:
        endpoint: the connection.
        tools: the tools, which are closed when the endpoint stops.
        to_server: the stream of messages for the library.
    """

    endpoint: Endpoint
    tools: Tools
    to_server: MemoryObjectSendStream[SessionMessage | Exception]
    _waiting: dict[types.RequestId, trio.MemorySendChannel[bytes]] = attrs.field(factory=dict, init=False)

    def begin(self, method: str, params: Any, request_id: jsonrpc.Id) -> Work | bytes | None:
        if request_id is None:
            self._note(method, params)
            return None
        if not isinstance(request_id, str | int):
            return bad_id()
        if not isinstance(params, dict):
            raise InvalidParamsError.at("$.params", "must be an object")
        # The library treats "7" and 7 as one id. Of two requests with one id it would forget the first.
        key = coerce_request_id(request_id)
        if key in self._waiting:
            problem = InvalidParamsError.at("$.id", "a request with this id is not answered yet")
            return jsonrpc.error(request_id, problem, jsonrpc.INVALID_REQUEST)
        self.endpoint.check_room()
        self._hand_over(types.JSONRPCRequest(jsonrpc="2.0", id=request_id, method=method, params=params))
        self._waiting[key], answer = trio.open_memory_channel[bytes](1)
        return Work(partial(_received, answer))

    def abandon(self) -> None:
        self.tools.close()

    async def listen(self, answers: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Send the messages of the library; an answer goes to the request that waits for it."""
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
        """Pass a notification to the library; drop a malformed one. A request that it cancels gets no answer."""
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
                "too many messages are not handled yet: read the answers first", cause="max_in_flight"
            ) from None


async def _received(answer: trio.MemoryReceiveChannel[bytes]) -> bytes | None:
    """Return the answer of the library; None for a request that its client has cancelled."""
    try:
        return await answer.receive()
    except trio.EndOfChannel:
        return None


def _frame(message: types.JSONRPCMessage) -> bytes:
    """Return a message as JSON; if JSON cannot hold it, return an internal error, so that the client gets an answer."""
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode()
    except ValueError:
        logger.exception("a message of the MCP library cannot be encoded")
        return jsonrpc.internal_error(message.id if isinstance(message, types.JSONRPCResponse) else None)
