"""Durable turns a second of `warren serve --workers 2`, over those of one worker on the same two processors.

Clients on WebSockets, each with a session of its own, ask again once they are answered; the model echoes. All servers
have a store in a file of their own and take turns, several rounds. The clients share the processors with the workers:
they read answers with as little work as there can be, and their share of the processors is printed beside the figures.
A share of s leaves two workers 2 - s processors where one worker had its own: no ratio above 2 - s is possible then.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import trio

from benchmarks.report import Goal, report
from benchmarks.rest_turn import websocket
from warren.transport.cli.process.tuning import allow_files

CLIENTS: Final = 64
TURNS: Final = 2_000
"""Turns of a round, of all clients together."""
ROUNDS: Final = 7


@contextmanager
def served(workers: int, folder: Path) -> Iterator[int]:
    """Run `warren serve` for a body; yields its port."""
    command = [sys.executable, "-m", "warren", "serve", "--port", "0", "--model", "echo", "--store", str(folder)]
    line = [*command, "--workers", str(workers), "--max-connections", str(2 * CLIENTS)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline().rpartition(":")[2])
        finally:
            process.terminate()


async def _round(port: int) -> tuple[float, float]:
    """Return the turns a second, and the share of a processor that the clients had."""
    ready, wanted = trio.open_memory_channel[None](CLIENTS)
    go = trio.Event()

    async def one() -> None:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            ask = await websocket(stream)
            await ask()
            await ready.send(None)
            await go.wait()
            for _ in range(TURNS // CLIENTS):
                await ask()

    async with trio.open_nursery() as nursery:
        for _ in range(CLIENTS):
            nursery.start_soon(one)
        for _ in range(CLIENTS):
            await wanted.receive()
        begun, used = time.perf_counter(), time.process_time()
        go.set()
    seconds = time.perf_counter() - begun
    return TURNS // CLIENTS * CLIENTS / seconds, (time.process_time() - used) / seconds


def main() -> None:
    """Print turns a second and the ratio."""
    allow_files()
    speeds: dict[int, list[float]] = {1: [], 2: []}
    shares: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as name, ExitStack() as servers:
        ports = {count: servers.enter_context(served(count, Path(name) / f"{count}")) for count in speeds}
        for _ in range(ROUNDS):
            for count, port in ports.items():
                speed, share = trio.run(_round, port)
                speeds[count].append(speed)
                shares[count].append(share)
    figures: dict[str, Any] = {
        f"{count}_workers": {
            "turns_per_second": round(statistics.median(speeds[count])),
            "share_of_the_clients": round(statistics.median(shares[count]), 2),
        }
        for count in speeds
    }
    ratios = [two / one for one, two in zip(speeds[1], speeds[2], strict=True)]
    name = f"durable turns/s over WebSockets, 2 workers over 1 on 2 processors, {CLIENTS} clients"
    goal = Goal(name, statistics.median(ratios), ">=", 1.5, (min(ratios), max(ratios)))
    report("How much faster are two workers?", figures, [goal])


if __name__ == "__main__":
    main()
