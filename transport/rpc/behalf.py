"""The principal of a call that one node passes on to another. No I/O.

It is a member of the parameters of the request. Only a connection that another node has opened, and has proved so, may
carry it: on any other one it is an unknown parameter. An HTTP request has it in a header, which counts for nothing on
one of a client.
"""

from typing import Any, Final

from warren.base.errors import InvalidParamsError
from warren.base.fields import FieldValueError
from warren.base.principals import LOCAL, Principal
from warren.base.tenant_limits import NO_LIMITS, TokenLimits
from warren.conversation import codec

TENANT_HEADER: Final = "warren-tenant"
"""The header by which a client names a tenant to work in."""
TENANT_PREFIX: Final = "tenant."
"""The beginning of the subprotocol by which a WebSocket does: a browser's page cannot set a header."""
MEMBER: Final = "on_behalf_of"
BEHALF_HEADER: Final = "warren-on-behalf-of"
"""The header of an HTTP request that a node passes on: a JSON object with the member."""


def carrying(params: Any, principal: Principal) -> Any:
    """Return the parameters of a request on behalf of a principal; without the member it is the local user."""
    if principal == LOCAL:
        return params
    said: dict[str, Any] = {"tenant": principal.tenant, "name": principal.name, "scopes": sorted(principal.scopes)}
    if principal.limits is not NO_LIMITS:
        said["limits"] = principal.limits.given()
    if principal.home is not None:
        said["home"] = principal.home
    return {**(params if isinstance(params, dict) else codec.to_data(params)), MEMBER: said}


def carried(params: Any) -> tuple[Principal, Any]:
    """Return the principal of a request of another node, and the other parameters. Raises InvalidParamsError."""
    if not isinstance(params, dict) or MEMBER not in params:
        return LOCAL, params
    said = params[MEMBER]
    try:
        limits = TokenLimits(**said["limits"]) if "limits" in said else NO_LIMITS
        principal = Principal(said["tenant"], said["name"], frozenset(said["scopes"]), limits, said.get("home"))
    except (FieldValueError, TypeError, KeyError):
        raise InvalidParamsError.at(f"$.{MEMBER}", "is no principal") from None
    return principal, {name: value for name, value in params.items() if name != MEMBER}
