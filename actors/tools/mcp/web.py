"""A server that is a web service: the official client for streamable HTTP, with bounds."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage

from warren.actors.tools.mcp.server import McpServer

READ: Final = 900.0
"""Seconds without a byte until a response is given up; the time limit of a call usually ends earlier."""
MAX_EVENT: Final = 16 * 1024 * 1024


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
        yield streams
