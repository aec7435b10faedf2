"""A load balancer in front of several ports: each connection goes to the next one."""

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import httpx2
import trio
from mcp.client.streamable_http import streamable_http_client

from tests.transport.clients import HOST
from tests.transport.mcp.clients import Program, using
from warren.actors.io.streams import GONE


@asynccontextmanager
async def balanced(ports: Sequence[int]) -> AsyncIterator[int]:
    """Take connections on a port, and carry each to the next of some others."""
    following = itertools.cycle(ports)

    async def serve(client: trio.SocketStream) -> None:
        async with client, await trio.open_tcp_stream(HOST, next(following)) as server, trio.open_nursery() as tasks:
            tasks.start_soon(_carry, client, server, tasks.cancel_scope)
            await _carry(server, client, tasks.cancel_scope)

    async with trio.open_nursery() as tasks:
        (listener,) = await tasks.start(partial(trio.serve_tcp, serve, 0, host=HOST))
        yield listener.socket.getsockname()[1]
        tasks.cancel_scope.cancel()


async def _carry(source: trio.SocketStream, sink: trio.SocketStream, both: trio.CancelScope) -> None:
    try:
        async for data in source:
            await sink.send_all(data)
    except GONE:
        pass
    both.cancel()


@asynccontextmanager
async def without_keep_alive(url: str, **headers: str) -> AsyncIterator[tuple[Program, Counter[int]]]:
    """Connect the official client of MCP, with a connection for each request; yield it and the statuses it has got."""
    statuses = Counter[int]()

    async def note(response: httpx2.Response) -> None:
        statuses[response.status_code] += 1

    async with (
        httpx2.AsyncClient(
            limits=httpx2.Limits(max_keepalive_connections=0),
            headers={"connection": "close", **headers},
            timeout=30,
            event_hooks={"response": [note]},
        ) as http,
        using(streamable_http_client(url, http_client=http)) as program,
    ):
        yield program, statuses
