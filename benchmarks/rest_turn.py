"""What does a request over REST cost the gateway? Its own processor time, beside bare h11 and beside WebSocket.

`GET /health` is held against plain h11 on trio that answers with the same bytes and does nothing else; a turn that is
stored, asked for with `POST /sessions/{session_id}/messages`, against the same turn asked for with `turn/start` on a
WebSocket. Each server has a process of its own, whose processor time is read from outside; clients keep their
connections and ask again once they are answered. The kinds take turns, several rounds.
"""

import json
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from benchmarks.gateway import Client
from benchmarks.gateway_server import CHUNK, processor_time, started
from benchmarks.report import Goal, report
from warren.transport.cli.process.tuning import allow_files

CLIENTS: Final = (1, 50)
REQUESTS: Final = 500
"""Requests of a round, of all clients together."""
ROUNDS: Final = 7
HEALTH: Final = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\nUser-Agent: benchmark\r\n\r\n"
PROMPT: Final = "Go on."
LENGTH: Final = b"content-length: "


@attrs.define
class HttpClient:
    """A connection that reads answers with as little work as there can be."""

    stream: trio.SocketStream

    async def ask(self, request: bytes) -> bytes:
        """Send a request and return the body of its answer."""
        await self.stream.send_all(request)
        data = await self._some()
        while b"\r\n\r\n" not in data:
            data += await self._some()
        head, _, body = data.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 2"), data
        size = int(head.lower().partition(LENGTH)[2].split(b"\r\n")[0])
        while len(body) < size:
            body += await self._some()
        return body

    async def _some(self) -> bytes:
        data = await self.stream.receive_some(CHUNK)
        if not data:
            raise ConnectionError("the server closed the connection")
        return bytes(data)


def post(path: str, **params: Any) -> bytes:
    """Make a POST whose body are the parameters."""
    body = json.dumps(params).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


Ask = Callable[[], Awaitable[object]]


async def health(stream: trio.SocketStream) -> Ask:
    """Return a request for the state of the server."""
    client = HttpClient(stream)
    return lambda: client.ask(HEALTH)


async def rest(stream: trio.SocketStream) -> Ask:
    """Return a turn over REST, in a session of its own."""
    client = HttpClient(stream)
    session_id = json.loads(await client.ask(post("/sessions", prompt=None)))["session_id"]
    turn = post(f"/sessions/{session_id}/messages", prompt=PROMPT)
    return lambda: client.ask(turn)


async def websocket(stream: trio.SocketStream) -> Ask:
    """Return a turn over WebSocket, in a session of its own.

    The frames are written here and not by `warren.client`: on two processors a client that does no more than it must
    leaves the rest to the server, which is what is measured.
    """
    client = Client(stream)
    await client.open()
    _, reply = await client.ask("session/create", prompt=None)
    session_id = json.loads(reply)["result"]["session_id"]
    return lambda: client.ask("turn/start", session_id=session_id, prompt=PROMPT)


Kind = Callable[[trio.SocketStream], Awaitable[Ask]]


async def round_of(kind: Kind, pid: int, port: int, clients: int, requests: int) -> float:
    """Return the server's seconds of processors a request, of so many by all clients together."""
    ready, wanted = trio.open_memory_channel[None](clients)
    go = trio.Event()

    async def one() -> None:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            ask = await kind(stream)
            await ask()
            await ready.send(None)
            await go.wait()
            for _ in range(requests // clients):
                await ask()

    async with trio.open_nursery() as nursery:
        for _ in range(clients):
            nursery.start_soon(one)
        for _ in range(clients):
            await wanted.receive()
        begun = processor_time(pid)
        go.set()
    return (processor_time(pid) - begun) / requests


async def _body(port: int) -> bytes:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        return await HttpClient(stream).ask(HEALTH)


def _measure(clients: int) -> dict[str, list[float]]:
    """Return the rounds of each kind, in turn."""
    with tempfile.TemporaryDirectory() as folder, started("durable", folder) as gateway:
        path = Path(folder) / "body"
        path.write_bytes(trio.run(_body, gateway[1]))
        with started("h11", str(path)) as bare:
            kinds: dict[str, tuple[Kind, tuple[int, int]]] = {
                "health": (health, gateway),
                "bare_h11": (health, bare),
                "rest_turn": (rest, gateway),
                "websocket_turn": (websocket, gateway),
            }
            runs: dict[str, list[float]] = {name: [] for name in kinds}
            for _ in range(ROUNDS):
                for name, (kind, server) in kinds.items():
                    runs[name].append(trio.run(round_of, kind, *server, clients, REQUESTS))
            return runs


def main() -> None:
    """Print milliseconds of processors a request, and the ratios."""
    allow_files()
    figures: dict[str, Any] = {}
    goals = []
    for clients in CLIENTS:
        runs = _measure(clients)
        figures[f"{clients}_clients"] = {
            f"{name}_cpu_ms": round(statistics.median(each) * 1000, 3) for name, each in runs.items()
        }
        for what, ours, theirs, goal in (
            ("GET /health over bare h11", "health", "bare_h11", 2.0),
            ("REST turn over WebSocket turn", "rest_turn", "websocket_turn", 1.3),
        ):
            ratios = [one / other for one, other in zip(runs[ours], runs[theirs], strict=True)]
            spread = (min(ratios), max(ratios))
            name = f"{what}, processor time, {clients} client(s)"
            goals.append(Goal(name, statistics.median(ratios), "<=", goal, spread))
    report("What does a request over REST cost?", figures, goals)


if __name__ == "__main__":
    main()
