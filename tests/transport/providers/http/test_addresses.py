"""Names of servers: how often they are looked up, and what happens if the addresses behind them change."""

import errno
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.transport.providers.http.servers import has_ipv6
from warren.transport.providers.http.addresses import FRESH, PATIENCE, Addresses

NAME = "models.test"
MANY = 50


@attrs.define
class Names(trio.abc.HostnameResolver):
    """The names of a network, and how often each was looked up."""

    addresses: dict[str, list[str]] = attrs.field(factory=dict)
    lookups: Counter[str] = attrs.field(factory=Counter)
    hangs_after: int = 1_000
    broken_after: int = 1_000

    async def getaddrinfo(self, host: Any, port: Any, family: int = 0, *_: Any, **__: Any) -> list[Any]:
        """Return the addresses of a name, after a moment."""
        await trio.lowlevel.checkpoint()
        self.lookups[host.decode()] += 1
        if self.lookups[host.decode()] > self.hangs_after:
            await trio.sleep_forever()
        if self.lookups[host.decode()] > self.broken_after:
            raise OSError(errno.EMFILE, "Too many open files")
        found = self.addresses.get(host.decode(), [])
        families = [(socket.AF_INET6 if ":" in each else socket.AF_INET, each) for each in found]
        rows = [(of, socket.SOCK_STREAM, 6, "", (each, port)) for of, each in families if family in (0, of)]
        if not rows:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return rows

    async def getnameinfo(self, sockaddr: Any, flags: int) -> tuple[str, str]:
        """Nobody asks for it."""
        raise NotImplementedError(sockaddr, flags)


@attrs.define
class Server:
    """A server, and at which of its addresses connections came."""

    port: int
    reached: list[str] = attrs.field(factory=list)


@asynccontextmanager
async def hanging(host: str, port: int) -> AsyncIterator[None]:
    """Listen at an address, but accept nobody: whoever connects waits."""

    async def wait() -> None:
        async with await trio.open_tcp_stream(host, port):
            await trio.sleep_forever()

    with trio.socket.socket() as listener:
        await listener.bind((host, port))
        listener.listen(0)
        async with trio.open_nursery() as nursery:
            for _ in range(2):  # one more than the system takes by itself
                nursery.start_soon(wait)
            await wait_all_tasks_blocked(0.05)
            yield
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def listening(host: str = "0.0.0.0", port: int = 0) -> AsyncIterator[Server]:  # noqa: S104 - 127.0.0.2 as well
    """Listen at all addresses of this machine, or at one."""
    listeners = await trio.open_tcp_listeners(port, host=host)
    server = Server(listeners[0].socket.getsockname()[1])

    async def accept(stream: trio.SocketStream) -> None:
        server.reached.append(stream.socket.getsockname()[0])
        await stream.send_all(b"x")
        await stream.receive_some()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, accept, listeners)
        yield server
        nursery.cancel_scope.cancel()


def knowing(*addresses: str) -> Names:
    """Make these the addresses of the name, for this run of trio."""
    names = Names({NAME: [*addresses]})
    trio.socket.set_custom_hostname_resolver(names)
    return names


async def visit(addresses: Addresses, port: int) -> None:
    """Connect, and see that somebody is there."""
    async with await addresses.stream_to(NAME, port) as stream:
        assert await stream.receive_some(1) == b"x"


async def test_many_at_once_look_a_name_up_once() -> None:
    """Fifty connections at once do not look their server up fifty times."""
    names, addresses = knowing("127.0.0.1"), Addresses()
    async with listening() as server:
        async with trio.open_nursery() as nursery:
            for _ in range(MANY):
                nursery.start_soon(visit, addresses, server.port)
        assert len(server.reached) == MANY
    assert names.lookups[NAME] <= 2  # to connect, and to note all addresses


async def test_connections_share_the_addresses_of_a_name() -> None:
    """The servers behind one name get about as many connections each."""
    knowing("127.0.0.1", "127.0.0.2")
    addresses = Addresses()
    async with listening() as server:
        for _ in range(11):
            await visit(addresses, server.port)
    assert min(Counter(server.reached).values()) == 5


async def test_a_name_that_moves_is_followed_soon() -> None:
    """A lookup holds for a moment only, even if the server at the old address goes on."""
    clock = MockClock()

    async def main() -> None:
        names, addresses = knowing(), Addresses()
        async with listening() as server:
            for address, seconds in (("127.0.0.1", FRESH - 1), ("127.0.0.2", 2.0), ("127.0.0.2", 0.0)):
                names.addresses[NAME] = [address]
                await visit(addresses, server.port)
                clock.jump(seconds)
            assert server.reached == ["127.0.0.1", "127.0.0.1", "127.0.0.2"]

    await trio.to_thread.run_sync(lambda: trio.run(main, clock=clock))


