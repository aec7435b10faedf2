"""Options of one command each that the environment or the file can set, too; and all that they can set."""

from collections.abc import Callable
from typing import Final

from warren.settings.config import Limits, NodeConfig
from warren.transport.access.config import GatewayConfig
from warren.transport.cli.settings.option import F, group, of_field, option
from warren.transport.cli.settings.options import settings_of_all, token_file_option, token_table_option
from warren.transport.cli.settings.values import duration_of


def _age(name: str, about: str) -> Callable[[F], F]:
    return option(f"--{name}", type=duration_of, metavar="AGE", envvar=f"WARREN_RETENTION_{name.upper()}", help=about)


retention_options: Final = group(
    _age("superseded", "Remove messages that a summary has replaced: 30d, 12h."),
    _age("events", "Remove events from the event logs."),
    _age("archived", "Delete archived sessions, by their last turn."),
    _age("audit", "Remove entries of the audit."),
    _age("usage", "Remove hours of the ledger, but those of today."),
)
serve_options: Final = group(
    of_field(GatewayConfig, "host", metavar="ADDRESS"),
    of_field(GatewayConfig, "port"),
    token_file_option,
    token_table_option,
    of_field(GatewayConfig, "origins", "--origin", "origin", metavar="URL", note="Repeatable."),
    of_field(GatewayConfig, "max_connections"),
    of_field(GatewayConfig, "workers"),
    of_field(GatewayConfig, "console", "--console/--no-console", default=None),
    of_field(GatewayConfig, "metrics_port"),
    of_field(
        NodeConfig, "name", "--node-name", note="Beside it a database store makes the server one of several nodes."
    ),
    of_field(NodeConfig, "address", "--node-address", metavar="URL"),
    of_field(Limits, "drain", note="The process is gone within it; after SIGTERM running turns may finish first."),
)
every_setting: Final = group(settings_of_all, retention_options, serve_options)
"""All options of commands that the environment or the file can set."""
