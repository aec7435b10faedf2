"""The connection to one server as an actor: it connects, lists the tools, makes calls, and reconnects."""

import json
import logging
import math
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar, cast

import attrs
import mcp_types as types
import trio
from mcp import ClientSession
from mcp.client.session import ClientRequestContext, IncomingMessage
from mcp.shared.exceptions import MCPError

from warren.actors.supervision import first_error
from warren.actors.tools.mcp.pace import FloodError, Pace, ServerGoneError
from warren.actors.tools.mcp.process import open_process
from warren.actors.tools.mcp.refusal import Refusal
from warren.actors.tools.mcp.results import LARGE, output_of, size_of
from warren.actors.tools.mcp.tasks import ENDED, TaskHandle, poll_of, related_to, support_of, task_of, told_of
from warren.actors.tools.mcp.web import open_web
from warren.base.backoff import Backoff
from warren.base.values import define
from warren.base.version import VERSION
from warren.conversation.categories import Decision
from warren.models.tools import (
    Asking,
    Handed,
    Restart,
    ToolError,
    ToolOutput,
    ToolSpec,
    Unfinished,
    asking,
    bounded,
    calling,
)
from warren.reports.health import McpHealth, McpState, Status
from warren.reports.tracing import HEADER, here
from warren.settings.tool_config import McpServer

MAX_TOOLS: Final = 1_000
MAX_PAGES: Final = 100
PATIENCE: Final = 5.0
"""Seconds that a call waits for a new session, to be made once more in it."""
LISTENS: Final = 5.0
"""Seconds for which a look at a task waits for its questions, and after the answer to one for its result."""
EARLY: Final = 60.0
"""Seconds for which a question of a task waits for the next look at the task."""
MAX_EARLY: Final = 100
"""Questions of one server that do so."""
HEALTHY: Final = 10.0
"""Seconds after which a connection that ends counts as no failure: the waits begin anew."""
LIST_AGAIN: Final = 1.0
"""Seconds between two lists of the tools."""
MAX_ERROR: Final = 2_000
"""Characters of the error of a connection that are kept."""
DECLINED: Final = types.ElicitResult(action="decline")
CANCELLED: Final = types.ElicitResult(action="cancel")

logger: Final = logging.getLogger("warren.mcp")
R = TypeVar("R", bound=types.Result)


@define(eq=False)
class _Question:
    """A question that a server asks during a call; `decision` is None if nobody decides as long as the call runs."""

    content: Mapping[str, Any]
    decision: Decision | None = None
    closed: trio.Event = attrs.field(factory=trio.Event)

    async def put(self, ask: Asking) -> None:
        try:
            self.decision = await ask(self.content)
        finally:
            self.closed.set()


@define(eq=False)
class _ToolCall:
    """A call in flight; `outcome` stays None if its outcome never becomes known.

    Attributes:
        session_id: the session that it is of; empty outside of sessions.
        ask: asks the approver of that session.
        questions: runs the server's questions in the caller's task, so that they end before the caller goes on.
        failure: the error if the connection ends; None for the general one.
        again: whether it may be made once more in a new session.
        task: whether the server is to carry it out as a task.
        patience: seconds for which a look at a task waits for a result while no question is open.
        open: the questions that are open.
    """

    name: str
    arguments: dict[str, Any]
    session_id: str = ""
    ask: Asking | None = None
    meta: types.RequestParamsMeta | None = None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    done: trio.Event = attrs.field(factory=trio.Event)
    questions: trio.Nursery | None = None
    outcome: str | ToolOutput | Handed | ToolError | None = None
    failure: ToolError | None = None
    again: bool = False
    task: bool = False
    patience: float = math.inf
    open: int = 0

    def wait_on(self) -> None:
        """Wait for the patience from now on, or as long as a question is open."""
        self.scope.deadline = math.inf if self.open else trio.current_time() + self.patience

    def resolve(self, outcome: str | ToolOutput | Handed | ToolError) -> None:
        if self.outcome is None:
            self.outcome = outcome
            self.done.set()

    async def decision(self, question: Mapping[str, Any]) -> Decision | None:
        """Ask the approver a question of the server; return None if nobody decides as long as the call runs."""
        if self.ask is None or self.questions is None or self.done.is_set():
            return None
        asked = _Question(question)
        self.questions.start_soon(asked.put, self.ask)
        self.open += 1
        self.wait_on()
        try:
            await asked.closed.wait()
        finally:
            self.open -= 1
            self.wait_on()
        return asked.decision


