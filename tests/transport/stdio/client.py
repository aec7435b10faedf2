"""Clients of JSON-RPC in lines: one over memory streams, one over the pipes of a process."""

import json
import os
import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
from trio.testing import lockstep_stream_pair, memory_stream_pair

from tests.transport.cli.process import LIMIT, Cli, Ended, Running
from warren.actors.io.streams import LineReader
from warren.calls.facade import RuntimeService
from warren.transport.rpc.stdio_server import StdioConfig, serve_stdio


def line(method: str, request_id: int | str | None = None, **params: Any) -> bytes:
    """Return a request as a line, or a notification."""
    head = {"jsonrpc": "2.0"} | ({} if request_id is None else {"id": request_id})
    return json.dumps(head | {"method": method, "params": params}).encode() + b"\n"


def _answers(message: dict[str, Any], request_id: int | str | None) -> bool:
    return "method" not in message and message["id"] == request_id


@attrs.define(eq=False)
class Near:
    """A client in the same process. It reads only while something waits for a message.

    Attributes:
        stream: its end of the streams.
        stop: cancel it to tell the server to end.
        ended: set once the server has ended.
        seen: every message received, in order.
    """

    stream: trio.StapledStream[Any, Any]
    stop: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    ended: trio.Event = attrs.field(factory=trio.Event)
    seen: list[dict[str, Any]] = attrs.field(factory=list)
    _last: int = 0
    reader: LineReader = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.reader = LineReader(self.stream, 2**30)

    async def send(self, method: str, **params: Any) -> int:
        self._last += 1
        await self.stream.send_all(line(method, self._last, **params))
        return self._last

    async def raw(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def next(self) -> dict[str, Any] | None:
        """Return the next message, None at the end."""
        read = await self.reader.next()
        if read is None:
            return None
        message = json.loads(read)
        assert isinstance(message, dict)
        self.seen.append(message)
        return message

    async def reply(self, request_id: int | None) -> dict[str, Any]:
        """Return the reply to a request, received already or yet to come."""
        for message in self.seen:
            if _answers(message, request_id):
                return message
        while (new := await self.next()) is not None:
            if _answers(new, request_id):
                return new
        raise AssertionError(f"no reply to {request_id} came")

    async def call(self, method: str, **params: Any) -> Any:
        return (await self.reply(await self.send(method, **params)))["result"]

    async def error(self, method: str, **params: Any) -> Any:
        return (await self.reply(await self.send(method, **params)))["error"]

    async def asked(self) -> dict[str, Any]:
        """Return the next request of the server."""
        while (message := await self.next()) is not None:
            if "method" in message and "id" in message:
                return message
        raise AssertionError("the server asked for nothing")

    async def answer(self, request: dict[str, Any], **response: Any) -> None:
        """Answer a request of the server."""
        await self.raw(json.dumps({"jsonrpc": "2.0", "id": request["id"], **response}).encode() + b"\n")

    async def hang_up(self) -> None:
        """End the input; the output can still be read."""
        await self.stream.send_stream.aclose()

    async def rest(self) -> list[dict[str, Any]]:
        """Return every message up to the end."""
        before = len(self.seen)
        while await self.next() is not None:
            pass
        return self.seen[before:]


@asynccontextmanager
async def near(
    service: RuntimeService, *, lockstep: bool = False, dialect: Any = None, **settings: Any
) -> AsyncIterator[Near]:
    """Serve a client over streams in memory; with `lockstep` what is not read cannot be written."""
    ours, theirs = lockstep_stream_pair() if lockstep else memory_stream_pair()
    client = Near(ours)

    async def serve() -> None:
        async with theirs:
            await serve_stdio(service, StdioConfig(**settings), (theirs, theirs), dialect, client.stop)
        client.ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        yield client
        nursery.cancel_scope.cancel()


@attrs.define
class Far:
    """A client of a process, over its pipes.

    Attributes:
        running: the process.
        seen: every message received, in order.
    """

    running: Running
    seen: list[dict[str, Any]] = attrs.field(factory=list)
    _last: int = 0
    _read: bytes = b""

    def raw(self, data: bytes) -> None:
        stdin = self.running.process.stdin
        assert stdin is not None
        stdin.write(data)
        stdin.flush()

    def send(self, method: str, **params: Any) -> int:
        self._last += 1
        self.raw(line(method, self._last, **params))
        return self._last

    def next(self) -> dict[str, Any]:
        stdout = self.running.process.stdout
        assert stdout is not None
        while b"\n" not in self._read:
            assert select.select([stdout], [], [], LIMIT)[0], "nothing came"
            chunk = os.read(stdout.fileno(), 1 << 20)
            assert chunk, f"the output ended: {self._read!r}"
            self._read += chunk
        found, _, self._read = self._read.partition(b"\n")
        message = json.loads(found)
        assert isinstance(message, dict)
        self.seen.append(message)
        return message

    def reply(self, request_id: int | str | None) -> dict[str, Any]:
        for message in self.seen:
            if _answers(message, request_id):
                return message
        while not _answers(message := self.next(), request_id):
            pass
        return message

    def call(self, method: str, **params: Any) -> Any:
        return self.reply(self.send(method, **params))["result"]

    def error(self, method: str, **params: Any) -> Any:
        return self.reply(self.send(method, **params))["error"]

    def asked(self) -> dict[str, Any]:
        """Return the next request of the server."""
        while not ("method" in (message := self.next()) and "id" in message):
            pass
        return message

    def answer(self, request: dict[str, Any], **result: Any) -> None:
        """Answer a request of the server."""
        self.raw(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode() + b"\n")

    def until(self, kind: str) -> dict[str, Any]:
        """Return the envelope of the next event of a kind."""
        while (found := self.next().get("params", {})).get("event", {}).get("type") != kind:
            pass
        assert isinstance(found, dict)
        return found

    def end(self) -> Ended:
        """End the input and wait for the process to end."""
        return self.running.end()


def far(cli: Cli, *args: str, **options: Any) -> Far:
    """Start `warren rpc`."""
    return Far(cli.start("rpc", *args, **options))


def events(seen: list[dict[str, Any]], session_id: str | None = None) -> list[dict[str, Any]]:
    """Return the envelopes among messages."""
    found = [message["params"] for message in seen if message.get("method") == "session/event"]
    return [envelope for envelope in found if session_id in (None, envelope["session_id"])]
