"""Tools of a client's process: the server asks for a call of one, and gets its result."""

import logging
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import anyio
import anyio.to_thread
import attrs

from warren.base.values import define
from warren.conversation import codec
from warren.models.tools import Tool, failure_text
from warren.transport.client.connection import RunTool
from warren.transport.rpc.client_tools import ExecuteTool

logger: Final = logging.getLogger(__name__)


@define(eq=False)
class _Run:
    """One call: its answer once it has ended."""

    ended: anyio.Event = attrs.field(factory=anyio.Event)
    answer: Mapping[str, Any] | None = None


def runner_of(tools: Sequence[Tool]) -> RunTool:
    """Return the function that runs these tools for a server. A failure is a result, as it is for the model.

    A server asks for a call again, on a new connection, if it has not got the answer: the call runs once all the same.
    """
    by_name, runs = {each.spec.name: each for each in tools}, dict[str, _Run]()

    async def run(params: Any) -> Mapping[str, Any]:
        try:
            wanted = codec.from_server(ExecuteTool, params)
        except Exception as exc:
            logger.info("a request for a tool cannot be read", exc_info=True)
            return _failed(exc)
        known = runs.get(wanted.key) if wanted.key else None
        if known is not None:
            await known.ended.wait()
            if known.answer is not None:
                return known.answer
        runs[wanted.key] = here = _Run()
        try:
            here.answer = await _answer_of(by_name, wanted)
        finally:
            here.ended.set()
        return here.answer

    return run


async def _answer_of(by_name: Mapping[str, Tool], wanted: ExecuteTool) -> Mapping[str, Any]:
    try:
        text = await _result_of(by_name[wanted.name], wanted.arguments)
    except (Exception, SystemExit) as exc:
        logger.info("a tool of the client failed", exc_info=True)
        return _failed(exc)
    return {"content": text, "is_error": False}


def _failed(error: BaseException) -> Mapping[str, Any]:
    return {"content": failure_text(error), "is_error": True}


async def _result_of(tool: Tool, arguments: Mapping[str, Any]) -> str:
    call = partial(tool.call, **tool.bind(arguments))
    if tool.is_async:
        found = await cast("Awaitable[Any]", call())
    else:
        found = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
    return codec.text_of(found)
