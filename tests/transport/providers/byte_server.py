"""A small HTTP server on trio whose answers are written byte by byte."""

import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import trio

from warren.conversation import codec

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


@attrs.frozen
class Request:
    """A request as it arrived: `body` is its JSON, header names are in lower case."""

    path: str
    headers: dict[str, str]
    body: Any


Handler = Callable[[Request, trio.SocketStream], Awaitable[None]]


@asynccontextmanager
async def serve(handler: Handler) -> AsyncIterator[str]:
    """Serve until the block is left; `handler` answers each request. Yields the server's base URL."""

    async def connection(stream: trio.SocketStream) -> None:
        try:
            while (request := await _read(stream)) is not None:
                await handler(request, stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, connection, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}"
        except Exception as exc:  # noqa: BLE001 - raised again below, where no nursery wraps it into a group
            failure = exc
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _read(stream: trio.SocketStream) -> Request | None:
    data = b""
    while b"\r\n\r\n" not in data:
        more = await stream.receive_some()
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("ascii").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        body += await stream.receive_some()
    return Request(first.split()[1], headers, codec.parse(body) if body else None)


def chunk(data: bytes) -> bytes:
    """Return data as one chunk of a chunked body."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(data: object) -> bytes:
    """Return one server-sent event; anything but text becomes JSON."""
    text = data if isinstance(data, str) else codec.encode(data).decode()
    return f"data: {text}\n\n".encode()


def events(*data: object) -> bytes:
    """Return server-sent events, one after the other."""
    return b"".join(event(item) for item in data)


def status(code: int, body: object = None, **headers: str) -> bytes:
    """Return a whole answer of another status."""
    text = codec.encode(body)
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    length = f"content-type: application/json\r\ncontent-length: {len(text)}\r\n"
    return f"HTTP/1.1 {code} Answer\r\n{length}{named}\r\n".encode() + text


def reset(stream: trio.SocketStream) -> None:
    """Break the connection the hard way: the other side sees a reset."""
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()