@define(eq=False)
class _Life:
    """One connection, from its handshake to its end.

    Attributes:
        session: the official client.
        nursery: runs the calls. They are not in their callers' tasks, so that no caller waits for a hung connection.
        calls: the unanswered calls.
        given_up: sessions with calls that were given up, two at most. The server may work on such a call still.
        doubt: set if a call makes it doubtful that the server is alive.
        tasks: the looks at tasks that are under way, by the ids of the tasks.
        looked: set with the next look at a task.
        early: the questions that wait for one.
    """

    session: ClientSession
    nursery: trio.Nursery
    calls: set[_ToolCall] = attrs.field(factory=set)
    tasks: dict[str, _ToolCall] = attrs.field(factory=dict)
    given_up: set[str] = attrs.field(factory=set)
    doubt: trio.Event = attrs.field(factory=trio.Event)
    looked: trio.Event = attrs.field(factory=trio.Event)
    early: int = 0

    def looks_at(self, task_id: str, asked: _ToolCall) -> None:
        """Note the begin of a look at a task."""
        self.tasks[task_id] = asked
        self.looked.set()
        self.looked = trio.Event()

    async def look_at(self, task_id: str) -> _ToolCall | None:
        """Return the look at a task that a question of it belongs to, once it begins; None if there is none soon."""
        if self.early < MAX_EARLY:
            self.early += 1
            try:
                with trio.move_on_after(EARLY):
                    while task_id not in self.tasks:
                        await self.looked.wait()
            finally:
                self.early -= 1
        return self.tasks.get(task_id)

    def give_up(self, call: _ToolCall) -> None:
        """Note that nobody waits for a call any more."""
        call.scope.cancel()
        if len(self.given_up) < 2:  # noqa: PLR2004 - another session has some then, whichever asks
            self.given_up.add(call.session_id)

    def asking(self) -> _ToolCall | None:
        """Return the call that a question of the server is about; None if that is not certain."""
        call = next(iter(self.calls)) if len(self.calls) == 1 else None
        return call if call is not None and self.given_up <= {call.session_id} else None


