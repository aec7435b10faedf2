"""Tools of a client's process: the server asks for a call of one, and gets its result."""

import logging
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import anyio.to_thread

from warren.conversation import codec
from warren.models.tools import Tool, failure_text
from warren.transport.client.connection import RunTool
from warren.transport.rpc.client_tools import ExecuteTool

logger: Final = logging.getLogger(__name__)


def runner_of(tools: Sequence[Tool]) -> RunTool:
    """Return the function that runs these tools for a server. A failure is a result, as it is for the model."""
    by_name = {each.spec.name: each for each in tools}

    async def run(params: Any) -> Mapping[str, Any]:
        try:
            wanted = codec.from_server(ExecuteTool, params)
            text = await _result_of(by_name[wanted.name], wanted.arguments)
        except (Exception, SystemExit) as exc:
            logger.info("a tool of the client failed", exc_info=True)
            return {"content": failure_text(exc), "is_error": True}
        return {"content": text, "is_error": False}

    return run


async def _result_of(tool: Tool, arguments: Mapping[str, Any]) -> str:
    call = partial(tool.call, **tool.bind(arguments))
    if tool.is_async:
        found = await cast("Awaitable[Any]", call())
    else:
        found = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
    return codec.text_of(found)
