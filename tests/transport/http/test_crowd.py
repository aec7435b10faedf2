"""Workers that accept clients from one socket have as many clients each."""

import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import attrs
import trio
import trio.testing

from warren.transport.http.accepting import OpenFiles, serve_all
from warren.transport.http.crowd import INTERVAL, LOOKS, Crowd, shared

CLIENTS = 30


@attrs.define(eq=False)
class Office:
    """Workers that accept clients from one socket, and keep them."""

    listener: trio.SocketListener
    file: int
    nursery: trio.Nursery
    begun: trio.MemorySendChannel[None]
    news: trio.MemoryReceiveChannel[None]
    served: Counter[int] = attrs.field(factory=Counter)
    connected: AsyncExitStack = attrs.field(factory=AsyncExitStack)

    def work(self, number: int) -> None:
        """Begin to serve as one of two workers."""

        async def serve(stream: trio.SocketStream) -> None:
            async with stream:
                self.served[number] += 1
                self.begun.send_nowait(None)
                await trio.sleep_forever()

        copy = os.dup(self.listener.socket.fileno())
        own = trio.SocketListener(trio.socket.socket(fileno=copy))
        self.nursery.start_soon(
            serve_all, serve, [own], OpenFiles(), self.nursery, Crowd.of(self.file, number, 2, (copy,))
        )

    async def come(self, clients: int) -> None:
        """Let some clients connect, and return once all of them are served."""
        address = self.listener.socket.getsockname()
        for _ in range(clients):
            await self.connected.enter_async_context(await trio.open_tcp_stream(*address))
        with trio.fail_after(10):
            for _ in range(clients):
                await self.news.receive()


@asynccontextmanager
async def office() -> AsyncIterator[Office]:
    """Open a socket for the workers of a body."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    with shared(2) as file:
        async with listener, trio.open_nursery() as nursery:
            opened = Office(listener, file.fileno(), nursery, *trio.open_memory_channel[None](CLIENTS))
            async with opened.connected:
                yield opened
            nursery.cancel_scope.cancel()


async def test_a_worker_with_fewer_clients_gets_the_next_ones() -> None:
    """A worker that comes later has as many clients as the first one in the end, and further ones are shared."""
    async with office() as found:
        found.work(1)
        await found.come(CLIENTS)
        found.work(2)
        await trio.testing.wait_all_tasks_blocked()
        await found.come(CLIENTS)
        assert abs(found.served[2] - found.served[1]) <= 2, found.served
        await found.come(CLIENTS)
        assert abs(found.served[2] - found.served[1]) <= 2, found.served


async def test_a_worker_that_is_not_there_holds_nobody_up() -> None:
    """A worker that has not begun, or has died, counts as the fullest one."""
    async with office() as found:
        found.work(2)
        with trio.fail_after(CLIENTS * LOOKS * INTERVAL):
            await found.come(CLIENTS)


async def test_a_worker_that_hangs_holds_others_up_for_a_moment() -> None:
    """Clients that a less crowded worker does not take are taken by another one."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    with shared(2) as file:
        crowd, hanging = Crowd.of(file.fileno(), 1, 2), Crowd.of(file.fileno(), 2, 2)
        async with listener:
            with hanging.accepting(), crowd.accepting(), crowd.one_more(), trio.fail_after(10):
                async with await trio.open_tcp_stream(*listener.socket.getsockname()):
                    await crowd.wait_for_client(listener)