@define(eq=False)
class McpConnection:
    """The connection to one server, which reconnects for ever until it is closed.

    If the server fails, its unanswered calls get an error at once, and so do calls while it is away; nothing else is
    affected. `run` raises nothing.

    Attributes:
        server: the server.
        backoff: the waits between attempts to connect.
        tools: the tools under the server's own names; while the server is away, those of its last list.
        tried: set when the first attempt has succeeded or failed.
        ended: set when nothing is left of the connection.
    """

    server: McpServer
    backoff: Backoff
    tools: tuple[ToolSpec, ...] = ()
    tried: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)
    _state: McpState = "connecting"
    _restarts: int = 0
    _error: str | None = None
    _life: _Life | None = None
    _began: float = math.inf
    _repeatable: frozenset[str] = frozenset()  # the tools whose hints say that a second call does no harm
    _as_tasks: frozenset[str] = frozenset()  # the tools whose calls the server carries out as tasks
    _cancels: bool = False  # whether the server takes requests to cancel tasks
    _back: trio.Event = attrs.field(factory=trio.Event)
    _listed: trio.Event = attrs.field(factory=trio.Event)
    _stop: trio.Event = attrs.field(factory=trio.Event)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    def health(self) -> McpHealth:
        """Return the state of the connection."""
        status: Status = "ok" if self._state == "ready" else "degraded"
        return McpHealth(self.server.name, status, self._state, self._restarts, self._error)

    def close(self) -> None:
        """Begin to end: calls get an error, and the server is ended, by force if need be. `ended` is set afterwards."""
        self._stop.set()
        patience = 0.0 if self._life is None else self.server.stop_timeout
        self._scope.deadline = min(self._scope.deadline, trio.current_time() + patience)

    async def call(self, name: str, /, **arguments: Any) -> str | ToolOutput | Handed:
        """Run a tool by the server's own name for it, and return the text of the result. Raises ToolError.

        If the server carries the call out as a task, return the way to that at once: `look` has its result.

        If a web service has lost the session, or the call, it is made once more in a new session, unless it may have
        begun; a tool that is to be replayed is called again even then.

        If the call is cancelled, the server gets a notification of it, and its reaction is not awaited.
        """
        life = self._life
        if life is None:
            raise ToolError(self._away())
        _check(self.server.name, arguments)
        call = await self._ask(life, name, arguments)
        if call.again:
            if self._life is None:
                with trio.move_on_after(PATIENCE):
                    await self._back.wait()
            if self._life is not None:  # else the server is away still, or refuses to be connected
                call = await self._ask(self._life, name, arguments)
        if isinstance(call.outcome, str | ToolOutput | Handed):
            return call.outcome
        raise call.outcome or ToolError(self._lost())

    @property
    def here(self) -> bool:
        """Whether this process alone can find a task again: another one has a server process of its own."""
        return not self._is_web

    async def look(self, handle: Mapping[str, Any], /) -> str | ToolOutput | Unfinished:
        """Look at a task of the server; return its result, or when to look again. Raises ToolError if it is lost.

        While the server is away its tasks go on: a service keeps them. Questions of the task are asked meanwhile, and
        the look lasts until they have their answers.
        """
        task, of = TaskHandle.of(handle), calling.get()
        asked = _ToolCall("", {}, "" if of is None else of.session_id, asking.get())
        async with trio.open_nursery() as questions:
            asked.questions = questions
            try:
                outcome = await self._look(task, asked)
                questions.cancel_scope.cancel()
            finally:
                asked.questions = None
                asked.done.set()
                if self._life is not None and self._life.tasks.get(task.task_id) is asked:
                    del self._life.tasks[task.task_id]
        if isinstance(outcome, ToolError):
            raise outcome
        return outcome

    async def _look(self, task: TaskHandle, asked: _ToolCall) -> str | ToolOutput | Unfinished | ToolError:
        if self._life is None:
            with trio.move_on_after(PATIENCE):
                await self._back.wait()
        life = self._life
        if life is None:
            return Unfinished(task.poll)
        life.looks_at(task.task_id, asked)
        request = types.GetTaskRequest(params=types.GetTaskRequestParams(task_id=task.task_id))
        found: types.GetTaskResult | Exception | None = None
        with trio.move_on_after(self.server.connect_timeout):
            found = await self._exchange(life, request, types.GetTaskResult)
        if isinstance(found, MCPError) and found.code in (types.INVALID_PARAMS, types.METHOD_NOT_FOUND):
            return self._error_of(f"does not know the task of the call any more: {found.message}")
        if not isinstance(found, types.Task):
            return Unfinished(task.poll)
        ended, outcome = found.status in ENDED, None
        if ended or found.status == "input_required" or asked.open:  # questions come while somebody waits for a result
            asked.patience = self.server.connect_timeout if ended else LISTENS
            outcome = await self._result_of(life, task, found, asked)
        return Unfinished(poll_of(found, task.poll)) if outcome is None else outcome

    def cancel(self, handle: Mapping[str, Any], /) -> None:
        """Have the server cancel a task, without waiting; one that has ended stays as it is."""
        life, task = self._life, TaskHandle.of(handle)
        if life is not None and self._cancels:
            request = types.CancelTaskRequest(params=types.CancelTaskRequestParams(task_id=task.task_id))
            life.nursery.start_soon(self._exchange, life, request, types.CancelTaskResult)

    async def _result_of(
        self, life: _Life, task: TaskHandle, found: types.Task, asked: _ToolCall
    ) -> str | ToolOutput | ToolError | None:
        """Return the result of a task, or its error; None if the server does not tell it as long as `asked` waits."""
        result: types.CallToolResult | Exception | None = None
        asked.wait_on()
        with asked.scope:
            result = await self._exchange(life, _payload(task), types.CallToolResult)
        if isinstance(result, types.CallToolResult):
            try:
                return (
                    output_of(result) if size_of(result) < LARGE else await trio.to_thread.run_sync(output_of, result)
                )
            except ToolError as exc:
                return exc
        told = isinstance(result, MCPError) and found.status in ENDED and result.code != types.CONNECTION_CLOSED
        if isinstance(result, MCPError) and told and Refusal.of_error(result) is None:
            status = "" if found.status_message is None else f" ({found.status_message})"
            return self._error_of(f"says that its task is {found.status}{status}: {result.message}")
        return None

    async def _exchange(self, life: _Life, request: types.Request[Any, Any], kind: type[R]) -> R | Exception | None:
        """Send a request from a task of the connection; return its result or the error, None if the connection ends."""
        outcome: list[R | Exception] = []
        done, scope = trio.Event(), trio.CancelScope()

        async def send() -> None:
            try:
                with scope:
                    outcome.append(await life.session.send_request(request, kind))
            except Exception as exc:  # noqa: BLE001 - every error of the protocol is the server's fault
                outcome.append(exc)
            finally:
                done.set()

        try:
            life.nursery.start_soon(send)
        except RuntimeError:  # the connection has just ended
            return None
        try:
            await done.wait()
        finally:
            scope.cancel()
        return outcome[0] if outcome else None

    async def _ask(self, life: _Life, name: str, arguments: dict[str, Any]) -> _ToolCall:
        """Make a call, and return it when it has its outcome."""
        of = calling.get()
        call = _ToolCall(name, arguments, "" if of is None else of.session_id, asking.get(), _meta())
        call.task = name in self._as_tasks
        async with trio.open_nursery() as questions:
            call.questions = questions
            life.calls.add(call)
            life.nursery.start_soon(self._carry_out, life, call)
            try:
                await call.done.wait()
                questions.cancel_scope.cancel()
            finally:
                call.questions = None
                if not call.done.is_set():
                    life.give_up(call)
        return call

    def restart_of(self, name: str) -> Restart:
        """Return what becomes of a call that may have begun when its process or its connection ended."""
        hinted: Restart = "replay" if name in self._repeatable else "report"
        return self.server.tool_restart.get(name) or self.server.restart or hinted

    def timeout_of(self, name: str) -> float | None:
        """Return the time limit of a tool's calls in seconds; None for that of the runtime."""
        return self.server.task_timeout if name in self._as_tasks else self.server.call_timeout

    async def run(self) -> None:
        """Connect and reconnect until the connection is closed."""
        failures = 0
        try:
            with self._scope:
                while not self._stop.is_set():
                    lasted = await self._live()
                    failures = 1 if lasted >= HEALTHY else failures + 1
                    if not self._stop.is_set():
                        await trio.sleep(self.backoff.delay(failures))
                        self._restarts += 1
        finally:
            self._state = "failed"
            self._error = self._error or "is closed"
            self._wake()
            self.tried.set()
            self.ended.set()

    async def _live(self) -> float:
        """Connect once, and serve until the connection ends; return the seconds for which it was ready."""
        self._state = "connecting"
        self._listed = trio.Event()
        self._began = math.inf
        try:
            await self._connect()
        except Exception as exc:  # noqa: BLE001 - every error of the protocol is the server's fault
            if not self._stop.is_set():  # the answer to a call may find the client closed
                self._failed(first_error(exc))
        return max(0.0, trio.current_time() - self._began)

    def _failed(self, error: Exception) -> None:
        self._error = bounded(_said(error, self.server.connect_timeout), MAX_ERROR)
        self._state = "failed"
        self.tried.set()
        if isinstance(error, FloodError):
            self._began = math.inf  # it was not healthy, however long that took
        logger.warning("the MCP server %s %s", self.server.name, self._error)
        refusal = Refusal.of_error(error) if isinstance(error, MCPError) else None
        if self._began == math.inf and refusal is not None and not refusal.passing:
            self._wake()

    def _wake(self) -> None:
        """Tell the calls that wait for a new session that there is one, or will be none."""
        self._back.set()
        self._back = trio.Event()

    async def _connect(self) -> None:
        opened: AbstractAsyncContextManager[tuple[Any, Any]]
        open_it = open_web if self.server.command is None else open_process
        opened = open_it(self.server, Pace())
        ours = types.Implementation(name="warren", version=VERSION)
        async with (
            opened as (read, write),
            ClientSession(
                read, write, message_handler=self._hear, client_info=ours, elicitation_callback=self._elicit
            ) as session,
        ):
            with trio.fail_after(self.server.connect_timeout):
                capabilities = await _greet(session)
                self._cancels = capabilities.tasks is not None and capabilities.tasks.cancel is not None
                if capabilities.tools is None:
                    self.tools, self._repeatable, self._as_tasks = (), frozenset(), frozenset()
                else:
                    await self._list(session, capabilities)
            await self._serve(session, capabilities)

    async def _serve(self, session: ClientSession, capabilities: types.ServerCapabilities) -> None:
        async with trio.open_nursery() as nursery:
            self._life = life = _Life(session, nursery)
            self._began = trio.current_time()
            self._state = "ready"
            self.tried.set()
            self._wake()
            nursery.start_soon(self._list_again, session, capabilities)
            nursery.start_soon(self._look_after, life)
            try:
                await self._stop.wait()
            finally:  # No checkpoint from here to the last answer: no caller is left waiting.
                self._life = None
                self._state = "failed"
                for call in life.calls:
                    call.again = call.again or self._may_repeat(call)
                    call.resolve(call.failure or ToolError(self._lost()))
                nursery.cancel_scope.cancel()

    async def _carry_out(self, life: _Life, call: _ToolCall) -> None:
        """Make a call, and answer its caller in each case."""
        task = types.TaskMetadata(ttl=round(self.server.task_timeout * 1000)) if call.task else None
        params = types.CallToolRequestParams(name=call.name, arguments=call.arguments, _meta=call.meta, task=task)
        request = types.CallToolRequest(params=params)
        try:
            with call.scope:
                result = await life.session.send_request(request, types.CallToolResult)
                if call.task and (created := task_of(result)) is not None:
                    handle = TaskHandle(created.task_id, poll_of(created))
                    call.resolve(Handed(handle.stored, told_of(result)))
                elif size_of(result) < LARGE:
                    call.resolve(output_of(result))
                else:
                    call.resolve(await trio.to_thread.run_sync(output_of, result))
        except ToolError as exc:
            call.resolve(exc)
        except MCPError as exc:
            refusal = Refusal.of_error(exc)
            if refusal is None and self._is_web and exc.code == types.CONNECTION_CLOSED:  # its stream broke
                refusal = Refusal(exc.message, begun=True)
            if refusal is not None:
                await self._refused(life, call, refusal)
            elif exc.code in (types.CONNECTION_CLOSED, types.INVALID_REQUEST if self._is_web else None):
                life.doubt.set()
            call.resolve(call.failure or self._error_of(f"refused the call: {exc.message}"))
        except Exception as exc:
            logger.info("the answer of the MCP server %s is none", self.server.name, exc_info=True)
            call.resolve(self._error_of(f"gave no valid answer: {exc}"))
        finally:
            call.resolve(call.failure or ToolError(self._lost()))
            life.calls.discard(call)

    async def _refused(self, life: _Life, call: _ToolCall, refusal: Refusal) -> None:
        """Find out what a refusal is about; if it is about the session, end this connection by an error."""
        doubt = "; the call may have been carried out" if refusal.begun else ""
        call.failure = self._error_of(refusal.of("the call") + doubt)
        call.again = not refusal.begun or self._may_repeat(call)
        self._error = bounded(refusal.of("a call"), MAX_ERROR)
        logger.warning("the MCP server %s %s", self.server.name, self._error)
        try:
            await self._check_session(life, refusal)
        except Exception:
            if self._life is life:  # its caller goes on as soon as this call has ended, and must not find this session
                self._life = None
            raise
        call.again &= refusal.passing

    async def _check_session(self, life: _Life, refusal: Refusal) -> None:
        """Raise the error that ends the connection if the service does not know the session any more."""
        if refusal.gone:
            raise ServerGoneError(f"has lost the session: {refusal.text}")
        with trio.fail_after(self.server.connect_timeout):
            await _ping(life.session)

    @property
    def _is_web(self) -> bool:
        return self.server.command is None

    def _may_repeat(self, call: _ToolCall) -> bool:
        """Tell whether a second call does no harm, although the first one may have begun.

        A process is not asked again: a call that has ended it would end it again, for every session.
        """
        return self._is_web and self.restart_of(call.name) == "replay"

    def _error_of(self, said: str) -> ToolError:
        return ToolError(f"the MCP server {self.server.name!r} {bounded(said)}")

    async def _elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Answer a server's question by the approval of the session that it works for.

        A server names the task that its question belongs to, but no call: if it may be of another one, it is cancelled.
        """
        del context
        task_id, life = related_to(params), self._life
        call = None if life is None else life.asking() if task_id is None else await life.look_at(task_id)
        content = None if isinstance(params, types.ElicitRequestURLParams) else defaults_of(params.requested_schema)
        if call is None or (content is None and not isinstance(params, types.ElicitRequestURLParams)):
            return CANCELLED
        question = params.model_dump(by_alias=True, mode="json", exclude_none=True, exclude={"meta", "task"})
        decision = await call.decision(question)
        if decision is None:
            return CANCELLED
        return types.ElicitResult(action="accept", content=content) if decision.allow else DECLINED

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._listed.set()

    async def _list_again(self, session: ClientSession, capabilities: types.ServerCapabilities) -> None:
        """List the tools again after notifications that they have changed."""
        while True:
            await self._listed.wait()
            self._listed = trio.Event()
            try:
                with trio.fail_after(self.server.connect_timeout):
                    await self._list(session, capabilities)
            except (MCPError, ServerGoneError, ValueError) as exc:
                self._error = bounded(f"does not list its tools: {exc}", MAX_ERROR)
                logger.warning("the MCP server %s %s", self.server.name, self._error)
            await trio.sleep(LIST_AGAIN)

    async def _list(self, session: ClientSession, capabilities: types.ServerCapabilities) -> None:
        """Take the tools of all pages, each name once."""
        found: dict[str, types.Tool] = {}
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
            for each in page.tools:
                found.setdefault(each.name, each)
            if page.next_cursor in (None, cursor) or len(found) > MAX_TOOLS:
                break
            cursor = page.next_cursor
        if len(found) > MAX_TOOLS:
            raise ServerGoneError(f"offers more than {MAX_TOOLS} tools")
        self.tools = tuple(
            ToolSpec(each.name, each.description or each.title or "", each.input_schema) for each in found.values()
        )
        hints = {each.name: each.annotations or types.ToolAnnotations() for each in found.values()}
        self._repeatable = frozenset(
            name for name, each in hints.items() if each.read_only_hint or each.idempotent_hint
        )
        wanted = self.server.tasks
        self._as_tasks = frozenset(
            name for name, each in found.items() if support_of(each, capabilities, wanted=wanted)
        )
        for name in sorted(self.server.tool_restart.keys() - found.keys()):
            logger.warning("the MCP server %s has no tool %s, which tool_restart names", self.server.name, name)

    async def _look_after(self, life: _Life) -> None:
        """Ping the server while it is idle, or when a call makes it doubtful that the server is alive.

        A server that works on a call may be too busy to answer.
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
    """Return the defaults of a form, which accept it as it is; None if a required field has no default."""
    fields = schema.get("properties", {})
    content = {name: field["default"] for name, field in fields.items() if "default" in field}
    return content if content.keys() >= set(schema.get("required", ())) else None


