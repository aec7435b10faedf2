"""Tools that a client runs itself: a call of the model is a request to the client, its answer is the result."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import attrs
import trio

from warren import codec
from warren.errors import CapacityExceededError, InvalidParamsError
from warren.tools import Tool, ToolError, ToolSpec
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.params import MAX_TOOLS

EXECUTE: Final = "tool/execute"
GONE: Final = "the client that runs this tool is gone"


@attrs.frozen
class ExecuteTool:
    """What the client is asked to run: a tool it has registered, with the model's arguments."""

    name: str
    arguments: dict[str, Any]


@attrs.frozen
class ToolAnswer:
    """What the client answers: the text for the model, and whether it tells of an error."""

    content: str
    is_error: bool = False


@attrs.define(eq=False)
class _Call:
    """A call that the client has not answered; `answer` stays None where it never will."""

    done: trio.Event = attrs.field(factory=trio.Event)
    answer: jsonrpc.Response | None = None

    def settle(self, answer: jsonrpc.Response | None) -> None:
        self.answer = answer
        self.done.set()


@attrs.define(eq=False)
class ClientTools:
    """The tools of one client, for as long as it is connected.

    Whatever becomes of a call ends it alone: a client that is gone, or answers what is no answer, gives the model an
    error; one that never answers runs into the runtime's time limit for tools. Cancelling a call forgets it: an answer
    that comes later is dropped.

    Attributes:
        send: takes the requests; it must not block.
    """

    send: Callable[[bytes], None]
    _tools: dict[str, Tool] = attrs.field(factory=dict)
    _calls: dict[str, _Call] = attrs.field(factory=dict)
    _made: int = 0
    _closed: bool = False

    def offered(self) -> Sequence[Tool]:
        """Return the tools, in the order they came."""
        return tuple(self._tools.values())

    def register(self, specs: Sequence[ToolSpec]) -> None:
        """Take tools; one of a name that is known replaces it. Raises CapacityExceededError for too many in all."""
        names = {*self._tools, *(spec.name for spec in specs)}
        if len(names) > MAX_TOOLS:
            raise CapacityExceededError(f"a client may have {MAX_TOOLS} tools", cause="max_tools", retryable=False)
        for spec in specs:
            self._tools[spec.name] = Tool(spec, partial(self._execute, spec.name), is_async=True)

    def answer(self, response: jsonrpc.Response) -> None:
        """Take what the client answered; an answer that nothing waits for is dropped."""
        call = self._calls.get(response.id) if isinstance(response.id, str) else None
        if call is not None:
            call.settle(response)

    def close(self) -> None:
        """Take note that the client is gone: what waits for it, or asks for it later, ends with an error."""
        self._closed = True
        for call in self._calls.values():
            call.settle(None)

    async def _execute(self, name: str, /, **arguments: Any) -> str:
        """Have the client run a tool and return its text. Raises ToolError."""
        if self._closed:
            raise ToolError(GONE)
        self._made += 1
        call_id = f"tool-{self._made}"
        self._calls[call_id] = call = _Call()
        try:
            self.send(_request(call_id, name, arguments))
            await call.done.wait()
        finally:
            del self._calls[call_id]
        if call.answer is None:
            raise ToolError(GONE)
        return _text_of(call.answer)


def _request(call_id: str, name: str, arguments: dict[str, Any]) -> bytes:
    try:
        return jsonrpc.request(call_id, EXECUTE, ExecuteTool(name, arguments))
    except ValueError as exc:  # half a character, say: JSON cannot hold it
        raise ToolError(f"the arguments cannot be sent to the client: {exc}") from exc


def _text_of(response: jsonrpc.Response) -> str:
    """Return what the client's answer tells the model. Raises ToolError."""
    if response.error is not None:
        said = response.error.get("message") if isinstance(response.error, dict) else response.error
        raise ToolError(f"the client failed to run the tool: {said}")
    try:
        answer = codec.from_data(ToolAnswer, response.result, root="$.result")
    except InvalidParamsError as exc:
        raise ToolError(f"the client's answer is not understood: {exc.message}") from exc
    if answer.is_error:
        raise ToolError(answer.content)
    return answer.content
