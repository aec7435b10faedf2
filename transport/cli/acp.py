"""`warren acp`: the ACP agent on the standard streams, until its client or a signal ends it."""

from pathlib import Path

from warren.transport.acp import AgentSettings, serve_acp
from warren.transport.cli.options import Options
from warren.transport.cli.pipe import PipeClient, serve_pipe


def acp(options: Options) -> None:
    """Run `warren acp`. Ends and raises as `serve_pipe`."""
    serve_pipe(options, _serve)


async def _serve(client: PipeClient) -> None:
    settings = AgentSettings(str(Path.cwd()), client.config.compaction, client.session_tools, client.config.models)
    await serve_acp(client.service, settings, (client.incoming, client.outgoing), client.stop)
