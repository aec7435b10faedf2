"""The command `warren health`, its arguments and its help."""

from typing import Any

import click

from warren.transport.cli.help import examples
from warren.transport.cli.option import of_field
from warren.transport.cli.options import config_option, output_options
from warren.transport.cli.values import duration_of, text_of
from warren.transport.http.config import GatewayConfig


@click.command(
    epilog=examples(
        "warren health",
        "warren health https://warren.example.com --timeout 10s",
        "warren health --live http://10.0.0.5:8420",
        note="In a Dockerfile: HEALTHCHECK CMD warren health",
    )
)
@click.argument("url", type=text_of, required=False)
@click.option("--live", is_flag=True, help="Ask only whether the server answers, also while it drains.")
@click.option("--timeout", type=duration_of, metavar="TIME", default="5", show_default="5s", help="Time to wait.")
@of_field(GatewayConfig, "host", metavar="ADDRESS")
@of_field(GatewayConfig, "port")
@config_option
@output_options
def health(url: str | None, *, live: bool, timeout: float, host: str | None, port: int | None, **_: Any) -> None:
    """Ask a server whether it is ready; the exit code is 0 if it is, else 1.

    URL is that of the server, with http or https. Without one it is the server of these settings on this machine. No
    token is needed. For images without curl: it needs no more than the command itself.
    """
    from warren.transport.cli.health import check, url_of  # noqa: PLC0415 - help does without it

    check(url or url_of(host, port), live=live, timeout=timeout)
