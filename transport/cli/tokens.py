"""`warren token`: the tokens by which servers know their clients, in a file or in the table of a database."""

import fcntl
import os
import re
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
import click

from warren.base.errors import InvalidParamsError
from warren.base.principals import DEFAULT_TENANT, METRICS, OWN_SCOPES, Scope
from warren.base.tenant_limits import TokenLimits
from warren.base.values import frozen
from warren.calls.base import made
from warren.settings.config import PostgresConfig
from warren.transport.access.token_list import (
    ALGORITHM,
    GRANTED,
    ROOT,
    Token,
    hash_of,
    new_token,
    read_tokens,
    with_token,
    without_tokens,
)
from warren.transport.access.token_table import FIELD, IN_FILES, open_table, row_of, token_of
from warren.transport.cli.command import command
from warren.transport.cli.groups import CommandGroup
from warren.transport.cli.runtime import execute
from warren.transport.cli.settings.option import F, group
from warren.transport.cli.settings.options import Options, stored_options, token_file_option, token_table_option
from warren.transport.cli.settings.values import LIMITS, duration_of, limit_of, text_of
from warren.transport.cli.store.chosen import existing_store_of
from warren.transport.cli.terminal.results import show_result, show_text
from warren.transport.cli.terminal.tables import moment, show_rows

if TYPE_CHECKING:
    from warren.storage.postgres.tokens import TokenTable

T = TypeVar("T")
Choose = Callable[[Sequence[Token]], Sequence[Token]]

SHOWN: Final = 12
"""Digits of a hash that a list shows."""
DIGITS: Final = re.compile(r"[0-9a-f]{8,64}")
TITLES: Final = ("hash", "tenant", "name", "scopes", "expires", "limits")


@frozen
class InFile:
    """A file of tokens. Its methods raise InvalidParamsError if a token or the file is bad, and OSError."""

    path: Path

    def tokens(self) -> Sequence[Token]:
        return read_tokens(_content(self.path))

    def add(self, token: Token) -> None:
        change(self.path, lambda data: with_token(data, token))

    def remove(self, chosen: Choose) -> None:
        _content(self.path)
        change(self.path, lambda data: without_tokens(data, [token.hash for token in chosen(read_tokens(data))]))


@frozen
class InTable:
    """The table of a store in a database. Its methods raise InvalidParamsError if a token is bad, and StoreError."""

    options: Options
    store: PostgresConfig

    def tokens(self) -> Sequence[Token]:
        return self._run(_tokens_in)

    def add(self, token: Token) -> None:
        self._run(lambda table: table.add(row_of(token)))

    def remove(self, chosen: Choose) -> None:
        async def remove(table: "TokenTable") -> None:
            await table.remove([token.hash for token in chosen(await _tokens_in(table))])

        self._run(remove)

    def _run(self, work: "Callable[[TokenTable], Awaitable[T]]") -> T:
        async def run() -> T:
            async with open_table(self.store) as table:
                await table.prepare()
                return await work(table)

        return execute(run, self.options)


async def _tokens_in(table: "TokenTable") -> Sequence[Token]:
    return [token_of(row) for row in await table.rows()]


def home_of(options: Options, file: Path | None, *, in_store: bool | None) -> InFile | InTable:
    """Return the place that the options name.

    Raises click.UsageError if they name none or two, InvalidParamsError for a store in files, and as `store_of`.
    """
    if in_store and file is not None:
        raise click.UsageError("--token-file and --token-table exclude each other.")
    if in_store:
        store = existing_store_of(options)
        if not isinstance(store, PostgresConfig):
            raise InvalidParamsError.at(FIELD, IN_FILES)
        return InTable(options, store)
    if file is None:
        raise click.UsageError(
            "--token-file is needed, the file of the tokens, or --token-table for those of the store."
        )
    return InFile(file)


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


