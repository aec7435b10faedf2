"""The MCP server over HTTP, as an ASGI application for the path `/mcp`."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from http import HTTPStatus
from typing import Any, Final, Protocol

import attrs
import trio
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import RequestBodyLimitMiddleware, TransportSecuritySettings
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from warren.base.errors import AgentError, CapacityExceededError, InvalidParamsError, WarrenError
from warren.base.principals import READ, Scope, lacks
from warren.base.values import define, frozen
from warren.calls.facade import RuntimeService
from warren.transport.access import auth
from warren.transport.access.logins import PASSED_ON, PRINCIPAL, SIGN_IN, SignIn
from warren.transport.access.refusals import JSON, RETRY
from warren.transport.http.shutdown import Shutdown
from warren.transport.mcp.client import CLIENT, McpClient
from warren.transport.mcp.mcp_server import MAX_CALLS, Tools, server_of
from warren.transport.mcp.refusal import bad_id
from warren.transport.mcp.resources import Resources
from warren.transport.mcp.sessions import McpSession, McpSessions, node_of
from warren.transport.mcp.tools import ALIASES, TOOLS
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.endpoint import GRACE
from warren.transport.rpc.opened import Opened
from warren.transport.rpc.shares import Owner, owner_of

THIS_MACHINE: Final = TransportSecuritySettings(
    allowed_hosts=["127.0.0.1:*", "localhost:*", "[::1]:*"],
    allowed_origins=[*auth.OWN_ORIGINS],
)
"""The default access rule: Host, and Origin if a web page sends the request, must name this machine."""
MAX_BODY: Final = 1024 * 1024
BEGINNING: Final = "initialize"
"""The method of the request that begins an MCP session."""
CALL: Final = "tools/call"
OF_RESOURCES: Final = {
    "resources/list": READ,
    "resources/read": READ,
    "resources/subscribe": READ,
    "completion/complete": READ,
}
"""The scopes that requests about resources need."""
NO_SESSION: Final = f"$.headers.{MCP_SESSION_ID_HEADER}"


class Nodes(Protocol):
    """The nodes of which this process is one. Each has MCP sessions of its own, and the ids of these name it."""

    @property
    def number(self) -> int | None:
        """The number of this one; None while the store does not know it."""

    async def pass_on(self, number: int, scope: AsgiScope, receive: Receive, send: Send) -> bool:
        """Have another node answer a request, and return True; False if that node is gone.

        Raises WarrenError if the node cannot be reached now, or the outcome is unknown.
        """


@asynccontextmanager
async def open_mcp(
    service: RuntimeService,
    *,
    security: TransportSecuritySettings | None = THIS_MACHINE,
    max_body: int = MAX_BODY,
    max_calls: int = MAX_CALLS,
    opened: Opened | None = None,
    nodes: Nodes | None = None,
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
        opened: the room for MCP sessions and subscriptions; None is the default room.
        nodes: the nodes that serve the same clients; None if this process serves alone.
    """
    tools, opened = Tools(service, max_calls), opened or Opened()
    async with trio.open_nursery() as tasks:
        server = server_of(tools, Resources(service, tasks, opened.subscriptions))
        # It answers the revisions without sessions. For the others it would pick the ids of sessions itself, and bound
        # the sessions of all clients together.
        manager = StreamableHTTPSessionManager(
            server, security_settings=security, max_request_body_size=max_body, stateless=True
        )
        async with server.lifespan(server) as lifespan, manager.run():
            sessions = McpSessions(server, lifespan, security, opened.mcp_sessions, tasks)
            ended = Shutdown()
            app = _McpApp(service, tools, StreamableHTTPASGIApp(manager), sessions, nodes, ended)
            closable = _ClosableApp(RequestBodyLimitMiddleware(app, max_body))  # it passes a body on in one piece
            try:
                yield closable
            finally:
                tools.close()
                await closable.close()
                ended.begin()
                tasks.cancel_scope.cancel()


