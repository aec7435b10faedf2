"""Tools that a client runs itself: each call of the model is a request to the client, and the response its result."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from warren.base.errors import CapacityExceededError, InvalidParamsError
from warren.base.values import define, frozen
from warren.conversation import codec
from warren.models.tools import ClientGoneError, Tool, ToolError, ToolSpec, current_call
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.endpoint import GoneError
from warren.transport.rpc.params import MAX_TOOLS

EXECUTE: Final = "tool/execute"


@frozen
class ExecuteTool:
    """The parameters of a request to the client: a tool that it has registered, with the model's arguments.

    A client that has lost its connection may be asked for the same call again: `key` tells it so.

    Attributes:
        name: the tool.
        arguments: the arguments.
        session_id: the session.
        call_id: the id of the call.
        key: the idempotency key of the call, the same each time that it is asked for.
    """

    name: str
    arguments: dict[str, Any]
    session_id: str = ""
    call_id: str = ""
    key: str = ""


@frozen
class ToolAnswer:
    """The result of a request to the client: the text for the model, and whether the text reports an error."""

    content: str
    is_error: bool = False


@define(eq=False)
class ClientTools:
    """The tools of one client, for as long as it is connected.

    A call that fails does not end the turn: the model gets an error as the result if the client's answer cannot be
    read. If the client is gone, a call of a durable turn waits for it: it comes back by `turn/wait`, or by the same
    request under its key, on any connection on which it has registered the tool. A client that never answers runs into
    the runtime's time limit for tools.

    Attributes:
        ask: sends a request to the client and returns the response. Raises GoneError if the client is gone, ValueError
            for parameters that JSON cannot hold.
        offered: the tools, in the order of their registration.
    """

    ask: Callable[[str, ExecuteTool], Awaitable[jsonrpc.Response]]
    offered: tuple[Tool, ...] = ()

    def register(self, specs: Sequence[ToolSpec]) -> None:
        """Add tools; one with the name of an earlier one replaces it.

        Raises:
            CapacityExceededError: if the client would have more than `MAX_TOOLS` tools.
        """
        tools = {tool.spec.name: tool for tool in self.offered}
        for spec in specs:
            tools[spec.name] = Tool(spec, partial(self._execute, spec.name), is_async=True, of_client=True)
        if len(tools) > MAX_TOOLS:
            problem = f"a client may register {MAX_TOOLS} tools, and these would be {len(tools)}"
            raise CapacityExceededError(problem, cause="max_tools", retryable=False)
        self.offered = tuple(tools.values())

    async def _execute(self, name: str, /, **arguments: Any) -> str:
        """Have the client run a tool, and return the text for the model. Raises ToolError."""
        try:
            call = current_call()
            params = ExecuteTool(name, arguments, call.session_id, call.call_id, call.key)
            return _text_of(await self.ask(EXECUTE, params))
        except GoneError:
            raise ClientGoneError("the client that runs this tool is gone") from None
        except ValueError as exc:  # a lone surrogate, for example: JSON cannot hold it
            raise ToolError(f"the arguments cannot be sent to the client: {exc}") from exc


def _text_of(response: jsonrpc.Response) -> str:
    """Return the text for the model from the client's response. Raises ToolError if the response is an error."""
    if response.error is not None:
        problem = response.error.get("message") if isinstance(response.error, dict) else response.error
        raise ToolError(f"the client failed to run the tool: {problem}")
    try:
        answer = codec.from_data(ToolAnswer, response.result, root="$.result")
    except InvalidParamsError as exc:
        raise ToolError(f"the client's answer cannot be read: {exc.message}") from exc
    if answer.is_error:
        raise ToolError(answer.content)
    return answer.content
