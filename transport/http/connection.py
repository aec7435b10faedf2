"""One HTTP/1.1 connection: h11 reads requests from a stream, an ASGI application answers them."""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from email.utils import formatdate
from functools import lru_cache
from typing import Final, TypeVar
from urllib.parse import unquote

import attrs
import h11
import trio
from starlette.types import ASGIApp, Message, Scope

from warren.actors.io.streams import GONE
from warren.base.values import define
from warren.reports.audit import calling_from
from warren.transport.access.config import GatewayConfig
from warren.transport.access.front import TrustedProxies
from warren.transport.access.head import MAX_HEAD, Head, head_of
from warren.transport.access.places import PLACE, Place
from warren.transport.access.refusals import RETRY, RefusedError
from warren.transport.http.shutdown import Shutdown
from warren.transport.http.wire import Wire

_Event = h11.Event | type[h11.NEED_DATA | h11.PAUSED]
Address = tuple[str, int] | None
"""Host and port of a client; None if it was gone when it was asked for."""
CHUNK: Final = 64 * 1024
PIECE: Final = 512 * 1024
"""Bytes of an answer that are framed at once: copying a long body in one go would hold up all other tasks."""
PARTS: Final = 64
"""Parts of a request's body that are read in one go: a client may send a megabyte in parts of one byte."""
MAX_AHEAD: Final = 64 * 1024
"""Bytes of later requests that are read while one is answered."""
T = TypeVar("T")
WITHOUT_BODY: Final = (204, 304)
SLOWEST: Final = 32 * 1024
"""Bytes a second in which a body with files has to come at least, and every body while others wait for its place."""
ALLOW: Final = "warren.allow"
"""The member of a request's scope that lets its body have more bytes than a message."""
CLOSE: Final = (b"connection", b"close")
MAX_SHOWN: Final = 64
"""Characters of a header that an error repeats."""

logger: Final = logging.getLogger(__name__)


@lru_cache(maxsize=1)
def _date(now: int) -> tuple[bytes, bytes]:
    """Return the header that each answer of a second has."""
    return b"date", formatdate(now, usegmt=True).encode()


@lru_cache(maxsize=64)
def _response(status: int, headers: tuple[tuple[bytes, bytes], ...]) -> tuple[h11.Response, bool]:
    """Return the head of an answer, and whether it says how long the answer is.

    h11 matches each header against patterns; the answers of a second have the same few heads.
    """
    head = h11.Response(status_code=status, headers=list(headers))
    return head, any(name == b"content-length" for name, _ in head.headers)


@define(eq=False)
class Bodies:
    """The request bodies of a server that are on their way, the oldest first."""

    _coming: dict["_Exchange", None] = attrs.field(factory=dict, init=False)

    def add(self, exchange: "_Exchange") -> None:
        """Add the body of a request, unless it is there."""
        self._coming[exchange] = None

    def remove(self, exchange: "_Exchange") -> None:
        """Remove the body of a request, if it is there."""
        self._coming.pop(exchange, None)

    def drop_slow(self) -> bool:
        """Refuse the oldest slow body of the address that has most of them; return whether there was one.

        So one machine's slow bodies cannot keep the requests of others out, nor its own whose bodies come at once.
        """
        oldest = oldest_of_crowd([each for each in self._coming if each.is_slow], lambda each: each.connection.host)
        if oldest is None:
            return False
        self.remove(oldest)
        oldest.drop()
        return True


def oldest_of_crowd(those: Sequence[T], host_of: Callable[[T], str | None]) -> T | None:
    """Return the first of those of the host that has most of them; None if there are none."""
    crowd = Counter(map(host_of, those)).most_common(1)
    return next((each for each in those if host_of(each) == crowd[0][0]), None)


