"""The commands about the tokens of clients, their arguments and their help."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from warren.principals import DEFAULT_TENANT, METRICS, OWN_SCOPES
from warren.tenant_limits import TokenLimits
from warren.transport.cli.groups import CommandGroup
from warren.transport.cli.help import examples
from warren.transport.cli.option import F, group
from warren.transport.cli.options import Options, gather, stored_options, token_file_option, token_table_option
from warren.transport.cli.values import LIMITS, duration_of, limit_of, text_of
from warren.transport.http.token_list import GRANTED

if TYPE_CHECKING:
    from warren.transport.cli.token import Home

token_options: Final = group(token_file_option, token_table_option, stored_options)


def _tenant(about: str) -> Callable[[F], F]:
    """Return the option of a tenant."""
    settings: dict[str, Any] = {"type": text_of, "metavar": "NAME", "default": DEFAULT_TENANT, "show_default": True}
    return click.option("--tenant", help=about, **settings)


@click.group(cls=CommandGroup)
def token() -> None:
    """Make and revoke the tokens by which servers know their clients.

    They are in a file, or in a store in a database, whose servers share them. A server reads them again within two
    seconds of a change: it need not be started again.
    """


@token.command(
    "new",
    epilog=examples(
        "warren token new ci --token-file tokens.toml --expires 30d",
        "warren token new reader --token-file tokens.toml --tenant acme --scope session:read --scope memory:read",
        "warren token new ci --token-file tokens.toml --limit running_turns=2 --limit turns_per_minute=30",
        "warren token new ci --token-table --store postgresql://db.example.com/app",
    ),
)
@click.argument("name", type=text_of)
@_tenant("The tenant of its clients.")
@click.option(
    "--scope",
    type=click.Choice(GRANTED),
    multiple=True,
    help=f"A right of its clients; repeatable. Without any: {', '.join(sorted(OWN_SCOPES))}; {METRICS} for the tenant"
    f" {DEFAULT_TENANT} alone.",
)
@click.option("--expires", type=duration_of, metavar="TIME", help="When it ends, as 12h or 30d; never by default.")
@click.option(
    "--limit",
    type=limit_of,
    multiple=True,
    metavar="NAME=N",
    help=f"A limit of its clients together, besides those of their tenant; repeatable. NAME: {', '.join(LIMITS)}.",
)
@token_options
def new(
    name: str,
    tenant: str,
    scope: tuple[str, ...],
    expires: float | None,
    limit: tuple[tuple[str, int], ...],
    **given: Any,
) -> None:
    """Make a token for the clients called NAME, and print it.

    It is shown this once: its hash alone is kept. A name may have several tokens, so that a new one can take the
    place of an old one before that is revoked.
    """
    from warren.transport.cli import token as work  # noqa: PLC0415 - help does without it

    own = OWN_SCOPES if tenant == DEFAULT_TENANT else OWN_SCOPES - {METRICS}  # the figures are those of all tenants
    scopes = scope or tuple(sorted(own))
    options, home = _chosen(given)
    work.new(
        options.mode, home, name, tenant=tenant, scopes=scopes, lifetime=expires, limits=TokenLimits(**dict(limit))
    )


@token.command("list", epilog=examples("warren token list --token-file tokens.toml --output json"))
@token_options
def list_tokens(**given: Any) -> None:
    """List the tokens, by the beginnings of their hashes.

    Piped, each is a line of fields between tabs: hash, tenant, name, scopes, expires, limits.
    """
    from warren.transport.cli import token as work  # noqa: PLC0415 - help does without it

    options, home = _chosen(given)
    work.list_tokens(options.mode, home)


@token.command(
    "revoke",
    epilog=examples(
        "warren token revoke ci --token-file tokens.toml", "warren token revoke 3f9a0c51 --token-file tokens.toml"
    ),
)
@click.argument("which", type=text_of)
@_tenant("The tenant of a name.")
@token_options
def revoke(which: str, tenant: str, **given: Any) -> None:
    """Revoke the tokens of a name, or one token by the beginning of its hash: 8 digits at least.

    Its clients get 401 within two seconds, and their open connections are closed within five.
    """
    from warren.transport.cli import token as work  # noqa: PLC0415 - help does without it

    options, home = _chosen(given)
    work.revoke(options.mode, home, which, tenant)


def _chosen(given: dict[str, Any]) -> "tuple[Options, Home]":
    from warren.transport.cli.token import home_of  # noqa: PLC0415 - help does without it

    file, in_store = given.pop("token_file"), bool(given.pop("token_table"))
    options = gather(given)
    return options, home_of(options, file, in_store=in_store)
