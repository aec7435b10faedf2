"""A server that is a web service: the official client for streamable HTTP, with bounds."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self

import anyio
import httpx2
import mcp_types as types
import trio
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage

from warren.actors.io.proxies import EnvironmentProxies
from warren.actors.tools.mcp.offers import mended
from warren.actors.tools.mcp.pace import Pace
from warren.actors.tools.mcp.refusal import FAILURES, REFUSALS, Refusal, id_of, is_answer
from warren.actors.tools.mcp.values import are_too_many, refusal_of
from warren.base.values import define
from warren.settings.tool_config import McpServer

READ: Final = 900.0
"""Seconds without a byte until a response is given up; the time limit of a call usually ends earlier."""
MAX_EVENT: Final = 16 * 1024 * 1024
"""Bytes of an event, or of another answer."""
UNLIMITED: Final = httpx2.Limits(max_connections=None)
"""The runtime bounds the calls."""
UNSENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
"""Errors before the first byte of a request was sent."""


class _Bounded:
    """A stream of a service's messages, with an error in place of each answer that has too many values.

    Lists of tools are mended, and messages that nobody has asked for are held back.
    """

    def __init__(self, inner: ReadStream[SessionMessage | Exception], pace: Pace) -> None:
        self._inner = inner
        self._pace = pace

    @property
    def last_context(self) -> Any:
        """The context in which the last message was sent, which the official client asks for."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message."""
        item = await self._inner.receive()
        answer = item.message if isinstance(item, SessionMessage) else None
        await self._pace.message(answers=isinstance(answer, types.JSONRPCResponse | types.JSONRPCError))
        if isinstance(answer, types.JSONRPCResponse) and are_too_many(answer.result):
            return SessionMessage(refusal_of(answer.id))
        if isinstance(item, SessionMessage) and (made := mended(item.message)) is not item.message:
            return SessionMessage(made, item.metadata)
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


@define(eq=False)
class _Paced(httpx2.AsyncByteStream):
    """The body of an answer, which is read at a pace: events may have no message in them."""

    inner: httpx2.AsyncByteStream
    pace: Pace

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self.inner:
            await self.pace.lines(part.count(b"\n"), len(part))
            yield part

    async def aclose(self) -> None:
        """Close the body."""
        await self.inner.aclose()


@define(eq=False)
class Speaking(httpx2.AsyncBaseTransport):
    """A transport of httpx that puts an error of the protocol in place of an HTTP refusal.

    The official client would drop the status, and end the whole connection if one request breaks.
    """

    inner: httpx2.AsyncBaseTransport
    pace: Pace

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; see httpx."""
        asked = id_of(request.content) if request.method == "POST" else None
        if asked is None:
            if request.method == "GET" or is_answer(request.content):  # else it is our notification, or our goodbye
                await self.pace.request()  # a stream that the service has ended, or the answer to a request of it
            return self._paced(await self.inner.handle_async_request(request))
        self.pace.asked += 1
        try:
            response = await self.inner.handle_async_request(request)
            if response.status_code < REFUSALS and not _is(response, "json"):
                return self._paced(response)  # a stream, which goes on, or a redirect
            body = await _read(response)
        except httpx2.RequestError as exc:
            text = f"{type(exc).__name__}: {exc}".rstrip(": ")
            return _refused(FAILURES, Refusal(text, begun=not isinstance(exc, UNSENT)))
        status, headers = response.status_code, response.headers
        page, challenge = _is(response, "html"), headers.get("www-authenticate", "")
        refusal = Refusal.of_answer(
            asked, status, b"" if page else body, challenge, in_session=MCP_SESSION_ID in request.headers
        )
        if refusal is not None:
            return _refused(status, refusal)
        kept = {name: headers[name] for name in ("content-type", MCP_SESSION_ID) if name in headers}
        return httpx2.Response(status, headers=kept, content=body)

    def _paced(self, response: httpx2.Response) -> httpx2.Response:
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Paced(response.stream, self.pace)
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self.inner.aclose()


def _refused(status: int, refusal: Refusal) -> httpx2.Response:
    kind = {"content-type": "application/json"}
    return httpx2.Response(max(status, REFUSALS), headers=kind, content=refusal.encode())


async def _read(response: httpx2.Response) -> bytes:
    """Return the body of an answer. Raises httpx2.ReadError if it is too long."""
    body = bytearray()
    try:
        async for part in response.aiter_bytes():
            body += part
            if len(body) > MAX_EVENT:
                raise httpx2.ReadError(f"the answer has more than {MAX_EVENT} bytes")
    finally:
        await response.aclose()
    return bytes(body)


def _is(response: httpx2.Response, kind: str) -> bool:
    return kind in response.headers.get("content-type", "").lower()


def _proxy_for(url: httpx2.URL) -> str | None:
    """Return the proxy for a service. Raises ValueError if the environment has a bad one."""
    host, port = url.raw_host.decode("ascii"), url.port or (443 if url.scheme == "https" else 80)
    return EnvironmentProxies.of_environment().proxy_for(url.scheme, host, port)


@asynccontextmanager
async def open_web(
    server: McpServer, pace: Pace
) -> AsyncIterator[tuple[ReadStream[SessionMessage | Exception], WriteStream[SessionMessage]]]:
    """Yield the streams of a service's messages for a body, and end its session afterwards, if it has one.

    If the service floods its `pace`, the body is cancelled and FloodError is raised in a group. A request that is
    refused, or that gets no answer, ends with an error from which `Refusal.of_error` makes a refusal.
    """
    assert server.url is not None  # noqa: S101 - for the type checker
    timeout = httpx2.Timeout(server.connect_timeout, read=READ)
    inner = httpx2.AsyncHTTPTransport(proxy=_proxy_for(httpx2.URL(server.url)), limits=UNLIMITED)
    async with (
        httpx2.AsyncClient(headers=dict(server.headers), timeout=timeout, transport=Speaking(inner, pace)) as client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=MAX_EVENT) as streams,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(pace.watch)
        read, write = streams
        yield _Bounded(read, pace), write
        nursery.cancel_scope.cancel()
