"""The command `warren usage`, its arguments and its help."""

from datetime import datetime
from typing import Any

import click

from warren.requests import UsageRequest
from warren.transport.cli.help import examples
from warren.transport.cli.option import of_field
from warren.transport.cli.options import gather, reached_options
from warren.transport.cli.values import moment_of


@click.command(
    epilog=examples(
        "warren usage --since 7d",
        "warren usage --by model --since 2026-03-01 --until 2026-04-01",
        "warren usage --by tenant --all-tenants --output json | jq .total.cost",
    )
)
@of_field(UsageRequest, "by", variable=False, default="day", show_default=True)
@of_field(UsageRequest, "since", variable=False, type=moment_of, metavar="TIME", note="As 12h or 7d ago, or a date.")
@of_field(UsageRequest, "until", variable=False, type=moment_of, metavar="TIME")
@of_field(UsageRequest, "all_tenants", "--all-tenants", variable=False, is_flag=True)
@of_field(UsageRequest, "offset", variable=False, default=0, show_default=True)
@of_field(UsageRequest, "limit", variable=False, default=100, show_default=True)
@reached_options
def usage(
    by: str,
    since: datetime | None,
    until: datetime | None,
    *,
    all_tenants: bool,
    offset: int,
    limit: int,
    **given: Any,
) -> None:
    """Show the tokens and the cost of models.

    Piped, each row is a line of fields between tabs: key, turns, input tokens, output tokens, tokens read from prompt
    caches, tokens written to them, cost in US dollars, tokens of an unknown price.
    """
    from warren.transport.cli.usage import show_usage  # noqa: PLC0415 - help does without it

    wanted = {"by": by, "since": since, "until": until, "all_tenants": all_tenants, "offset": offset, "limit": limit}
    show_usage(gather(given), wanted)
