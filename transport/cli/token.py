"""`warren token new`, `warren token list` and `warren token revoke`."""

import fcntl
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click

from warren import codec
from warren.errors import InvalidParamsError
from warren.fields import FieldValueError
from warren.transport.cli.options import Mode
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

SHOWN: Final = 12
"""Digits of a hash that a list shows."""
DIGITS: Final = re.compile(r"[0-9a-f]{8,64}")
TITLES: Final = ("hash", "tenant", "name", "scopes", "expires")


def new(
    mode: Mode,
    file: Path | None,
    name: str,
    *,
    tenant: str,
    scopes: Sequence[str],
    lifetime: float | None,
) -> None:
    """Run `warren token new`. Raises InvalidParamsError for a bad name or tenant, or a bad file, and OSError."""
    made = new_token()
    end = None if lifetime is None else datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=lifetime)
    fields: dict[str, Any] = {"tenant": tenant, "name": name, "scopes": tuple(scopes), "expires": end}
    try:
        token = Token(hash=hash_of(made), **fields)
    except FieldValueError as exc:
        raise InvalidParamsError(f"$.{exc.field}: {exc.problem}", path=f"$.{exc.field}") from None
    change(_needed(file), lambda data: with_token(data, token))
    shown = _row(token) | {"token": made}
    Streams().write(f"{codec.encode(shown).decode() if mode.json else made}\n")


def list_tokens(mode: Mode, file: Path | None) -> None:
    """Run `warren token list`. Raises InvalidParamsError for a bad file."""
    tokens, streams = read_tokens(_content(_needed(file))), Streams()
    if mode.json:
        streams.write(codec.encode({"tokens": [_row(token) for token in tokens]}).decode() + "\n")
    elif tokens:
        show_table(streams, TITLES, [_cells(token) for token in tokens])
    else:
        streams.note("there are no tokens")


def revoke(mode: Mode, file: Path | None, which: str, tenant: str) -> None:
    """Run `warren token revoke`. Raises click.ClickException if no token is meant, and as `list_tokens`."""
    revoked = list[Token]()

    def without(data: bytes) -> bytes:
        revoked[:] = [token for token in read_tokens(data) if _is_meant(token, which, tenant)]
        if not revoked:
            raise click.ClickException(f"no token has the name {which!r} in tenant {tenant!r}, or such a hash")
        return without_tokens(data, [token.hash for token in revoked])

    path = _needed(file)
    _content(path)
    change(path, without)
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


def _needed(file: Path | None) -> Path:
    if file is None:
        raise click.UsageError("--token-file is needed: it names the file of the tokens.")
    return file


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
    }


def _cells(token: Token) -> tuple[str, ...]:
    end = "never" if token.expires is None else moment(token.expires)
    return _digits(token), token.tenant, token.name, " ".join(token.scopes), end
