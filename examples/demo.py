"""What `make run` shows: a gateway with a hundred conversations at once, killed in the middle of its life, and back.

It starts `warren serve` on a file of its own, puts the load tester on it (`warren load` is the same), ends it with
SIGKILL, starts it again and looks whether anything of a finished turn is missing. It prints what it checked and ends
with 1 where a check failed. On a terminal it then goes on serving.

It has no `--workers`: its turns wait for the model and not for a processor, and one process is what it kills.
"""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from rich.console import Console

from warren import SessionService
from warren.client import connect
from warren.transport.load.address import address_of
from warren.transport.load.live import shown
from warren.transport.load.plan import LoadPlan, Mix
from warren.transport.load.remote import remote_target
from warren.transport.load.result import Result, unit_of
from warren.transport.load.run import run_load

PLAN = LoadPlan(sessions=100, turns=5, mix=Mix(interrupts=0.05, busy=0.05, disconnects=0.05, subscribers=0.1))
ANSWER = ["Every ", "turn ", "is ", "stored ", "before ", "it ", "is ", "answered, ", "every ", "event ", "kept."]
SCRIPT = {"loop": True, "steps": [{"chunks": ANSWER, "chunk_delay": 0.02}]}
PAGE = 50
Check = tuple[bool, str]

console = Console()


@asynccontextmanager
async def gateway(folder: Path) -> AsyncGenerator[tuple[trio.Process, int]]:
    """Run `warren serve` as a process of its own; yields it and its port, ends it on leaving."""
    command = [sys.executable, "-m", "warren", "serve", "--port", "0", "--store", str(folder / "store")]
    command += ["--model", f"scripted:{folder / 'script.json'}"]
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


def address(port: int) -> str:
    """Return the address of the gateway."""
    return f"ws://127.0.0.1:{port}"


def page(port: int) -> str:
    """Return the address of the console."""
    return f"http://127.0.0.1:{port}/console/"


async def under_load(port: int, store: Path) -> list[Check]:
    """Run all conversations, disturb some of them, and read every one back; return what was checked."""
    async with remote_target(PLAN, address_of(address(port)), store) as target, shown(sys.stdout) as watch:
        result = await run_load(PLAN, target, watch)
    figures = result.figures
    names = ("turns", "turns/s", "events/s", "latency p50", "latency p99")
    shown_figures = (f"{name} {figures[name]:,.0f} {unit_of(name)}".rstrip() for name in names)
    console.print(f"{PLAN.sessions} sessions: " + ", ".join(shown_figures))
    return [
        (not result.errors, answered(figures)),
        some(result, "busy", "second turns on a running session were refused as busy"),
        some(result, "interrupted", "running turns were interrupted, and the session went on"),
        some(result, "disconnects", "clients left in the middle of a turn and got the rest: no gap, no double"),
        some(result, "followed", "sessions had a second client, who was told the same"),
        (result.passed, f"{PLAN.sessions} sessions were read back: events, messages and rows are what was said"),
        *((False, f"session {each.session_id}: {each.rule}: {each.detail}") for each in result.violations),
    ]


def answered(figures: Mapping[str, float]) -> str:
    """Return how many turns were answered, and what became of the others."""
    cut, left = figures.get("interrupted", 0), figures.get("disconnects", 0)
    return (
        f"{figures['turns']:.0f} of {PLAN.sessions * PLAN.turns} turns were answered, each after its last event;"
        f" of the others {cut:.0f} were interrupted and {left:.0f} lost their client, as planned"
    )


def some(result: Result, name: str, what: str) -> Check:
    """Return a check that something has happened at all; whether it went well is in the violations."""
    count = result.figures.get(name, 0)
    return count > 0, f"{count:.0f} {what}"


async def inventory(service: SessionService) -> dict[str, int]:
    """Return how many messages each session has."""
    found: dict[str, int] = {}
    while True:
        page = (await service.list(offset=len(found), limit=PAGE)).sessions
        found |= {row.session_id: row.message_count for row in page}
        if len(page) < PAGE:
            return found


async def nothing_missing(port: int, before: dict[str, int]) -> list[Check]:
    """After the kill: every message of a finished turn is there, and a session goes on."""
    session_id = next(iter(before))
    async with connect(address(port)) as service:
        kept = {each: (await service.history(each, limit=1)).total for each in before}
        answer = await service.start_turn(session_id, "where were we?")
        view = await service.read(session_id)
    return [
        (kept == before, f"after SIGKILL and a restart all {sum(before.values())} messages are there"),
        (view.state.message_count == before[session_id] + 2, f"a session goes on: {answer.text!r}"),
    ]


async def main() -> int:
    """Run the demonstration; return the exit status."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.json").write_text(json.dumps(SCRIPT))
        async with gateway(folder) as (process, port):
            console.print(f"serving on http://127.0.0.1:{port}, store in {folder / 'store'}")
            console.print(f"watch the conversations in a browser: {page(port)}", highlight=False)
            checks = await under_load(port, folder / "store")
            async with connect(address(port)) as service:
                before = await inventory(service)
            process.send_signal(signal.SIGKILL)
            await process.wait()
        async with gateway(folder) as (_, port):
            checks += await nothing_missing(port, before)
            for passed, what in checks:
                console.print(f"[green]ok[/] {what}" if passed else f"[red]FAILED[/] {what}", highlight=False)
            failed = not all(passed for passed, _ in checks)
            if sys.stdin.isatty() and sys.stdout.isatty() and not failed:
                await keep_serving(port, next(iter(before)))
    return int(failed)


async def keep_serving(port: int, session_id: str) -> None:
    """Say how to connect, and wait for Ctrl-C."""
    command = f"warren resume {session_id} 'And now?' --server {address(port)}"
    console.print(
        f"\nstill serving: in another terminal,\n{command}\ngoes on, and {page(port)} shows it. Ctrl-C ends it.",
        highlight=False,
    )
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            return


if __name__ == "__main__":
    sys.exit(trio.run(main))
