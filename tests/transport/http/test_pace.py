"""The pace of a tenant's clients: all of its connections together keep to it, and nobody else waits."""

import gc
import json
import math
import weakref
from collections import Counter
from typing import cast

import attrs
import pytest
import trio
from wsproto import ConnectionType, WSConnection
from wsproto.connection import Connection
from wsproto.events import Request, TextMessage

from tests.support.fake_service import FakeService
from tests.transport.clients import HOST
from warren.base.principals import SCOPES, Principal
from warren.base.tenant_limits import TenantLimits, TokenLimits
from warren.transport.access.config import GatewayConfig
from warren.transport.access.logins import Login
from warren.transport.access.pace import MOST_KEPT, REQUEST_BYTES, Paced, Paces, wait_for_all
from warren.transport.gateway.handshake import Opening
from warren.transport.gateway.heartbeat import Heartbeat
from warren.transport.gateway.websocket import WebSocketConnection
from warren.transport.http.wire import Wire
from warren.transport.rpc.methods import Host

pytestmark = pytest.mark.virtual_time

TEXT = b"\x81"
OFFER = WSConnection(ConnectionType.CLIENT).send(Request(HOST, "/ws"))
ACME, OTHER = Login(Principal("acme", "ann")), Login(Principal("other", "bob"))


def token_of(name: str, *, requests_per_second: int) -> Login:
    """Return the login of a token with a limit, which may work in other tenants."""
    limits = TokenLimits(requests_per_second=requests_per_second)
    return Login(Principal("acme", name, frozenset(SCOPES), limits))


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
    """Bytes that have come are paid for by the next request; a token has a pace of its own besides."""
    paces = Paces({"acme": TenantLimits(requests_per_second=100)})
    ci = token_of("ci", requests_per_second=1)
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
    of_all, wide = paces.of(token_of("ci", requests_per_second=50))  # another token of the name
    assert of_all is tenant
    assert (token.per_second, wide.per_second) == (1, 50)
    await wide.wait(50)
    assert trio.current_time() == pytest.approx(64, abs=0.1)
    await token.wait(2)
    assert trio.current_time() == pytest.approx(66, abs=0.1)
    assert paces.of(ci) == [tenant, token]


async def test_a_token_has_one_pace_in_all_tenants() -> None:
    """One that names many tenants gets no more by it; the paces of tokens that came and went are dropped."""
    paces, ci = Paces({"acme": TenantLimits(requests_per_second=100)}), token_of("ci", requests_per_second=1)
    (_, own), (other,), (third,) = map(paces.of, (ci, ci.within("other"), ci.within("third")))
    assert own is other is third
    own.charge(5_000 * REQUEST_BYTES)
    for number in range(3 * MOST_KEPT):
        paces.of(token_of(f"t{number}", requests_per_second=1))
    assert paces.of(ci)[1] is own
    kept = weakref.ref(own)
    del own, other, third
    gc.collect()
    assert kept() is not None  # it holds others up yet
    passed = [
        weakref.ref(paces.of(token_of(f"u{number}", requests_per_second=1))[1]) for number in range(3 * MOST_KEPT)
    ]
    assert sum(each() is not None for each in passed) <= MOST_KEPT
    assert kept() is not None


@attrs.define(eq=False)
class Bytes:
    """A wire whose client has sent some bytes, and leaves when it is answered."""

    paces: Paced
    received: bytes
    answered: trio.Event = attrs.field(factory=trio.Event)

    async def receive_some(self, _most: int) -> bytes:
        if not self.received:
            await self.answered.wait()
        data, self.received = self.received, b""
        return data

    async def send_all(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        if data.startswith(TEXT):
            self.answered.set()


@pytest.mark.parametrize("size", [1, 10])
async def test_each_call_of_a_batch_counts(size: int) -> None:
    """A batch of ten waits as ten requests would."""
    client = Connection(ConnectionType.CLIENT)
    calls = [{"jsonrpc": "2.0", "id": number, "method": "none"} for number in range(size)]
    paces = Paces({"acme": TenantLimits(requests_per_second=1)}).of(ACME)
    wire = Bytes(paces, client.send(TextMessage(json.dumps(calls))))
    connection = WebSocketConnection(cast("Wire", wire), Host(FakeService()), GatewayConfig())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run, Opening(OFFER, None), [], Heartbeat(15))
        await wire.answered.wait()
        assert math.ceil(trio.current_time()) == size
        nursery.cancel_scope.cancel()
