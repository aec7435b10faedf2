"""A gateway as a target: each client has a WebSocket of its own."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from warren.transport.load.bad_clients import bad_clients as run_bad_clients
from warren.transport.load.plan import BadClients, LoadPlan
from warren.transport.load.target import FIELDS, OnSeen, RowCounts, Said, Seen, Target, TargetConnection, said_of
from warren.transport.load.wire import Address, RpcConnection, open_connection
from warren.values import define, frozen

PAGE: Final = 500


def seen_of(envelope: Mapping[str, Any]) -> Seen:
    """Return the parts of an event for the checks, from its JSON."""
    event, seq = envelope["event"], envelope["seq"]
    kind = event["type"]
    text, ref = FIELDS.get(kind, ("", ""))
    first = envelope.get("first_seq") or seq
    content, about = event.get(text, "") if text else "", event.get(ref, "") if ref else ""
    return Seen(seq, first, kind, content, about, envelope["session_id"])


@define
class RemoteLine:
    """A client with a connection of its own."""

    connection: RpcConnection

    async def create(self, model: str | None) -> str:
        """Create a session."""
        chosen = {} if model is None else {"model": model}
        return str((await self.connection.call("session/create", prompt=None, **chosen))["session_id"])

    async def turn(self, session_id: str, prompt: str) -> str:
        """Run a turn."""
        return str((await self.connection.call("turn/start", session_id=session_id, prompt=prompt))["text"])

    async def interrupt(self, session_id: str) -> None:
        """End the running turn."""
        await self.connection.call("turn/interrupt", session_id=session_id)

    async def compact(self, session_id: str) -> None:
        """Compact the session."""
        await self.connection.call("session/compact", session_id=session_id)

    async def follow(self, session_id: str, after_seq: int) -> None:
        """Follow the session until the client is left."""
        await self.connection.call("session/subscribe", session_id=session_id, after_seq=after_seq)

    async def history(self, session_id: str) -> Sequence[Said]:
        """Return all messages."""
        found: list[Said] = []
        offset, total = 0, 1
        while offset < total:
            page = await self.connection.call("session/history", session_id=session_id, offset=offset, limit=PAGE)
            found += [said_of(entry["message"]) for entry in page["messages"]]
            offset, total = offset + PAGE, page["total"]
        return found

    async def message_count(self, session_id: str) -> int:
        """Return the number of messages by the session's own view."""
        return int((await self.connection.call("session/read", session_id=session_id))["state"]["message_count"])


@frozen
class RemoteTarget:
    """A gateway as a target.

    Attributes:
        address: its address.
        tasks: the nursery of the connections.
        store: the folder of its store, if this machine has it.
        tagged: whether its model repeats the first word of the prompt.
    """

    address: Address
    tasks: trio.Nursery
    store: Path | None = None
    tagged: bool = False

    @property
    def name(self) -> str:
        """The name in reports."""
        return self.address.url

    @asynccontextmanager
    async def line(self, on_seen: OnSeen) -> AsyncIterator[TargetConnection]:
        """Open a connection for a body, and drop it afterwards."""
        connection = await open_connection(self.address, lambda envelope: on_seen(seen_of(envelope)), self.tasks)
        try:
            yield RemoteLine(connection)
        finally:
            with trio.CancelScope(shield=True):
                await connection.cut()

    def crowded(self, bad_clients: BadClients, counts: Counter[str]) -> AbstractAsyncContextManager[None]:
        """Run bad clients against the gateway for a body."""
        return run_bad_clients(bad_clients, self.address, counts)

    async def rows(self, session_ids: Sequence[str]) -> Mapping[str, RowCounts] | None:
        """Count the rows in the gateway's file; None if this machine does not have it."""
        if self.store is None:
            return None
        from warren.transport.load.rows import count_rows  # noqa: PLC0415 - a store is an extra

        return await trio.to_thread.run_sync(count_rows, self.store, session_ids)


@asynccontextmanager
async def remote_target(plan: LoadPlan, address: Address, store: Path | None = None) -> AsyncIterator[Target]:
    """Yield a gateway as a target for a body."""
    async with trio.open_nursery() as tasks:
        target = RemoteTarget(address, tasks, store, tagged=plan.model == "echo")
        yield target
        tasks.cancel_scope.cancel()
