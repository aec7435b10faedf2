"""What does the gateway cost? Events to a hundred clients, a session each, beside a bare trio-websocket server.

The bare server sends the very messages that the gateway sent for a turn, and does nothing else. If the gateway's
model waits after each piece, so that each leaves as a message of its own, the bare server waits as long: that pace is
the benchmark's, not the gateway's. Merged events are held against a bare server that never waits. Each server has a
process of its own. The clients look at no more of a frame than its length and its first bytes, so that the server is
what is measured; messages a second of its processor time are shown beside those of the clock.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from benchmarks.gateway_server import PIECES, processor_time, started
from benchmarks.report import Goal, report
from warren.transport.cli.process.tuning import allow_files

LOADS: Final = ((1, 20), (100, 1))
"""Clients at once, and turns of each."""
ROUNDS: Final = 15
MERGED: Final = 5
"""How often the merged turns are run: they are over in a few milliseconds."""
EVENTS: Final = len(PIECES) + 5
"""A turn's: each piece, and run_started, turn_started, text_complete, turn_completed, run_completed."""
CHUNK: Final = 256 * 1024
REPLY: Final = b'"id":1,'
HEAD: Final = 40
"""Bytes of a message that tell whether it is the reply to request 1."""
UPGRADE: Final = (
    b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
SMALL: Final = 126
"""Says that two bytes of length follow; a shorter message must not have them, so ours are filled up with spaces."""


@attrs.define
class Client:
    """A connection that reads frames with as little work as there can be."""

    stream: trio.SocketStream
    kept: list[bytes] | None = None
    _unread: bytes = b""

    async def open(self) -> None:
        """Upgrade the connection."""
        await self.stream.send_all(UPGRADE)
        while b"\r\n\r\n" not in self._unread:
            self._unread += await self.stream.receive_some(CHUNK)
        self._unread = self._unread.partition(b"\r\n\r\n")[2]

    async def ask(self, method: str, **params: Any) -> tuple[int, bytes]:
        """Make request 1; return how many messages came until its reply, and the reply."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode().ljust(SMALL)
        await self.stream.send_all(bytes([0x81, 0x80 | SMALL]) + len(body).to_bytes(2) + bytes(4) + body)
        count = 0
        while True:
            for message in self._messages():
                count += 1
                if REPLY in message[:HEAD]:
                    assert b'"error"' not in message[: 2 * HEAD], message
                    return count, message
            data = await self.stream.receive_some(CHUNK)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._unread += data

    def _messages(self) -> Iterator[bytes]:
        """Yield the whole messages that were received; nothing follows a reply."""
        data, at, messages = self._unread, 0, []
        while (ends := _frame(data, at)) is not None:
            start, at = ends
            messages.append(data[start:at])
        self._unread = data[at:]
        if self.kept is not None:
            self.kept += messages
        return iter(messages)


def _frame(data: bytes, at: int) -> tuple[int, int] | None:
    """Return where the payload of the frame at `at` begins and ends; None where it is not all there."""
    if len(data) < at + 2:
        return None
    size, start = data[at + 1], at + 2
    if size >= SMALL:
        width = 2 if size == SMALL else 8
        size, start = int.from_bytes(data[start : start + width]), start + width
    return (start, start + size) if len(data) >= start + size else None


@attrs.frozen
class Run:
    """The work of a server: messages that reached the clients, seconds by the clock and of its processor."""

    messages: int
    seconds: float
    cpu: float


async def _recorded(port: int) -> list[bytes]:
    """Return the messages of one turn."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        client = Client(stream)
        await client.open()
        _, reply = await client.ask("session/create", prompt=None)
        client.kept = []
        await client.ask("turn/start", session_id=json.loads(reply)["result"]["session_id"], prompt="Go on.")
        return client.kept


async def _drive(pid: int, port: int, clients: int, turns: int) -> Run:
    counts: list[int] = []
    async with trio.open_nursery() as nursery:
        ready, go = trio.open_memory_channel[None](clients), trio.Event()
        for _ in range(clients):
            nursery.start_soon(_client, port, turns, ready[0], go, counts)
        for _ in range(clients):
            await ready[1].receive()
        begun, cpu = time.perf_counter(), processor_time(pid)
        go.set()
    return Run(sum(counts), time.perf_counter() - begun, processor_time(pid) - cpu)


async def _client(
    port: int, turns: int, ready: trio.MemorySendChannel[None], go: trio.Event, counts: list[int]
) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        client = Client(stream)
        await client.open()
        _, reply = await client.ask("session/create", prompt=None)
        session_id = json.loads(reply).get("result", {}).get("session_id")
        await ready.send(None)
        await go.wait()
        for _ in range(turns):
            count, _ = await client.ask("turn/start", session_id=session_id, prompt="Go on.")
            counts.append(count)


def _measure(clients: int, turns: int) -> dict[str, list[Run]]:
    """Return the rounds of each server, in turn."""
    runs: dict[str, list[Run]] = {"singly": [], "paced": [], "bare": [], "merged": []}
    with tempfile.TemporaryDirectory() as folder, started("singly") as singly, started("merged") as merged:
        path = Path(folder) / "messages"
        messages = trio.run(_recorded, singly[1])
        assert len(messages) == EVENTS + 1, f"{len(messages)} messages, not one for each event and the reply"
        path.write_bytes(b"\n".join(messages))
        with started("bare", str(path)) as bare, started("paced", str(path)) as paced:
            servers = {"singly": singly, "paced": paced, "bare": bare, "merged": merged}
            for _ in range(ROUNDS):
                for kind, server in servers.items():
                    runs[kind].append(trio.run(_drive, *server, clients, turns * _times(kind)))
    return runs


def _times(kind: str) -> int:
    return MERGED if kind == "merged" else 1


def _ratios(ours: list[float], theirs: list[float]) -> tuple[float, tuple[float, float]]:
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    return statistics.median(ratios), (min(ratios), max(ratios))


def main() -> None:
    """Print messages and events a second, and ours over the bare server's."""
    allow_files()
    figures: dict[str, Any] = {}
    goals = []
    for clients, turns in LOADS:
        runs = _measure(clients, turns)
        rates = {kind: [run.messages / run.seconds for run in each] for kind, each in runs.items()}
        per_cpu = {kind: [run.messages / run.cpu for run in each if run.cpu] for kind, each in runs.items()}
        events = [clients * turns * MERGED * EVENTS / run.seconds for run in runs["merged"]]
        figures[f"{clients}_clients"] = {
            "messages_per_s": {kind: round(statistics.median(each)) for kind, each in rates.items()},
            "messages_per_cpu_s": {kind: round(statistics.median(each)) for kind, each in per_cpu.items() if each},
            "merged_events_per_s": round(statistics.median(events)),
            "messages_a_turn": {kind: each[0].messages / clients / turns / _times(kind) for kind, each in runs.items()},
        }
        ratio, spread = _ratios(rates["singly"], rates["paced"])
        goals.append(
            Goal(f"gateway messages/s over bare trio-websocket, {clients} client(s)", ratio, ">=", 0.8, spread)
        )
        ratio, spread = _ratios(events, rates["bare"])
        goals.append(
            Goal(f"gateway events/s, merged, over bare messages/s, {clients} client(s)", ratio, ">=", 3, spread)
        )
    report("What does the gateway cost?", figures, goals)


if __name__ == "__main__":
    main()
