"""`warren acp`: the ACP agent on the standard streams, until its client or a signal ends it."""

from pathlib import Path

from warren.transport.acp import AgentSettings, serve_acp
from warren.transport.cli.options import Options
from warren.transport.cli.peer import Peer, serve_peer


def acp(options: Options) -> None:
    """Run `warren acp`. Ends and raises as `serve_peer`."""
    serve_peer(options, _serve)


async def _serve(peer: Peer) -> None:
    settings = AgentSettings(str(Path.cwd()), peer.config.compaction, peer.session_tools)
    await serve_acp(peer.service, settings, (peer.incoming, peer.outgoing), peer.stop)
