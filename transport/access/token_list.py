"""Lists of tokens: one word, or a TOML file with the hash, the principal and the end of each token."""

import json
import re
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import attrs

from warren.base.errors import InvalidParamsError
from warren.base.fields import FieldValueError, is_text, not_blank
from warren.base.principals import SCOPES, Principal, Scope, is_tenant
from warren.base.tenant_limits import NO_LIMITS, TokenLimits
from warren.base.values import frozen
from warren.conversation import codec
from warren.transport.access.logins import Login, key_of, single

ROOT: Final = "$.token_file"
ALGORITHM: Final = "sha256:"
HASH: Final = re.compile(rf"{ALGORITHM}[0-9a-f]{{64}}")
PREFIX: Final = "wrn_"
"""The beginning of tokens that Warren makes, by which scanners find one that was published by mistake."""
RANDOM_BYTES: Final = 32
HEAD: Final = "# Tokens of Warren, by their hashes: see `warren token --help`.\n"
TABLE: Final = "[[token]]"
GRANTED: Final = tuple(scope for scope in SCOPES if scope != "node")
"""The scopes that a token may have: a node is known by the secret of its cluster alone."""
_WORD: Final = re.compile(r"[!-~]+")
_BEGINS_TOML: Final = ("#", "[")


def _is_hash(_instance: object, attribute: "attrs.Attribute[Any]", value: str) -> None:
    if not HASH.fullmatch(value):
        raise FieldValueError(attribute.name, f"must be {ALGORITHM} and 64 hexadecimal digits")


def _are_granted(_instance: object, attribute: "attrs.Attribute[Any]", value: Sequence[str]) -> None:
    for at, scope in enumerate(value):
        if scope not in GRANTED:
            raise FieldValueError(f"{attribute.name}[{at}]", f"must be one of {', '.join(GRANTED)}")


@frozen(kw_only=True)
class Token:
    """One token of a list. Raises FieldValueError for a bad value.

    Attributes:
        hash: `sha256:` and the hash of the token, in hexadecimal digits.
        tenant: the tenant of its clients.
        name: the name of its clients within the tenant.
        scopes: the rights of its clients.
        expires: its end; None if it has none.
        limits: the limits of its clients, besides those of their tenant.
    """

    hash: str = attrs.field(validator=_is_hash)
    tenant: str = attrs.field(validator=is_tenant)
    name: str = attrs.field(validator=[is_text, not_blank])
    scopes: tuple[Scope, ...] = attrs.field(validator=_are_granted)
    expires: datetime | None = None
    limits: TokenLimits = NO_LIMITS

    def login(self) -> Login:
        """Return the login of its clients."""
        end = None if self.expires is None else self.expires.timestamp()
        key = bytes.fromhex(self.hash.removeprefix(ALGORITHM))
        limits = NO_LIMITS if self.limits == NO_LIMITS else self.limits
        return Login(Principal(self.tenant, self.name, frozenset(self.scopes), limits), key, end)

    def text(self) -> str:
        """Return the table of the token in a TOML file."""
        lines = [TABLE, f"hash = {_quoted(self.hash)}", f"tenant = {_quoted(self.tenant)}"]
        lines += [f"name = {_quoted(self.name)}", f"scopes = [{', '.join(map(_quoted, self.scopes))}]"]
        if self.expires is not None:
            lines.append(f"expires = {self.expires.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}")
        lines += [f"limits.{name} = {limit}" for name, limit in self.limits.given().items()]
        return "\n".join(lines) + "\n"


@frozen
class _File:
    token: tuple[Token, ...] = ()


def is_token(token: str) -> bool:
    """Return whether a text can be a token: one word of visible ASCII."""
    return _WORD.fullmatch(token) is not None


