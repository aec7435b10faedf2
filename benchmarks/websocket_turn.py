"""What does a turn over WebSocket cost? Processor time of the gateway, beside the same turn asked for in the process.

A durable turn of a model that answers at once, by one client and by fifty, each with a session of its own. The gateway
has a process of its own, whose processor time is read from outside; its clients ask again once they are answered. The
embedded turns run in this process, without a client. Both take turns, several rounds, and set the garbage collector as
`warren serve` does.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import trio

from benchmarks.gateway_server import started
from benchmarks.models import FixedModel
from benchmarks.report import Goal, report
from benchmarks.rest_turn import PROMPT, round_of, websocket
from warren import Config, SessionService, StoreConfig, open_supervisor
from warren.transport.cli.process.tuning import allow_files, tune

CLIENTS: Final = (1, 50)
TURNS: Final = 500
"""Turns of a round, of all clients together."""
ROUNDS: Final = 5


async def _turns(service: SessionService, session_id: str, count: int) -> None:
    for _ in range(count):
        await service.start_turn(session_id, PROMPT)


async def _embedded(folder: Path, clients: int) -> float:
    """Return the seconds of processors a turn in this process."""
    config = Config(store=StoreConfig(folder), model="fixed", provider="fixed")
    async with open_supervisor(config, providers={"fixed": FixedModel()}) as service:
        ids = [(await service.create_session(PROMPT)).session_id for _ in range(clients)]
        begun = time.process_time()
        async with trio.open_nursery() as nursery:
            for session_id in ids:
                nursery.start_soon(_turns, service, session_id, TURNS // clients)
        return (time.process_time() - begun) / TURNS


def _measure(clients: int) -> tuple[list[float], list[float]]:
    """Return the rounds over WebSocket and those in the process."""
    outside, inside = [], []
    with tempfile.TemporaryDirectory() as name, started("durable", f"{name}/gateway") as gateway:
        for number in range(ROUNDS):
            outside.append(trio.run(round_of, websocket, *gateway, clients, TURNS))
            inside.append(trio.run(_embedded, Path(name) / f"{number}", clients))
    return outside, inside


def main() -> None:
    """Print milliseconds of processors a turn, and the ratios."""
    allow_files()
    tune()
    figures: dict[str, Any] = {}
    goals = []
    for clients in CLIENTS:
        outside, inside = _measure(clients)
        figures[f"{clients}_clients"] = {
            "websocket_cpu_ms": round(statistics.median(outside) * 1000, 3),
            "embedded_cpu_ms": round(statistics.median(inside) * 1000, 3),
        }
        ratios = [one / other for one, other in zip(outside, inside, strict=True)]
        spread = (min(ratios), max(ratios))
        name = f"durable turn over WebSocket over the same turn embedded, processor time, {clients} client(s)"
        goals.append(Goal(name, statistics.median(ratios), "<=", 1.6, spread))
    report("What does a turn over WebSocket cost?", figures, goals)


if __name__ == "__main__":
    main()
