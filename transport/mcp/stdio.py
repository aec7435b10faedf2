"""The MCP server over the standard streams: one client, one message a line."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import anyio
import attrs
import mcp_types as types
import trio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from warren.actors.tools.lines import LineReader, LineTooLongError
from warren.errors import AgentError, InvalidParamsError, WarrenError
from warren.service import SessionService
from warren.transport.mcp.resources import Resources
from warren.transport.mcp.server import Tools, server_of
from warren.transport.rpc import jsonrpc

MAX_LINE: Final = 16 * 1024 * 1024
LINGER: Final = 1.5
"""Seconds that requests may go on after the end of the input; clients wait two before they kill."""
FAREWELL: Final = 0.5
"""Seconds that requests have to say that they are given up."""
CLOSE_TIMEOUT: Final = 2.0
"""Seconds that the last answers may take to leave."""
MAX_LARGE: Final = 4
"""Answers that may wait before a page is made, which may be large."""
MAX_ANSWERS: Final = 1024
"""Answers that may wait for the client to read; until it does, no more of its requests are read."""
GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)

ToServer = MemoryObjectSendStream[SessionMessage | Exception]
ToClient = MemoryObjectSendStream[SessionMessage]

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
    to_server, requests = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_client, answers = anyio.create_memory_object_stream[SessionMessage](0)
    backlog = _Backlog(to_client)
    tools = Tools(service, room=partial(backlog.below, MAX_LARGE))
    client = _Client(
        LineReader(streams[0], MAX_LINE), streams[1], tools, backlog, stop or trio.CancelScope(), end_turns
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.write, answers)
        nursery.start_soon(client.read, to_server, to_client.clone())
        server = server_of(tools, Resources(service, nursery))
        await server.run(requests, to_client, server.create_initialization_options())
        nursery.cancel_scope.deadline = trio.current_time() + CLOSE_TIMEOUT


@attrs.define(eq=False)
class _Backlog:
    """What waits for the client to read."""

    _to_client: ToClient
    _sent: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    async def below(self, most: int) -> None:
        """Return once less than so many messages wait."""
        while self._to_client.statistics().tasks_waiting_send >= most:
            await self._sent.park()

    def moved(self) -> None:
        """Take note that a message has left."""
        self._sent.unpark_all()


@attrs.define(eq=False)
class _Client:
    """The client as its lines.

    Attributes:
        lines: what it writes.
        sink: what it reads.
        tools: told when no more comes.
        backlog: told when a message has left.
        reading: cancelled where no more is to be read.
        end_turns: awaited where requests run on too long after the end of the input.
    """

    lines: LineReader
    sink: trio.abc.SendStream
    tools: Tools
    backlog: _Backlog
    reading: trio.CancelScope
    end_turns: Callable[[], Awaitable[None]]
    _unanswered: set[types.RequestId] = attrs.field(factory=set, init=False)
    _answered: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def read(self, to_server: ToServer, to_client: ToClient) -> None:
        """Hand the client's messages over; what is none is answered here."""
        async with to_server, to_client:
            with self.reading:
                while (message := await self._next()) is not None:
                    if isinstance(message, types.JSONRPCError):
                        await to_client.send(SessionMessage(message))
                    else:
                        self._note(message)
                        await to_server.send(SessionMessage(message))
                await self._settled(LINGER)
                if self._unanswered:
                    await self.end_turns()
                    await self._settled(FAREWELL)
            self.tools.close()
            await self._settled(FAREWELL)

    async def write(self, answers: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Send what the server has to say; once the client is gone, drop it and read no more."""
        gone = False
        async with answers:
            async for item in answers:
                try:
                    if not gone:
                        await self.sink.send_all(_line(item.message))
                except GONE:
                    gone = True
                    self.reading.cancel()
                self._note(item.message)
                self.backlog.moved()

    async def _next(self) -> types.JSONRPCMessage | None:
        """Return the next message, or the error that answers a line which is none; None at the end."""
        while True:
            await self.backlog.below(MAX_ANSWERS)
            try:
                line = await self.lines.next()
            except LineTooLongError as exc:
                return _error(None, jsonrpc.INVALID_REQUEST, InvalidParamsError(f"$: {exc}", path="$"))
            if line is None:
                return None
            if line.strip() and (message := message_of(line)) is not None:
                return message

    def _note(self, message: types.JSONRPCMessage) -> None:
        """Keep account of what is not answered yet, by the messages of both sides."""
        match message:
            case types.JSONRPCRequest(id=name):
                self._unanswered.add(name)
            case types.JSONRPCNotification(
                method="notifications/cancelled", params={"requestId": str() | int() as name}
            ):
                self._unanswered.discard(name)
            case types.JSONRPCResponse(id=name) | types.JSONRPCError(id=str() | int() as name):
                self._unanswered.discard(name)
                self._answered.set()

    async def _settled(self, seconds: float) -> None:
        """Return once every request is answered, or the time is over."""
        with trio.move_on_after(seconds):
            while self._unanswered:
                await self._answered.wait()
                self._answered = trio.Event()


def message_of(line: bytes) -> types.JSONRPCMessage | None:
    """Return the message of a line for the server; an error for the client where it is none. Never raises.

    None stands for what is neither handed over nor answered: a notification without sense, an answer to a question that
    was never asked.
    """
    match jsonrpc.read(line):
        case jsonrpc.Refusal(id=request_id, number=number, error=error):
            return _error(_id_of(request_id), number, error)
        case jsonrpc.Request(id=request_id, method=method, params=params):
            return _request(request_id, method, params)
        case jsonrpc.Notification(method=method, params=dict() as params):
            return types.JSONRPCNotification(jsonrpc="2.0", method=method, params=params)
    return None


def _request(request_id: jsonrpc.Id, method: str, params: object) -> types.JSONRPCRequest | types.JSONRPCError:
    known = _id_of(request_id)
    if known is None:
        problem = InvalidParamsError("$.id: must be a string or an integer", path="$.id")
        return _error(None, jsonrpc.INVALID_REQUEST, problem)
    if not isinstance(params, dict):
        problem = InvalidParamsError("$.params: must be an object", path="$.params")
        return _error(known, problem.numbers.jsonrpc, problem)
    return types.JSONRPCRequest(jsonrpc="2.0", id=known, method=method, params=params)


def _id_of(request_id: jsonrpc.Id) -> types.RequestId | None:
    return request_id if isinstance(request_id, str | int) else None


def _error(request_id: types.RequestId | None, number: int, exc: WarrenError) -> types.JSONRPCError:
    data = types.ErrorData(code=number, message=exc.message, data=jsonrpc.body(exc, number))
    return types.JSONRPCError(jsonrpc="2.0", id=request_id, error=data)


def _line(message: types.JSONRPCMessage) -> bytes:
    """Return a message as it goes out; one that JSON cannot hold becomes an error, and the client is not left alone."""
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
    except ValueError:
        logger.exception("a message cannot be sent")
        request_id = message.id if isinstance(message, types.JSONRPCResponse) else None
        failed = _error(request_id, jsonrpc.INTERNAL_ERROR, AgentError("internal error", cause="internal"))
        return failed.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
