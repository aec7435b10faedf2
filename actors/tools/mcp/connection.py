"""The connection to one server as an actor: connects, lists the tools, makes calls, and comes back where it fails."""

import json
import logging
import math
import random
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from importlib import metadata
from typing import Any, Final

import attrs
import mcp_types as types
import trio
from mcp import ClientSession
from mcp.client.session import ClientRequestContext, IncomingMessage
from mcp.shared.exceptions import MCPError

from warren.actors.supervision import first_error
from warren.actors.tools.mcp.process import ServerGoneError, open_process
from warren.actors.tools.mcp.results import bounded, text_of
from warren.actors.tools.mcp.server import Backoff, McpServer, McpStatus, State
from warren.actors.tools.mcp.web import open_web
from warren.tools import Asking, ToolError, ToolSpec, asking

MAX_TOOLS: Final = 1_000
MAX_PAGES: Final = 100
MAX_ERROR: Final = 2_000
"""Characters of what went wrong with a connection that are kept."""
LOST: Final = "Session terminated"
"""What the official client says where a service does not know its session any more."""

DECLINED: Final = types.ElicitResult(action="decline")

logger: Final = logging.getLogger("warren.mcp")


@attrs.define(eq=False)
class _Call:
    """A call on its way; `outcome` stays None where nothing ever says how it ended."""

    name: str
    arguments: dict[str, Any]
    ask: Asking | None = None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    done: trio.Event = attrs.field(factory=trio.Event)
    outcome: str | ToolError | None = None

    def settle(self, outcome: str | ToolError) -> None:
        if self.outcome is None:
            self.outcome = outcome
            self.done.set()


@attrs.define(eq=False)
class _Life:
    """The time from one connecting to its end.

    Attributes:
        session: what speaks the protocol.
        nursery: where calls run: not in their callers' tasks, who never wait for a connection that hangs.
        calls: those that have no answer.
        doubt: set where a call makes it doubtful that the server is still there.
    """

    session: ClientSession
    nursery: trio.Nursery
    calls: set[_Call] = attrs.field(factory=set)
    doubt: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False)
