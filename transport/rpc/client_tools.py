"""Tools that a client runs itself: a call of the model is a request to the client, its answer is the result."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import attrs

from warren import codec
from warren.errors import CapacityExceededError, InvalidParamsError
from warren.tools import Tool, ToolError, ToolSpec
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.endpoint import GoneError
from warren.transport.rpc.params import MAX_TOOLS

EXECUTE: Final = "tool/execute"


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
class ClientTools:
    """The tools of one client, for as long as it is connected.

    Whatever becomes of a call ends it alone: a client that is gone, or gives an answer that is not understood, gives
    the model an error; one that never answers runs into the runtime's time limit for tools.

    Attributes:
        ask: sends a request to the client and returns its answer. Raises GoneError, and ValueError for parameters that
            JSON cannot hold.
    """

    ask: Callable[[str, ExecuteTool], Awaitable[jsonrpc.Response]]
    _tools: dict[str, Tool] = attrs.field(factory=dict)

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

    async def _execute(self, name: str, /, **arguments: Any) -> str:
        """Have the client run a tool and return its text. Raises ToolError."""
        try:
            return _text_of(await self.ask(EXECUTE, ExecuteTool(name, arguments)))
        except GoneError:
            raise ToolError("the client that runs this tool is gone") from None
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
