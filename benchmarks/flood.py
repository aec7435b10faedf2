"""What does a tenant that floods the gateway cost another one? The time of the other's turns, alone and beside it.

A gateway with a store, a memory and a list of tokens runs in a process of its own, and so do the clients that flood:
at once they begin turns, create sessions, follow the sessions whose turns run, search the memory, and send messages of
a megabyte, each as fast as it is answered. Their tenant has limits. A client of another tenant runs a turn every few
milliseconds. The flood is let go and held in turns, many times in one run, so that other programs on the machine
disturb both alike.
"""

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from benchmarks.gateway import CHUNK, HEAD, REPLY, SMALL, UPGRADE, Client
from benchmarks.gateway_server import processor_time, started
from benchmarks.report import Goal, report
from warren.base.principals import OWN_SCOPES
from warren.transport.access.token_list import Token, hash_of, new_token, with_token
from warren.transport.cli.process.tuning import allow_files

ROUNDS: Final = 10
SECONDS: Final = 1.0
"""How long the flood is held, and how long it is let go, in each round."""
SETTLES: Final = 0.3
"""Seconds after each change that are not measured."""
FIRST: Final = -15
"""The priority of the gateway and of the quiet client, if it may be set: the clients that flood would be elsewhere."""
PAUSE: Final = 0.005
GOAL: Final = 1.5
EACH: Final = 8
"""Connections for each kind of flood."""
MAX_SHORT: Final = 0xFFFF
LARGE: Final = b"\xff"
"""Says that eight bytes of length follow."""
HUGE: Final = "x" * 1_000_000


@attrs.define
class Caller(Client):
    """A client with a token, which takes errors as answers."""

    async def enter(self, token: str) -> None:
        """Upgrade the connection."""
        head = UPGRADE[:-2] + f"Authorization: Bearer {token}\r\n\r\n".encode()
        await self.stream.send_all(head)
        while b"\r\n\r\n" not in self._unread:
            self._unread += await self.stream.receive_some(CHUNK)
        self._unread = self._unread.partition(b"\r\n\r\n")[2]

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Make a request; return its result, empty after an error."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        body = body.ljust(SMALL)
        size = (
            bytes([0x80 | SMALL]) + len(body).to_bytes(2) if len(body) <= MAX_SHORT else LARGE + len(body).to_bytes(8)
        )
        await self.stream.send_all(b"\x81" + size + bytes(4) + body)
        while True:
            for message in self._messages():
                if REPLY in message[:HEAD]:
                    found: dict[str, Any] = json.loads(message).get("result", {})
                    return found
            data = await self.stream.receive_some(CHUNK)
            if not data:
                raise trio.BrokenResourceError("the server closed the connection")
            self._unread += data


@asynccontextmanager
async def connected(port: int, token: str) -> AsyncIterator[Caller]:
    """Open a WebSocket for a body."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        client = Caller(stream)
        await client.enter(token)
        yield client


# -- the flood: a process of its own


async def _turns(client: Caller) -> None:
    session_id = (await client.call("session/create", prompt=None)).get("session_id", "none")
    while True:
        await client.call("turn/start", session_id=session_id, prompt="Go on.")


async def _sessions(client: Caller) -> None:
    while True:
        await client.call("session/create", prompt="Begin.")


async def _followers(client: Caller) -> None:
    """Follow sessions that run turns: the same events go to many connections."""
    for row in (await client.call("session/list", limit=50)).get("sessions", []):
        await client.call("session/subscribe", session_id=row["session_id"], after_seq=0)
    while True:
        await client.call("session/list", limit=50)


async def _memory(client: Caller) -> None:
    while True:
        await client.call("memory/search", query="anything at all that was said before", scope="project", limit=20)


async def _huge(client: Caller) -> None:
    """Send texts of a megabyte: into a session, until its tenant may store no more, and then all the same."""
    session_id = (await client.call("session/create", prompt=None)).get("session_id", "none")
    while True:
        await client.call("session/inject_context", session_id=session_id, text=HUGE)


KINDS: Final = {"turns": _turns, "sessions": _sessions, "events": _followers, "memory": _memory, "huge": _huge}


async def _flood(port: int, token: str, kinds: Sequence[str]) -> None:
    """Flood whenever `go` is the last line of the standard input, until it ends."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    scope = trio.CancelScope()
    async with trio.lowlevel.FdStream(sys.stdin.fileno()) as lines, trio.open_nursery() as nursery:
        async for data in lines:
            scope.cancel()
            if data.endswith(b"go\n"):
                scope = trio.CancelScope()
                nursery.start_soon(_storm, scope, port, token, kinds)
        nursery.cancel_scope.cancel()


