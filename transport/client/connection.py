"""One WebSocket to a gateway: requests, each answered under its id, and the events of sessions."""

import itertools
import logging
import math
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

import anyio
import attrs
import httpx
from anyio.abc import TaskGroup, TaskStatus
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from wsproto.events import CloseConnection, Event, Ping, TextMessage

from warren.base.errors import InvalidParamsError, WarrenError, of_body
from warren.base.values import define, frozen
from warren.conversation import codec
from warren.conversation.attachments import File
from warren.conversation.events import Envelope
from warren.conversation.views import SessionChanges
from warren.transport.access.addresses import UNIX
from warren.transport.client.socket import FAILURES, ClosedError, Socket, UpgradeRefusedError, open_socket
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.behalf import MEMBER
from warren.transport.rpc.client_tools import EXECUTE
from warren.transport.rpc.dialect import CHANGED, EVENT, UNSUBSCRIBED
from warren.transport.rpc.params import PutFile
from warren.transport.rpc.results import FileReceived, Greeting
from warren.transport.rpc.traces import with_meta

CONNECT_TIMEOUT: Final = 10.0
"""Seconds until a connection that does not open, or a server that does not answer its request, has failed."""
NO_ANSWER: Final = f"no answer in {CONNECT_TIMEOUT:g} s"
PING_INTERVAL: Final = 20.0

OTHER_VERSION: Final = 409
"""The status of a node for one of another release that does not understand it."""
BUSY: Final = (OTHER_VERSION, 429, 502, 503, 504)
"""The statuses of a gateway, or of a proxy before one, that may open the connection later."""
REASONS: Final = {
    401: "the token is missing or wrong, or it has expired or was revoked",
    403: "it does not let this client in",
    **dict.fromkeys(BUSY, "it is busy or away"),
    426: "a proxy in front of it has to pass the header Upgrade on",
    OTHER_VERSION: "its release and this one speak no version of the links between nodes in common",
}

TOO_BIG: Final = 1009
"""The close code for a message that has more bytes than the server takes."""
UNASKED: Final = 4_096
"""Bytes that a message may have if the server has not told its bound."""
FILES: Final = "attachments"
MOST_PIECE: Final = 384 * 1024
"""Bytes of a file in one message."""
BESIDES: Final = 2_048
"""Bytes of such a message besides those of the file."""
logger: Final = logging.getLogger(__name__)


class LostError(Exception):
    """The connection was lost before a request was answered.

    Attributes:
        sent: whether the server may have got the request.
    """

    def __init__(self, *, sent: bool) -> None:
        super().__init__("the connection was lost")
        self.sent = sent


class RefusedError(Exception):
    """The connection could not be opened.

    Attributes:
        retryable: whether it may be later.
        status: the HTTP status that the server answered with; None if it gave no answer.
    """

    def __init__(self, message: str, *, retryable: bool, status: int | None = None) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.status = status


class Feed(Protocol):
    """The receiver of one session's events. Its methods must neither block nor raise."""

    @property
    def takes_all(self) -> bool:
        """Whether it takes the events of every turn of the session that runs on its connection.

        If not, a turn whose events nobody wants has to run on another connection.
        """

    def event(self, envelope: Envelope) -> None:
        """Take the next event."""

    def ended(self) -> None:
        """Handle the end of the session's log: there are no more events."""

    def lost(self) -> None:
        """Handle the end of the connection: later events do not come this way."""


OnChanges = Callable[[SessionChanges | None], None]
"""Takes changes of the list of sessions; None if the connection is lost. It must neither block nor raise."""
RunTool = Callable[[Any], Awaitable[Mapping[str, Any]]]
"""Runs a tool for the server: from the parameters of its request to the result."""


@define(eq=False)
class _Request:
    """A request of a size in bytes. `response` stays None if the connection is lost before it comes."""

    size: int
    answered: Callable[[], None]
    sent: bool = False
    response: jsonrpc.Response | None = None
    done: anyio.Event = attrs.field(factory=anyio.Event)


_Frame = tuple[Event, _Request | None]
"""A message or a control frame to send; with its request, if it is one."""


