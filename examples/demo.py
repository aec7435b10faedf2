"""What `make run` shows: a gateway with a hundred conversations at once, killed in the middle of its life, and back.

It starts `warren serve` on a file of its own, talks to it over WebSockets as any client would, ends it with SIGKILL,
starts it again and looks whether anything of a finished turn is missing. It prints what it checked and ends with 1
where a check failed. On a terminal it then goes on serving.
"""

import json
import math
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio
from gateway_client import Client, GatewayError, connect
from rich.console import Console
from rich.live import Live
from rich.table import Table

SESSIONS, TURNS = 100, 5
FAST = {"loop": True, "steps": [{"text": "Every turn is stored before it is answered.", "delay": 0.05}]}
SLOW = {"loop": True, "steps": [{"chunks": ["still ", "thinking "] * 200, "chunk_delay": 0.05}]}
TERMINAL = ("run_completed", "run_failed")

console = Console()


@attrs.define
class Score:
    """What was seen so far."""

    durations: list[float] = attrs.field(factory=list)
    events: int = 0
    busy: int = 0
    interrupted: int = 0
    replayed: int = 0
    checks: list[tuple[bool, str]] = attrs.field(factory=list)

    def check(self, passed: bool, what: str) -> None:  # noqa: FBT001 - it reads as a sentence
        """Note a check."""
        self.checks.append((passed, what))

    def percentile(self, percent: float) -> float:
        """Return a duration in milliseconds, by the nearest rank."""
        ordered = sorted(self.durations)
        return 1000 * ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else 0.0

    def table(self) -> Table:
        """Return the figures as they stand."""
        table = Table(title=f"{SESSIONS} sessions x {TURNS} turns over WebSocket")
        figures = {
            "turns": f"{len(self.durations)}",
            "events": f"{self.events}",
            "p50 ms": f"{self.percentile(50):.0f}",
            "p99 ms": f"{self.percentile(99):.0f}",
            "busy refused": f"{self.busy}",
            "interrupted": f"{self.interrupted}",
            "events replayed": f"{self.replayed}",
        }
        for name in figures:
            table.add_column(name, justify="right")
        table.add_row(*figures.values())
        return table


@asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[tuple[trio.Process, int]]:
    """Run `warren serve` as a process of its own; yields it and its port, ends it on leaving."""
    command = [sys.executable, "-m", "warren", "serve", "--port", "0", "--store", str(folder / "store")]
    command += ["--model", f"scripted:{folder / 'fast.json'}"]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            line += await process.stdout.receive_some()
        yield process, int(line.rsplit(b":", 1)[1])
    finally:
        with trio.CancelScope(shield=True):
            if process.poll() is None:
                process.terminate()
            await process.wait()


async def converse(port: int, score: Score, ids: list[str]) -> None:
    """One client with one session: five turns, each reply after its last event."""
    seen: list[dict[str, Any]] = []
    async with connect(port, seen.append) as client:
        session_id = (await client.call("session/create", prompt=None))["session_id"]
        ids.append(session_id)
        for turn in range(TURNS):
            seen.clear()
            began = time.perf_counter()
            answer = await client.call("turn/start", session_id=session_id, prompt=f"question {turn}")
            score.durations.append(time.perf_counter() - began)
            score.events += len(seen)
            streamed = "".join(event["event"].get("delta", "") for event in seen)
            if streamed != answer["text"] or seen[-1]["event"]["type"] != "run_completed":
                score.check(False, f"session {session_id}: the stream of turn {turn} is its answer")


async def all_at_once(port: int, folder: Path, score: Score) -> list[str]:
    """Run all conversations, and beside them a busy session and a client that goes away; show how they go."""
    ids: list[str] = []
    with Live(score.table(), console=console, refresh_per_second=8, transient=True) as live:
        async with trio.open_nursery() as ticking:
            ticking.start_soon(show, live, score)
            async with trio.open_nursery() as nursery:
                for _ in range(SESSIONS):
                    nursery.start_soon(converse, port, score, ids)
                nursery.start_soon(busy_and_interrupt, port, folder, score)
                nursery.start_soon(reconnect, port, folder, score)
            ticking.cancel_scope.cancel()
    console.print(score.table())
    score.check(len(score.durations) == SESSIONS * TURNS, f"{SESSIONS * TURNS} turns answered, each after its events")
    return ids


async def show(live: Live, score: Score) -> None:
    """Keep the table up to date."""
    while True:
        live.update(score.table())
        await trio.sleep(0.1)


@attrs.define
class Seen:
    """The events that one client was sent."""

    events: list[dict[str, Any]] = attrs.field(factory=list)
    _news: trio.Event = attrs.field(factory=trio.Event)

    def __call__(self, envelope: dict[str, Any]) -> None:
        """Take one."""
        self.events.append(envelope)
        self._news.set()

    async def wait_for(self, kind: str) -> None:
        """Wait until an event of that kind has come."""
        while not any(envelope["event"]["type"] == kind for envelope in self.events):
            self._news = trio.Event()
            await self._news.wait()