class Connection:
    """A server, for as long as somebody wants it.

    Whatever becomes of the server ends no more than the calls that it had: they get an error at once, as do those that
    come while it is away. It is tried again for ever. `run` raises nothing.

    Attributes:
        server: which one.
        backoff: how long it waits before it tries again.
        tools: what the server offers, under its own names; what it has offered last, while it is away.
        settled: set once the first try has come to something.
        ended: set once nothing is left of it.
    """

    server: McpServer
    backoff: Backoff
    tools: tuple[ToolSpec, ...] = ()
    settled: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)
    _state: State = "connecting"
    _restarts: int = 0
    _error: str | None = None
    _life: _Life | None = None
    _began: float = math.inf
    _listed: trio.Event = attrs.field(factory=trio.Event)
    _stop: trio.Event = attrs.field(factory=trio.Event)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    def status(self) -> McpStatus:
        """Return how it does."""
        return McpStatus(self.server.name, self._state, len(self.tools), self._restarts, self._error)

    def close(self) -> None:
        """Have it end: calls get an error, the server is told to go, and made to. `ended` tells when it has."""
        self._stop.set()
        patience = 0.0 if self._life is None else self.server.stop_timeout
        self._scope.deadline = min(self._scope.deadline, trio.current_time() + patience)

    async def call(self, name: str, /, **arguments: Any) -> str:
        """Have the server run a tool, by its own name for it, and return the text. Raises ToolError.

        Cancelling it tells the server so, and does not wait for that.
        """
        life = self._life
        if life is None:
            raise ToolError(self._away())
        _check(self.server.name, arguments)
        call = _Call(name, arguments, asking.get())
        life.calls.add(call)
        life.nursery.start_soon(self._carry_out, life, call)
        try:
            await call.done.wait()
        finally:
            call.scope.cancel()
        if isinstance(call.outcome, str):
            return call.outcome
        raise call.outcome or ToolError(self._lost())

    async def run(self) -> None:
        """Connect, and connect again, until it is closed."""
        failures = 0
        try:
            with self._scope:
                while not self._stop.is_set():
                    lasted = await self._live()
                    failures = 1 if lasted >= self.backoff.healthy else failures + 1
                    if not self._stop.is_set():
                        await trio.sleep(self.backoff.delay(failures, random.random()))  # noqa: S311 - no secret
                        self._restarts += 1
        finally:
            self._state = "failed"
            self._error = self._error or "is closed"
            self.settled.set()
            self.ended.set()

    async def _live(self) -> float:
        """Connect once and serve until that ends; return how many seconds it was ready."""
        self._state = "connecting"
        self._listed = trio.Event()
        self._began = math.inf
        try:
            await self._connect()
        except Exception as exc:  # noqa: BLE001 - whatever the server makes of the protocol, it is the server's
            self._failed(first_error(exc))
        return max(0.0, trio.current_time() - self._began)

    def _failed(self, error: Exception) -> None:
        self._error = bounded(_said(error, self.server.connect_timeout), MAX_ERROR)
        self._state = "failed"
        self.settled.set()
        logger.warning("the MCP server %s %s", self.server.name, self._error)

    async def _connect(self) -> None:
        opened: AbstractAsyncContextManager[tuple[Any, Any]]
        opened = open_web(self.server) if self.server.command is None else open_process(self.server)
        ours = types.Implementation(name="warren", version=metadata.version("warren"))
        async with (
            opened as (read, write),
            ClientSession(
                read, write, message_handler=self._hear, client_info=ours, elicitation_callback=self._elicit
            ) as session,
        ):
            with trio.fail_after(self.server.connect_timeout):
                capabilities = await _greet(session)
                self.tools = () if capabilities.tools is None else await _list(session)
            await self._serve(session)

    async def _serve(self, session: ClientSession) -> None:
        async with trio.open_nursery() as nursery:
            self._life = life = _Life(session, nursery)
            self._began = trio.current_time()
            self._state = "ready"
            self.settled.set()
            nursery.start_soon(self._list_again, session)
            nursery.start_soon(self._look_after, life)
            try:
                await self._stop.wait()
            finally:  # no checkpoint between here and the last answer: nobody waits for how a connection ends
                self._life = None
                self._state = "failed"
                for call in life.calls:
                    call.settle(ToolError(self._lost()))
                nursery.cancel_scope.cancel()

    async def _carry_out(self, life: _Life, call: _Call) -> None:
        """Make a call; it always comes to an answer."""
        request = types.CallToolRequest(params=types.CallToolRequestParams(name=call.name, arguments=call.arguments))
        try:
            with call.scope:
                call.settle(text_of(await life.session.send_request(request, types.CallToolResult)))
        except ToolError as exc:
            call.settle(exc)
        except MCPError as exc:
            if _is_lost(exc):
                life.doubt.set()
            call.settle(ToolError(f"the MCP server {self.server.name!r} refused the call: {bounded(exc.message)}"))
        except Exception as exc:
            logger.info("the answer of the MCP server %s is none", self.server.name, exc_info=True)
            call.settle(ToolError(f"the MCP server {self.server.name!r} gave no valid answer: {bounded(str(exc))}"))
        finally:
            call.settle(ToolError(self._lost()))
            life.calls.discard(call)

    async def _elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Answer a server's question by the word of whoever approves the calls of the session that it works for.

        A server does not say for which of its calls it asks: with several of them under way nobody is asked.
        """
        del context
        calls = set() if self._life is None else self._life.calls
        ask = next(iter(calls)).ask if len(calls) == 1 else None
        content = None if isinstance(params, types.ElicitRequestURLParams) else defaults_of(params.requested_schema)
        if ask is None or (content is None and not isinstance(params, types.ElicitRequestURLParams)):
            return types.ElicitResult(action="cancel")
        question = params.model_dump(by_alias=True, mode="json", exclude_none=True, exclude={"meta", "task"})
        decision = await ask(question)
        if decision is None:
            return types.ElicitResult(action="cancel")
        return types.ElicitResult(action="accept", content=content) if decision.allow else DECLINED

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._listed.set()

    async def _list_again(self, session: ClientSession) -> None:
        """List the tools whenever the server says that they have changed."""
        while True:
            await self._listed.wait()
            self._listed = trio.Event()
            try:
                with trio.fail_after(self.server.connect_timeout):
                    self.tools = await _list(session)
            except (MCPError, ServerGoneError, ValueError) as exc:
                self._error = bounded(f"does not list its tools: {exc}", MAX_ERROR)
                logger.warning("the MCP server %s %s", self.server.name, self._error)

    async def _look_after(self, life: _Life) -> None:
        """Ping a server that has nothing to do, or of which a call says that it may be gone.

        One that works on something may be too busy to answer.
        """
        while True:
            with trio.move_on_after(self.server.ping_interval or float("inf")):
                await life.doubt.wait()
            if life.doubt.is_set() or not life.calls:
                life.doubt = trio.Event()
                with trio.fail_after(self.server.connect_timeout):
                    await _ping(life.session)

    def _away(self) -> str:
        error = f": it {self._error}" if self._error else ""
        return f"the MCP server {self.server.name!r} is not connected{bounded(error, MAX_ERROR)}"

    def _lost(self) -> str:
        return f"the connection to the MCP server {self.server.name!r} was lost during the call"


def defaults_of(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the content of a form that is accepted as it is: its defaults. None if it wants more than that."""
    fields = schema.get("properties", {})
    content = {name: field["default"] for name, field in fields.items() if "default" in field}
    return content if content.keys() >= set(schema.get("required", ())) else None