@define(eq=False)
class HttpConnection:
    """The HTTP/1.1 of one client. One task at a time reads heads and has requests answered, in their order.

    Attributes:
        wire: the client's bytes.
        config: the bounds of a request.
        shutdown: the shutdown of the server; answers that are sent after its begin close their connections.
        client: the address that applications see.
        bodies: the bodies that are on their way, on all connections of the server.
        prefix: the path below which a proxy may serve us; it is taken off the paths of requests.
        peer: the peer by its address, or `unix`; None if it has gone.
        proxies: the trusted proxies if the peer is one of them, which tells the client of each request; else None.
        scheme: the scheme that the client has used.
        place: its place among those of a tenant.
        head_only: whether the request that was read last wants no body of its answer.
    """

    wire: Wire
    config: GatewayConfig
    shutdown: Shutdown
    client: Address
    bodies: Bodies = attrs.field(factory=Bodies)
    prefix: bytes = b""
    peer: str | None = attrs.field(default=None, init=False)
    proxies: TrustedProxies | None = attrs.field(default=None, init=False)
    scheme: str = attrs.field(default="http", init=False)
    place: Place = attrs.field(factory=Place, init=False)
    head_only: bool = attrs.field(default=False, init=False)
    _protocol: h11.Connection = attrs.field(
        factory=lambda: h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD), init=False
    )
    _reading: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _ahead: int = attrs.field(default=0, init=False)
    _left: bool = attrs.field(default=False, init=False)

    @property
    def host(self) -> str | None:
        """The client's host."""
        return None if self.client is None else self.client[0]

    async def next_head(self) -> Head | None:
        """Return the head of the next request, None when the client has ended its side of the connection.

        Raises RefusedError if it is not HTTP, too long, or ambiguous; the connection is to be closed then.
        """
        self.head_only = False
        event: _Event = h11.NEED_DATA
        if self._protocol.trailing_data[0]:
            # Requests that came in one piece must not be answered in one go.
            await trio.lowlevel.checkpoint()
            event = self.next_event()
        while event is h11.NEED_DATA:
            data = await self.wire.receive_some(CHUNK)
            if not data:
                return None
            self._protocol.receive_data(data)
            event = self.next_event()
        if not isinstance(event, h11.Request):
            return None
        self.head_only = event.method == b"HEAD"
        return self._seen(head_of(event))

    def _seen(self, head: Head) -> Head:
        """Return a head as it would be without proxies in front, and note the client that it comes from."""
        if self.prefix:
            head = head.below(self.prefix)
        if self.proxies is not None:  # a proxy sends the requests of many clients over one connection
            caller = self.proxies.caller(self.peer, head)
            self.client = None if caller.address is None else (caller.address, 0)
            self.scheme = caller.scheme
            calling_from.set(caller.address)
        return head

    def unread(self) -> Wire:
        """Give the stream back with all bytes behind the head that was read last; ends this connection."""
        self.wire.unread(self._protocol.trailing_data[0])
        return self.wire

    async def answer(self, head: Head, app: ASGIApp) -> bool:
        """Have a request answered; return whether the connection can bring another one.

        An application that fails costs the request and at most its connection. Raises trio.BrokenResourceError if
        the client is gone.
        """
        exchange = _Exchange(self, head)
        try:
            await app(exchange.scope(), exchange.receive, exchange.send)
        except Exception as exc:
            if exchange.broken:
                raise trio.BrokenResourceError("the client left before its answer") from exc
            logger.exception("%s %s failed", head.method, head.path)
        finally:
            self.bodies.remove(exchange)
        protocol = self._protocol
        if self.shutdown.begun or protocol.our_state is not h11.DONE or protocol.their_state is not h11.DONE:
            return False
        protocol.start_next_cycle()
        self._ahead = 0
        return True

    def next_event(self) -> _Event:
        """Return the next event of the request that was received. Raises RefusedError if it breaks the protocol."""
        try:
            return self._protocol.next_event()
        except h11.RemoteProtocolError as exc:
            raise RefusedError(exc.error_status_hint, f"not an HTTP request: {exc}") from exc

    async def receive_body(self) -> bool:
        """Read more of a body; return whether there was more."""
        if self._protocol.they_are_waiting_for_100_continue:
            await self.wire.send_all(self.frame(h11.InformationalResponse(status_code=100, headers=[])))
        data = await self.wire.receive_some(CHUNK)
        if data:
            self._protocol.receive_data(data)
        return bool(data)

    async def until_left(self) -> None:
        """Return once the client has ended its side of the connection, or reset it.

        Requests that come meanwhile are kept. A client that sends very many of them is not watched any more.
        """
        async with self._reading:
            while not self._left:
                if self._ahead >= MAX_AHEAD:
                    await trio.sleep_forever()
                try:
                    data = await self.wire.receive_some(CHUNK)
                except GONE:
                    data = b""
                self._left = not data
                self._ahead += len(data)
                if data:
                    self._protocol.receive_data(data)

    def frame(self, event: h11.Event) -> bytes:
        """Return the bytes of a part of an answer."""
        return self._protocol.send(event) or b""