async def busy_and_interrupt(port: int, folder: Path, score: Score) -> None:
    """A second turn is refused while one runs; an interrupt ends it at once; the next turn works."""
    seen = Seen()
    async with connect(port, seen) as client, trio.open_nursery() as nursery:
        slow = f"scripted:{folder / 'slow.json'}"
        session_id = (await client.call("session/create", prompt=None))["session_id"]
        errors: list[str] = []
        nursery.start_soon(expect_error, client, errors, {"session_id": session_id, "prompt": "think", "model": slow})
        await seen.wait_for("text_delta")
        await expect_error(client, errors, {"session_id": session_id, "prompt": "me too"})
        score.busy += errors.count("SESSION_BUSY")
        score.check(errors == ["SESSION_BUSY"], "a second turn on a running session is refused as busy")
        began = time.perf_counter()
        await client.call("turn/interrupt", session_id=session_id)
        took = time.perf_counter() - began
        score.interrupted += 1
        score.check(took < 1, f"a running turn was interrupted, within {1000 * took:.0f} ms")
        answer = await client.call("turn/start", session_id=session_id, prompt="and now?")
        score.check(answer["turns"] == 1, "the next turn works")
    score.check(errors[1:] == ["AGENT_ERROR"], "the interrupted turn's caller was told")


async def expect_error(client: Client, errors: list[str], params: dict[str, Any]) -> None:
    """Start a turn that shall fail; note the error's code."""
    try:
        await client.call("turn/start", **params)
    except GatewayError as exc:
        errors.append(exc.code)


async def reconnect(port: int, folder: Path, score: Score) -> None:
    """A client goes away in the middle of a turn, comes back, and gets exactly what it has missed."""
    first, second = Seen(), Seen()
    async with connect(port, first) as client:
        session_id = (await client.call("session/create", prompt=None))["session_id"]
        model = f"scripted:{folder / 'short.json'}"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(client.call, "turn/start", session_id=session_id, prompt="tell me", model=model))
            await first.wait_for("text_delta")
            nursery.cancel_scope.cancel()
    cursor = first.events[-1]["seq"]
    async with connect(port, second) as client:
        await client.call("session/subscribe", session_id=session_id, after_seq=cursor)
        with trio.fail_after(10):
            await second.wait_for("run_completed")
    score.replayed = len(second.events)
    text = "".join(event["event"].get("delta", "") for event in first.events + second.events)
    whole = next(event["event"]["content"] for event in second.events if event["event"]["type"] == "text_complete")
    score.check(text == whole, f"a client that left after event {cursor} got the rest: no gap, no double")


async def nothing_missing(port: int, ids: list[str], score: Score) -> None:
    """After the kill: every finished turn is there, and a session goes on."""
    async with connect(port) as client:
        totals = [(await client.call("session/history", session_id=each, limit=1))["total"] for each in ids]
        missing = sum(total != 2 * TURNS for total in totals)
        score.check(missing == 0, f"after SIGKILL and a restart all {sum(totals)} messages are there")
        answer = await client.call("turn/start", session_id=ids[0], prompt="where were we?")
        view = await client.call("session/read", session_id=ids[0])
        score.check(view["state"]["message_count"] == 2 * TURNS + 2, f"a session goes on: {answer['text']!r}")


async def main() -> int:
    """Run the demonstration; return the exit status."""
    score = Score()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "fast.json").write_text(json.dumps(FAST))
        (folder / "slow.json").write_text(json.dumps(SLOW))
        (folder / "short.json").write_text(
            json.dumps({"loop": True, "steps": [{"chunks": ["one ", "two ", "three ", "four "], "chunk_delay": 0.3}]})
        )
        async with gateway(folder) as (process, port):
            console.print(f"serving on http://127.0.0.1:{port}, store in {folder / 'store'}")
            ids = await all_at_once(port, folder, score)
            process.send_signal(signal.SIGKILL)
            await process.wait()
        async with gateway(folder) as (_, port):
            await nothing_missing(port, ids, score)
            for passed, what in score.checks:
                console.print(f"[green]ok[/] {what}" if passed else f"[red]FAILED[/] {what}", highlight=False)
            failed = not all(passed for passed, _ in score.checks)
            if sys.stdin.isatty() and sys.stdout.isatty() and not failed:
                await keep_serving(port, ids[0])
    return int(failed)


async def keep_serving(port: int, session_id: str) -> None:
    """Say how to connect, and wait for Ctrl-C."""
    console.print(f"\nstill serving: connect to ws://127.0.0.1:{port}/ws and send, for example,", highlight=False)
    request = {"jsonrpc": "2.0", "id": 1, "method": "session/read", "params": {"session_id": session_id}}
    console.print(json.dumps(request), highlight=False)
    console.print("Ctrl-C ends it.")
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            return


if __name__ == "__main__":
    sys.exit(trio.run(main))
