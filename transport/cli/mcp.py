"""`warren mcp`: the MCP server on the standard streams, until its client or a signal ends it."""

import click

from warren.extras import missing
from warren.transport.cli.options import Options
from warren.transport.cli.pipe import PipeClient, serve_pipe


def mcp(options: Options) -> None:
    """Run `warren mcp`. Ends and raises as `serve_pipe`, and raises ClickException if its extra is missing."""
    if problem := missing("mcp", "warren mcp needs"):
        raise click.ClickException(problem)
    serve_pipe(options, _serve)


async def _serve(client: PipeClient) -> None:
    from warren.transport.mcp.stdio import serve_mcp  # noqa: PLC0415 - it has an extra of its own

    await serve_mcp(client.service, (client.incoming, client.outgoing), client.stop, end_turns=client.service.stop)
