"""`warren serve`: its options."""

from pathlib import Path
from typing import Any, Final

import click

from warren.config import Limits, NodeConfig
from warren.transport.cli.help import examples
from warren.transport.cli.serve.serving import serve_sessions
from warren.transport.cli.settings.option import of_field
from warren.transport.cli.settings.options import gather, serving_options, token_file_option, token_table_option
from warren.transport.http.config import GatewayConfig

OF_THE_GATEWAY: Final = ("host", "port", "token_table", "max_connections", "workers", "console", "metrics_port")
"""Options that are fields of `GatewayConfig`."""


@click.command(
    epilog=examples(
        "warren serve",
        "warren serve --port 0 --model claude-sonnet-5 --store conversations",
        "warren serve --workers 4",
        "warren serve --host 0.0.0.0 --token-file token.txt --origin https://example.org",
        "warren serve --host unix:/run/warren/warren.sock",
    )
)
@of_field(GatewayConfig, "host", metavar="ADDRESS")
@of_field(GatewayConfig, "port")
@token_file_option
@token_table_option
@of_field(GatewayConfig, "origins", "--origin", "origin", metavar="URL", note="Repeatable.")
@of_field(GatewayConfig, "max_connections")
@of_field(GatewayConfig, "workers")
@of_field(GatewayConfig, "console", "--console/--no-console", default=None)
@of_field(GatewayConfig, "metrics_port")
@of_field(NodeConfig, "name", "--node-name", note="Beside it a database store makes the server one of several nodes.")
@of_field(NodeConfig, "address", "--node-address", metavar="URL")
@of_field(Limits, "drain", note="The process is gone within it; after SIGTERM running turns may finish first.")
@serving_options
def serve(
    token_file: Path | None,
    origin: tuple[str, ...],
    node_name: str | None,
    node_address: str | None,
    **given: Any,
) -> None:
    """Serve sessions to other programs.

    They speak JSON-RPC over a WebSocket at /ws, HTTP at /sessions and so on (see /openapi.json), or the Model Context
    Protocol at /mcp. People open /console/ in a browser.

    The first line on stdout is `listening on http://HOST:PORT`, or `listening on unix:PATH`, when it accepts
    connections. systemd is told so, and may have bound the sockets itself. SIGTERM and Ctrl-C end it in order, within
    --drain: after SIGTERM running turns may finish first, then the others are interrupted, and all are stored. A second
    signal exits at once.
    """
    settings = {"origins": origin, **{name: given.pop(name) for name in OF_THE_GATEWAY}}
    gateway = {name: value for name, value in settings.items() if value is not None}
    serve_sessions(gather(given), gateway, token_file, (node_name, node_address))
