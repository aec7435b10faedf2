"""The command `warren audit`, its arguments and its help."""

from typing import Any

import click

from warren.audit import AuditRequest
from warren.transport.cli.help import examples
from warren.transport.cli.option import of_field
from warren.transport.cli.options import gather, reached_options
from warren.transport.cli.values import duration_of, text_of


@click.command(
    epilog=examples(
        "warren audit --since 7d --action delete",
        "warren audit --follow --output json --server ws://127.0.0.1:8420",
        "warren audit --all-tenants --action login",
    )
)
@click.option("--since", type=duration_of, metavar="AGE", default="1d", help="How far back to begin: 1h, 7d; 1d.")
@of_field(AuditRequest, "action", variable=False)
@click.option("--session", type=text_of, metavar="ID", help="Only entries about this session.")
@of_field(AuditRequest, "all_tenants", "--all-tenants", variable=False, is_flag=True)
@click.option("--follow", is_flag=True, help="Go on with entries as they come, until interrupted.")
@reached_options
def audit(
    since: float, action: str | None, session: str | None, *, all_tenants: bool, follow: bool, **given: Any
) -> None:
    """Show entries of the audit, oldest first.

    Each is a line of fields between tabs: when, tenant, who, action, outcome, session, address, details. With --output
    json each is a line of JSON, for collectors.
    """
    from warren.transport.cli import audit as work  # noqa: PLC0415 - help does without it

    wanted = {"action": action, "session_id": session, "all_tenants": all_tenants}
    work.show_audit(gather(given), since, wanted, follow=follow)
