"""A TCP stream with manners."""

import os
import socket

import pytest
import trio

from tests.transport.http.serving import connected, pair
from warren.transport.http.wire import CHUNK, Wire

BIG = b"x" * 8_000_000


async def rest(stream: trio.SocketStream) -> bytes:
    """Read to the end."""
    return b"".join([chunk async for chunk in stream])


async def test_bytes_put_back_come_first() -> None:
    """Data that was read too early is read again, in the sizes asked for."""
    wire, client = await pair()
    async with client, wire:
        wire.unread(b"abcd")
        await client.send_all(b"ef")
        assert [await wire.receive_some(3), await wire.receive_some(3), await wire.receive_some(3)] == [
            b"abc",
            b"d",
            b"ef",
        ]


async def test_a_client_that_does_not_read_is_dropped() -> None:
    """A send that is stuck for the timeout ends with a reset, and nothing can be sent after it."""
    wire, client = await pair(stall_timeout=0.2)
    async with client:
        with pytest.raises(trio.BrokenResourceError, match=r"nothing for 0\.2 s"):
            await wire.send_all(BIG)
        with pytest.raises(trio.ClosedResourceError):
            await wire.send_all(b"more")
        with pytest.raises(trio.BrokenResourceError):
            await rest(client)


async def test_a_slow_client_is_not() -> None:
    """A client that reads a little all the time gets everything, however long it takes in all."""
    wire, client = await pair(stall_timeout=0.5)
    data = BIG[:2_000_000]
    received = 0

    async def read() -> None:
        nonlocal received
        while received < len(data):
            received += len(await client.receive_some(50_000))
            await trio.sleep(0.02)

    async with client, wire, trio.open_nursery() as nursery:
        nursery.start_soon(read)
        started = trio.current_time()
        await wire.send_all(data)
        assert trio.current_time() - started > 0.5
    assert received == len(data)


async def test_short_words_are_not_lost_behind_long_ones() -> None:
    """A client that reads slowly gets the answers to its pings, behind the bytes that wait; very many are dropped."""
    wire, client = await pair()
    async with client, wire:
        assert not wire.send_nowait(BIG)
        wire.send_soon(b"pong")
        for _ in range(CHUNK):
            wire.send_soon(b"more")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wire.send_all, b"the end")
            received = b""
            while not received.endswith(b"the end"):
                received += await client.receive_some()
        words = received[len(BIG) :]
        assert words.startswith(b"pongmore")
        assert CHUNK <= len(words) < CHUNK + 20
        wire.send_soon(b"again")
        assert await client.receive_some() == b"again"


async def test_a_cancelled_send_ends_the_connection() -> None:
    """Half a frame on the wire is followed by nothing."""
    wire, client = await pair()
    async with client:
        with trio.move_on_after(0.1):
            await wire.send_all(BIG)
        with pytest.raises(trio.ClosedResourceError):
            await wire.send_all(b"a frame")


async def test_senders_take_turns() -> None:
    """Two tasks that send do not mix their bytes."""
    wire, client = await pair()

    async def send(letter: bytes) -> None:
        await wire.send_all(letter * 500_000)

    async def send_both() -> None:
        async with wire, trio.open_nursery() as nursery:
            nursery.start_soon(send, b"a")
            nursery.start_soon(send, b"b")

    async with client, trio.open_nursery() as nursery:
        nursery.start_soon(send_both)
        data = await rest(client)
    assert data in (b"a" * 500_000 + b"b" * 500_000, b"b" * 500_000 + b"a" * 500_000)


async def test_lingering_saves_the_last_words() -> None:
    """A client that is still sending can read what it was told last."""
    wire, client = await pair()

    async def send() -> None:
        await client.send_all(BIG[:1_000_000])
        await client.send_eof()

    async with client, trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await wire.send_all(b"too much")
        await wire.linger()
        wire.close()
        assert await rest(client) == b"too much"


async def test_the_kernel_does_not_keep_megabytes() -> None:
    """The send buffer is bounded and dead peers are looked for."""
    ours, client = await connected()
    async with client, Wire(ours, 5.0):
        sock = ours.socket
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2 * 256 * 1024
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


async def test_bytes_of_the_next_client_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is closed just as its bytes come reads none of the client that gets its number."""
    wire, client = await pair()
    other, far = socket.socketpair()
    wait_readable = trio.lowlevel.wait_readable

    async def wait(fd: int) -> None:
        await wait_readable(fd)
        wire.close()
        os.dup2(other.fileno(), fd)
        far.send(b"a secret")
        numbers.append(fd)

    numbers: list[int] = []
    with other, far:
        async with client:
            await client.send_all(b"hello")
            monkeypatch.setattr(trio.lowlevel, "wait_readable", wait)
            with pytest.raises(trio.ClosedResourceError):
                await wire.receive_some(100)
            assert os.read(numbers[0], 100) == b"a secret"
            os.close(numbers[0])
