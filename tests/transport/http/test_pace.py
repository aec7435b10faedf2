"""The pace of a tenant's clients: all of its connections together keep to it, and nobody else waits."""

from collections import Counter

import attrs
import pytest
import trio

from warren.principals import Principal
from warren.tenant_limits import TenantLimits, TokenLimits
from warren.transport.http.pace import REQUEST_BYTES, Paced, Paces, wait_for_all

pytestmark = pytest.mark.virtual_time

ACME, OTHER = Principal("acme", "ann"), Principal("other", "bob")


async def flood(paces: Paced, let_through: Counter[str], name: str) -> None:
    """Make requests without an end."""
    while True:
        await wait_for_all(paces, 1)
        let_through[name] += 1
        await trio.sleep(0.001)


async def test_all_connections_keep_one_pace() -> None:
    """Forty connections get no more than one, each of them gets its share, and another tenant is not held up."""
    paces, through = Paces({"acme": TenantLimits(requests_per_second=100)}), Counter[str]()
    with trio.move_on_after(10):
        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(flood, paces.of(ACME), through, f"acme {number}")
            nursery.start_soon(flood, paces.of(OTHER), through, "other")
    assert through.pop("other") == pytest.approx(10_000, rel=0.01)
    assert through.total() == pytest.approx(1_000, abs=5)
    assert set(through.values()) <= {24, 25, 26}


async def test_bytes_count() -> None:
    """Bytes that have come are paid for by the next request; a token has a pace of its own besides, as it is now."""
    paces = Paces({"acme": TenantLimits(requests_per_second=100)})
    ci = attrs.evolve(ACME, name="ci", limits=TokenLimits(requests_per_second=1))
    tenant, token = paces.of(ci)
    assert paces.of(ACME) == [tenant]
    assert paces.of(OTHER) == ()
    await trio.sleep(60)
    tenant.charge(100 * REQUEST_BYTES)
    await tenant.wait(1)
    assert trio.current_time() == pytest.approx(61, abs=0.05)
    await wait_for_all([tenant, token], 1)
    await token.wait(1)
    assert trio.current_time() == pytest.approx(63, abs=0.1)
    assert paces.of(attrs.evolve(ci, limits=TokenLimits(requests_per_second=50))) == [tenant, token]
    assert token.per_second == 50