@frozen
class Dial:
    """The address of a gateway, and the client that opens connections to it.

    Attributes:
        http: opens the connections; any number of services may share it, see `open_http`.
        url: the address of the WebSocket.
        headers: the headers of its request.
        stray: gets the parameters of each event of a session that nobody follows on its connection.
        ping_interval: seconds of silence after which the server is asked for a sign of life, and within which it has
            to give one.
        socket: the path of the Unix socket that `http` connects to; None if it is none.
    """

    http: httpx.AsyncClient
    url: str
    headers: Mapping[str, str]
    stray: Callable[[Mapping[str, Any]], None] = lambda _params: None
    ping_interval: float = PING_INTERVAL
    socket: str | None = None

    @property
    def place(self) -> str:
        """The address for people."""
        return self.url if self.socket is None else f"{UNIX}{self.socket}"

    def open(self) -> AbstractAsyncContextManager[Socket]:
        """Open a connection for a body. Raises FAILURES."""
        return open_socket(self.http, self.url, self.headers)


@define(eq=False)
class Connection:
    """An open connection.

    It has at most one feed for each session: the server sends each event once a connection, so two readers at different
    places of one session need two connections.

    Attributes:
        feeds: the feed of each session.
        starting: the feed of a session that is being created; its first event tells its id.
        unheard: the turns of each session that run without a feed: nobody wants their events.
        on_changes: gets the changes of the list of sessions that this connection watches, and None if it is lost.
        lost: whether the connection has ended.
        run_tool: runs the tools that this client has registered.
        most: bytes that a message may have, as the server has said; None if it has not been asked, or has no bound.
    """

    run_tool: RunTool | None = None
    on_changes: OnChanges | None = None
    feeds: dict[str, Feed] = attrs.field(factory=dict)
    starting: Feed | None = None
    unheard: Counter[str] = attrs.field(factory=Counter)
    lost: bool = False
    most: int | None = None
    _requests: dict[jsonrpc.Id, _Request] = attrs.field(factory=dict)
    _numbers: "itertools.count[int]" = attrs.field(factory=lambda: itertools.count(1))
    _sending: int = 0  # requests whose files are on the way
    _closing: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)
    _socket: Socket | None = None
    _stray: Callable[[Mapping[str, Any]], None] = lambda _params: None
    _frames: "tuple[MemoryObjectSendStream[_Frame], MemoryObjectReceiveStream[_Frame]]" = attrs.field(
        factory=lambda: anyio.create_memory_object_stream[_Frame](math.inf)
    )

    @property
    def in_flight(self) -> int:
        """The number of requests that are not answered."""
        return len(self._requests)

    @property
    def idle(self) -> bool:
        """Whether nothing depends on the connection."""
        return not (self._requests or self.feeds or self.starting or self._sending)

    def may_run(self, session_id: str) -> bool:
        """Return whether a turn whose events nobody wants may run here: the server sends them here all the same."""
        feed = self.feeds.get(session_id)
        return feed is None or feed.takes_all

    def follow(self, session_id: str | None, feed: Feed) -> None:
        """Give a session's events to `feed` from now on; None for the session that the next request creates."""
        if session_id is None:
            self.starting = feed
        else:
            self.feeds[session_id] = feed

    async def ask(self, method: str, params: object, answered: Callable[[], None] = lambda: None) -> Any:
        """Send a request, and return its result as plain data.

        Cancelling it forgets the result; the server goes on with the request.

        Args:
            method: the method.
            params: the parameters, as plain data or a domain object.
            answered: called when the answer comes or the connection is lost, even if the call was cancelled.

        Raises:
            LostError: if the connection is lost before the answer.
            InvalidParamsError: if the server takes no message of that size.
            WarrenError: the error that the server answers with.
        """
        if self.lost:
            answered()
            raise LostError(sent=False)
        number = next(self._numbers)
        try:
            message = await self._message(number, method, params)
        except BaseException:
            answered()
            raise
        request = self._requests[number] = _Request(len(message), answered)
        self._send(message, request)
        await request.done.wait()
        response = request.response
        if response is None:
            raise LostError(sent=request.sent)
        if response.error is not None:
            raise _error_of(response.error)
        return response.result

    async def _message(self, number: int, method: str, params: Any) -> bytes:
        """Return a request as bytes; if it is too large, its files have been sent ahead of it. Raises as `ask`."""
        files: Sequence[File] = params.get(FILES, ()) if isinstance(params, dict) else ()
        size = sum(len(each.data) for each in files if each.data is not None)
        if size:
            await self._learn_bound()
        if self.most is None or size <= self.most:
            message = jsonrpc.request(number, method, with_meta(params))
            if len(message) > UNASKED:
                await self._learn_bound()
            if self.most is None or len(message) <= self.most:
                return message
        if size:
            message = jsonrpc.request(number, method, with_meta(await self._without_files(params, files)))
        if len(message) > self.most:
            raise _too_large(len(message), self.most)
        return message

    async def _learn_bound(self) -> None:
        """Ask for the bound of a message, which no greeting has told on a link between nodes: a longer one ends it."""
        if self.most is None:
            self.most = codec.from_server(Greeting, await self.ask("initialize", {})).max_message_bytes

    async def _without_files(self, params: Mapping[str, Any], files: Sequence[File]) -> Mapping[str, Any]:
        """Send the files of a request ahead of it, in pieces; return its parameters with their hashes.

        A connection that is lost meanwhile counts as lost before the request.
        """
        member = {MEMBER: params[MEMBER]} if MEMBER in params else {}
        self._sending += 1
        try:
            return {**params, FILES: [await self._put(each, member) for each in files]}
        except LostError:
            raise LostError(sent=False) from None
        finally:
            self._sending -= 1

    async def _put(self, file: File, member: Mapping[str, Any]) -> File:
        """Send a file ahead of the request that it goes with; return it by its hash."""
        if file.data is None or self.most is None:
            return file
        most = min(MOST_PIECE, max(1, self.most - BESIDES) * 3 // 4) or 1
        size, name = len(file.data), str(id(file))
        for start in range(0, size, most):
            part = PutFile(
                file.data[start : start + most],
                offset=start,
                size=size,
                upload_id=name,
                media_type=file.media_type,
                name=file.name,
            )
            answer = await self.ask("file/put", {**codec.to_data(part), **member})
        received = codec.from_server(FileReceived, answer)
        hashed = None if received.attachment is None else received.attachment.sha256
        return File(sha256=hashed, name=file.name)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._closing.cancel()

    async def cut(self) -> None:
        """Lose the connection without a word to the server, as if the network had failed."""
        if self._socket is not None:
            await self._socket.stream.aclose()

    async def run(self, dial: Dial, *, task_status: TaskStatus[None]) -> None:
        """Open the connection and serve it until it is lost or closed. Raises RefusedError if it does not open."""
        opened, failures = False, list[BaseException]()
        self._stray = dial.stray
        try:
            with self._closing:
                async with dial.open() as socket, anyio.create_task_group() as tasks:
                    opened, self._socket = True, socket
                    task_status.started()
                    tasks.start_soon(self._write, socket)
                    tasks.start_soon(self._watch, socket, dial.ping_interval)
                    await self._read(socket, tasks)
        except* FAILURES as group:
            failures += _leaves(group)
        finally:
            for each in failures:
                if isinstance(each, ClosedError) and each.code == TOO_BIG:
                    self._refuse_longest(each.reason or "")
            self._hang_up()
        if not opened:
            raise _refusal(dial.place, failures)
        if failures:
            logger.info("the connection to %s was lost: %s", dial.place, _reason(failures[0]))

    def _send(self, message: bytes, request: _Request | None = None) -> None:
        self._frames[0].send_nowait((TextMessage(message.decode()), request))

    async def _write(self, socket: Socket) -> None:
        """Send the messages that wait. It has a task of its own because a cancelled send would leave half a frame."""
        async for frame, request in self._frames[1]:
            if request is not None:
                request.sent = True
            await socket.write(frame)
            if isinstance(frame, CloseConnection):  # nothing comes after it, however long the server keeps the stream
                raise ClosedError(frame.code, frame.reason)

    async def _watch(self, socket: Socket, interval: float) -> None:
        """Ask a silent server for a sign of life, and end the connection if it gives none."""
        while True:
            socket.heard = False
            await anyio.sleep(interval)
            if not socket.heard:
                self._frames[0].send_nowait((Ping(), None))
                await anyio.sleep(interval)
                if not socket.heard:
                    raise OSError(f"the server was silent for {2 * interval:g} s")

    async def _read(self, socket: Socket, tasks: TaskGroup) -> None:
        while True:
            messages, answers = await socket.read()
            for answer in answers:
                self._frames[0].send_nowait((answer, None))
            for text in messages:
                self._take(jsonrpc.read(text), tasks)

    def _take(self, message: jsonrpc.Incoming, tasks: TaskGroup) -> None:
        if isinstance(message, jsonrpc.Response):
            self._answer(message)
        elif isinstance(message, jsonrpc.Notification):
            self._hear(message)
        elif isinstance(message, jsonrpc.Request):
            tasks.start_soon(self._serve, message)
        else:
            logger.warning("the server sent a message that cannot be read: %s", message.error)

    def _answer(self, response: jsonrpc.Response) -> None:
        request = self._requests.pop(response.id, None)
        if request is not None:
            request.response = response
            request.answered()
            request.done.set()

    def _refuse_longest(self, reason: str) -> None:
        """Fail the request that the server has closed the connection for: it must not be sent again on the next one."""
        sent = [each for each, request in self._requests.items() if request.sent]
        number = max(sent, key=lambda each: self._requests[each].size, default=None)
        error = InvalidParamsError.at("$", reason)
        self._answer(jsonrpc.Response(number, None, {"data": error.body()}))

    def _hear(self, message: jsonrpc.Notification) -> None:
        if message.method == CHANGED and self.on_changes is not None:
            self.on_changes(codec.from_server(SessionChanges, message.params))
        elif message.method == UNSUBSCRIBED:
            feed = self.feeds.get(message.params["session_id"])
            if feed is not None:
                feed.ended()
        elif message.method == EVENT:
            session_id = message.params["session_id"]
            feed = self.feeds.get(session_id)
            if feed is None:
                if self.unheard[session_id]:
                    return
                if self.starting is None:
                    self._stray(message.params)
                    return
                feed = self.feeds[session_id] = self.starting
                self.starting = None
            feed.event(codec.from_server(Envelope, message.params))

    async def _serve(self, message: jsonrpc.Request) -> None:
        """Run a tool that the server asks for."""
        if message.method != EXECUTE or self.run_tool is None:
            self._send(jsonrpc.unknown_method(message.id, message.method))
            return
        answer = jsonrpc.result(message.id, await self.run_tool(message.params))
        if self.most is not None and len(answer) > self.most:
            answer = jsonrpc.error(message.id, _too_large(len(answer), self.most))
        self._send(answer)

    def _hang_up(self) -> None:
        self.lost = True
        for stream in self._frames:
            stream.close()
        requests, feeds = list(self._requests.values()), [*self.feeds.values()]
        if self.starting is not None:
            feeds.append(self.starting)
        self._requests.clear()
        self.feeds.clear()
        self.starting = None
        for feed in feeds:
            feed.lost()
        if self.on_changes is not None:
            self.on_changes(None)
        for request in requests:
            request.answered()
            request.done.set()


def _too_large(size: int, most: int) -> InvalidParamsError:
    problem = f"the message would have {size} bytes, and the server takes {most} (max_message_bytes)"
    return InvalidParamsError.at("$", problem)


def _error_of(error: Any) -> WarrenError:
    """Return the error of an answer: its body is in `data`."""
    body = error.get("data") if isinstance(error, dict) else None
    if not isinstance(body, dict) or "code" not in body:
        body = {"code": "AGENT_ERROR", "message": f"the server answered {error!r}", "details": {"cause": "internal"}}
    if body["code"] == jsonrpc.NAMES[jsonrpc.INVALID_REQUEST]:
        body = {**body, "code": InvalidParamsError.code.value}
    return of_body(body)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found = list[BaseException]()
    for each in group.exceptions:
        found += _leaves(each) if isinstance(each, BaseExceptionGroup) else [each]
    return found


def _refusal(url: str, failures: list[BaseException]) -> RefusedError:
    match failures[0] if failures else None:
        case UpgradeRefusedError(status=status):
            reason = REASONS.get(status, "it is not the WebSocket of a gateway")
            problem = f"{url} refused the connection: HTTP {status}: {reason}"
            return RefusedError(problem, retryable=status in BUSY, status=status)
        case httpx.RemoteProtocolError() as failure:
            return RefusedError(f"{url} did not answer like a gateway: {failure}", retryable=True)
        case httpx.ReadTimeout():
            return RefusedError(f"{url} cannot be reached: {NO_ANSWER}", retryable=True)
        case failure:
            for cause in _causes(failure):
                if isinstance(cause, ssl.SSLCertVerificationError):
                    problem = f"{url}: its certificate cannot be verified: {cause.verify_message}"
                    return RefusedError(f"{problem}; SSL_CERT_FILE names the authorities to trust", retryable=False)
            return RefusedError(f"{url} cannot be reached: {_reason(failure)}", retryable=True)


def _causes(failure: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, and those that it wraps."""
    while failure is not None:
        yield failure
        failure = failure.__cause__ or failure.__context__


def _reason(failure: BaseException | None) -> str:
    """Return the text of the first exception that has one: those that wrap another one often have none."""
    for cause in _causes(failure):
        if text := str(cause):
            return text
    return "the connection was closed" if failure is None else type(failure).__name__
