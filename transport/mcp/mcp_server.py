"""The MCP server for the official library: tools, resources, completion and logging of one runtime."""

import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

import mcp_types as types
import trio
from mcp.server.connection import allowed_log_levels
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from starlette.requests import Request

from warren.base.errors import AgentError, CapacityExceededError, WarrenError
from warren.base.principals import Principal
from warren.base.version import VERSION
from warren.calls.facade import Capabilities, RuntimeService
from warren.conversation import codec
from warren.conversation.events import Envelope
from warren.reports.tracing import HEADER, context_of, here
from warren.transport.access.logins import PRINCIPAL
from warren.transport.mcp import logs
from warren.transport.mcp.calls import ToolCall, key_of, keyed
from warren.transport.mcp.client import CLIENT, McpClient
from warren.transport.mcp.progress import message_of
from warren.transport.mcp.refusal import refusal
from warren.transport.mcp.resources import Resources, failure_of, template
from warren.transport.mcp.schemas import input_schema, result_schema
from warren.transport.mcp.tools import ALIASES, TOOLS, McpTool
from warren.transport.rpc.endpoint import BULKY, RESERVE, unanswered
from warren.transport.rpc.jsonrpc import shorten
from warren.transport.rpc.methods import Host
from warren.transport.rpc.relay import Send

MAX_CALLS: Final = 256
"""Calls of one connection that may be unanswered; beyond it only urgent ones, such as interrupts, are accepted."""
MAX_ANSWER: Final = 2 * 1024 * 1024
"""Bytes that a page may have. The library encodes an answer on the event loop, and no model reads more than that."""
EVENT: Final = "warren/event"
"""The key in the `_meta` of a progress notification whose value is the whole event."""
INSTRUCTIONS: Final = (
    "Warren hosts conversations with language models. warren_run starts one and warren_resume continues it; both "
    "return when the model has answered. warren_sessions, warren_read and warren_history show the existing ones. A "
    "call that fails returns an error body whose `code` is stable."
)

_PROBLEMS: Final = {"missing": "is required", "string_type": "must be a string", "dict_type": "must be an object"}
"""Warren's texts for the most common findings of the library's validation, by the library's name of the finding."""

Context = ServerRequestContext[dict[str, Any], Any]
logger: Final = logging.getLogger(__name__)


class Tools:
    """The tools of one runtime, for every client of a server. Calls run concurrently."""

    def __init__(
        self,
        service: RuntimeService,
        max_calls: int = MAX_CALLS,
        room: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> None:
        """Offer the tools of a runtime.

        Args:
            service: the runtime.
            max_calls: calls of one client that may be unanswered.
            room: awaited before a call with a large result; it returns when the client has read most of the answers
                that wait for it.
        """
        self._host = Host(service)
        self._max_calls = max_calls
        self._room = room
        self._bulky = trio.CapacityLimiter(BULKY)
        self._calls: set[ToolCall] = set()
        self._closed = False

    def close(self) -> None:
        """Let every call that waits for a turn end soon with an error: the server ends. The turns go on."""
        self._closed = True
        for call in self._calls:
            call.abandon()

    def listed(self) -> list[types.Tool]:
        """Return the descriptions of the tools for clients; tools of a capability that is off are left out."""
        capabilities = self._host.service.capabilities()
        return [_shown(tool) for tool in TOOLS.values() if _is_on(tool, capabilities)]

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        send: Send | None,
        client: McpClient,
        principal: Principal | None = None,
    ) -> types.CallToolResult:
        """Call a tool for a client, and return its result or its error as a result.

        Cancelling this interrupts the turn that the call started.

        Args:
            name: the tool.
            arguments: its arguments as plain data.
            send: sends an event of the turn to the client; None if the client wants no events.
            client: the client, whose unanswered calls are bounded.
            principal: the client; None is the principal of the runtime as it was given.

        Raises:
            MCPError: if there is no such tool.
        """
        tool = TOOLS.get(ALIASES.get(name, name))
        if tool is None:
            raise refusal("$.params.name", f"unknown tool {shorten(name)}")
        try:
            params = keyed(codec.from_data(tool.method.decoded, arguments))
            host = self._host.of(principal)
            if client.calls >= self._max_calls * (RESERVE if tool.method.urgent else 1):
                return _result(unanswered(client.calls).body(), is_error=True)
            with self._calling(client, ToolCall(host.service, send, key_of(params))) as caller:
                return _result(await self._called(tool, host, caller, params))
        except WarrenError as exc:
            return _result(exc.body(), is_error=True)
        except Exception:
            logger.exception("%s failed", name)
            return _result(AgentError("internal error", cause="internal").body(), is_error=True)

    async def _called(self, tool: McpTool, host: Host, caller: ToolCall, params: object) -> Any:
        if not tool.method.bulky:
            return await tool.method.call(host, caller, params)
        async with self._bulky:
            await self._room()
            result = await tool.method.handler(host, caller, params)
            if (size := codec.weight(result)) > MAX_ANSWER:
                problem = (
                    f"the page has about {size} bytes, of at most {MAX_ANSWER} over MCP: ask for less with `limit`"
                )
                raise CapacityExceededError(problem, cause="page", retryable=False)
            return codec.to_data(result)

    @contextmanager
    def _calling(self, client: McpClient, caller: ToolCall) -> Iterator[ToolCall]:
        self._calls.add(caller)
        client.calls += 1
        if self._closed:
            caller.abandon()
        try:
            with client.in_use():  # a call goes on without the request that has brought it
                yield caller
        finally:
            self._calls.discard(caller)
            client.calls -= 1