def read_token(path: Path) -> str:
    """Return the token that a client's file holds, without the white space around it.

    A browser can only send tokens made of letters, digits and `-._~+`, as it sends them in `Sec-WebSocket-Protocol`.
    Raises InvalidParamsError (path `$.token_file`) if the file cannot be read, is empty, or holds several words.
    """
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as exc:
        raise InvalidParamsError.at(ROOT, f"cannot read {path}: {exc}") from exc
    if not token:
        raise InvalidParamsError.at(ROOT, f"{path} is empty")
    if not is_token(token):
        raise InvalidParamsError.at(ROOT, f"{path} must hold one word without spaces")
    return token


def new_token() -> str:
    """Return a new token, with 256 random bits. A browser can send it too."""
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def hash_of(token: str) -> str:
    """Return the hash of a token as lists have it."""
    return ALGORITHM + key_of(token).hex()


def read_logins(data: bytes) -> Mapping[bytes, Login]:
    """Return the logins of a token file, by the hashes of the tokens.

    The file has one word, which is the token itself, or is a TOML file as `read_tokens` reads it. Raises
    InvalidParamsError.
    """
    word = _text_of(data).strip()
    if not word:
        raise InvalidParamsError.at(ROOT, "is empty")
    if is_token(word) and not word.startswith(_BEGINS_TOML):
        return single(word)
    return {login.key: login for login in (token.login() for token in read_tokens(data))}


def read_tokens(data: bytes) -> tuple[Token, ...]:
    """Return the tokens of a TOML file: a table `[[token]]` for each, with the fields of `Token`.

    Raises InvalidParamsError: the message has the line, or the path is that of the field, as in
    `$.token_file.token[0].scopes[1]`.
    """
    try:
        parsed = tomllib.loads(_text_of(data))
    except (ValueError, RecursionError) as exc:
        raise InvalidParamsError.at(ROOT, f"must be one word without spaces, or TOML: {exc}") from None
    tokens = codec.from_data(_File, _with_times(parsed), root=ROOT).token
    seen: dict[str, int] = {}
    for at, token in enumerate(tokens):
        if (first := seen.setdefault(token.hash, at)) != at:
            raise InvalidParamsError.at(f"{ROOT}.token[{at}].hash", f"is that of token[{first}]")
    return tokens


def with_token(data: bytes, token: Token) -> bytes:
    """Return a TOML file with one more token. Raises InvalidParamsError as `read_tokens`."""
    before = read_tokens(data)
    text = _text_of(data) or HEAD
    made = f"{text.rstrip()}\n\n{token.text()}".encode()
    return _checked(made, (*before, token))


def without_tokens(data: bytes, hashes: Sequence[str]) -> bytes:
    """Return a TOML file without some of its tokens; the rest stays as it is written. Raises InvalidParamsError."""
    kept = tuple(token for token in read_tokens(data) if token.hash not in hashes)
    head, *tables = re.split(rf"(?m)^(?=[ \t]*{re.escape(TABLE)})", _text_of(data))
    left = [table for table in tables if not any(each in table for each in hashes)]
    return _checked("".join([f"{head.strip() or HEAD.strip()}\n\n", *left]).encode(), kept)


def _checked(made: bytes, expected: tuple[Token, ...]) -> bytes:
    """Return a file that was changed as a text, if it has the expected tokens. Raises InvalidParamsError."""
    if read_tokens(made) != expected:
        raise InvalidParamsError.at(ROOT, "is written in a way that only a person can change")
    return made


def _text_of(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InvalidParamsError.at(ROOT, f"cannot be read: {exc}") from None


def _with_times(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a file with its times as texts, as the codec takes them."""
    tokens = data.get("token")
    if not isinstance(tokens, list):
        return dict(data)
    return {**data, "token": [_with_time(token) if isinstance(token, dict) else token for token in tokens]}


def _with_time(token: dict[str, Any]) -> dict[str, Any]:
    end = token.get("expires")
    return {**token, "expires": end.isoformat()} if isinstance(end, datetime) else token


def _quoted(text: str) -> str:
    """Return a text as TOML writes it."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
