"""A receiver of webhooks on a socket of this machine, which answers as a test wants it."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import trio

from warren.base.values import frozen

OK: Final = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@frozen
class Posted:
    """One request as it came.

    Attributes:
        headers: its headers, with lower-case names.
        body: its body.
    """

    headers: Mapping[str, str]
    body: bytes

    @property
    def delivery_id(self) -> str:
        """The id of the delivery."""
        return self.headers["webhook-id"]

    @property
    def event(self) -> Any:
        """The body as an object."""
        return json.loads(self.body)

    @property
    def session_id(self) -> str:
        """The session."""
        return str(self.event["data"]["session_id"])


Answers = Callable[[trio.SocketStream, Posted], Awaitable[None]]


async def accept(stream: trio.SocketStream, _posted: Posted) -> None:
    """Answer 200."""
    await stream.send_all(OK)


@frozen
class Receiver:
    """Where a receiver listens, and what it got.

    Attributes:
        url: its address.
        posted: what it got, in order; a request is there before it is answered.
    """

    url: str
    posted: list[Posted]

    async def got(self, count: int) -> list[Posted]:
        """Return once it got so many requests."""
        while len(self.posted) < count:  # noqa: ASYNC110 - there is no event
            await trio.sleep(0.01)
        return self.posted


@asynccontextmanager
async def receiving(answers: Answers = accept, port: int = 0) -> AsyncIterator[Receiver]:
    """Listen on 127.0.0.1 for as long as the block lasts."""
    posted: list[Posted] = []
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(port, host="127.0.0.1")
        nursery.start_soon(partial(trio.serve_listeners, partial(_serve, answers, posted), [listener]))
        yield Receiver(f"http://127.0.0.1:{listener.socket.getsockname()[1]}/hook", posted)
        nursery.cancel_scope.cancel()


async def _serve(answers: Answers, posted: list[Posted], stream: trio.SocketStream) -> None:
    try:
        data = bytearray()
        while b"\r\n\r\n" not in data:
            piece = await stream.receive_some()
            if not piece:
                return
            data += piece
        head, _, rest = bytes(data).partition(b"\r\n\r\n")
        lines = (line.partition(": ") for line in head.decode().split("\r\n")[1:])
        headers = {name.lower(): value for name, _, value in lines}
        body = bytearray(rest)
        while len(body) < int(headers["content-length"]):
            body += await stream.receive_some()
        one = Posted(headers, bytes(body))
        posted.append(one)
        await answers(stream, one)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    finally:
        await trio.aclose_forcefully(stream)
