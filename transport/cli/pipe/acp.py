"""`warren acp`: the ACP agent on the standard streams, until its client or a signal ends it."""

from pathlib import Path

import attrs

from warren.settings.tool_config import ToolsConfig
from warren.transport.acp import AgentSettings, serve_acp
from warren.transport.cli.command import command
from warren.transport.cli.pipe.serving import PipeClient, serve_pipe
from warren.transport.cli.settings.options import Options, serving_options


@command("warren acp --model claude-sonnet-5", "warren acp --store ~/conversations --memory")
@serving_options
def acp(options: Options) -> None:
    """Serve an editor or another client that speaks the Agent Client Protocol.

    It starts this command and talks to it over stdin and stdout. Sessions are stored: after a restart the client goes
    on with them. The end of stdin, SIGTERM and Ctrl-C end it in order: prompts are cancelled and stored; a second
    signal exits at once.
    """
    config = attrs.evolve(
        options.config, tools=options.config.tools or ToolsConfig()
    )  # clients bring their own servers
    serve_pipe(attrs.evolve(options, config=config), _serve)


async def _serve(client: PipeClient) -> None:
    settings = AgentSettings(str(Path.cwd()), client.config.compaction, client.session_tools, client.config.models)
    await serve_acp(client.service, settings, (client.incoming, client.outgoing), client.stop)
