"""Bad clients: they hold connections, never finish a request head, reconnect all the time, or send far too much.

The users of the gateway must not notice them. They speak to its port, because no client of its service could do this.
"""

import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

import trio

from warren.actors.io.streams import GONE
from warren.transport.load.address import Address
from warren.transport.load.plan import BadClients

ARRIVING_AT_ONCE: Final = 50
CHUNK: Final = 64 * 1024
BETWEEN_BYTES: Final = 0.5
BETWEEN_VISITS: Final = 0.01
HUGE: Final = 256 * 1024 * 1024
UPGRADED: Final = b"HTTP/1.1 101 "
LOST: Final = (OSError, *GONE)


@asynccontextmanager
async def bad_clients(plan: BadClients, address: Address, counts: Counter[str]) -> AsyncIterator[None]:
    """Run bad clients against a gateway for a body, the idle ones from its beginning, and count their outcomes."""
    async with trio.open_nursery() as nursery:
        await _hold(plan.idle, nursery, address, counts)
        kinds = ((plan.slow, _slow), (plan.flood, _flood), (plan.huge, _huge))
        for number, behave in kinds:
            for _ in range(number):
                nursery.start_soon(_again, partial(behave, address, counts))
        yield
        nursery.cancel_scope.cancel()


async def _hold(number: int, nursery: trio.Nursery, address: Address, counts: Counter[str]) -> None:
    """Open connections that stay open, several at once."""
    waiting = iter(range(number))

    async def open_some() -> None:
        for _ in waiting:
            await nursery.start(_idle, address, counts)

    async with trio.open_nursery() as opening:
        for _ in range(min(number, ARRIVING_AT_ONCE)):
            opening.start_soon(open_some)


async def _idle(address: Address, counts: Counter[str], task_status: trio.TaskStatus[None]) -> None:
    """Open a WebSocket and never use it."""
    try:
        stream = await address.open_stream()
        async with stream:
            await _upgrade(stream, address)
            counts["idle connections"] += 1
            task_status.started()
            while await stream.receive_some(CHUNK):
                pass
        counts["idle connections lost"] += 1
    except LOST:
        counts["bad clients turned away"] += 1
        task_status.started()


async def _upgrade(stream: trio.abc.Stream, address: Address) -> None:
    """Ask for a WebSocket. Raises trio.BrokenResourceError if it is refused."""
    await stream.send_all(_head(address) + b"\r\n")
    answer = b""
    while b"\r\n\r\n" not in answer:
        data = await stream.receive_some(CHUNK)
        answer += data
        if not data or not answer.startswith(UPGRADED[: len(answer)]):
            raise trio.BrokenResourceError("there is no room")


def _head(address: Address) -> bytes:
    """Return the head of an upgrade, without the empty line that ends it."""
    lines = [f"GET {address.path} HTTP/1.1", f"Host: {address.host}", "Upgrade: websocket", "Connection: Upgrade"]
    lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: c3RyYW5nZXJzIGFuZCBtbw=="]
    lines += [f"{name}: {value}" for name, value in address.headers.items()]
    return "".join(f"{line}\r\n" for line in lines).encode()


async def _again(behave: Callable[[], Awaitable[None]]) -> None:
    """Repeat a behaviour for ever, also after the gateway has dropped the client."""
    while True:
        try:
            await behave()
        except* LOST:  # in a group if a reader ran beside it
            pass
        await trio.sleep(BETWEEN_VISITS)


async def _slow(address: Address, counts: Counter[str]) -> None:
    """Send a request head byte by byte, until the gateway closes the connection."""
    async with await address.open_stream() as stream, trio.open_nursery() as reading:
        reading.start_soon(_until_end, stream, reading.cancel_scope)
        counts["slow heads"] += 1
        for byte in _head(address):
            await stream.send_all(bytes([byte]))
            await trio.sleep(BETWEEN_BYTES)
        reading.cancel_scope.cancel()


async def _until_end(stream: trio.abc.Stream, scope: trio.CancelScope) -> None:
    with suppress(*LOST):
        while await stream.receive_some(CHUNK):
            pass
    scope.cancel()


async def _flood(address: Address, counts: Counter[str]) -> None:
    """Connect and disconnect."""
    stream = await address.open_stream()
    counts["visits"] += 1
    await trio.aclose_forcefully(stream)


async def _huge(address: Address, counts: Counter[str]) -> None:
    """Send a frame above the bound, until the gateway closes the connection."""
    async with await address.open_stream() as stream, trio.open_nursery() as reading:
        await _upgrade(stream, address)
        counts["huge frames"] += 1
        reading.start_soon(_until_end, stream, reading.cancel_scope)
        await stream.send_all(b"\x81\xff" + struct.pack(">Q", HUGE) + bytes(4))
        for _ in range(HUGE // CHUNK):
            await stream.send_all(b"x" * CHUNK)
        reading.cancel_scope.cancel()
