"""Gateways as a target: each client has a connection of its own to one of them, which is cut when it leaves."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import httpx
import trio

from warren.base.errors import WarrenError
from warren.base.values import define, frozen
from warren.transport.client.connection import Dial
from warren.transport.client.links import Links
from warren.transport.client.service import RemoteService, open_http, open_links
from warren.transport.load.address import Address
from warren.transport.load.bad_clients import bad_clients as run_bad_clients
from warren.transport.load.line import Line, done, error_of
from warren.transport.load.plan import BadClients, LoadPlan
from warren.transport.load.target import OnSeen, RowCounts, Seen, Target, TargetConnection

PATIENCE: Final = 0.0
"""Seconds for which a call waits for a gateway that cannot be reached: its absence is one of the findings."""


@define
class RemoteLine(Line):
    """A client that follows its session, and so has the events of turns that collide in the order of the log.

    If it took the events with each turn, the second turn would need a connection of its own.
    """

    following: bool = False

    async def follow(self, session_id: str, after_seq: int | None) -> None:
        """Follow the session until the client is left."""
        self.following = True
        await super().follow(session_id, after_seq)

    def _lose(self, session_id: str) -> None:
        self.following = False
        super()._lose(session_id)

    async def create(self, model: str | None) -> str:
        """Create a session."""
        session_id = await super().create(model)
        await self.follow(session_id, None)
        return session_id

    async def turn(self, session_id: str, prompt: str) -> str:
        """Run a turn."""
        if not self.following:
            await self.follow(session_id, None)
        return (await done(self.service.start_turn(session_id, prompt))).text


@frozen
class RemoteTarget:
    """A gateway as a target, or several that serve the same sessions: each client takes the next one.

    Attributes:
        addresses: the addresses; bad clients go to the first.
        http: opens the connections of all clients.
        tasks: the nursery of the clients.
        turns: deals the addresses out.
        store: the folder of the store, if this machine has it.
        tagged: whether its model repeats the first word of the prompt.
    """

    addresses: Sequence[Address]
    http: httpx.AsyncClient
    tasks: trio.Nursery
    turns: Iterator[Address]
    store: Path | None = None
    tagged: bool = False

    @property
    def name(self) -> str:
        """The name in reports."""
        return ", ".join(each.url for each in self.addresses)

    @asynccontextmanager
    async def line(self, on_seen: OnSeen) -> AsyncIterator[TargetConnection]:
        """Open a client for a body; afterwards its connections are cut, like those of a machine that fails."""

        def stray(params: Mapping[str, Any]) -> None:
            """Let the check see an event of a session that this client has nothing to do with."""
            on_seen(Seen(params["seq"], params["seq"], params["event"]["type"], session_id=params["session_id"]))

        left = trio.Event()
        address = next(self.turns)
        dial = Dial(self.http, address.url, address.headers, stray)
        links, service = await self.tasks.start(self._hold, dial, left)
        line = RemoteLine(service, on_seen, self.tasks)
        try:
            yield line
        finally:
            line.left.cancel()
            # Shielded: a user that is broken off has to free its connections for the next one.
            with trio.CancelScope(shield=True):
                await links.cut()
            left.set()

    async def _hold(
        self, dial: Dial, left: trio.Event, *, task_status: trio.TaskStatus[tuple[Links, RemoteService]]
    ) -> None:
        """Keep a client in a task of its own: the body of `line` may begin in one task, and end in another."""
        try:
            async with open_links(dial, PATIENCE) as (links, capabilities):
                task_status.started((links, RemoteService(links, capabilities)))
                await left.wait()
        except WarrenError as exc:
            raise error_of(exc) from None

    def crowded(self, bad_clients: BadClients, counts: Counter[str]) -> AbstractAsyncContextManager[None]:
        """Run bad clients against the gateway for a body."""
        return run_bad_clients(bad_clients, self.addresses[0], counts)

    async def rows(self, session_ids: Sequence[str]) -> Mapping[str, RowCounts] | None:
        """Count the rows in the gateway's file; None if this machine does not have it."""
        if self.store is None:
            return None
        from warren.transport.load.rows import count_rows  # noqa: PLC0415 - a store is an extra

        return await trio.to_thread.run_sync(count_rows, self.store, session_ids)


@asynccontextmanager
async def remote_target(
    plan: LoadPlan, address: Address, store: Path | None = None, others: Sequence[Address] = ()
) -> AsyncIterator[Target]:
    """Yield a gateway as a target for a body, with others that serve the same sessions."""
    addresses = (address, *others)
    encrypted = max((each.url for each in addresses), key=lambda url: url.startswith("wss:"))
    async with open_http(encrypted) as http, trio.open_nursery() as tasks:
        yield RemoteTarget(addresses, http, tasks, cycle(addresses), store, tagged=plan.model == "echo")
        tasks.cancel_scope.cancel()
