"""The pace of a tenant's clients: its limit `requests_per_second`, by which its connections wait, and no others."""

from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import trio
from starlette.types import Message, Receive, Send

from warren.principals import Principal
from warren.tenant_limits import TenantLimits
from warren.values import define

REQUEST_BYTES: Final = 4096
"""Bytes to or from a client that count as one more request."""
BURST: Final = 0.02
"""Seconds of the pace that may be made up for after a pause: more would hold the event loop up in one go."""


@define(eq=False)
class Pace:
    """The pace of all connections of a tenant, or of a token.

    Attributes:
        per_second: requests within a second.
    """

    per_second: int
    _due: float = 0.0  # the time at which all that has been let through would have been, one by one

    def charge(self, size: int) -> None:
        """Count bytes that have come: the next ones wait for as long as these take."""
        self._due = max(self._due, trio.current_time() - BURST) + size / REQUEST_BYTES / self.per_second

    async def wait(self, requests: float = 0.0) -> None:
        """Wait until so many requests may be let through: those of all connections wait behind each other."""
        now = trio.current_time()
        self._due = max(self._due, now - BURST) + requests / self.per_second
        if self._due > now:
            await trio.sleep_until(self._due)


Paced = Sequence[Pace]
NO_PACE: Final[Paced] = ()


@define(eq=False)
class Paces:
    """The paces of a gateway's tenants and tokens.

    Attributes:
        tenants: the limits of the tenants.
    """

    tenants: Mapping[str, TenantLimits] = attrs.field(factory=dict)
    _known: dict[tuple[str, str | None], Pace] = attrs.field(factory=dict)

    def of(self, principal: Principal) -> Paced:
        """Return the paces that a client has to keep to."""
        own = self.tenants.get(principal.tenant)
        found = [
            self._pace(principal.tenant, name, limit)
            for name, limit in (
                (None, None if own is None else own.requests_per_second),
                (principal.name, principal.limits.requests_per_second),
            )
            if limit is not None
        ]
        return found or NO_PACE

    def _pace(self, tenant: str, name: str | None, per_second: int) -> Pace:
        pace = self._known.setdefault((tenant, name), Pace(per_second))
        pace.per_second = per_second
        return pace


async def wait_for_all(paces: Paced, requests: float = 0.0) -> None:
    """Wait until each of some paces lets so many requests through."""
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
