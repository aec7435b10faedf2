"""Connections between clients and nodes in memory: messages take seeded times, and connections hang and break."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import attrs
import httpx
import trio
from wsproto.events import CloseConnection, Event, Ping, TextMessage

from warren.transport.client.connection import Dial
from warren.transport.client.socket import Socket
from warren.transport.rpc.dialect import Native
from warren.transport.rpc.endpoint import Endpoint, EndpointBounds
from warren.transport.rpc.methods import Host
from warren.transport.rpc.session_client import serve_client

PONG: Final = ""
"""The answer to a ping."""
NO_HTTP: Final = httpx.MockTransport(lambda _request: httpx.Response(503))
SUBSCRIPTIONS: Final = 1_000


class Line:
    """One direction of a connection: messages arrive in their order, each some time after it was sent."""

    def __init__(self, latency: Callable[[], float]) -> None:
        self._latency = latency
        self._due = 0.0
        self._send, self._receive = trio.open_memory_channel[tuple[float, str]](10_000)
        self.flows = trio.Event()
        self.flows.set()

    def put(self, message: str) -> None:
        """Send a message. Raises BrokenResourceError or ClosedResourceError if the line is cut."""
        self._due = max(self._due, trio.current_time() + self._latency())
        self._send.send_nowait((self._due, message))

    async def get(self) -> str:
        """Return the next message once it has arrived. Raises as `put`, or EndOfChannel."""
        due, message = await self._receive.receive()
        await trio.sleep_until(due)
        await self.flows.wait()
        return message

    def cut(self) -> None:
        """Lose the messages that are under way, and all later ones."""
        self._send.close()
        self._receive.close()
        self.flows.set()


@attrs.define(eq=False)
class Wire:
    """A connection: the lines from a client to a node, and back."""

    up: Line
    down: Line

    def cut(self) -> None:
        """Break the connection."""
        self.up.cut()
        self.down.cut()

    def hang(self) -> None:
        """Deliver nothing until `flow`."""
        if self.up.flows.is_set():  # else it hangs already, and messages wait for that event
            self.up.flows = self.down.flows = trio.Event()

    def flow(self) -> None:
        """Deliver again."""
        self.up.flows.set()

    async def aclose(self) -> None:
        """Break the connection: see `Connection.cut`."""
        await trio.lowlevel.checkpoint()
        self.cut()


class ClientEnd(Socket):
    """The socket of the client."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)  # type: ignore[arg-type] # of a stream, its users only close it
        self._wire = wire

    async def read(self) -> tuple[list[str], list[Event]]:
        try:
            message = await self._wire.down.get()
        except (trio.EndOfChannel, trio.ClosedResourceError) as exc:
            raise anyio.EndOfStream from exc
        self.heard = True
        return ([] if message is PONG else [message]), []

    async def write(self, event: Event) -> None:
        await trio.lowlevel.checkpoint()
        try:
            if isinstance(event, TextMessage):
                self._wire.up.put(event.data)
            elif isinstance(event, Ping):
                self._wire.down.put(PONG)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            raise anyio.BrokenResourceError from exc
        if isinstance(event, CloseConnection):
            self._wire.cut()


@attrs.frozen
class ServerEnd:
    """The channel of the node's endpoint."""

    wire: Wire

    async def receive(self) -> str | None:
        try:
            return await self.wire.up.get()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            return None

    async def send(self, frames: Sequence[bytes]) -> None:
        await trio.lowlevel.checkpoint()
        for frame in frames:
            self.wire.down.put(frame.decode())


@attrs.define(eq=False)
class Port:
    """Where a node is reached.

    Attributes:
        tasks: serves the connections.
        clients: what clients meet.
        nodes: what other nodes meet.
        latency: draws the time that a message takes.
        hangs: whether connections deliver nothing now.
    """

    tasks: trio.Nursery
    clients: Host
    nodes: Host
    latency: Callable[[], float]
    hangs: bool = False
    closed: bool = False
    wires: list[Wire] = attrs.field(factory=list)

    def connect(self, host: Host) -> Wire:
        """Open a connection. Raises OSError if nobody listens."""
        if self.closed:
            raise ConnectionRefusedError
        wire = Wire(Line(self.latency), Line(self.latency))
        if self.hangs:
            wire.hang()
        self.wires.append(wire)
        self.tasks.start_soon(self._serve, wire, host)
        return wire

    async def _serve(self, wire: Wire, host: Host) -> None:
        endpoint = Endpoint(ServerEnd(wire), EndpointBounds(256, close_timeout=0.3, needs_reader=False))
        try:
            await serve_client(endpoint, host, Native(), SUBSCRIPTIONS)
        finally:
            wire.cut()
            self.wires.remove(wire)

    def hang(self) -> None:
        """Deliver nothing until `flow`."""
        self.hangs = True
        for wire in self.wires:
            wire.hang()

    def flow(self) -> None:
        """Deliver again."""
        self.hangs = False
        for wire in self.wires:
            wire.flow()

    def cut(self) -> None:
        """Break all connections that are open."""
        for wire in self.wires:
            wire.cut()

    def close(self) -> None:
        """Listen no more, and break all connections."""
        self.closed = True
        self.cut()


@attrs.frozen(kw_only=True)
class Call(Dial):
    """A `Dial` into the simulated network.

    Attributes:
        reach: opens a connection. Raises OSError.
    """

    reach: Callable[[], Wire]
    http: httpx.AsyncClient = attrs.field(factory=lambda: httpx.AsyncClient(transport=NO_HTTP, trust_env=False))
    url: str = "ws://simulated/ws"
    headers: Mapping[str, str] = attrs.field(factory=dict[str, str])
    stray: Callable[[Mapping[str, Any]], None] = lambda _params: None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Socket]:
        await trio.lowlevel.checkpoint()
        wire = self.reach()
        try:
            yield ClientEnd(wire)
        finally:
            wire.cut()
