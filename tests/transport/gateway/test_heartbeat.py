"""Silent WebSocket clients: they get pings, and those that answer none do not stay."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import pytest
import trio
from wsproto.events import AcceptConnection, CloseConnection, Ping, Pong, TextMessage

from tests.support.fake_service import FakeService
from tests.transport.clients import HEALTH, HOST, Frames, frames, gateway, let_in
from warren.base.tenant_limits import TenantLimits
from warren.settings.config import Config
from warren.transport.gateway.heartbeat import Heartbeat

HEARTBEAT = 0.2


async def pinged(client: Frames, times: int) -> None:
    """Answer so many pings, with nothing else coming meanwhile."""
    for _ in range(times):
        ping = await client.next()
        assert isinstance(ping, Ping)
        await client.send(Pong(ping.payload))


async def test_a_silent_client_that_answers_pings_stays() -> None:
    """A client that says nothing of its own gets one ping after the other, and is served as before."""
    async with gateway(FakeService(), heartbeat=HEARTBEAT) as port, frames(port) as client:
        await pinged(client, 5)
        await client.send(TextMessage(HEALTH))
        assert isinstance(await client.next(), TextMessage)
        await pinged(client, 1)


async def test_a_client_that_answers_no_ping_is_left() -> None:
    """A client that is gone without a word is closed with code 1011 after one ping, and its place is free."""
    async with gateway(FakeService(), heartbeat=HEARTBEAT, max_connections=1) as port, frames(port) as client:
        assert isinstance(await client.next(), Ping)
        closed = await client.next()
        assert isinstance(closed, CloseConnection)
        assert closed.code == 1011
        await let_in(port)


async def test_a_client_that_waits_for_us_is_not_silent() -> None:
    """A client whose pongs are not read, because its requests have to keep to a pace, stays and gets its answers."""
    paced = Config(tenants={"default": TenantLimits(requests_per_second=10)})
    async with gateway(FakeService(), heartbeat=0.1, runtime=paced) as port, frames(port) as client:
        for _ in range(20):
            await client.send(TextMessage(HEALTH))
        answers = 0
        while answers < 20:
            event = await client.next()
            assert isinstance(event, Ping | TextMessage)
            if isinstance(event, Ping):
                await client.send(Pong(event.payload))
            else:
                answers += 1


async def test_a_slow_reader_is_not_silent() -> None:
    """A client that reads slowly comes late to the pings behind what waits for it, and stays until it has read all."""
    asked = json.dumps({"jsonrpc": "2.0", "id": "x" * 10_000, "method": "no/such"})
    async with gateway(FakeService(), heartbeat=0.1) as port:
        sock = trio.socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await sock.connect((HOST, port))
        async with trio.SocketStream(sock) as stream:
            client = Frames(stream)
            assert isinstance(await client.open(), AcceptConnection)
            for _ in range(150):
                await client.send(TextMessage(asked))
            answers = pings = 0
            while answers < 150 or not pings:
                event = await client.next()
                assert isinstance(event, Ping | TextMessage)
                if isinstance(event, Ping):
                    pings += 1
                    await client.send(Pong(event.payload))
                else:
                    answers += 1
                    await trio.sleep(0.01)


@attrs.define(eq=False)
class Heard:
    """A stream that has the times of its pings, and whose client says something at the given times."""

    says: list[float]
    pings: list[float] = attrs.field(factory=list)
    ended: list[float] = attrs.field(factory=list)

    def was_heard(self) -> bool:
        said = [each for each in self.says if each <= trio.current_time()]
        self.says = self.says[len(said) :]
        return bool(said)

    def ping(self) -> None:
        self.pings.append(trio.current_time())

    @contextmanager
    def watched_by(self, heartbeat: Heartbeat) -> Iterator[None]:
        end = lambda: self.ended.append(trio.current_time())  # noqa: E731 - one line
        with heartbeat.watches(self, end):
            yield


@pytest.mark.virtual_time
async def test_the_times_of_pings() -> None:
    """A ping leaves within `heartbeat` seconds of silence, the end follows, and clients that speak see neither."""
    heartbeat, began = Heartbeat(16.0), trio.current_time()
    gone, speaks = Heard([began + 9]), Heard([began + each for each in range(0, 100, 10)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(heartbeat.run)
        with gone.watched_by(heartbeat), speaks.watched_by(heartbeat):
            await trio.sleep(100)
        nursery.cancel_scope.cancel()
    [ping], [end] = gone.pings, gone.ended
    assert 9 + 14 <= ping - began <= 9 + 16
    assert end - ping == 16
    assert speaks.pings == speaks.ended == []
