"""Serves the program at the other end of stdin and stdout, for `warren rpc`, `mcp` and `acp`."""

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from warren.base.values import frozen
from warren.calls.facade import RuntimeService
from warren.settings.config import Config
from warren.transport.cli.process.ending import until_signalled
from warren.transport.cli.process.tuning import tune
from warren.transport.cli.runtime import execute, open_hosted, served_config_of
from warren.transport.cli.settings.options import Options
from warren.transport.rpc.stdio_server import open_stdio

if TYPE_CHECKING:
    from warren.actors.tools.session_tools import SessionTools


@frozen
class PipeClient:
    """The program that started this one, and the runtime for it.

    Attributes:
        config: the settings of the runtime.
        service: the runtime.
        incoming: the messages of the program.
        outgoing: the messages to it; no other code may write there.
        stop: the scope that the first signal cancels, when the turns have ended.
        session_tools: gives single sessions MCP servers of their own; None if the runtime has no tools.
    """

    config: Config
    service: RuntimeService
    incoming: trio.abc.ReceiveStream
    outgoing: trio.abc.SendStream
    stop: trio.CancelScope
    session_tools: "SessionTools | None" = None


def serve_pipe(options: Options, serve: Callable[[PipeClient], Awaitable[None]]) -> None:
    """Serve until the end of the input, SIGTERM or SIGINT, then end in order; a second signal ends the process at once.

    Trap: `serve` has to run in the client's `stop`, or the first signal ends nothing. Raises as `served_config_of`,
    before anything is made.
    """
    config = served_config_of(options)
    tune()
    execute(lambda: _serve(config, serve), options, log_level=logging.WARNING)


async def _serve(config: Config, serve: Callable[[PipeClient], Awaitable[None]]) -> None:
    async with (
        until_signalled(config.limits.drain, waits=False) as stop,
        open_stdio() as (incoming, outgoing),
        open_hosted(config) as hosted,
    ):
        stop.service = hosted.service
        await serve(PipeClient(config, hosted.service, incoming, outgoing, stop.serving, hosted.session_tools))
