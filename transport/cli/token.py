"""`warren token new`, `warren token list` and `warren token revoke`."""

import fcntl
import os
import re
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import attrs
import click

from warren import codec
from warren.config import PostgresConfig
from warren.errors import InvalidParamsError
from warren.fields import FieldValueError
from warren.tenant_limits import TokenLimits
from warren.transport.cli.chosen_store import existing_store_of
from warren.transport.cli.options import Mode, Options
from warren.transport.cli.runtime import execute
from warren.transport.cli.streams import Streams
from warren.transport.cli.tables import moment, show_table
from warren.transport.http.token_list import (
    ALGORITHM,
    ROOT,
    Token,
    hash_of,
    new_token,
    read_tokens,
    with_token,
    without_tokens,
)
from warren.transport.http.token_table import FIELD, IN_FILES, open_table, row_of, token_of
from warren.values import frozen

if TYPE_CHECKING:
    from warren.storage.postgres.tokens import TokenTable

T = TypeVar("T")
Choose = Callable[[Sequence[Token]], Sequence[Token]]

SHOWN: Final = 12
"""Digits of a hash that a list shows."""
DIGITS: Final = re.compile(r"[0-9a-f]{8,64}")
TITLES: Final = ("hash", "tenant", "name", "scopes", "expires", "limits")


class Home(Protocol):
    """A place of tokens. Each method raises InvalidParamsError if a token or the place is bad."""

    def tokens(self) -> Sequence[Token]:
        """Return the tokens."""
        ...

    def add(self, token: Token) -> None:
        """Add a token."""
        ...

    def remove(self, chosen: Choose) -> None:
        """Remove the tokens that a function chooses among those that are there."""
        ...


@frozen
class InFile:
    """A file of tokens. Its methods raise OSError too."""

    path: Path

    def tokens(self) -> Sequence[Token]:
        """See Home."""
        return read_tokens(_content(self.path))

    def add(self, token: Token) -> None:
        """See Home."""
        change(self.path, lambda data: with_token(data, token))

    def remove(self, chosen: Choose) -> None:
        """See Home."""
        _content(self.path)
        change(self.path, lambda data: without_tokens(data, [token.hash for token in chosen(read_tokens(data))]))


@frozen
class InTable:
    """The table of a store in a database. Its methods raise StoreError too."""

    options: Options
    store: PostgresConfig

    def tokens(self) -> Sequence[Token]:
        """See Home."""
        return self._run(_tokens_in)

    def add(self, token: Token) -> None:
        """See Home."""

        async def add(table: "TokenTable") -> None:
            await table.add(row_of(token))

        self._run(add)

    def remove(self, chosen: Choose) -> None:
        """See Home."""

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


def home_of(options: Options, file: Path | None, *, in_store: bool) -> Home:
    """Return the place that the options name.

    Raises click.UsageError if they name none or two, InvalidParamsError for a store in files, and as `store_of`.
    """
    if in_store and file is not None:
        raise click.UsageError("--token-file and --token-table exclude each other.")
    if in_store:
        store = existing_store_of(options)
        if not isinstance(store, PostgresConfig):
            raise InvalidParamsError(f"{FIELD}: {IN_FILES}", path=FIELD)
        return InTable(options, store)
    if file is None:
        raise click.UsageError(
            "--token-file is needed, the file of the tokens, or --token-table for those of the store."
        )
    return InFile(file)


def new(
    mode: Mode,
    home: Home,
    name: str,
    *,
    tenant: str,
    scopes: Sequence[str],
    lifetime: float | None,
    limits: TokenLimits,
) -> None:
    """Run `warren token new`. Raises InvalidParamsError for a bad name or tenant, and as `Home`."""
    made = new_token()
    end = None if lifetime is None else datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=lifetime)
    fields: dict[str, Any] = {"tenant": tenant, "name": name, "scopes": tuple(scopes), "expires": end, "limits": limits}
    try:
        token = Token(hash=hash_of(made), **fields)
    except FieldValueError as exc:
        raise InvalidParamsError(f"$.{exc.field}: {exc.problem}", path=f"$.{exc.field}") from None
    home.add(token)
    shown = _row(token) | {"token": made}
    Streams().write(f"{codec.encode(shown).decode() if mode.json else made}\n")


def list_tokens(mode: Mode, home: Home) -> None:
    """Run `warren token list`. Raises as `Home`."""
    tokens, streams = home.tokens(), Streams()
    if mode.json:
        streams.write(codec.encode({"tokens": [_row(token) for token in tokens]}).decode() + "\n")
    elif tokens:
        show_table(streams, TITLES, [_cells(token) for token in tokens])
    else:
        streams.note("there are no tokens")


def revoke(mode: Mode, home: Home, which: str, tenant: str) -> None:
    """Run `warren token revoke`. Raises click.ClickException if no token is meant, and as `Home`."""
    revoked = list[Token]()

    def chosen(tokens: Sequence[Token]) -> Sequence[Token]:
        revoked[:] = [token for token in tokens if _is_meant(token, which, tenant)]
        if not revoked:
            raise click.ClickException(f"no token has the name {which!r} in tenant {tenant!r}, or such a hash")
        return revoked

    home.remove(chosen)
    if mode.json:
        Streams().write(codec.encode({"revoked": [_row(token) for token in revoked]}).decode() + "\n")
    else:
        Streams().write("".join(f"revoked: {_digits(token)} {token.tenant} {token.name}\n" for token in revoked))


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
        raise InvalidParamsError(f"{ROOT}: cannot read {path}: {exc.strerror}", path=ROOT) from None


def _is_meant(token: Token, which: str, tenant: str) -> bool:
    if (token.tenant, token.name) == (tenant, which):
        return True
    return DIGITS.fullmatch(which) is not None and token.hash.removeprefix(ALGORITHM).startswith(which)


def _digits(token: Token) -> str:
    return token.hash.removeprefix(ALGORITHM)[:SHOWN]


def _row(token: Token) -> dict[str, Any]:
    return {
        "hash": token.hash,
        "tenant": token.tenant,
        "name": token.name,
        "scopes": list(token.scopes),
        "expires": token.expires,
        "limits": _limits(token),
    }


def _cells(token: Token) -> tuple[str, ...]:
    end = "never" if token.expires is None else moment(token.expires)
    limits = " ".join(f"{name}={limit}" for name, limit in _limits(token).items())
    return _digits(token), token.tenant, token.name, " ".join(token.scopes), end, limits


def _limits(token: Token) -> dict[str, int]:
    return attrs.asdict(token.limits, filter=attrs.filters.exclude(type(None)))
