"""The official client of MCP in the tests' hands: what it is told, and what its calls bring."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import attrs
import mcp_types as types
import trio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import Client
from mcp.client.session import IncomingMessage
from mcp.shared.message import SessionMessage
from trio.testing import memory_stream_one_way_pair

from warren.actors.io.streams import LineReader
from warren.calls.facade import RuntimeService
from warren.transport.mcp.mcp_server import EVENT
from warren.transport.mcp.stdio import serve_mcp

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]

ERAS: Final = ("legacy", "2026-07-28")
"""How the client speaks: with the handshake of old, or without."""

ACCEPT: Final = {"accept": "application/json, text/event-stream"}
"""The header that each request over HTTP has."""
HELLO: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "ann", "version": "1"}},
}
"""The request that begins an MCP session."""
PING: Final = {"jsonrpc": "2.0", "id": 2, "method": "ping"}


@attrs.define(eq=False)
class Program:
    """A program that uses the tools.

    Attributes:
        client: the official client.
        events: what the progress of its calls has brought, as plain data, in order.
        told: the messages of that progress.
        said: notifications of other kinds.
    """

    client: Client
    events: list[dict[str, Any]] = attrs.field(factory=list)
    told: list[str] = attrs.field(factory=list)
    said: list[IncomingMessage] = attrs.field(factory=list)
    _progress: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    async def call(self, name: str, /, *, watch: bool = False, **arguments: Any) -> types.CallToolResult:
        """Call a tool; check that its text says the same as its data."""
        result = await self.client.call_tool(name, arguments, progress_callback=self._on_progress if watch else None)
        (text,) = result.content
        assert isinstance(text, types.TextContent)
        assert json.loads(text.text) == result.structured_content
        return result

    async def ask(self, name: str, /, *, watch: bool = False, **arguments: Any) -> Any:
        """Call a tool that has to succeed; return its data."""
        result = await self.call(name, watch=watch, **arguments)
        assert not result.is_error, result.structured_content
        return result.structured_content

    async def fail(self, name: str, /, **arguments: Any) -> Any:
        """Call a tool that has to fail; return the error's body."""
        result = await self.call(name, **arguments)
        assert result.is_error, result.structured_content
        return result.structured_content

    async def hear(self, text: str) -> None:
        """Return once the progress says this."""
        while text not in self.told:
            await self._progress.park()

    async def on_message(self, message: IncomingMessage) -> None:
        """Keep the events of notifications."""
        if isinstance(message, types.ProgressNotification):
            meta = message.params.meta or {}
            self.events.append(meta[EVENT]["event"])
        else:
            self.said.append(message)
        self._progress.unpark_all()

    def updated(self) -> list[str]:
        """Return the resources that have changed, as often as the server said so."""
        return [each.params.uri for each in self.said if isinstance(each, types.ResourceUpdatedNotification)]

    def logged(self) -> list[types.LoggingMessageNotificationParams]:
        """Return the log messages."""
        return [each.params for each in self.said if isinstance(each, types.LoggingMessageNotification)]

    async def until(self, there: Callable[[], object]) -> None:
        """Return once something has been said."""
        while not there():
            await self._progress.park()

    async def _on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        assert message
        del progress
        self.told.append(message)
        self._progress.unpark_all()


async def at_rest(service: RuntimeService, session_id: str) -> str | None:
    """Wait until a session runs no turn; return what it has said last."""
    while (state := (await service.read(session_id)).state).is_active:  # noqa: ASYNC110 - it has no event
        await trio.sleep(0.001)
    return state.last_assistant_text


@asynccontextmanager
async def using(server: Any, mode: str = "legacy") -> AsyncIterator[Program]:
    """Connect a program to whatever the client takes for a server."""
    programs: list[Program] = []

    async def on_message(message: IncomingMessage) -> None:
        await programs[0].on_message(message)

    client = Client(server, mode=mode, message_handler=on_message)
    programs.append(Program(client))
    async with client:
        yield programs[0]


@asynccontextmanager
async def connected(service: RuntimeService, mode: str = "legacy") -> AsyncIterator[Program]:
    """Connect a program to a runtime, over lines in memory."""
    to_server, requests = memory_stream_one_way_pair()
    answers, to_client = memory_stream_one_way_pair()

    async def serve() -> None:
        async with requests, answers:
            await serve_mcp(service, (requests, answers))

    async with trio.open_nursery() as serving:
        serving.start_soon(serve)
        async with using(_carried(to_server, to_client), mode) as program:
            yield program


@asynccontextmanager
async def _carried(
    to_server: trio.abc.SendStream, to_client: trio.abc.ReceiveStream
) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """Carry the client's messages as lines."""
    heard, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, said = anyio.create_memory_object_stream[SessionMessage](0)

    async def write() -> None:
        async with said, to_server:
            async for item in said:
                await to_server.send_all(
                    item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
                )

    async def read() -> None:
        lines = LineReader(to_client, 2**24)
        async with heard, to_client:
            while (line := await lines.next()) is not None:
                await heard.send(SessionMessage(types.jsonrpc_message_adapter.validate_json(line)))

    async with trio.open_nursery() as carrying:
        carrying.start_soon(write)
        carrying.start_soon(read)
        async with incoming, outgoing:
            yield incoming, outgoing
        carrying.cancel_scope.deadline = trio.current_time() + 5
