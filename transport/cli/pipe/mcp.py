"""`warren mcp`: the MCP server on the standard streams, until its client or a signal ends it."""

import click

from warren.base.extras import missing
from warren.transport.cli.command import command
from warren.transport.cli.pipe.serving import PipeClient, serve_pipe
from warren.transport.cli.settings.options import Options, serving_options


@command("warren mcp --model claude-sonnet-5", "warren mcp --store ~/conversations --memory")
@serving_options
def mcp(options: Options) -> None:
    """Offer sessions as tools to a program that speaks the Model Context Protocol.

    It starts this command and talks to it over stdin and stdout. Sessions are stored: after a restart the client goes
    on with them. The end of stdin, SIGTERM and Ctrl-C end it in order: running turns are parked for the next
    start, or interrupted and stored if they cannot be; a second signal exits at once.
    """
    if problem := missing("mcp", "warren mcp needs"):
        raise click.ClickException(problem)
    serve_pipe(options, _serve)


async def _serve(client: PipeClient) -> None:
    from warren.transport.mcp.stdio import serve_mcp  # noqa: PLC0415 - it has an extra of its own

    await serve_mcp(client.service, (client.incoming, client.outgoing), client.stop, end_turns=client.service.stop)
