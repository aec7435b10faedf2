"""Principals: the callers of a service, each with its tenant and its rights."""

import re
from typing import Any, Final, Literal, get_args

import attrs

from warren.base.errors import PermissionDeniedError
from warren.base.fields import FieldValueError, is_text, not_blank
from warren.base.tenant_limits import NO_LIMITS, TokenLimits
from warren.base.values import frozen

Scope = Literal["session:read", "session:write", "session:admin", "memory:read", "metrics:read", "tenant:admin", "node"]
"""A right of a principal. No scope includes another one.

`session:read` reads sessions and follows their events. `session:write` creates, forks and labels sessions, runs turns,
and decides about waiting tool calls. `session:admin` archives and deletes, has the memory forget texts, and reads the
audit. `memory:read` searches the memory. `metrics:read` reads health in detail, figures and the list of nodes, and has
the store examined. `tenant:admin` works in the tenants of others, and drains nodes, which have sessions of all of them.
`node` is another node of the cluster.
"""
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
OWN_SCOPES: Final[frozenset[Scope]] = frozenset(SCOPES) - {"tenant:admin", "node"}
"""The rights of a caller that may do everything within one tenant."""
DEFAULT_TENANT: Final = "default"
TENANT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def is_tenant(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse values that cannot be the name of a tenant. Raises FieldValueError."""
    if not isinstance(value, str) or not TENANT.fullmatch(value):
        raise FieldValueError(attribute.name, "must be 1 to 64 letters, digits, _, . or -, the first a letter or digit")


def are_scopes(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse values that are not a frozenset of scopes. Raises FieldValueError, which names the unknown scope."""
    if not isinstance(value, frozenset):
        raise FieldValueError(attribute.name, "must be a frozenset of scopes")
    for scope in sorted(map(str, value)):
        if scope not in SCOPES:
            raise FieldValueError(attribute.name, f"has {scope!r}, which is none of {', '.join(SCOPES)}")


@frozen
class Principal:
    """A caller of the service. Raises FieldValueError, which names the field, if a value is bad.

    Attributes:
        tenant: the tenant whose sessions it works with; it finds no others.
        name: its name within the tenant, for the sessions that it creates and for the audit.
        scopes: its rights.
        limits: its own limits, which hold besides those of its tenant.
        home: the tenant of its token, if it works in another one; its name is `HOME/NAME` then.
    """

    tenant: str = attrs.field(default=DEFAULT_TENANT, validator=is_tenant)
    name: str = attrs.field(default="local", validator=[is_text, not_blank])
    scopes: frozenset[Scope] = attrs.field(default=OWN_SCOPES, validator=are_scopes)
    limits: TokenLimits = attrs.field(default=NO_LIMITS, validator=attrs.validators.instance_of(TokenLimits))
    home: str | None = attrs.field(default=None, validator=attrs.validators.optional(is_tenant))

    @property
    def token(self) -> tuple[str, str]:
        """The tenant and the name of its token: the same in whatever tenant it works."""
        return (self.tenant, self.name) if self.home is None else (self.home, self.name.removeprefix(f"{self.home}/"))

    @property
    def payer(self) -> str:
        """Its name if it has a limit of tokens, under which the ledger tells them apart; else the empty text."""
        return "" if self.limits.tokens_per_day is None else self.name


LOCAL: Final = Principal()
"""The principal of a program that names no other: it may do everything in the tenant `default`."""

METRICS: Final[Scope] = "metrics:read"
"""The right to see figures of all tenants."""
READ: Final[Scope] = "session:read"
"""The right to follow the events of sessions, and the changes of their list."""
WRITE: Final[Scope] = "session:write"
"""The right to run turns."""
ACROSS: Final[Scope] = "tenant:admin"
"""The right to read other tenants' data."""


def check_right(principal: Principal, scope: Scope | None) -> None:
    """Raise PermissionDeniedError if a principal does not have a scope; None is no scope."""
    if scope is not None and scope not in principal.scopes:
        raise lacks(scope)


def lacks(scope: Scope) -> PermissionDeniedError:
    """Return the error for a principal without a scope."""
    return PermissionDeniedError(f"this needs the scope {scope}", details={"scope": scope})
