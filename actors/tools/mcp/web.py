"""A server that is a web service: the official client for streamable HTTP, with bounds."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self

import anyio
import httpx2
import mcp_types as types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage

from warren.actors.tools.mcp.server import McpServer
from warren.actors.tools.mcp.values import are_too_many, refusal_of

READ: Final = 900.0
"""Seconds without a byte until a response is given up; the time limit of a call usually ends earlier."""
MAX_EVENT: Final = 16 * 1024 * 1024


class _Bounded:
    """A stream of a service's messages, with an error in place of each answer that has too many values."""

    def __init__(self, inner: ReadStream[SessionMessage | Exception]) -> None:
        self._inner = inner

    @property
    def last_context(self) -> Any:
        """The context in which the last message was sent, which the official client asks for."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message."""
        item = await self._inner.receive()
        answer = item.message if isinstance(item, SessionMessage) else None
        if isinstance(answer, types.JSONRPCResponse) and are_too_many(answer.result):
            return SessionMessage(refusal_of(answer.id))
        return item

    async def aclose(self) -> None:
        """Close the stream."""
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)


@asynccontextmanager
async def open_web(
    server: McpServer,
) -> AsyncIterator[tuple[ReadStream[SessionMessage | Exception], WriteStream[SessionMessage]]]:
    """Yield the streams of a service's messages for a body, and end its session afterwards, if it has one.

    A request that cannot be sent cancels the body; its error is raised in a group.
    """
    assert server.url is not None  # noqa: S101 - for the type checker
    timeout = httpx2.Timeout(server.connect_timeout, read=READ)
    async with (
        httpx2.AsyncClient(headers=dict(server.headers), timeout=timeout) as client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=MAX_EVENT) as streams,
    ):
        read, write = streams
        yield _Bounded(read), write
