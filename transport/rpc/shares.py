"""The room of a process for what its clients open, and the shares of it that tenants and principals have. No I/O."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, Literal, TypeVar

import attrs

from warren.base.errors import CapacityCause, CapacityExceededError
from warren.base.principals import Principal
from warren.base.values import define
from warren.calls.facade import RuntimeService
from warren.settings.config import Limits

Owner = tuple[str, str]
"""The tenant and the name of a principal."""
Part = Literal["token", "tenant", "process"]
K = TypeVar("K")
CAUSES: Final[Mapping[Part, CapacityCause]] = {
    "token": "token_share",
    "tenant": "tenant_share",
    "process": "process_share",
}
SOON: Final = 1.0
"""Seconds after which a client may try again: nothing tells when another one closes what it has open."""


def owner_of(principal: Principal) -> Owner:
    """Return the owner of what a principal opens."""
    return principal.tenant, principal.name


def several() -> bool:
    """Return False: the clients of a server may be several principals."""
    return False


@define(eq=False)
class Shares:
    """The room of a process for things of one kind, such as subscriptions.

    A tenant may have a part of it and a principal a smaller part, so that no client keeps those of others out. If all
    clients are one principal, it may have all.

    Attributes:
        kind: the name of the things, for errors.
        most: things that there may be in the process.
        limits: the parts, `tenant_share` and `principal_share`.
        alone: returns whether all clients are one principal.
        tenants: the things that a tenant, and each principal in it, may have, for tenants with a limit of their own.
        total: things that there are.
    """

    kind: str
    most: int
    limits: Limits = attrs.field(factory=Limits)
    alone: Callable[[], bool] = several
    tenants: Mapping[str, int] = attrs.field(factory=dict)
    total: int = attrs.field(default=0, init=False)
    _of_owner: Counter[Owner] = attrs.field(factory=Counter, init=False)
    _of_tenant: Counter[str] = attrs.field(factory=Counter, init=False)

    def of(self, owner: Owner) -> int:
        """Return the number of things that a principal has."""
        return self._of_owner[owner]

    def of_tenant(self, tenant: str) -> int:
        """Return the number of things that a tenant has."""
        return self._of_tenant[tenant]

    def full(self, owner: Owner, count: int = 1) -> Part | None:
        """Return the part without room for more things of a principal, the smallest one; None if there is room."""
        of_principal, of_tenant = self.bound("token", owner), self.bound("tenant", owner)
        if of_principal < of_tenant and self._of_owner[owner] + count > of_principal:
            return "token"
        if of_tenant < self.most and self._of_tenant[owner[0]] + count > of_tenant:
            return "tenant"
        return "process" if self.total + count > self.most else None

    def refusal(self, owner: Owner, part: Part) -> CapacityExceededError:
        """Return the error for a part without room. It says nothing of what others have."""
        tenant, name = owner
        whose = {"token": f"the principal {name!r}", "tenant": f"the tenant {tenant!r}", "process": "the server"}[part]
        many = f"{self.bound(part, owner)} {self.kind}"
        problem = f"{whose} has {many}, as many as it may: close some, or try again later"
        return CapacityExceededError(problem, cause=CAUSES[part], details={"retry_after": SOON})

    def add(self, owner: Owner, count: int) -> None:
        """Count things that there is room for, or, if `count` is below 0, things that are gone."""
        self.total += count
        _add(self._of_owner, owner, count)
        _add(self._of_tenant, owner[0], count)

    @contextmanager
    def taken(self, owner: Owner, *, instead: bool = False) -> Iterator[None]:
        """Count one thing of a principal for the block.

        Raises CapacityExceededError if there is no room for it, unless it comes instead of another one.
        """
        if not instead and (part := self.full(owner)) is not None:
            raise self.refusal(owner, part)
        self.add(owner, 1)
        try:
            yield
        finally:
            self.add(owner, -1)

    def bound(self, part: Part, owner: Owner) -> int:
        """Return the number of things that a part may have: the principal, its tenant, or the process."""
        if part == "process":
            return self.most
        if owner[0] in self.tenants:
            return self.tenants[owner[0]]
        if self.alone():
            return self.most
        share = self.limits.tenant_share if part == "tenant" else self.limits.principal_share
        return max(1, int(self.most * share))


def _add(counter: Counter[K], key: K, count: int) -> None:
    counter[key] += count
    if not counter[key]:
        del counter[key]


def counted(shares: Shares | None, service: RuntimeService, *, instead: bool = False) -> AbstractContextManager[None]:
    """Count one thing of the principal of a service for a block, as `Shares.taken`; None counts nothing."""
    return nullcontext() if shares is None else shares.taken(owner_of(service.principal), instead=instead)