async def test_a_server_that_is_gone_is_looked_up_anew_at_once() -> None:
    """If an address refuses connections, its name says where the server is now."""
    names, addresses = knowing("127.0.0.1"), Addresses()
    async with listening("127.0.0.1") as before:
        await visit(addresses, before.port)
    names.addresses[NAME] = ["127.0.0.2"]
    async with listening("127.0.0.2", before.port) as after:
        await visit(addresses, after.port)
    assert after.reached == ["127.0.0.2"]


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["127.0.0.1", "127.0.0.2"]])
async def test_a_server_may_take_its_time(addresses: list[str]) -> None:
    """A server that accepts late is waited for; if its name has other addresses, they are used after a moment."""
    clock, waits = MockClock(), list[float]()

    async def main() -> int:
        names, known = knowing(*addresses), Addresses()
        async with listening("127.0.0.1") as first:
            await visit(known, first.port)

        async def visit_again() -> None:
            for _ in range(3):
                began = clock.current_time()
                await visit(known, first.port)
                waits.append(clock.current_time() - began)

        async with hanging("127.0.0.1", first.port), listening("127.0.0.2", first.port), trio.open_nursery() as nursery:
            nursery.start_soon(visit_again)
            while len(waits) < 3 and clock.current_time() < FRESH:
                await wait_all_tasks_blocked(0.05)
                clock.jump(PATIENCE / 2)
            nursery.cancel_scope.cancel()
        return names.lookups[NAME]

    lookups = await trio.to_thread.run_sync(lambda: trio.run(main, clock=clock))
    assert lookups == 2  # nothing was looked up again
    assert [round(wait / PATIENCE) for wait in waits] == ([1, 0, 0] if len(addresses) > 1 else [])


@pytest.mark.parametrize("fault", [{"hangs_after": 1}, {"broken_after": 1}])
async def test_the_addresses_beside_the_first_are_a_bonus(fault: dict[str, int]) -> None:
    """A connection that is there is used, even if its name cannot be looked up a second time, for all addresses."""
    clock = MockClock(rate=100)

    async def main() -> None:
        names, addresses = knowing("127.0.0.1", "127.0.0.2"), Addresses()
        for name, value in fault.items():
            setattr(names, name, value)
        async with listening() as server:
            for _ in range(3):
                await visit(addresses, server.port)
        assert server.reached == ["127.0.0.1"] * 3

    await trio.to_thread.run_sync(lambda: trio.run(main, clock=clock))


async def test_a_refusal_says_why() -> None:
    """The error has the words of the system, and not only those of trio."""
    knowing("127.0.0.1")
    async with listening() as server:
        pass
    with pytest.raises(OSError, match="onnection refused"):
        await Addresses().stream_to(NAME, server.port)


async def test_all_that_wait_for_a_name_get_its_error() -> None:
    """A name that is unknown fails for all callers at once, and may be known a moment later."""
    names, addresses, errors = knowing(), Addresses(), list[str]()

    async def fail() -> None:
        with pytest.raises(OSError, match="not known") as caught:
            await addresses.stream_to(NAME, 80)
        errors.append(str(caught.value))

    async with trio.open_nursery() as nursery:
        for _ in range(MANY):
            nursery.start_soon(fail)
    assert errors == ["[Errno -2] Name or service not known"] * MANY
    assert names.lookups[NAME] == 1
    names.addresses[NAME] = ["127.0.0.1"]
    async with listening() as server:
        await visit(addresses, server.port)


async def test_a_caller_that_gives_up_fails_no_other() -> None:
    """If the caller that looks a name up is cancelled, one of those that wait takes its place."""
    names, addresses = knowing("127.0.0.1"), Addresses()
    async with listening() as server, trio.open_nursery() as nursery:
        names.hangs_after = 0
        first = trio.CancelScope()
        async with trio.open_nursery() as others:

            async def give_up() -> None:
                with first:
                    await visit(addresses, server.port)

            others.start_soon(give_up)
            await wait_all_tasks_blocked()
            for _ in range(3):
                nursery.start_soon(visit, addresses, server.port)
            await wait_all_tasks_blocked()
            names.hangs_after = 1_000
            first.cancel()
        await wait_all_tasks_blocked(0.2)
        assert len(server.reached) == 3


@pytest.mark.skipif(not has_ipv6(), reason="needs IPv6")
async def test_only_the_family_that_answered_is_used_again() -> None:
    """If IPv6 does not get through, later connections do not try it first each time."""
    names, addresses = knowing("::1", "127.0.0.1"), Addresses()
    async with listening("127.0.0.1") as server:
        for _ in range(4):
            await visit(addresses, server.port)
    assert server.reached == ["127.0.0.1"] * 4
    assert names.lookups[NAME] == 2
