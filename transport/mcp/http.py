"""The MCP server over HTTP: an ASGI app, made to be mounted at `/mcp`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from warren.service import SessionService
from warren.transport.http import auth
from warren.transport.mcp.resources import Resources
from warren.transport.mcp.server import MAX_CALLS, Tools, server_of
from warren.transport.rpc.endpoint import GRACE

THIS_MACHINE: Final = TransportSecuritySettings(
    allowed_hosts=["127.0.0.1:*", "localhost:*", "[::1]:*"],
    allowed_origins=[*auth.OWN_ORIGINS],
)
"""Only requests that name this machine in Host, and in Origin where a web page sends them, are let in."""
MAX_BODY: Final = 1024 * 1024


@asynccontextmanager
async def open_mcp(
    service: SessionService,
    *,
    security: TransportSecuritySettings | None = THIS_MACHINE,
    max_body: int = MAX_BODY,
    max_calls: int = MAX_CALLS,
) -> AsyncIterator[ASGIApp]:
    """Give an ASGI app that speaks MCP (streamable HTTP), for as long as the body lasts.

    It answers at whatever path it is called for: `Route("/mcp", app)` mounts it, where Starlette's `Mount` would send
    clients on to `/mcp/`. This context manager is its whole lifespan; it wants no events of that kind. Close what
    listens after it: leaving it ends the event streams that clients hold open.

    `security` says which Host and Origin may call; None lets in everybody, for use behind what has checked them. Tokens
    are always the business of what is in front. A request of more than `max_body` bytes gets 413, a call
    beyond `max_calls` that one session has under way CAPACITY_EXCEEDED.

    A client that closes its connection does not end the turns it started, unless the revision of MCP that it speaks
    (from 2026-07-28 on) has no other way to cancel a call; nor does leaving this. Ending the MCP session (DELETE) does.
    """
    tools = Tools(service, max_calls)
    async with trio.open_nursery() as following:
        server = server_of(tools, Resources(service, following))
        manager = StreamableHTTPSessionManager(server, security_settings=security, max_request_body_size=max_body)
        closable = _ClosableApp(StreamableHTTPASGIApp(manager))
        async with manager.run():
            try:
                yield closable
            finally:
                tools.close()
                await closable.close()
        following.cancel_scope.cancel()


@attrs.define(eq=False)
class _ClosableApp:
    """An app that can be closed: from then on it answers 503.

    Attributes:
        app: the app behind.
    """

    app: ASGIApp
    _asked: int = attrs.field(default=0, init=False)
    _answered: trio.Event = attrs.field(factory=trio.Event, init=False)
    _closed: bool = attrs.field(default=False, init=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._closed:
            await PlainTextResponse("the server ends\n", 503)(scope, receive, send)
        elif scope.get("method") == "POST":
            await self._answer(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def close(self) -> None:
        """Refuse new requests, and give those that run a moment to be answered."""
        self._closed = True
        with trio.move_on_after(GRACE, shield=True):
            while self._asked:
                await self._answered.wait()
                self._answered = trio.Event()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._asked += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self._asked -= 1
            self._answered.set()
