"""A running `warren serve` and a client of it."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio
from trio_websocket import WebSocketConnection, wrap_client_stream

from tests.transport.cli.process import Cli, Running

LISTENING = "listening on http://127.0.0.1:"


@attrs.define
class Client:
    """A client of the gateway; keeps the notifications it meets on the way."""

    socket: WebSocketConnection
    events: list[Any] = attrs.field(factory=list)
    _last: int = 0

    async def send(self, method: str, **params: Any) -> int:
        self._last += 1
        request = {"jsonrpc": "2.0", "id": self._last, "method": method, "params": params}
        await self.socket.send_message(json.dumps(request))
        return self._last

    async def call(self, method: str, **params: Any) -> Any:
        return (await self._reply(method, params))["result"]

    async def refused(self, method: str, **params: Any) -> Any:
        return (await self._reply(method, params))["error"]

    async def _reply(self, method: str, params: dict[str, Any]) -> Any:
        number = await self.send(method, **params)
        while (message := await self.receive()).get("id") != number:
            pass
        return message

    async def receive(self) -> Any:
        message = json.loads(await self.socket.get_message())
        if "id" not in message:
            self.events.append(message["params"])
        return message

    async def event(self, kind: str) -> None:
        while not any(found["event"]["type"] == kind for found in self.events):
            await self.receive()


def serve(cli: Cli, *args: str, env: Mapping[str, str] | None = None) -> tuple[Running, str]:
    """Start a server on a port of its choice; return it and where it listens."""
    running = cli.start("serve", "--port", "0", "--drain", "4s", *args, env=env)
    first = running.read_until("\n")
    assert first.startswith(LISTENING)
    return running, first.removeprefix("listening on ").strip().replace("http", "ws") + "/ws"


@asynccontextmanager
async def connected(url: str, **headers: str) -> AsyncIterator[Client]:
    """Connect a client."""
    extra = [(name.encode(), value.encode()) for name, value in headers.items()]
    address, _, path = url.removeprefix("ws://").partition("/")
    host, _, port = address.partition(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream, trio.open_nursery() as nursery:
        yield Client(await wrap_client_stream(nursery, stream, address, f"/{path}", extra_headers=extra))
        nursery.cancel_scope.cancel()


def workers_of(parent: Running) -> list[int]:
    """Return the process ids of the workers that run, the first one first."""
    threads = Path(f"/proc/{parent.process.pid}/task").glob("*/children")
    return sorted(int(pid) for each in threads for pid in each.read_text().split())


def lives(pid: int) -> bool:
    """Return whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