def _meta() -> types.RequestParamsMeta | None:
    """Return the place of the running tool call in its session and its trace; None outside of a session."""
    call = calling.get()
    if call is None:
        return None
    told = {"session_id": call.session_id, "turn": call.turn, "call_id": call.call_id, "idempotency_key": call.key}
    meta = {f"warren/{name}": value for name, value in told.items()}
    if (place := here.get()) is not None:
        meta[HEADER] = place.traceparent
    return cast("types.RequestParamsMeta", meta)


def _check(server: str, arguments: dict[str, Any]) -> None:
    """Raise ToolError for arguments that no message can hold: they would break the connection for other calls."""
    try:
        json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()
        params = {"name": "", "arguments": arguments}
        types.JSONRPCRequest(jsonrpc="2.0", id=0, method="", params=params).model_dump_json()
    except (ValueError, TypeError, RecursionError) as exc:  # such as half a character
        raise ToolError(f"the arguments cannot be sent to the MCP server {server!r}: {exc}") from exc


def _payload(task: TaskHandle) -> types.GetTaskPayloadRequest:
    """Return the request for the result of a task, which the server answers when that has ended."""
    return types.GetTaskPayloadRequest(params=types.GetTaskPayloadRequestParams(task_id=task.task_id))


async def _greet(session: ClientSession) -> types.ServerCapabilities:
    """Negotiate a revision of the protocol: with the usual handshake, else without one."""
    try:
        return (await session.initialize()).capabilities
    except MCPError as exc:
        if exc.code not in (types.METHOD_NOT_FOUND, types.UNSUPPORTED_PROTOCOL_VERSION):
            raise
    return (await session.discover()).capabilities


async def _ping(session: ClientSession) -> None:
    """Return if the server answers, even with the error that it knows no pings."""
    try:
        await session.send_ping()
    except MCPError as exc:
        if exc.code != types.METHOD_NOT_FOUND:
            raise


def _said(error: Exception, timeout: float) -> str:
    """Return the problem with a connection, as a text that continues after the server's name."""
    if isinstance(error, ServerGoneError):
        return str(error)
    if isinstance(error, trio.TooSlowError):
        return f"did not answer within {timeout:g} s"
    if isinstance(error, MCPError):
        return (Refusal.of_error(error) or Refusal(error.message, 0)).of("to connect")
    return f"cannot be talked to: {type(error).__name__}: {error}"
