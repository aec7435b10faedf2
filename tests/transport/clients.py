"""Clients of the gateway: one that speaks JSON-RPC, and one that has every frame in its hand."""

import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
import wsproto
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream
from wsproto.events import AcceptConnection, CloseConnection, Event, RejectConnection, Request, TextMessage

from warren.calls.facade import RuntimeService
from warren.transport.access.config import GatewayConfig
from warren.transport.gateway.gateway import serve_gateway

HOST = "127.0.0.1"
HEALTH = '{"jsonrpc": "2.0", "id": 1, "method": "health"}'


@asynccontextmanager
async def gateway(service: RuntimeService, **settings: Any) -> AsyncIterator[int]:
    """Serve on a port of its own; yields the port."""
    config = GatewayConfig(port=0, **{"close_timeout": 0.3, **settings})
    async with trio.open_nursery() as nursery:
        yield await nursery.start(serve_gateway, service, config)
        nursery.cancel_scope.cancel()


@attrs.define(eq=False)
class Client:
    """A JSON-RPC client. It reads only while something waits for a reply or a message.

    Attributes:
        socket: the WebSocket.
        seen: every message received, in order.
    """

    socket: WebSocketConnection
    seen: list[dict[str, Any]] = attrs.field(factory=list)
    last_id: int = 0
    _replies: deque[Any] = attrs.field(factory=deque)

    async def send(self, method: str, **params: Any) -> int:
        """Send a request and return its id."""
        self.last_id += 1
        await self.raw(json.dumps({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params}))
        return self.last_id

    async def raw(self, frame: str | bytes) -> None:
        await self.socket.send_message(frame)

    async def next(self) -> dict[str, Any]:
        """Return the next message; the replies to a batch come one by one."""
        while not self._replies:
            message = json.loads(await self.socket.get_message())
            self._replies.extend(message if isinstance(message, list) else [message])
        message = self._replies.popleft()
        assert isinstance(message, dict)
        self.seen.append(message)
        return message

    async def closed(self) -> int:
        """Return the code that the connection is closed with, passing over what comes before."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                await self.next()
        assert self.socket.closed is not None
        return int(self.socket.closed.code)

    async def reply(self, request_id: int | None) -> dict[str, Any]:
        """Return the reply to a request, received already or yet to come."""
        for message in self.seen:
            if "id" in message and message["id"] == request_id:
                return message
        while (message := await self.next()).get("id", self) != request_id:
            pass
        return message

    async def call(self, method: str, **params: Any) -> Any:
        """Return a request's result."""
        reply = await self.reply(await self.send(method, **params))
        assert "result" in reply, reply
        return reply["result"]

    async def error(self, method: str, **params: Any) -> dict[str, Any]:
        """Return a request's error."""
        reply = await self.reply(await self.send(method, **params))
        assert "error" in reply, reply
        error = reply["error"]
        assert isinstance(error, dict)
        return error

    async def until(self, event_type: str, session_id: str | None = None) -> dict[str, Any]:
        """Return the envelope of the next event of a type."""
        while True:
            params = (await self.next()).get("params", {"event": {"type": None}})
            if params["event"]["type"] == event_type and session_id in (None, params["session_id"]):
                assert isinstance(params, dict)
                return params

    def events(self, session_id: str) -> list[dict[str, Any]]:
        """Return the envelopes received of a session."""
        envelopes = [message["params"] for message in self.seen if message.get("method") == "session/event"]
        return [envelope for envelope in envelopes if envelope["session_id"] == session_id]


def seqs(envelopes: list[dict[str, Any]]) -> list[int]:
    """Return every seq that envelopes stand for."""
    return [seq for item in envelopes for seq in range(item.get("first_seq", item["seq"]), item["seq"] + 1)]


def text(envelopes: list[dict[str, Any]]) -> str:
    """Join the text that envelopes bring."""
    return "".join(item["event"].get("delta", "") for item in envelopes)


@asynccontextmanager
async def connect(port: int, path: str = "/ws", **options: Any) -> AsyncIterator[Client]:
    """Open a WebSocket for a body."""
    async with await trio.open_tcp_stream(HOST, port) as stream, trio.open_nursery() as nursery:
        socket = await wrap_client_stream(nursery, stream, HOST, path, message_queue_size=1000, **options)
        yield Client(socket)
        await socket.aclose()
        nursery.cancel_scope.cancel()


@attrs.define(eq=False)
class Frames:
    """A WebSocket whose frames a test makes itself."""

    stream: trio.SocketStream
    protocol: wsproto.WSConnection = attrs.field(factory=lambda: wsproto.WSConnection(wsproto.ConnectionType.CLIENT))

    async def open(self, *subprotocols: str, **headers: str) -> Event:
        """Ask for a WebSocket and return the answer."""
        extra = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self.send(Request(host=HOST, target="/ws", subprotocols=[*subprotocols], extra_headers=extra))
        return await self.next()

    async def send(self, event: Event) -> None:
        await self.stream.send_all(self.protocol.send(event))

    async def next(self) -> Event:
        """Return the next event; a text comes whole."""
        parts: list[str] = []
        while True:
            for event in self.protocol.events():
                if not isinstance(event, TextMessage):
                    return event
                parts.append(event.data)
                if event.message_finished:
                    return TextMessage("".join(parts))
            data = await self.stream.receive_some()
            self.protocol.receive_data(data or None)

    async def closed(self) -> int:
        """Return the close code, passing over what comes before."""
        while not isinstance(event := await self.next(), CloseConnection):
            pass
        return event.code


@asynccontextmanager
async def frames(port: int) -> AsyncIterator[Frames]:
    """Open a WebSocket of hand-made frames for a body."""
    async with await trio.open_tcp_stream(HOST, port) as stream:
        made = Frames(stream)
        assert isinstance(await made.open(), AcceptConnection)
        yield made


async def knock(port: int, *subprotocols: str, **headers: str) -> int:
    """Ask for a WebSocket and return the HTTP status of the answer."""
    async with await trio.open_tcp_stream(HOST, port) as stream:
        answer = await Frames(stream).open(*subprotocols, **headers)
        return answer.status_code if isinstance(answer, RejectConnection) else 101


async def http(port: int, request: str) -> tuple[int, dict[str, str], str]:
    """Send what a plain HTTP client sends, read to the end, return status, headers and body."""
    async with await trio.open_tcp_stream(HOST, port) as stream:
        await stream.send_all(request.replace("\n", "\r\n").encode())
        answer = b"".join([chunk async for chunk in stream])
    head, _, body = answer.decode().partition("\r\n\r\n")
    status, *lines = head.split("\r\n")
    return int(status.split()[1]), {line.split(": ")[0].lower(): line.split(": ", 1)[1] for line in lines}, body


async def let_in(port: int) -> None:
    """Knock until the door opens."""
    while await knock(port) != 101:
        pass


async def healthy(client: Client) -> bool:
    """Return whether a client is served."""
    return bool((await client.call("health"))["status"] != "failed")
