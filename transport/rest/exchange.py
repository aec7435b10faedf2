"""The outermost layer of the HTTP application: bodies within bounds, and no leftovers of them in the server."""

from typing import Final

import attrs
import trio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warren.transport.http.handshake import PATH, RefusedError, check_framing
from warren.transport.rest.answers import refusal

CLOSE: Final = (b"connection", b"close")
NO_WEBSOCKET: Final = RefusedError(404, f"the WebSocket is at {PATH}, on a connection of its own", field="$.path")


@attrs.frozen
class Bounded:
    """An application whose requests have bodies of bounded size, that come within a bounded time.

    Where a body is over a bound, reading it raises RefusedError (413 or 408).

    Attributes:
        app: the application.
        max_bytes: what a body may have.
        seconds: how long it may take to come.
    """

    app: ASGIApp
    max_bytes: int
    seconds: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have a request answered; one for a WebSocket is refused."""
        if scope["type"] != "http":
            await refusal(NO_WEBSOCKET)(scope, receive, send)
            return
        async with trio.open_nursery() as tasks:
            exchange = _Exchange(self, scope, receive, send, tasks)
            try:
                check_framing(Headers(scope=scope).keys())
            except RefusedError as exc:
                await refusal(exc)(scope, exchange.receive, exchange.send)
            else:
                await self.app(scope, exchange.receive, exchange.send)
            tasks.cancel_scope.cancel()


@attrs.define(eq=False)
class _Exchange:
    """One request and its answer.

    Attributes:
        whole: whether all of the body has been received.
    """

    bounds: Bounded
    scope: Scope
    source: Receive
    sink: Send
    tasks: trio.Nursery
    whole: bool = attrs.field(init=False)
    _announced: int = attrs.field(init=False)
    _deadline: float = attrs.field(init=False)
    _size: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        headers = Headers(scope=self.scope)
        self._announced = int(headers.get("content-length", "0"))
        self._deadline = trio.current_time() + self.bounds.seconds
        self.whole = not self._announced and "transfer-encoding" not in headers

    async def receive(self) -> Message:
        """Return the next part of the body, and after the last one the client's leaving. Raises RefusedError."""
        if self.whole:
            return await self.source()
        self._check_size(self._announced)
        with trio.move_on_at(self._deadline):
            message = await self._next()
            self._check_size(self._size)
            return message
        raise RefusedError(408, f"the body did not come within {self.bounds.seconds:g} s", field="$.body")

    async def send(self, message: Message) -> None:
        """Send a part of the answer; where there is more of the body, it is thrown away and the connection closed.

        Hypercorn would wait for ever for somebody to take the rest of the body.
        """
        if message["type"] == "http.response.start" and not self.whole:
            self.tasks.start_soon(self._drain)
            message = {**message, "headers": [*message.get("headers", ()), CLOSE]}
        await self.sink(message)

    async def _drain(self) -> None:
        while not self.whole:
            await self._next()

    async def _next(self) -> Message:
        message = await self.source()
        self._size += len(message.get("body", b""))
        self.whole = not message.get("more_body", False)
        return message

    def _check_size(self, size: int) -> None:
        if size > self.bounds.max_bytes:
            problem = f"the body has more than {self.bounds.max_bytes} bytes"
            raise RefusedError(413, problem, field="$.body")
