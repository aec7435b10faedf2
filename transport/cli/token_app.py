"""The commands about the tokens of clients, their arguments and their help."""

from pathlib import Path
from typing import Any, Final

import click

from warren.principals import DEFAULT_TENANT, METRICS, OWN_SCOPES
from warren.transport.cli.help import examples
from warren.transport.cli.option import group
from warren.transport.cli.options import Mode, config_option, output_options, token_file_option
from warren.transport.cli.values import duration_of, text_of
from warren.transport.http.token_list import GRANTED

token_options: Final = group(token_file_option, config_option, output_options)


@click.group()
def token() -> None:
    """Make and revoke the tokens by which a server knows its clients.

    A server reads the file again within two seconds of a change: it need not be started again.
    """


@token.command(
    "new",
    epilog=examples(
        "warren token new ci --token-file tokens.toml --expires 30d",
        "warren token new reader --token-file tokens.toml --tenant acme --scope session:read --scope memory:read",
    ),
)
@click.argument("name", type=text_of)
@click.option("--tenant", type=text_of, default=DEFAULT_TENANT, show_default=True, help="The tenant of its clients.")
@click.option(
    "--scope",
    type=click.Choice(GRANTED),
    multiple=True,
    help=f"A right of its clients; repeatable. Without any: {', '.join(sorted(OWN_SCOPES))}; {METRICS} for the tenant"
    f" {DEFAULT_TENANT} alone.",
)
@click.option("--expires", type=duration_of, metavar="TIME", help="When it ends, as 12h or 30d; never by default.")
@token_options
@click.pass_context
def new(  # noqa: PLR0917 - click passes all by name
    context: click.Context,
    /,
    name: str,
    tenant: str,
    scope: tuple[str, ...],
    expires: float | None,
    token_file: Path | None,
    **_: Any,
) -> None:
    """Make a token for the clients called NAME, and print it.

    It is shown this once: the file has its hash alone. A name may have several tokens, so that a new one can take the
    place of an old one before that is revoked.
    """
    from warren.transport.cli import token as work  # noqa: PLC0415 - help does without it

    own = OWN_SCOPES if tenant == DEFAULT_TENANT else OWN_SCOPES - {METRICS}  # the figures are those of all tenants
    scopes = scope or tuple(sorted(own))
    work.new(context.ensure_object(Mode), token_file, name, tenant=tenant, scopes=scopes, lifetime=expires)


@token.command("list", epilog=examples("warren token list --token-file tokens.toml --output json"))
@token_options
@click.pass_context
def list_tokens(context: click.Context, /, token_file: Path | None, **_: Any) -> None:
    """List the tokens: the beginning of the hash, the tenant, the name, the scopes and the end of each."""
    from warren.transport.cli import token as work  # noqa: PLC0415 - help does without it

    work.list_tokens(context.ensure_object(Mode), token_file)


@token.command(
    "revoke",
    epilog=examples(
        "warren token revoke ci --token-file tokens.toml", "warren token revoke 3f9a0c51 --token-file tokens.toml"
    ),
)
@click.argument("which", type=text_of)
@click.option("--tenant", type=text_of, default=DEFAULT_TENANT, show_default=True, help="The tenant of a name.")
@token_options
@click.pass_context
def revoke(context: click.Context, /, which: str, tenant: str, token_file: Path | None, **_: Any) -> None:
    """Revoke the tokens of a name, or one token by the beginning of its hash: 8 digits at least.

    Its clients get 401 within two seconds, and their open connections are closed within five.
    """
    from warren.transport.cli import token as work  # noqa: PLC0415 - help does without it

    work.revoke(context.ensure_object(Mode), token_file, which, tenant)
