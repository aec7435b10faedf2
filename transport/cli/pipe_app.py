"""The commands `warren acp` and `warren mcp`, which serve another program on stdin and stdout, and their help."""

from typing import Any

import attrs
import click

from warren.tool_config import ToolsConfig
from warren.transport.cli.help import examples
from warren.transport.cli.options import gather, serving_options


@click.command(epilog=examples("warren acp --model claude-sonnet-5", "warren acp --store ~/conversations --memory"))
@serving_options
def acp(**given: Any) -> None:
    """Serve an editor or another client that speaks the Agent Client Protocol.

    It starts this command and talks to it over stdin and stdout. Sessions are stored: after a restart the client goes
    on with them. The end of stdin, SIGTERM and Ctrl-C end it in order: prompts are cancelled and stored; a second
    signal exits at once.
    """
    from warren.transport.cli import acp as serving  # noqa: PLC0415 - help does without it

    options = gather(given)
    serving.acp(attrs.evolve(options, tools=options.tools or ToolsConfig()))  # clients bring servers of their own


@click.command(epilog=examples("warren mcp --model claude-sonnet-5", "warren mcp --store ~/conversations --memory"))
@serving_options
def mcp(**given: Any) -> None:
    """Offer sessions as tools to a program that speaks the Model Context Protocol.

    It starts this command and talks to it over stdin and stdout. Sessions are stored: after a restart the client goes
    on with them. The end of stdin, SIGTERM and Ctrl-C end it in order: running turns are interrupted and stored; a
    second signal exits at once.
    """
    from warren.transport.cli import mcp as serving  # noqa: PLC0415 - help does without it

    serving.mcp(gather(given))
