"""The connections of tenants and principals: beyond their share their own clients are refused, and no others."""

from collections.abc import Callable
from typing import Final, Self

import attrs

from warren.base.errors import CapacityExceededError
from warren.base.fields import LARGEST
from warren.base.principals import Principal
from warren.base.values import define
from warren.settings.config import Config
from warren.transport.access.config import GatewayConfig
from warren.transport.access.refusals import RETRY, RefusedError
from warren.transport.rpc.shares import Owner, Part, Shares, owner_of

PLACE: Final = "warren.place"
"""The key in the scope of a request (ASGI) whose value is the place of its connection."""


@define(eq=False)
class Place:
    """The place of one connection among those of a principal and its tenant.

    Attributes:
        principal: the client; None before the first request that is let in.
    """

    principal: Principal | None = None
    _among: tuple[Shares, ...] = ()

    def enter(self, principal: Principal, among: tuple[Shares, ...]) -> None:
        """Count as a connection of a client, in the place of another client's."""
        self.leave()
        self.principal, self._among = principal, among
        for each in among:
            each.add(owner_of(principal), 1)

    def leave(self) -> None:
        """Count no more."""
        if self.principal is not None:
            for each in self._among:
                each.add(owner_of(self.principal), -1)
            self.principal = None


@define(eq=False)
class Places:
    """The connections of a gateway's clients.

    Attributes:
        connections: all of them.
        http: those that speak HTTP.
    """

    connections: Shares = attrs.field(factory=lambda: Shares("connections", LARGEST))
    http: Shares = attrs.field(factory=lambda: Shares("HTTP connections", LARGEST))

    @classmethod
    def of(cls, config: GatewayConfig, alone: Callable[[], bool]) -> Self:
        """Return the places of a gateway; `alone` returns whether all its clients are one principal."""
        runtime = config.runtime or Config()
        given = {name: each.connections for name, each in runtime.tenants.items() if each.connections is not None}
        return cls(
            Shares("connections", config.max_connections, runtime.limits, alone, given),
            Shares("HTTP connections", config.max_http, runtime.limits, alone),
        )

    def take(self, place: Place, principal: Principal, *, http: bool = True) -> None:
        """Count a connection as one of a client; it may have been another one's before.

        Raises RefusedError (429) if the client's tenant, or its principal, has as many as it may.
        """
        if place.principal is principal:
            return
        place.leave()
        owner, among = owner_of(principal), (self.connections, self.http) if http else (self.connections,)
        for shares in among:
            part = shares.full(owner)
            if part in ("token", "tenant"):  # the server itself refuses those beyond its own bound
                raise self._refusal(shares, owner, part)
        place.enter(principal, among)

    def _refusal(self, shares: Shares, owner: Owner, part: Part) -> RefusedError:
        error = shares.refusal(owner, part)
        if part == "tenant" and owner[0] in shares.tenants:
            error = CapacityExceededError(error.message, cause="tenant_connections", details=error.details)
        return RefusedError(429, error.message, RETRY, ("Connection", "close"), error=error)
