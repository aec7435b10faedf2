"""Surfaces behind the gateway's port: WebSocket, REST and MCP over HTTP, spoken to with raw bytes."""

import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from tests.surfaces.good_requests import HELLO, JSONRPC, MCP, PARAMS, SESSION, request
from tests.surfaces.lines import check
from tests.surfaces.noise import Noise
from tests.surfaces.watched import Watched
from tests.transport.cli.process import LIMIT
from tests.transport.clients import HOST, connect
from tests.transport.rest.clients import client, create
from warren.transport.rest.routes import ROUTES
from warren.transport.rest.routes import SESSION as AT

BATCH: Final = 50
OPENED: Final = re.compile(rb"^mcp-session-id: *(\S+)\r$", re.MULTILINE | re.IGNORECASE)
AT_ONCE: Final = 4
JSON: Final = "Content-Type: application/json\r\n"
MCP_HEADERS: Final = JSON + "Accept: application/json, text/event-stream\r\n"
UPGRADE: Final = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
FRAMES: Final = (
    b"\x81\x02{}",
    b"\x81\x82\0\0\0\0{}",
    b"\x89\x80\0\0\0\0",
    b"\x88\x82\0\0\0\0\x03\xe8",
    b"\x82\xfe\x01\0",
)
_H2C: Final = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
_PREFLIGHT: Final = "Origin: http://localhost\r\nAccess-Control-Request-Method: POST\r\n"
_CHUNKS: Final = b'7\r\n{"promp\r\n8\r\nt": "x"}\r\n0\r\n\r\n'


def http(verb: str, path: str, headers: str = "", body: bytes = b"") -> bytes:
    """Make a request."""
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    return f"{verb} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}{length}\r\n".encode() + body


SPECIAL: Final = (
    http("GET", "/health", _H2C),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4" + b"\0" * 8 + b"\4\x08" + b"\0" * 7 + b"\1",
    http("OPTIONS", "/sessions", _PREFLIGHT),
    http("POST", "/sessions", JSON + "Transfer-Encoding: chunked\r\n") + _CHUNKS,
    http("POST", f"/sessions/{SESSION}/messages", JSON + "Expect: 100-continue\r\n", b"{}"),
    http("GET", f"/sessions/{SESSION}/events?after_seq=0", "Last-Event-ID: 0\r\n"),
    http("GET", "/sessions?limit=5&labels[a]=b", "Origin: http://localhost:1\r\n"),
    http("GET", f"/sessions/%20{SESSION}/history?offset=%31&limit=2"),
)


@attrs.define
class Port:
    """A client of the gateway that sends what no client should, on connections of its own.

    Attributes:
        port: the gateway's.
    """

    port: int
    _headers: tuple[str, ...] = ()
    _own: bytes = b""

    async def feed(self, noise: Noise, count: int) -> None:
        """Send so much noise; each batch has a session to be about, and is over once a good request is answered."""
        for start in range(0, count, BATCH):
            session = await self.session()
            await self.batch(noise, min(BATCH, count - start), session)

    async def batch(self, noise: Noise, count: int, session: str) -> None:
        """Send requests, a few at a time."""
        limit = trio.CapacityLimiter(AT_ONCE)
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                data = self.odd(noise).replace(SESSION.encode(), session.encode())
                cuts = sorted(noise.dice.choices(range(len(data) + 1), k=noise.dice.randrange(3)))
                nursery.start_soon(self._limited, limit, data, cuts)

    async def session(self) -> str:
        """Return the id of a new session that has had a turn."""
        async with client(self.port) as http_client:
            session_id = await create(http_client, prompt="hi")
            view = (await http_client.get(f"/sessions/{session_id}")).json()
        assert view["state"]["last_assistant_text"] == "hi"
        return session_id

    def odd(self, noise: Noise) -> bytes:
        """Make one piece of noise for a connection of its own."""
        raise NotImplementedError

    async def _limited(self, limit: trio.CapacityLimiter, data: bytes, cuts: Sequence[int]) -> None:
        async with limit:
            answer = await send(self.port, data, cuts)
        assert b"Traceback" not in answer, (data, answer)
        assert b"internal error" not in answer, (data, answer)
        assert b"Internal Server Error" not in answer, (data, answer)
        await self.leave(answer)

    async def leave(self, answer: bytes) -> None:
        """End what an answer shows to have been opened, where a client that goes on would have to."""


async def send(port: int, data: bytes, cuts: Sequence[int] = ()) -> bytes:
    """Send it in pieces, end our side, and return what comes until the gateway ends its own."""
    answer = bytearray()
    async with await trio.open_tcp_stream(HOST, port) as stream:
        with trio.move_on_after(LIMIT) as patience:
            try:
                for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
                    await stream.send_all(data[start:end])
                await stream.send_eof()
                while some := await stream.receive_some():
                    answer += some
            except trio.BrokenResourceError:
                pass
        assert not patience.cancelled_caught, data
    return bytes(answer)