@define(eq=False)
class _Exchange:
    """One request and its answer, as an ASGI application has them.

    Attributes:
        broken: whether sending failed because the client is gone.
    """

    connection: HttpConnection
    head: Head
    broken: bool = attrs.field(default=False, init=False)
    _announced: int = attrs.field(default=0, init=False)
    _size: int = attrs.field(default=0, init=False)
    _waited: float = attrs.field(default=0.0, init=False)
    _asked: float = attrs.field(default=math.inf, init=False)
    _waiting: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _dropped: bool = attrs.field(default=False, init=False)
    _whole: bool = attrs.field(default=False, init=False)
    _given: bool = attrs.field(default=False, init=False)
    _bodiless: bool = attrs.field(default=False, init=False)
    _out: bytes = attrs.field(default=b"", init=False)
    _most: int = attrs.field(init=False)
    _slowest: float = attrs.field(default=math.inf, init=False)

    def __attrs_post_init__(self) -> None:
        self._most = self.connection.config.max_message_bytes
        fields = dict(self.head.headers)  # h11 has merged the lines of either of these
        self._announced = int(fields.get(b"content-length", 0))
        if not self._announced and b"transfer-encoding" not in fields:
            self.connection.next_event()  # the end of a body that is not there
            self._whole = True

    def scope(self) -> Scope:
        """Return the request as ASGI describes it."""
        path, _, query = self.head.target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self.head.version,
            "method": self.head.method.upper(),
            "scheme": self.connection.scheme,
            "path": unquote(path.decode("latin-1")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": self.head.headers,
            "client": self.connection.client,
            "server": None,
            "extensions": {},
            PLACE: self.connection.place,
            ALLOW: self.allow,
        }

    def allow(self, most: int) -> None:
        """Extend the body's allowance by this number of bytes, and by the time that they take."""
        self._most, self._slowest = most, SLOWEST

    async def receive(self) -> Message:
        """Return the next part of the body, and after the last one the client's leaving.

        Raises RefusedError (400, 408, 413, 415, 503) if the body is not HTTP, does not come in time, is too long or
        compressed, or comes slowly while others wait for its place.
        """
        if self._given:
            await self.connection.until_left()
            return {"type": "http.disconnect"}
        self._check_size(self._announced)
        if not self._whole:
            self._check_coding()
        body = await self._part()
        if body is None:
            return {"type": "http.disconnect"}
        self._given = self._whole
        if self._whole:
            self.connection.bodies.remove(self)
        return {"type": "http.request", "body": body, "more_body": not self._whole}

    async def _part(self) -> bytes | None:
        """Return the bytes of the body that are there, or the next ones; None if the client sends no more."""
        parts = list[bytes | bytearray]()
        while not self._whole and len(parts) < PARTS:
            event = self.connection.next_event()
            if isinstance(event, h11.Data):
                parts.append(event.data)
                self._size += len(event.data)
                self._check_size(self._size)
            elif isinstance(event, h11.EndOfMessage):
                self._whole = True
            elif parts:
                break
            elif not await self._more():
                return None
        if len(parts) == PARTS:
            await trio.lowlevel.checkpoint()
        return b"".join(parts)

    async def _more(self) -> bool:
        """Read more of the body; return whether there was more. Raises RefusedError (408, 503)."""
        self.connection.bodies.add(self)
        within, self._asked = self.connection.config.stall_timeout, trio.current_time()
        try:
            with trio.move_on_at(self._asked + within + self._size / self._slowest - self._waited) as self._waiting:
                if not self._dropped:
                    return await self.connection.receive_body()
        finally:
            self._waited, self._asked = self._time, math.inf
        if self._dropped:
            raise RefusedError(503, "others need the place of this request, whose body comes slowly", RETRY)
        raise RefusedError(408, f"the body did not come within {within:g} s", field="$.body")

    @property
    def is_slow(self) -> bool:
        """Whether the body comes more slowly than `SLOWEST`."""
        return self._size < SLOWEST * self._time

    @property
    def _time(self) -> float:
        """The seconds in which the body could have come: it may also be we who make the client wait."""
        return self._waited + max(0.0, trio.current_time() - self._asked)

    def drop(self) -> None:
        """Refuse the request, as its body comes slowly."""
        self._dropped = True
        self._waiting.cancel()

    async def send(self, message: Message) -> None:
        """Send a part of the answer; the first one closes the connection if the body has not been received whole.

        The head waits for the body if that follows at once, as the length in the head says. Raises
        trio.BrokenResourceError or trio.ClosedResourceError if the client is gone.
        """
        if message["type"] == "http.response.start":
            await self._begin(message)
            return
        body = b"" if self._bodiless else bytes(message.get("body", b""))
        for start in range(0, len(body), PIECE):
            self._out += self.connection.frame(h11.Data(data=body[start : start + PIECE]))
            if start + PIECE < len(body):
                await self._flush()
        if not message.get("more_body", False):
            self._out += self.connection.frame(h11.EndOfMessage())
        await self._flush()

    async def _begin(self, message: Message) -> None:
        headers = [*message.get("headers", ()), _date(int(time.time()))]
        if not self._whole or self.connection.shutdown.begun:
            headers.append(CLOSE)
        self._bodiless = self.connection.head_only or message["status"] in WITHOUT_BODY
        head, has_length = _response(message["status"], tuple(headers))
        self._out = self.connection.frame(head)
        if not has_length:
            await self._flush()

    async def _flush(self) -> None:
        out, self._out = self._out, b""
        try:
            await self.connection.wire.send_all(out)
        except GONE:
            self.broken = True
            raise

    def _check_coding(self) -> None:
        coding = ", ".join(self.head.values("content-encoding"))
        if coding.lower() not in ("", "identity"):
            problem = f"$.headers.content-encoding: a body has to come as it is, not as {coding[:MAX_SHOWN]}"
            raise RefusedError(415, problem, ("Accept-Encoding", "identity"), field="$.headers.content-encoding")

    def _check_size(self, size: int) -> None:
        if size > self._most:
            raise RefusedError(413, f"the body has more than {self._most} bytes", field="$.body")
