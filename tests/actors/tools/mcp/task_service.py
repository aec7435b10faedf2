"""A web service that carries calls out as tasks of revision 2025-11-25, and notes each fault of its clients.

It is written from the specification alone, without the official package.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from tests.actors.tools.mcp.services import NAMED, empty, failed
from tests.transport.providers.byte_server import END, HEAD, Request, chunk, event, serve, status

REVISION: Final = "2025-11-25"
RELATED: Final = "io.modelcontextprotocol/related-task"
IMMEDIATE: Final = "io.modelcontextprotocol/model-immediate-response"
CAPABILITIES: Final[dict[str, Any]] = {
    "tools": {},
    "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}},
}
SUPPORT: Final = {
    "build": "required",
    "draft": "optional",
    "quick": "forbidden",
    "ponder": "required",
    "choose": "required",
    "blurt": "required",
}
"""The tools. `ponder` has an answer for the model at once, `choose` asks a question, and `blurt` asks it too early."""
FORM: Final = {"type": "object", "properties": {"colour": {"type": "string", "default": "red"}}}
TOLERANCE: Final = 0.9
"""Part of the poll interval from which on a look is not early: timers are not exact."""


@attrs.define(eq=False)
class Task:
    """One task.

    Attributes:
        name: the tool.
        ttl: the milliseconds that the client has asked for.
        status: its status.
        ended: set when its status is a last one.
        result: what the call would have answered.
        looked: the time of the newest look at it.
        looks: how often it was looked at.
    """

    name: str
    ttl: int
    status: str = "working"
    ended: trio.Event = attrs.field(factory=trio.Event)
    result: dict[str, Any] = attrs.field(factory=dict)
    looked: float = -1.0
    looks: int = 0

    def end(self, status: str, result: dict[str, Any]) -> None:
        """Move to a last status, unless it has one."""
        if not self.ended.is_set():
            self.status, self.result = status, result
            self.ended.set()


@attrs.define(eq=False)
class TaskService:
    """The service.

    Attributes:
        poll: the milliseconds that it wants between two looks; None says nothing.
        capabilities: what it says that it can do.
        tasks: its tasks by id; they outlive its sessions.
        faults: what clients have done that the protocol forbids.
        calls: the names of the tools that were called, with how: `task` or `call`.
        answers: the answers to its questions.
        keys: the idempotency keys of the calls.
        away: while it is true all requests are refused.
    """

    poll: int | None = 50
    capabilities: dict[str, Any] = attrs.field(factory=lambda: dict(CAPABILITIES))
    tasks: dict[str, Task] = attrs.field(factory=dict)
    faults: list[str] = attrs.field(factory=list)
    calls: list[tuple[str, str]] = attrs.field(factory=list)
    answers: list[dict[str, Any]] = attrs.field(factory=list)
    keys: list[str] = attrs.field(factory=list)
    away: bool = False
    _answered: dict[object, trio.Event] = attrs.field(factory=dict)

    @property
    def only(self) -> Task:
        """The one task that there is."""
        (task,) = self.tasks.values()
        return task

    def complete(self, text: str = "built", **result: Any) -> None:
        """End the one task with a text."""
        self.only.end("completed", said(text) | result)

    async def answer(self, request: Request, stream: trio.SocketStream) -> None:
        """Answer one request."""
        message: dict[str, Any] = request.body or {}
        number, method = message.get("id"), message.get("method")
        if self.away:
            await stream.send_all(status(503, {"error": "away"}))
        elif method is None and number is None:
            await stream.send_all(empty(405))
        elif method is None:
            self.answers.append(message["result"])
            if number in self._answered:
                self._answered[number].set()
            else:
                self.tasks[str(number)].end("completed", said(str(self.answers[-1])))
            await stream.send_all(empty(202))
        elif number is None:
            await stream.send_all(empty(202))
        elif method == "tools/call" and message["params"]["name"] == "blurt":
            await self._ask_early(message, stream)
        elif method == "tasks/result" and not self._known(message).ended.is_set():
            await self._stream_result(message, stream)
        else:
            await stream.send_all(status(200, self._reply(method, message)))

    def _reply(self, method: str, message: dict[str, Any]) -> dict[str, Any]:
        params = message.get("params") or {}
        handlers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "initialize": self._initialize,
            "tools/list": self._list,
            "tools/call": self._call,
            "tasks/get": self._get,
            "tasks/result": self._result,
            "tasks/cancel": self._cancel,
            "ping": lambda _: {},
        }
        try:
            return {"jsonrpc": "2.0", "id": message["id"], "result": handlers[method](params)}
        except LookupError as exc:
            code, text = exc.args if len(exc.args) > 1 else (-32601, f"no {method}")
            return failed(code, text, message["id"])

    def _fault(self, code: int, text: str) -> LookupError:
        self.faults.append(text)
        return LookupError(code, text)

    def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        if params["protocolVersion"] != REVISION:
            self.faults.append(f"revision {params['protocolVersion']}")
        return {"protocolVersion": REVISION, "capabilities": self.capabilities, "serverInfo": NAMED}

    def _list(self, _params: dict[str, Any]) -> dict[str, Any]:
        tools = [
            {"name": name, "inputSchema": {"type": "object"}, "execution": {"taskSupport": support}}
            for name, support in SUPPORT.items()
        ]
        return {"tools": [*tools, {"name": "plain", "inputSchema": {"type": "object"}}]}

    def _call(self, params: dict[str, Any]) -> dict[str, Any]:
        name, task = params["name"], params.get("task")
        support = SUPPORT.get(name, "forbidden") if "tasks" in self.capabilities else "forbidden"
        if (task is None and support == "required") or (task is not None and support == "forbidden"):
            raise self._fault(-32601, f"{name} as {'a call' if task is None else 'a task'}")
        self.calls.append((name, "call" if task is None else "task"))
        self.keys.append((params.get("_meta") or {}).get("warren/idempotency_key", ""))
        if task is None:
            return said(f"{name} done")
        if set(task) != {"ttl"} or not isinstance(task["ttl"], int) or RELATED in (params.get("_meta") or {}):
            raise self._fault(-32602, f"params.task is {task}")
        task_id = f"task-{len(self.tasks) + 1}"
        self.tasks[task_id] = Task(name, task["ttl"])
        meta = {"_meta": {IMMEDIATE: "I ponder."}} if name == "ponder" else {}
        return {"task": self._shown(task_id), **meta}

    def _shown(self, task_id: str) -> dict[str, Any]:
        task = self.tasks[task_id]
        interval = {} if self.poll is None else {"pollInterval": self.poll}
        return {
            "taskId": task_id,
            "status": task.status,
            "createdAt": "2026-01-01T00:00:00Z",
            "lastUpdatedAt": "2026-01-01T00:00:00Z",
            "ttl": task.ttl,
            **interval,
        }

    def _task_id(self, params: dict[str, Any]) -> str:
        if RELATED in (params.get("_meta") or {}):
            self.faults.append("related-task where the id says it")
        task_id: str = params["taskId"]
        if task_id not in self.tasks:
            raise LookupError(-32602, "Failed to retrieve task: Task not found")
        return task_id

    def _get(self, params: dict[str, Any]) -> dict[str, Any]:
        task_id = self._task_id(params)
        task, now = self.tasks[task_id], trio.current_time()
        if self.poll is not None and now - task.looked < TOLERANCE * self.poll / 1000:
            self.faults.append("looked too early")
        task.looked = now
        task.looks += 1
        if task.name == "choose" and task.status == "working" and not self.answers:
            task.status = "input_required"
        return self._shown(task_id)

    def _result(self, params: dict[str, Any]) -> dict[str, Any]:
        task_id = self._task_id(params)
        result = self.tasks[task_id].result
        if "code" in result:
            raise LookupError(result["code"], result["message"])
        return result | {"_meta": {RELATED: {"taskId": task_id}}}

    def _cancel(self, params: dict[str, Any]) -> dict[str, Any]:
        task_id = self._task_id(params)
        if self.tasks[task_id].ended.is_set():
            raise self._fault(-32602, "a task that has ended was cancelled")
        self.tasks[task_id].end("cancelled", {"code": -32603, "message": "cancelled"})
        return self._shown(task_id)

    def _known(self, message: dict[str, Any]) -> Task:
        """Return the task of a request; one that has ended if it is unknown, whose error comes at once."""
        ended = Task("", 0)
        ended.end("failed", {})
        return self.tasks.get(message["params"].get("taskId"), ended)

    async def _stream_result(self, message: dict[str, Any], stream: trio.SocketStream) -> None:
        """Ask the question of a task in the stream of its result, unless it has its answer, and block until its end."""
        task_id = message["params"]["taskId"]
        task = self.tasks[task_id]
        await stream.send_all(HEAD)
        if task.status == "input_required":
            answered = self._answered.setdefault(task_id, trio.Event())
            await stream.send_all(chunk(event(_question(task_id))))
            await answered.wait()
            task.end("completed", said(str(self.answers[-1])))
        await task.ended.wait()
        await stream.send_all(chunk(event(self._reply("tasks/result", message))) + END)

    async def _ask_early(self, message: dict[str, Any], stream: trio.SocketStream) -> None:
        """Ask the question of a task before its call has its answer."""
        reply = self._reply("tools/call", message)
        await stream.send_all(HEAD + chunk(event(_question(reply["result"]["task"]["taskId"]))))
        await stream.send_all(chunk(event(reply)) + END)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """Serve for a body; yield the address."""
        async with serve(self.answer) as url:
            yield f"{url}/mcp"


def said(text: str) -> dict[str, Any]:
    """Return the result of a call."""
    return {"content": [{"type": "text", "text": text}], "isError": False}


def _question(task_id: str) -> dict[str, Any]:
    params = {"message": "Which one?", "requestedSchema": FORM, "_meta": {RELATED: {"taskId": task_id}}}
    return {"jsonrpc": "2.0", "id": task_id, "method": "elicitation/create", "params": params}