class Rest(Port):
    """Over REST."""

    def odd(self, noise: Noise) -> bytes:
        """Make requests with odd bodies and odd queries, several on a connection at times, at times with odd bytes."""
        made = b"".join(self._one(noise) for _ in range(noise.dice.choice((1, 1, 1, 2, 3))))
        return noise.bent(made, noise.dice.choice((0, 0, 1, 2)))

    def _one(self, noise: Noise) -> bytes:
        if noise.dice.random() < 0.2:
            return noise.dice.choice(SPECIAL)
        row = noise.dice.choice(ROUTES)
        params = {name: value for name, value in PARAMS.get(row.method.name, {}).items() if name != "session_id"}
        path = row.path.replace(AT, f"/sessions/{SESSION}")
        if row.verb not in ("POST", "PATCH"):
            odd = noise.odd({**params, "more": 1})
            odd = odd if isinstance(odd, dict) else {"limit": odd}
            query = "&".join(f"{name}={value}".replace(" ", "%20") for name, value in odd.items())
            return http(row.verb, path + (f"?{ascii(query)[1:-1]}" if query else ""))
        return http(row.verb, path, JSON, noise.message([params]))


class McpPort(Port):
    """Over MCP at `/mcp`: within a session, without one, and in the revision that has none."""

    async def feed(self, noise: Noise, count: int) -> None:
        """Send the noise, then delete the MCP session."""
        head = (await self._post("", request("initialize", HELLO))).partition(b"\r\n\r\n")[0].decode()
        own = next(line for line in head.split("\r\n") if line.lower().startswith("mcp-session-id"))
        self._own = own.partition(":")[2].strip().encode()
        self._headers = ("", f"{own}\r\n", f"{own}\r\n", f"{own}\r\nMCP-Protocol-Version: 2025-06-18\r\n")
        self._headers += ("MCP-Protocol-Version: 2026-07-28\r\n", "MCP-Session-Id: nobody\r\n")
        await super().feed(noise, count)
        await send(self.port, http("DELETE", "/mcp", f"{own}\r\n"))

    def odd(self, noise: Noise) -> bytes:
        """Make a request with an odd message, and odd bytes at times."""
        verb = noise.dice.choice(("POST", "POST", "POST", "POST", "POST", "PUT"))
        headers = MCP_HEADERS + noise.dice.choice(self._headers)
        return noise.bent(http(verb, "/mcp", headers, noise.message(MCP)), noise.dice.choice((0, 0, 0, 0, 1)))

    async def leave(self, answer: bytes) -> None:
        """Delete sessions: the server would keep them for half an hour."""
        for opened in {*OPENED.findall(answer)} - {self._own}:
            await send(self.port, http("DELETE", "/mcp", f"MCP-Session-Id: {opened.decode()}\r\n"))

    async def _post(self, headers: str, message: Any) -> bytes:
        return await send(self.port, http("POST", "/mcp", MCP_HEADERS + headers, json.dumps(message).encode()))


class WebSocket(Port):
    """Over WebSocket: odd messages on good connections, and odd frames on others."""

    async def batch(self, noise: Noise, count: int, session: str) -> None:
        """Send most as messages of one connection, which serves on after them."""
        messages = count * 4 // 5
        async with connect(self.port) as other:
            for _ in range(messages):
                data = noise.message(JSONRPC).replace(SESSION.encode(), session.encode())
                await other.raw(data if noise.dice.random() < 0.1 else data.decode(errors="replace"))
            with trio.fail_after(LIMIT):
                other.last_id = noise.dice.randrange(10**8, 10**9)
                assert (await other.call("health"))["status"] in ("ok", "degraded")  # a loaded machine is late
            for message in other.seen:
                check(message)
        await super().batch(noise, count - messages, session)

    def odd(self, noise: Noise) -> bytes:
        """Make a handshake, and frames after it, of which some bytes are odd."""
        frames = b"".join(noise.dice.choices(FRAMES, k=noise.dice.randrange(4)))
        return noise.bent(UPGRADE + frames, noise.dice.choice((0, 1, 1, 3)))


PORTS: Final[dict[str, type[Port]]] = {"websocket": WebSocket, "rest": Rest, "mcp over http": McpPort}


@asynccontextmanager
async def knocking(name: str, process: Watched) -> AsyncIterator[Port]:
    """Speak with a gateway for a body."""
    line = await trio.to_thread.run_sync(process.running.read_until, "\n")
    yield PORTS[name](int(line.strip().rpartition(":")[2]))
