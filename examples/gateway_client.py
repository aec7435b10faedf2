"""A JSON-RPC client of the gateway in fifty lines: requests in any number at once, events as they come."""

import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio_websocket


class GatewayError(Exception):
    """The gateway answered with an error; `code` is the stable one, such as SESSION_BUSY."""

    def __init__(self, error: dict[str, Any]) -> None:
        """Keep the error's parts."""
        super().__init__(error["message"])
        self.code = error.get("data", {}).get("code", str(error["code"]))


class Client:
    """One connection. `on_event` gets the envelope of every `session/event`."""

    def __init__(self, socket: trio_websocket.WebSocketConnection, on_event: Callable[[dict[str, Any]], None]) -> None:
        """Use an open socket."""
        self._socket = socket
        self._on_event = on_event
        self._ids = itertools.count(1)
        self._waiting: dict[int, trio.MemorySendChannel[dict[str, Any]]] = {}

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Make a request and return its result. Raises GatewayError."""
        number = next(self._ids)
        send, receive = trio.open_memory_channel[dict[str, Any]](1)
        self._waiting[number] = send
        await self._socket.send_message(
            json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        )
        answer = await receive.receive()
        if "error" in answer:
            raise GatewayError(answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    async def read(self) -> None:
        """Take what the gateway sends until the connection ends."""
        while True:
            try:
                message = json.loads(await self._socket.get_message())
            except trio_websocket.ConnectionClosed:
                return
            if message.get("method") == "session/event":
                self._on_event(message["params"])
            else:
                self._waiting.pop(message["id"]).send_nowait(message)


@asynccontextmanager
async def connect(port: int, on_event: Callable[[dict[str, Any]], None] = lambda _: None) -> AsyncIterator[Client]:
    """Open a connection to a gateway on this machine."""
    async with (
        trio_websocket.open_websocket("127.0.0.1", port, "/ws", use_ssl=False) as socket,
        trio.open_nursery() as nursery,
    ):
        client = Client(socket, on_event)
        nursery.start_soon(client.read)
        yield client
        nursery.cancel_scope.cancel()
