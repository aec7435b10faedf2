"""The connections of a tenant: beyond its limit `connections` its own clients are refused, and no others."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import attrs

from warren.errors import CapacityExceededError
from warren.principals import Principal
from warren.tenant_limits import TenantLimits
from warren.transport.http.refusals import RETRY, SOON, RefusedError
from warren.values import define

PLACE: Final = "warren.place"
"""The key in the scope of a request (ASGI) whose value is the place of its connection."""


@define(eq=False)
class Place:
    """The place of one connection among those of a tenant.

    Attributes:
        tenant: the tenant; None before the first request of a client whose tenant has a limit.
    """

    tenant: str | None = None
    _among: Counter[str] = attrs.field(factory=Counter)

    def enter(self, tenant: str, among: Counter[str]) -> None:
        """Count as a connection of a tenant."""
        self.tenant, self._among = tenant, among
        among[tenant] += 1

    def leave(self) -> None:
        """Count no more."""
        if self.tenant is not None:
            self._among[self.tenant] -= 1
            self.tenant = None


@define(eq=False)
class Places:
    """The connections of a gateway's tenants.

    Attributes:
        tenants: the limits of the tenants.
    """

    tenants: Mapping[str, TenantLimits] = attrs.field(factory=dict)
    _taken: Counter[str] = attrs.field(factory=Counter)

    def take(self, place: Place, principal: Principal) -> None:
        """Count a connection as one of the tenant of its client; it may have been one of another tenant before.

        Raises RefusedError (429) if the tenant has as many as it may.
        """
        tenant = principal.tenant
        if place.tenant == tenant:
            return
        place.leave()
        own = self.tenants.get(tenant)
        if own is None or own.connections is None:
            return
        if self._taken[tenant] >= own.connections:
            text = f"the tenant {tenant!r} has {own.connections} connections, as many as it may"
            error = CapacityExceededError(text, cause="tenant_connections", details={"retry_after": float(SOON)})
            raise RefusedError(429, text, RETRY, ("Connection", "close"), error=error)
        place.enter(tenant, self._taken)