def _check(server: str, arguments: dict[str, Any]) -> None:
    """Refuse what no message can hold: it must not come to the connection, which others use too."""
    try:
        json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()
        params = {"name": "", "arguments": arguments}
        types.JSONRPCRequest(jsonrpc="2.0", id=0, method="", params=params).model_dump_json()
    except (ValueError, TypeError, RecursionError) as exc:  # half a character, say
        raise ToolError(f"the arguments cannot be sent to the MCP server {server!r}: {exc}") from exc


async def _greet(session: ClientSession) -> types.ServerCapabilities:
    """Agree on a revision of the protocol: with the handshake that nearly all know, else without."""
    try:
        return (await session.initialize()).capabilities
    except MCPError as exc:
        if exc.code not in (types.METHOD_NOT_FOUND, types.UNSUPPORTED_PROTOCOL_VERSION):
            raise
    return (await session.discover()).capabilities


async def _list(session: ClientSession) -> tuple[ToolSpec, ...]:
    """Return the tools of all pages, each name once."""
    found: dict[str, ToolSpec] = {}
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
        for each in page.tools:
            found.setdefault(each.name, ToolSpec(each.name, each.description or each.title or "", each.input_schema))
        if page.next_cursor in (None, cursor) or len(found) > MAX_TOOLS:
            break
        cursor = page.next_cursor
    if len(found) > MAX_TOOLS:
        raise ServerGoneError(f"offers more than {MAX_TOOLS} tools")
    return tuple(found.values())


async def _ping(session: ClientSession) -> None:
    """Return where the server answers, also that it knows no pings."""
    try:
        await session.send_ping()
    except MCPError as exc:
        if exc.code != types.METHOD_NOT_FOUND:
            raise


def _is_lost(error: MCPError) -> bool:
    return error.code == types.CONNECTION_CLOSED or error.message == LOST


def _said(error: Exception, timeout: float) -> str:
    """Return what went wrong with a connection, so that it goes on from the server's name."""
    if isinstance(error, ServerGoneError):
        return str(error)
    if isinstance(error, trio.TooSlowError):
        return f"did not answer within {timeout:g} s"
    if isinstance(error, MCPError):
        return f"refused to connect: {error.message}"
    return f"cannot be talked to: {type(error).__name__}: {error}"