async def _storm(scope: trio.CancelScope, port: int, token: str, kinds: Sequence[str]) -> None:
    with scope:
        async with trio.open_nursery() as nursery:
            for kind in kinds:
                for _ in range(EACH):
                    nursery.start_soon(_flooding, port, token, KINDS[kind])


async def _flooding(port: int, token: str, kind: Callable[[Caller], Any]) -> None:
    while True:
        with contextlib.suppress(OSError, trio.BrokenResourceError):
            async with connected(port, token) as client:
                await kind(client)


# -- the quiet tenant


@attrs.define
class Quiet:
    """The quiet tenant's client.

    Attributes:
        took: the milliseconds of each turn, for those beside the flood and those without it.
        beside: whether the flood runs; None while that changes.
    """

    took: dict[bool, list[float]] = attrs.field(factory=lambda: {False: [], True: []})
    beside: bool | None = None

    async def run(self, port: int, token: str) -> None:
        """Run turns, with a pause after each, until cancelled."""
        async with connected(port, token) as client:
            session_id = (await client.call("session/create", prompt=None))["session_id"]
            while True:
                beside, begun = self.beside, time.perf_counter()
                found = await client.call("turn/start", session_id=session_id, prompt="Go on.")
                assert "text" in found, found
                if beside is not None and beside is self.beside:
                    self.took[beside].append((time.perf_counter() - begun) * 1000)
                await trio.sleep(PAUSE)


def _p(share: float, values: Sequence[float]) -> float:
    return sorted(values)[min(math.ceil(share * len(values)), len(values)) - 1]


async def _measure(
    port: int, pid: int, token: str, flood: "subprocess.Popen[bytes]"
) -> tuple[Quiet, dict[bool, float]]:
    quiet, cpu = Quiet(), {False: 0.0, True: 0.0}
    assert flood.stdin is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(quiet.run, port, token)
        for _ in range(ROUNDS):
            for beside in (False, True):
                flood.stdin.write(b"go\n" if beside else b"stop\n")
                flood.stdin.flush()
                await trio.sleep(SETTLES)
                quiet.beside, used = beside, processor_time(pid)
                await trio.sleep(SECONDS)
                quiet.beside = None
                cpu[beside] += processor_time(pid) - used
        nursery.cancel_scope.cancel()
    return quiet, cpu


def measured(kinds: Sequence[str]) -> dict[str, Any]:
    """Return the figures of a flood of some kinds."""
    with tempfile.TemporaryDirectory() as folder:
        data, tokens = b"", {}
        for tenant in ("quiet", "flood"):
            tokens[tenant] = new_token()
            scopes = tuple(sorted(OWN_SCOPES))
            data = with_token(data, Token(hash=hash_of(tokens[tenant]), tenant=tenant, name="ci", scopes=scopes))
        (Path(folder) / "tokens.toml").write_bytes(data)
        with started("tenants", folder) as (pid, port):
            for each in (0, pid):
                with contextlib.suppress(PermissionError):
                    os.setpriority(os.PRIO_PROCESS, each, FIRST)
            command = [sys.executable, "-m", "benchmarks.flood", str(port), tokens["flood"], *kinds]
            with subprocess.Popen(command, stdin=subprocess.PIPE) as flood:
                try:
                    quiet, cpu = trio.run(_measure, port, pid, tokens["quiet"], flood)
                finally:
                    flood.kill()
    alone, beside = quiet.took[False], quiet.took[True]
    return {
        "p50_ms": [round(_p(0.5, each), 2) for each in (alone, beside)],
        "p99_ms": [round(_p(0.99, each), 2) for each in (alone, beside)],
        "turns": [len(alone), len(beside)],
        "server_cpu": [round(cpu[each] / ROUNDS / SECONDS, 2) for each in (False, True)],
        "ratio": round(_p(0.99, beside) / _p(0.99, alone), 2),
    }


def main() -> None:
    """Print the ratio of the p99 of a quiet tenant's turns beside a flood to that without one."""
    allow_files()
    found = measured([*KINDS])
    goals = [Goal("p99 of a turn beside a tenant that floods / alone", found["ratio"], "<=", GOAL)]
    report("What does a tenant that floods cost another one?", found, goals)


if __name__ == "__main__":
    if sys.argv[1:]:
        trio.run(_flood, int(sys.argv[1]), sys.argv[2], sys.argv[3:])
    else:
        main()
