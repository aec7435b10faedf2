"""The MCP server over HTTP, as an ASGI application for the path `/mcp`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import attrs
import trio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import RequestBodyLimitMiddleware, TransportSecuritySettings
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warren.principals import Principal
from warren.service import RuntimeService
from warren.transport.http import auth
from warren.transport.http.logins import PRINCIPAL
from warren.transport.mcp.refusal import bad_id
from warren.transport.mcp.resources import Resources
from warren.transport.mcp.server import MAX_CALLS, Tools, server_of
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.endpoint import GRACE
from warren.values import define

THIS_MACHINE: Final = TransportSecuritySettings(
    allowed_hosts=["127.0.0.1:*", "localhost:*", "[::1]:*"],
    allowed_origins=[*auth.OWN_ORIGINS],
)
"""The default access rule: Host, and Origin if a web page sends the request, must name this machine."""
MAX_BODY: Final = 1024 * 1024


@asynccontextmanager
async def open_mcp(
    service: RuntimeService,
    *,
    security: TransportSecuritySettings | None = THIS_MACHINE,
    max_body: int = MAX_BODY,
    max_calls: int = MAX_CALLS,
) -> AsyncIterator[ASGIApp]:
    """Open an ASGI application that speaks MCP (streamable HTTP); it is open for the time of the block.

    The application answers under any path. Mount it with `Route("/mcp", app)`: Starlette's `Mount` would redirect
    clients to `/mcp/`. It takes no lifespan events. Close the listener after this block: leaving the block ends the
    event streams that clients hold open.

    A client that closes its connection does not end the turns that it started, nor does leaving the block. Shutdown the
    MCP session (DELETE) interrupts them; so does closing the connection in the revisions of MCP, from 2026-07-28 on,
    that have no other way to cancel a call.

    Args:
        service: the runtime.
        security: the rule for the headers Host and Origin; None for use behind a server that checks them. Tokens are
            always checked by the server in front.
        max_body: bytes of a request; a larger one is answered with status 413.
        max_calls: calls of one MCP session that may be unanswered; a further one gets CAPACITY_EXCEEDED.
    """
    tools = Tools(service, max_calls)
    async with trio.open_nursery() as following:
        server = server_of(tools, Resources(service, following))
        manager = StreamableHTTPSessionManager(server, security_settings=security, max_request_body_size=max_body)
        checked = partial(_checked, StreamableHTTPASGIApp(manager))
        closable = _ClosableApp(RequestBodyLimitMiddleware(checked, max_body))  # it passes a body on in one piece
        async with manager.run():
            try:
                yield closable
            finally:
                tools.close()
                await closable.close()
        following.cancel_scope.cancel()


async def _checked(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a body that is no message, as over the standard streams; pass all others on to the library.

    The library takes a request with a bad id for a notification, which is never answered.
    """
    if scope.get("method") != "POST":
        await app(scope, receive, send)
        return
    first = await receive()
    refusal = None if first["type"] != "http.request" else _refusal(first["body"])
    if refusal is not None:
        await Response(refusal, 400, media_type="application/json")(scope, receive, send)
        return
    waiting = [first]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    await app(scope, again, send)


def _refusal(body: bytes) -> bytes | None:
    """Return the reply to a body that is no message; None for a message."""
    match jsonrpc.read(body):
        case jsonrpc.Malformed(id=request_id, number=number, error=error):
            return jsonrpc.error(request_id, error, number)
        case jsonrpc.Request(id=float()):
            return bad_id()
    return None


def _user_of(principal: Principal) -> AuthenticatedUser:
    """Return a principal as the library knows users: an MCP session is open to the one that has opened it."""
    return AuthenticatedUser(AccessToken(token="", client_id=principal.tenant, subject=principal.name, scopes=[]))


@define(eq=False)
class _ClosableApp:
    """An application that answers 503 once it is closed.

    Attributes:
        app: answers the requests until then.
    """

    app: ASGIApp
    _asked: int = attrs.field(default=0, init=False)
    _answered: trio.Event = attrs.field(factory=trio.Event, init=False)
    _closed: bool = attrs.field(default=False, init=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal = scope.get(PRINCIPAL)
        if principal is not None:
            scope["user"] = _user_of(principal)
        if self._closed:
            await PlainTextResponse("the server is shutting down\n", 503)(scope, receive, send)
        elif scope.get("method") == "POST":
            await self._answer(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def close(self) -> None:
        """Refuse new requests, and wait up to `GRACE` seconds for the answers to those that run."""
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
