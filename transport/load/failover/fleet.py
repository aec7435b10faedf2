"""The nodes of a run: processes of `warren serve` that are started, killed, stopped and cut off."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import attrs
import trio

from warren.actors.io.processes import end_group
from warren.base.database_url import is_url_of_database
from warren.base.values import define
from warren.transport.load.failover.plan import FailoverPlan
from warren.transport.load.failover.wire import HOST, Wire, laid, wired
from warren.transport.load.target import TargetError

NAME: Final = "load-"
LAST_WORDS: Final = 5.0
"""Seconds that a node has to end."""


@define(eq=False)
class LoadNode:
    """One node, which keeps its port when it is started again.

    Attributes:
        number: its number, from 0 on.
        store: the store as this node is told it.
        lease: seconds of its leases.
        wire: its wire to the database; None on a store in files.
        link: the wire by which the other nodes reach it.
        link_port: the port of that wire.
        port: its port; 0 before the first start.
    """

    number: int
    store: str
    lease: float
    wire: Wire | None
    link: Wire = attrs.field(init=False)
    link_port: int = 0
    port: int = 0
    _process: trio.Process | None = None

    def __attrs_post_init__(self) -> None:
        self.link = Wire(self._dial)

    @property
    def name(self) -> str:
        """The name that it has in the store."""
        return f"{NAME}{self.number}"

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"ws://{HOST}:{self.port}"

    async def start(self) -> None:
        """Start the process, and return when it serves. Raises TargetError if it ends instead."""
        command = [sys.executable, "-m", "warren", "serve", "--port", f"{self.port}", "--model", "echo"]
        self._process = process = await trio.lowlevel.open_process(
            [*command, "--store", self.store, "--drain", "2s", *self._as_node()],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "WARREN_STORAGE_LEASE": f"{self.lease:g}s"},
            start_new_session=True,
        )
        line = b"" if process.stdout is None else await process.stdout.receive_some()
        if not line:
            raise TargetError("START", f"node {self.number} ended at once: `warren serve --store …` says why")
        self.port = int(line.decode().rpartition(":")[2])

    async def _dial(self) -> trio.SocketStream:
        return await trio.open_tcp_stream(HOST, self.port)

    def _as_node(self) -> list[str]:
        return ["--node-name", self.name, "--node-address", f"ws://{HOST}:{self.link_port}"]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        if self._process is not None:
            self._process.send_signal(number)

    async def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            await self._process.wait()

    async def end(self) -> None:
        """End the process, by force if it takes long."""
        if self._process is not None:
            await end_group(self._process, LAST_WORDS)


@asynccontextmanager
async def fleet_of(plan: FailoverPlan) -> AsyncIterator[Sequence[LoadNode]]:
    """Run the nodes of a plan for a body. Raises TargetError if one does not start."""
    async with AsyncExitStack() as stack:
        nodes: list[LoadNode] = []
        for number in range(plan.nodes):
            wire, store = None, plan.store
            if is_url_of_database(plan.store):
                wire, store = await stack.enter_async_context(wired(plan.store))
            node = LoadNode(number, store, plan.lease, wire)
            node.link_port = await stack.enter_async_context(laid(node.link))
            nodes.append(node)
        try:
            for node in nodes:
                await node.start()
            yield nodes
        finally:
            # Shielded: a test that is broken off may leave no node running.
            with trio.CancelScope(shield=True):
                for node in nodes:
                    await node.end()
