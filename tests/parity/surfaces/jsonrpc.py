"""The native JSON-RPC, over a WebSocket and over lines."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, ClassVar, Final

import attrs
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from tests.parity.outcome import Outcome, envelope_of, failed, meaning, told, went_well
from tests.parity.surface import REPLAY, Client, Surface, up_to
from tests.parity.surfaces.wire import Message, Reply, Wire, over_lines
from tests.parity.world import World
from tests.transport.clients import HOST, gateway
from warren.conversation.events import Envelope
from warren.transport.rpc.stdio_server import StdioConfig, serve_stdio

OVER: Final = "session/unsubscribed"


class WebSocket(Surface):
    """`warren serve`, at /ws."""

    name: ClassVar[str] = "websocket"
    column: ClassVar[str | None] = "jsonrpc"

    @asynccontextmanager
    async def connect(self, world: World, *, slow: bool = False) -> AsyncIterator[Client]:
        """Serve on a port of its own and open a WebSocket."""
        async with gateway(world.service) as port, trio.open_nursery() as nursery:
            async with await trio.open_tcp_stream(HOST, port) as stream:
                socket = await wrap_client_stream(nursery, stream, HOST, "/ws", message_queue_size=1)
                wire = Wire(partial(_send, socket), socket.aclose)
                nursery.start_soon(partial(wire.read, partial(_frame, socket), slow=slow))
                yield _Caller(world, wire)
                await socket.aclose()
            nursery.cancel_scope.cancel()


class Stdio(Surface):
    """`warren rpc`: lines."""

    name: ClassVar[str] = "stdio"
    column: ClassVar[str | None] = "jsonrpc"

    @asynccontextmanager
    async def connect(self, world: World, *, slow: bool = False) -> AsyncIterator[Client]:
        """Serve two streams in memory."""
        async with over_lines(partial(serve_stdio, world.service, StdioConfig()), slow=slow) as wire:
            yield _Caller(world, wire)


async def _send(socket: WebSocketConnection, message: bytes) -> None:
    await socket.send_message(message.decode())


async def _frame(socket: WebSocketConnection) -> str | bytes | None:
    try:
        return await socket.get_message()
    except ConnectionClosed:
        return None


@attrs.define(eq=False)
class ClientWithTools(Client):
    """A client that can be asked for something too."""

    behind: World
    wire: Wire

    @property
    def world(self) -> World:
        return self.behind

    async def asked(self) -> Mapping[str, Any]:
        return await self.wire.next_asked()

    async def answer(self, call: Mapping[str, Any], result: object) -> None:
        await self.wire.answer(dict(call), result)

    async def leave(self) -> None:
        await self.wire.leave()


@attrs.define(eq=False)
class _Caller(ClientWithTools):
    async def call(self, operation: str, /, **params: Any) -> Outcome:
        reply = await self.wire.request(operation, params)
        if "error" in reply.message:
            return _failed(reply, params.get("session_id"))
        if operation == REPLAY:
            return Outcome()
        data = meaning(operation, reply.message["result"])
        return went_well(data, _events(reply.before, data.get("session_id", params.get("session_id"))))

    async def replay(self, session_id: str, after_seq: int, last: int) -> Outcome:
        begin = len(self.wire.heard)
        outcome = await self.call(REPLAY, session_id=session_id, after_seq=after_seq)
        async with aclosing(self._heard(begin, session_id)) as envelopes:
            outcome = told(outcome, await up_to(envelopes, last))
        await self.wire.request("session/unsubscribe", {"session_id": session_id})
        return outcome

    async def to_the_end(self, session_id: str, after_seq: int, following: trio.Event) -> Outcome:
        begin, found = len(self.wire.heard), list[Message]()
        outcome = await self.call(REPLAY, session_id=session_id, after_seq=after_seq)
        following.set()
        async with aclosing(self.wire.heard_from(begin)) as messages:
            async for message in messages:
                if (message["method"], message["params"]) == (OVER, {"session_id": session_id}):
                    break
                found.append(message)
        assert not (await self.wire.request("session/unsubscribe", {"session_id": session_id})).message["result"][
            "unsubscribed"
        ]
        return told(outcome, _events(found, session_id))

    async def _heard(self, begin: int, session_id: str) -> AsyncGenerator[Envelope, None]:
        async with aclosing(self.wire.heard_from(begin)) as messages:
            async for message in messages:
                for envelope in _events([message], session_id):
                    yield envelope


def _failed(reply: Reply, session_id: str | None) -> Outcome:
    error = reply.message["error"]
    body = error["data"]
    assert error["message"] == body["message"]
    return failed(body, error["code"], _events(reply.before, body.get("session_id", session_id)))


def _events(messages: Iterable[Message], session_id: str | None) -> list[Envelope]:
    """Return the events of one session."""
    told = [message for message in messages if message["method"] != OVER]
    assert all(message["method"] == "session/event" for message in told), told
    found = (message["params"] for message in told if message["params"]["session_id"] == session_id)
    return [envelope_of(params) for params in found]
