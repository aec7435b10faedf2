"""What does a turn cost that another node runs, and a stream of events that another node passes on?

Two `warren serve` processes on one store in a file, and a third one that is no node, with a store of its own; the model
echoes. A client asks the node that has the session and the other one in turns, a prompt after the other; it interrupts
turns of an endless answer through both; it reads the whole log of the session at both (the other one has it from the
store); and it runs turns at a node and at the server that is none. The figures are paired.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import trio

from benchmarks.report import Goal, report
from warren.base.errors import AgentError
from warren.client import RemoteService, connect
from warren.conversation.events import Envelope, TextDelta

TURNS: Final = 300
"""Turns of a session, half of them asked for at each node."""
INTERRUPTS: Final = 100
"""Turns that are interrupted, half of them through each node."""
ROUNDS: Final = 7
"""Rounds of reading the log, and of turns at a node and at a server that is none."""
ALONE: Final = 200
"""Turns of a round at one server."""


@contextmanager
def served(folder: Path, *node: str) -> Iterator[str]:
    """Run `warren serve` for a body; yields its address."""
    command = [sys.executable, "-m", "warren", "serve", "--port", "0", "--model", "echo", "--store", str(folder), *node]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


@contextmanager
def three() -> Iterator[tuple[str, str, str, str]]:
    """Run two nodes and a server alone for a body.

    It yields their addresses, and the name of a model of theirs that says a word, and the next one after a minute.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        endless = f"scripted:{folder / 'endless.json'}"
        script = {"steps": [{"chunks": ["word "] * 2, "chunk_delay": 60}], "loop": True}
        (folder / "endless.json").write_text(json.dumps(script), encoding="utf-8")
        settings = folder / "settings.toml"
        settings.write_text(f'[models."{endless}"]\n', encoding="utf-8")
        node = ("--config", str(settings), "--node-name")
        home = stack.enter_context(served(folder / "kept", *node, "one"))
        other = stack.enter_context(served(folder / "kept", *node, "two"))
        yield home, other, stack.enter_context(served(folder / "alone")), endless


async def _turn(service: RemoteService, session_id: str) -> float:
    """Return the milliseconds of a turn."""
    begun = time.perf_counter()
    await service.start_turn(session_id, "Go on.")
    return (time.perf_counter() - begun) * 1000


async def _interrupt(home: RemoteService, service: RemoteService, session_id: str) -> float:
    """Return the milliseconds of an interrupt of a turn, which returns behind the turn's end."""
    speaks = trio.Event()

    def hear(envelope: Envelope) -> None:
        if isinstance(envelope.event, TextDelta):
            speaks.set()

    async def turn() -> None:
        with suppress(AgentError):  # it is cancelled
            await home.start_turn(session_id, "Go on.", on_event=hear)

    async with trio.open_nursery() as turns:
        turns.start_soon(turn)
        await speaks.wait()
        begun = time.perf_counter()
        await service.interrupt(session_id)
        return (time.perf_counter() - begun) * 1000


async def _rate(service: RemoteService, session_id: str, last: int) -> float:
    """Return the events a second of reading a log."""
    begun, count = time.perf_counter(), 0
    async with service.subscribe(session_id, after_seq=0) as reader:
        async for envelope in reader:
            count += 1
            if envelope.seq >= last:
                break
    return count / (time.perf_counter() - begun)


async def _alone(service: RemoteService, turns: int) -> float:
    """Return the turns a second of one session at one server."""
    session_id = (await service.create_session("Begin.")).session_id
    begun = time.perf_counter()
    for _ in range(turns):
        await service.start_turn(session_id, "Go on.")
    return turns / (time.perf_counter() - begun)


async def measure(
    home: str,
    other: str,
    plain: str,
    endless: str,
    *,
    turns: int = TURNS,
    interrupts: int = INTERRUPTS,
    rounds: int = ROUNDS,
    alone_turns: int = ALONE,
) -> tuple[dict[str, float], list[Goal]]:
    """Return the figures of the servers at three addresses, and their goals; `endless` is the model to interrupt."""
    async with connect(home) as here, connect(other) as there, connect(plain) as none:
        session_id = (await here.create_session("Begin.")).session_id
        direct, forwarded = list[float](), list[float]()
        for _ in range(turns // 2):
            direct.append(await _turn(here, session_id))
            forwarded.append(await _turn(there, session_id))
        last = (await here.start_turn(session_id, "The last one.")).last_seq or 0
        stopped, stopped_there = list[float](), list[float]()
        talking = (await here.create_session(None, model=endless)).session_id
        for _ in range(interrupts // 2):
            stopped.append(await _interrupt(here, here, talking))
            stopped_there.append(await _interrupt(here, there, talking))
        relayed, read = list[float](), list[float]()
        nodes, alone = list[float](), list[float]()
        for _ in range(rounds):
            read.append(await _rate(here, session_id, last))
            relayed.append(await _rate(there, session_id, last))
            nodes.append(await _alone(here, alone_turns))
            alone.append(await _alone(none, alone_turns))
    added = statistics.median(forwarded) - statistics.median(direct)
    through = [one / other for one, other in zip(relayed, read, strict=True)]
    clustered = [one / other for one, other in zip(nodes, alone, strict=True)]
    figures = {
        "turn_ms": round(statistics.median(direct), 3),
        "forwarded_turn_ms": round(statistics.median(forwarded), 3),
        "interrupt_ms": round(statistics.median(stopped), 3),
        "forwarded_interrupt_ms": round(statistics.median(stopped_there), 3),
        "events_per_s": round(statistics.median(read)),
        "relayed_events_per_s": round(statistics.median(relayed)),
        "turns_per_s_of_a_node": round(statistics.median(nodes)),
        "turns_per_s_of_a_server_alone": round(statistics.median(alone)),
    }
    spread = (min(through), max(through))
    goals = [
        Goal("milliseconds that another node adds to a turn, p50", added, "<=", 2.0),
        Goal(
            "milliseconds that another node adds to an interrupt, p50",
            statistics.median(stopped_there) - statistics.median(stopped),
            "<=",
            200.0,
        ),
        Goal(
            "events a second through another node over those of the own", statistics.median(through), ">=", 0.4, spread
        ),
        Goal(
            "turns a second of a node over those of a server alone",
            statistics.median(clustered),
            ">=",
            0.95,
            (min(clustered), max(clustered)),
        ),
    ]
    return figures, goals


def main() -> None:
    """Print the figures."""
    with three() as servers:
        report("What does another node cost?", *trio.run(measure, *servers))


if __name__ == "__main__":
    main()
