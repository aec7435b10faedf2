"""The pace of a tenant's clients: its limit `requests_per_second`, by which its connections wait, and no others."""

from collections.abc import Mapping, Sequence
from typing import Final
from weakref import WeakValueDictionary

import attrs
import trio
from starlette.types import Message, Receive, Send

from warren.base.tenant_limits import TenantLimits
from warren.base.values import define
from warren.transport.access.logins import Login

REQUEST_BYTES: Final = 4096
"""Bytes to or from a client that count as one more request."""
MOST_KEPT: Final = 1_000
"""Paces without a connection that are kept before those that hold nobody up are dropped."""
BURST: Final = 0.02
"""Seconds of the pace that may be made up for after a pause: more would hold the event loop up in one go."""


@define(eq=False)
class Due:
    """The requests that were let through, of a tenant or of the tokens of one name, whose paces may differ.

    Attributes:
        at: the time at which all of them would have been let through, one by one.
    """

    at: float = 0.0


@define(eq=False)
class Pace:
    """The pace of all connections of a tenant, or of a token.

    Attributes:
        per_second: requests within a second.
    """

    per_second: int
    _due: Due = attrs.field(factory=Due)

    def is_due(self) -> bool:
        """Return whether it still holds somebody up."""
        return self._due.at > trio.current_time()

    def charge(self, size: int) -> None:
        """Count bytes that have come: the next ones wait for as long as these take."""
        due = self._due
        due.at = max(due.at, trio.current_time() - BURST) + size / REQUEST_BYTES / self.per_second

    async def wait(self, requests: float = 0.0) -> None:
        """Wait until this number of requests may be let through. Requests of all connections share one queue."""
        now, due = trio.current_time(), self._due
        due.at = max(due.at, now - BURST) + requests / self.per_second
        if due.at > now:
            await trio.sleep_until(due.at)


Paced = Sequence[Pace]
NO_PACE: Final[Paced] = ()


@define(eq=False)
class Paces:
    """The paces of a gateway's tenants and tokens.

    Attributes:
        tenants: the limits of the tenants.
    """

    tenants: Mapping[str, TenantLimits] = attrs.field(factory=dict)
    # A pace that a connection has is found again; one that still holds somebody up is kept without a connection.
    _known: WeakValueDictionary[tuple[str, str | None, int], Pace] = attrs.field(factory=WeakValueDictionary)
    _dues: WeakValueDictionary[tuple[str, str | None], Due] = attrs.field(factory=WeakValueDictionary)
    _kept: dict[tuple[str, str | None, int], Pace] = attrs.field(factory=dict)
    _most: int = MOST_KEPT

    def of(self, login: Login) -> Paced:
        """Return the paces that a client has to keep to: a token has one, in whatever tenants its clients work."""
        own, token = self.tenants.get(login.principal.tenant), (login.own or login).principal
        found = [
            self._pace(tenant, name, limit)
            for tenant, name, limit in (
                (login.principal.tenant, None, None if own is None else own.requests_per_second),
                (token.tenant, token.name, token.limits.requests_per_second),
            )
            if limit is not None
        ]
        return found or NO_PACE

    def _pace(self, tenant: str, name: str | None, per_second: int) -> Pace:
        key = tenant, name, per_second  # tokens of one name may have different limits
        pace = self._known.get(key)
        if pace is None:
            pace = self._known[key] = Pace(per_second, self._dues.setdefault((tenant, name), Due()))
        self._kept[key] = pace
        if len(self._kept) > self._most:
            self._kept = {each: kept for each, kept in self._kept.items() if kept.is_due()}
            self._most = max(MOST_KEPT, 2 * len(self._kept))
        return pace


async def wait_for_all(paces: Paced, requests: float = 0.0) -> None:
    """Wait until each of the paces lets this number of requests through."""
    for pace in paces:
        await pace.wait(requests)


def paced_body(receive: Receive, paces: Paced) -> Receive:
    """Return the `receive` of an application whose request keeps to some paces.

    The bytes of a body count as they come: a length that is only announced holds nobody up.
    """

    async def wait_and_receive() -> Message:
        await wait_for_all(paces)
        message = await receive()
        for pace in paces:
            pace.charge(len(message.get("body", b"")))
        return message

    return wait_and_receive


def paced(send: Send, paces: Paced) -> Send:
    """Return the `send` of an application whose answer keeps to some paces."""

    async def wait_and_send(message: Message) -> None:
        await wait_for_all(paces, len(message.get("body", b"")) / REQUEST_BYTES)
        await send(message)

    return wait_and_send