@frozen
class _McpApp:
    """Has the MCP session of a request answer it, here or at another node.

    Attributes:
        service: the runtime; its principal is that of requests which no server in front has found another one for.
        tools: the tools.
        without_session: answers the requests of revisions that have no sessions.
        sessions: the sessions of this process.
        nodes: see `open_mcp`.
        ended: breaks off the answers of other nodes that still come at the end.
    """

    service: RuntimeService
    tools: Tools
    without_session: ASGIApp
    sessions: McpSessions
    nodes: Nodes | None
    ended: Shutdown

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        owner = owner_of(scope.get(PRINCIPAL) or self.service.principal)
        version, session_id = headers.get(MCP_PROTOCOL_VERSION_HEADER), headers.get(MCP_SESSION_ID_HEADER)
        has_sessions = version is None or version in HANDSHAKE_PROTOCOL_VERSIONS
        session = None
        if has_sessions and session_id is not None:
            session = self.sessions.find(session_id, owner)
            if session is None:
                if not await self._passed_on(session_id, scope, receive, send):
                    await _refused(404, "is of no MCP session that lives: begin another one")(scope, receive, send)
                return
        with nullcontext() if session is None else session.in_use():
            message, receive = await _read(scope, receive)
            if (refusal := _refusal(message)) is not None:
                await Response(refusal, 400, media_type=JSON)(scope, receive, send)
            elif (denied := _denied(message, scope)) is not None:
                await (await self._denied(denied, scope))(scope, receive, send)
            elif not has_sessions:
                scope[CLIENT] = McpClient()
                await self.without_session(scope, receive, send)
            elif session is not None:
                await self._answer(session, scope, receive, send)
            elif isinstance(message, jsonrpc.Request) and message.method == BEGINNING:
                await self._begin(owner, message.id, scope, receive, send)
            else:
                await _refused(400, f"is required, except for `{BEGINNING}`")(scope, receive, send)

    async def _denied(self, denied: "_Denied", scope: AsgiScope) -> Response:
        """Return the refusal of a request beyond the rights of a token; by it a client asks its issuer for more."""
        sign_in: SignIn = scope[SIGN_IN]
        if denied.tool is not None:  # its method refuses the call too, and notes that in the audit
            await self.tools.call(denied.tool, denied.arguments, None, McpClient(), scope[PRINCIPAL])
        headers = {"WWW-Authenticate": sign_in.challenge(scope, scope[PRINCIPAL], denied.needed)}
        body = jsonrpc.error(denied.request_id, lacks(denied.needed))
        return Response(body, HTTPStatus.FORBIDDEN, headers, JSON)

    async def _answer(self, session: McpSession, scope: AsgiScope, receive: Receive, send: Send) -> None:
        scope[CLIENT] = session
        await session.transport.handle_request(scope, receive, send)
        if session.transport.is_terminated:  # by this request
            self.sessions.end(session)

    async def _begin(
        self, owner: Owner, request_id: jsonrpc.Id, scope: AsgiScope, receive: Receive, send: Send
    ) -> None:
        """Begin a session, which ends at once if its first request fails."""

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                session.begun = message["status"] < HTTPStatus.BAD_REQUEST
            await send(message)

        try:
            async with self.sessions.opened(owner, None if self.nodes is None else self.nodes.number) as session:
                await self._answer(session, scope, receive, send_noted)
        except CapacityExceededError as exc:
            await _failed(request_id, exc, exc.numbers.http)(scope, receive, send)

    async def _passed_on(self, session_id: str, scope: AsgiScope, receive: Receive, send: Send) -> bool:
        """Have the node of a session answer; return whether there is one. What a node passes on goes no further."""
        node = node_of(session_id)
        if self.nodes is None or node is None or node == self.nodes.number or scope.get(PASSED_ON):
            return False
        passing = trio.CancelScope()
        try:
            with self.ended.cancels(passing), passing:
                return await self.nodes.pass_on(node, scope, receive, send)
        except WarrenError as exc:
            # A node that is lost takes its sessions along: its client has to begin another one in any case.
            status = 404 if isinstance(exc, AgentError) and exc.cause == "connection_lost" else 503
            await _failed(None, exc, status)(scope, receive, send)
        return True


async def _read(scope: AsgiScope, receive: Receive) -> tuple[jsonrpc.Incoming | None, Receive]:
    """Return the message in the body of a request, and a `receive` that brings the body once more."""
    if scope["method"] != "POST":
        return None, receive
    first = await receive()
    waiting = [first]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    return jsonrpc.read(first["body"]) if first["type"] == "http.request" else None, again


def _refusal(message: jsonrpc.Incoming | None) -> bytes | None:
    """Return the reply to a body that is no message, as over the standard streams; None for a message.

    The library takes a request with a bad id for a notification, which is never answered.
    """
    match message:
        case jsonrpc.Malformed(id=request_id, number=number, error=error):
            return jsonrpc.error(request_id, error, number)
        case jsonrpc.Request(id=float()):
            return bad_id()
    return None


@frozen
class _Denied:
    """A request beyond the rights of its client: the scope that it needs, and the tool that it calls, if any."""

    request_id: jsonrpc.Id
    needed: Scope
    tool: str | None = None
    arguments: Mapping[str, Any] = attrs.field(factory=dict)


def _denied(message: jsonrpc.Incoming | None, scope: AsgiScope) -> _Denied | None:
    """Return what a request lacks; None if it lacks nothing, or no server in front tells its client how to get it."""
    if not isinstance(message, jsonrpc.Request) or SIGN_IN not in scope:
        return None
    needed, name, params = OF_RESOURCES.get(message.method), None, message.params
    if message.method == CALL and isinstance(params, dict) and isinstance(params.get("name"), str):
        name = params["name"]
        tool = TOOLS.get(ALIASES.get(name, name))
        needed = None if tool is None else tool.method.scope
    if needed is None or needed in scope[PRINCIPAL].scopes:
        return None
    arguments = params.get("arguments") if name is not None else None
    return _Denied(message.id, needed, name, arguments if isinstance(arguments, dict) else {})


def _failed(request_id: jsonrpc.Id, exc: WarrenError, status: int) -> Response:
    """Return the response to a request that no session has got, or that may have been lost with one."""
    return Response(jsonrpc.error(request_id, exc), status, dict([RETRY]) if exc.retryable else None, JSON)


def _refused(status: int, problem: str) -> Response:
    """Return the response to a request without a session: the library has the same statuses and number."""
    error = InvalidParamsError.at(NO_SESSION, problem)
    return Response(jsonrpc.error(None, error, jsonrpc.INVALID_REQUEST), status, media_type=JSON)


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

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if self._closed:
            await PlainTextResponse("the server is shutting down\n", 503, dict([RETRY]))(scope, receive, send)
        elif scope.get("method") == "POST":
            await self._answer(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def close(self) -> None:
        """Refuse new requests, and wait up to `GRACE` seconds for the answers to those that run."""
        self._closed = True
        # Shielded: the server ends by cancellation, and the requests that run should still be answered.
        with trio.move_on_after(GRACE, shield=True):
            while self._asked:
                await self._answered.wait()
                self._answered = trio.Event()

    async def _answer(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        self._asked += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self._asked -= 1
            self._answered.set()
