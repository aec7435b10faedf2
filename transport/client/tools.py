"""Tools of a client's process: the server asks for a call of one, and gets its result."""

import logging
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, cast

import anyio
import anyio.to_thread
import attrs
from anyio.abc import TaskGroup

from warren.base.values import define
from warren.conversation import codec
from warren.models.tools import Tool, failure_text
from warren.transport.client.connection import RunTool
from warren.transport.rpc.client_tools import ExecuteTool

logger: Final = logging.getLogger(__name__)


@define(eq=False)
class _Run:
    """One call: its answer once it has ended."""

    scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)
    ended: anyio.Event = attrs.field(factory=anyio.Event)
    answer: Mapping[str, Any] = attrs.field(factory=dict)


@define(eq=False)
class _Runner:
    """Runs tools for a server.

    Attributes:
        by_name: the tools.
        tasks: runs the calls: one goes on while its connection is lost, and the next connection gets its answer.
        runs: the calls by their keys.
    """

    by_name: Mapping[str, Tool]
    tasks: TaskGroup
    runs: dict[str, _Run] = attrs.field(factory=dict)

    async def run(self, params: Any) -> Mapping[str, Any]:
        """Return the answer to a request of the server. A failure is a result, as it is for the model."""
        try:
            wanted = codec.from_server(ExecuteTool, params)
        except Exception as exc:
            logger.info("a request for a tool cannot be read", exc_info=True)
            return _failed(exc)
        if not wanted.key:
            return await _answer_of(self.by_name, wanted)
        if (here := self.runs.get(wanted.key)) is None:
            here = self.runs[wanted.key] = _Run()
            self.tasks.start_soon(self._run, here, wanted)
        await here.ended.wait()
        return here.answer

    async def _run(self, here: _Run, wanted: ExecuteTool) -> None:
        with here.scope:
            here.answer = await _answer_of(self.by_name, wanted)
            here.ended.set()


@contextmanager
def running(tools: Sequence[Tool], tasks: TaskGroup) -> Iterator[RunTool]:
    """Run tools for a server, on all connections of a body.

    A server asks for a call again, on a new connection, if it has not got the answer: the call runs once all the same.
    """
    runner = _Runner({each.spec.name: each for each in tools}, tasks)
    try:
        yield runner.run
    finally:
        for each in runner.runs.values():
            each.scope.cancel()


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
    call = partial(tool.call, **tool.in_context(tool.bind(arguments)))
    if tool.is_async:
        found = await cast("Awaitable[Any]", call())
    else:
        found = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
    return codec.text_of(found)