@command(
    "warren token new ci --token-file tokens.toml --expires 30d",
    "warren token new reader --token-file tokens.toml --tenant acme --scope session:read --scope memory:read",
    "warren token new ci --token-file tokens.toml --limit running_turns=2 --limit turns_per_minute=30",
    "warren token new ci --token-table --store postgresql://db.example.com/app",
    of=token,
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
    scope: tuple[Scope, ...],
    expires: float | None,
    limit: tuple[tuple[str, int], ...],
    *,
    token_file: Path | None,
    token_table: bool | None,
    options: Options,
) -> None:
    """Make a token for the clients called NAME, and print it.

    It is shown this once: its hash alone is kept. A name may have several tokens, so that a new one can take the
    place of an old one before that is revoked.
    """
    own = OWN_SCOPES if tenant == DEFAULT_TENANT else OWN_SCOPES - {METRICS}  # the figures are those of all tenants
    scopes = scope or tuple(sorted(own))
    home = home_of(options, token_file, in_store=token_table)
    secret = new_token()
    end = None if expires is None else datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=expires)
    limits = made(TokenLimits, **dict(limit))
    granted = made(Token, hash=hash_of(secret), tenant=tenant, name=name, scopes=scopes, expires=end, limits=limits)
    home.add(granted)
    show_text(options, _row(granted) | {"token": secret}, f"{secret}\n")


@command("warren token list --token-file tokens.toml --output json", name="list", of=token)
@token_options
def list_tokens(token_file: Path | None, *, token_table: bool | None, options: Options) -> None:
    """List the tokens, by the beginnings of their hashes.

    Piped, each is a line of fields between tabs: hash, tenant, name, scopes, expires, limits.
    """
    tokens = home_of(options, token_file, in_store=token_table).tokens()
    data = {"tokens": [_row(token) for token in tokens]}
    show_result(options, data, show_rows, TITLES, [_cells(token) for token in tokens], "there are no tokens")


@command(
    "warren token revoke ci --token-file tokens.toml", "warren token revoke 3f9a0c51 --token-file tokens.toml", of=token
)
@click.argument("which", type=text_of)
@_tenant("The tenant of a name.")
@token_options
def revoke(which: str, tenant: str, token_file: Path | None, *, token_table: bool | None, options: Options) -> None:
    """Revoke the tokens of a name, or one token by the beginning of its hash: 8 digits at least.

    Its clients get 401 within two seconds, and their open connections are closed within five.
    """
    home = home_of(options, token_file, in_store=token_table)
    revoked = list[Token]()

    def chosen(tokens: Sequence[Token]) -> Sequence[Token]:
        revoked[:] = [token for token in tokens if _is_meant(token, which, tenant)]
        if not revoked:
            raise click.ClickException(f"no token has the name {which!r} in tenant {tenant!r}, or such a hash")
        return revoked

    home.remove(chosen)
    lines = "".join(f"revoked: {_digits(token)} {token.tenant} {token.name}\n" for token in revoked)
    show_text(options, {"revoked": [_row(token) for token in revoked]}, lines)


def change(path: Path, to: Callable[[bytes], bytes]) -> None:
    """Change a file of tokens in one step, which readers see whole or not at all; only its owner may read it then.

    Two changes at once wait for each other. Raises OSError, and the errors of `to`.
    """
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        _write(path, to(path.read_bytes() if path.exists() else b""))
        os.fsync(folder)
    finally:
        os.close(folder)


def _write(path: Path, data: bytes) -> None:
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # made with mode 0600
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        Path(unfinished).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(unfinished).unlink()
        raise


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise InvalidParamsError.at(ROOT, f"cannot read {path}: {exc.strerror}") from None


def _is_meant(token: Token, which: str, tenant: str) -> bool:
    if (token.tenant, token.name) == (tenant, which):
        return True
    return DIGITS.fullmatch(which) is not None and token.hash.removeprefix(ALGORITHM).startswith(which)


def _digits(token: Token) -> str:
    return token.hash.removeprefix(ALGORITHM)[:SHOWN]


def _row(token: Token) -> dict[str, Any]:
    return attrs.asdict(token, recurse=False) | {"limits": token.limits.given()}


def _cells(token: Token) -> tuple[str, ...]:
    end = "never" if token.expires is None else moment(token.expires)
    limits = " ".join(f"{name}={limit}" for name, limit in token.limits.given().items())
    return _digits(token), token.tenant, token.name, " ".join(token.scopes), end, limits
