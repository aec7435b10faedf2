"""The settings of signed tokens (JWT); plain values, no I/O."""

from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

import attrs

from warren.base.fields import Each, FieldValueError, is_text, not_blank, not_negative
from warren.base.principals import DEFAULT_TENANT, Scope
from warren.base.values import frozen
from warren.transport.access.token_list import GRANTED

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Signatures with a key pair. With a shared secret every server that verifies tokens could make some, too."""
OAUTH_SCOPES: Final = ("scope", "scp")
"""Claims with the scopes that a client has asked for; others, such as roles, cannot be asked for."""
OWN_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
MAX_LEEWAY: Final = 60.0
KNOWN: Final = Each(ALGORITHMS.__contains__, f"has {{}}, which is none of {', '.join(ALGORITHMS)}")


def _needed(_instance: object, attribute: "attrs.Attribute[Any]", value: str) -> None:
    if not value.strip():
        raise FieldValueError(attribute.name, "is needed for JWTs")


def _keys(_instance: object, attribute: "attrs.Attribute[Any]", value: str) -> None:
    _needed(_instance, attribute, value)
    if is_url(value) and urlsplit(value).scheme != "https" and urlsplit(value).hostname not in OWN_HOSTS:
        raise FieldValueError(attribute.name, "must be an https:// URL, or a file: others could change the keys")


def _not_empty(_instance: object, attribute: "attrs.Attribute[Any]", value: tuple[str, ...]) -> None:
    if not value:
        raise FieldValueError(attribute.name, "must not be empty")


def _is_mapped(entry: str) -> bool:
    claimed, _, scope = entry.rpartition("=")
    return bool(claimed) and scope in GRANTED


def _not_long(_instance: object, attribute: "attrs.Attribute[Any]", value: float) -> None:
    if value > MAX_LEEWAY:
        raise FieldValueError(attribute.name, f"must be at most {MAX_LEEWAY:g} s")


MAPPED: Final = Each(_is_mapped, f"has {{}}, and must be like users=session:read, with one of {', '.join(GRANTED)}")


@frozen(kw_only=True)
class JwtConfig:
    """The signed tokens (JWT) that are let in. Raises FieldValueError for a bad value.

    A claim is named as it stands in the token; a name with dots may also be a path, as in `realm_access.roles`.

    Attributes:
        issuer: the `iss` that a token has to have.
        audience: the names of this server, of which a token has to have one in its `aud`.
        keys: the URL of the issuer's key set (JWKS), or a file with a key set or a public key in PEM.
        algorithms: the signatures that are accepted.
        tenant_claim: the claim with the tenant, which may not be `default`, as the local user has that one; None takes
            all tokens for the tenant `default`.
        scope_claim: the claim with the scopes, a text with blanks between them or a list.
        scope_map: the scopes for each value of the claim, as `users=session:read`; empty takes Warren's own names.
        leeway: seconds by which the clock of the issuer may differ.
    """

    issuer: str = attrs.field(default="", validator=[is_text, _needed])
    audience: tuple[str, ...] = attrs.field(default=())
    keys: str = attrs.field(default="", validator=[is_text, _keys])
    algorithms: tuple[str, ...] = attrs.field(default=("RS256", "ES256", "EdDSA"), validator=[_not_empty, KNOWN])
    tenant_claim: str | None = attrs.field(default=None, validator=not_blank)
    scope_claim: str = attrs.field(default="scope", validator=[is_text, not_blank])
    scope_map: tuple[str, ...] = attrs.field(default=(), validator=MAPPED)
    leeway: float = attrs.field(default=10.0, validator=[not_negative, _not_long])

    @audience.validator
    def _has_audience(self, attribute: "attrs.Attribute[Any]", value: tuple[str, ...]) -> None:
        if not any(name.strip() for name in value):
            raise FieldValueError(attribute.name, "is needed for JWTs")

    def tenant_of(self, claims: dict[str, Any]) -> Any:
        """Return the tenant that a token claims, unchecked; None if it has no such claim, or claims the default one."""
        if self.tenant_claim is None:
            return DEFAULT_TENANT
        claimed = claim_of(claims, self.tenant_claim)
        return None if claimed == DEFAULT_TENANT else claimed

    def names_of(self, scopes: Iterable[Scope]) -> tuple[str, ...]:
        """Return the names under which a client asks the issuer for scopes; none if the claim is no OAuth scope."""
        if self.scope_claim not in OAUTH_SCOPES:
            return ()
        if not self.scope_map:
            return tuple(scopes)
        claimed = {scope: name for name, _, scope in (entry.rpartition("=") for entry in reversed(self.scope_map))}
        return tuple(dict.fromkeys(claimed[scope] for scope in scopes if scope in claimed))

    def scopes_of(self, claims: dict[str, Any]) -> frozenset[Any]:
        """Return the scopes that a token claims; other names are left out."""
        found = claim_of(claims, self.scope_claim)
        names = found.split() if isinstance(found, str) else found if isinstance(found, list) else []
        if not self.scope_map:
            return frozenset(name for name in names if name in GRANTED)
        pairs = (entry.rpartition("=") for entry in self.scope_map)
        return frozenset(scope for claimed, _, scope in pairs if claimed in names)


def is_url(keys: str) -> bool:
    """Return whether keys are fetched, and not in a file."""
    return keys.startswith(("https://", "http://"))


def claim_of(claims: dict[str, Any], name: str) -> Any:
    """Return the value of a claim by its name, or else by its path; None if there is none."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for step in name.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return found
