"""`warren mcp`: the MCP server on the standard streams, until its client or a signal ends it."""

import click

from warren.extras import missing
from warren.transport.cli.options import Options
from warren.transport.cli.peer import Peer, serve_peer


def mcp(options: Options) -> None:
    """Run `warren mcp`. Ends and raises as `serve_peer`, and ClickException where its extra is missing."""
    if problem := missing("mcp", "warren mcp needs"):
        raise click.ClickException(problem)
    serve_peer(options, _serve)


async def _serve(peer: Peer) -> None:
    from warren.transport.mcp.stdio import serve_mcp  # noqa: PLC0415 - it has an extra of its own

    await serve_mcp(peer.service, (peer.incoming, peer.outgoing), peer.stop, end_turns=peer.service.stop)