def server_of(tools: Tools, resources: Resources, client: McpClient | None = None) -> Server[dict[str, Any]]:
    """Return a server with these tools and resources, over any transport of the library.

    Args:
        tools: the tools.
        resources: the resources.
        client: the one client; None for clients over HTTP, whose requests have theirs in their scopes under `CLIENT`.
    """

    def client_of(context: Context) -> McpClient:
        return cast("Request", context.request).scope[CLIENT] if client is None else client

    async def list_tools(_context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools.listed())

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments, principal = params.arguments or {}, _principal_of(context)
        if (place := context_of((params.meta or {}).get(HEADER))) is not None:
            here.set(place)  # each request has a task of its own
        caller = client_of(context)
        return await tools.call(params.name, arguments, _sender(context, caller), caller, principal)

    async def complete(context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        argument = params.argument
        found = await resources.of(_principal_of(context)).complete(params.ref, argument.name, argument.value)
        return types.CompleteResult(completion=found)

    async def set_level(context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        client_of(context).level = params.level
        return types.EmptyResult()

    server = Server(
        "warren",
        version=VERSION,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_completion=complete,
        **_resource_handlers(resources, client_of),
    )
    # Added here and not as a keyword: the library would warn that newer revisions have no such request.
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, set_level)
    server.middleware.append(_explain)
    return server


def _resource_handlers(resources: Resources, client_of: Callable[[Context], McpClient]) -> dict[str, Any]:
    """Return the handlers of requests about resources, by the names of the library's keywords."""

    async def list_resources(
        context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        return await resources.of(_principal_of(context)).listed(None if params is None else params.cursor)

    async def list_templates(
        _context: Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=[template()])

    async def read(context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        return await resources.of(_principal_of(context)).read(params.uri)

    async def subscribe(context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        watcher = resources.of(_principal_of(context))
        await watcher.watch(client_of(context).watched, params.uri, context.session.send_resource_updated)
        return types.EmptyResult()

    async def unsubscribe(context: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        client_of(context).watched.drop(params.uri)
        return types.EmptyResult()

    return {
        "on_list_resources": list_resources,
        "on_list_resource_templates": list_templates,
        "on_read_resource": read,
        "on_subscribe_resource": subscribe,
        "on_unsubscribe_resource": unsubscribe,
    }


async def _explain(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Answer a request of the wrong shape with the name of the bad field; the library's own answer has none.

    An error of the service is answered with its body, as on every surface.
    """
    try:
        return await call_next(ctx)
    except WarrenError as exc:
        raise failure_of(exc) from None
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        raise refusal(_path_of(first["loc"]), _PROBLEMS.get(first["type"], first["msg"])) from None


def _path_of(steps: tuple[int | str, ...]) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


def _sender(context: Context, client: McpClient) -> Send | None:
    """Return a function that sends the events of a request's turn, as progress and as log messages.

    Each of the two is sent if the client asked for it; return None if it asked for neither.
    """
    token = (context.meta or {}).get("progress_token")
    wanted = _levels_of(context, client)
    if token is None and not wanted:
        return None
    numbers = itertools.count(1)

    async def send(envelope: Envelope) -> None:
        level = logs.level_of(envelope.event)
        if level in wanted:
            await context.session.send_notification(logs.message_of(envelope, level), context.request_id)
        if token is None:
            return
        params = types.ProgressNotificationParams(
            progress_token=token,
            progress=next(numbers),
            message=message_of(envelope.event),
            _meta={EVENT: codec.to_data(envelope)},
        )
        await context.session.send_notification(types.ProgressNotification(params=params), context.request_id)

    return send


def _levels_of(context: Context, client: McpClient) -> frozenset[types.LoggingLevel]:
    """Return the levels whose messages a client gets, from the one that it has set or that its request names on."""
    allowed = allowed_log_levels(context.protocol_version, context.meta)
    if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return allowed
    own = logs.LEVELS.index(client.level)
    return allowed & frozenset(logs.LEVELS[own:])


def _principal_of(context: Context) -> Principal | None:
    """Return the client that the server in front has found; None over stdio, and if there is no such server."""
    request = context.request
    found: Principal | None = None if request is None else request.scope.get(PRINCIPAL)
    return found


def _result(data: Any, *, is_error: bool = False) -> types.CallToolResult:
    """Return data as structured content, and as text for clients and models that read nothing else."""
    text = types.TextContent(text=codec.encode(data).decode())
    return types.CallToolResult(content=[text], structured_content=data, is_error=is_error)


def _is_on(tool: McpTool, capabilities: Capabilities) -> bool:
    """Return whether the capability that a tool needs is on."""
    needed = tool.method.capability
    return needed is None or bool(getattr(capabilities, needed.replace("-", "_")))


def _shown(tool: McpTool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.doc,
        input_schema=input_schema(tool),
        output_schema=result_schema(tool.method.result),
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.read_only,
            destructive_hint=tool.destructive,
            idempotent_hint=tool.idempotent or tool.read_only,
            open_world_hint=tool.open_world,
        ),
    )
