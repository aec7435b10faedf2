"""How many instructions does a turn take? Counted by valgrind, so another program on the machine changes nothing.

Each kind of turn runs in two processes under callgrind, the second of which runs more turns: the difference of their
instructions, over the difference of their turns, is what a turn takes beyond the start of the process. All threads
count, but not the server of a model behind HTTP or the clients of a gateway, which have processes of their own.
Without valgrind there is nothing to count with, and the benchmark says so.

Stores have no projections here: how much of them a run has time for depends on the clock, and so does what it counts
(`benchmarks.projection` measures them). What is left of the clock is the schedule of the threads: two runs of a process
with a store differ by three in a thousand, which the many turns of its long run make small.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from benchmarks.model_over_http import MODEL, SHORT
from benchmarks.model_server import started
from benchmarks.report import Goal, report
from benchmarks.rest_turn import websocket
from warren import Config, SessionService, StoreConfig, open_supervisor
from warren.settings.config import TraceConfig
from warren.transport.access.config import GatewayConfig
from warren.transport.cli.process.tuning import tune
from warren.transport.gateway.gateway import serve_gateway

CLIENTS: Final = "clients"
COUNTED: Final = re.compile(rb"Collected : (\d+)")


@attrs.frozen
class Kind:
    """A kind of turns to count.

    Attributes:
        sessions: number of sessions that take turns at once.
        short: turns of each in the short run.
        long: turns of each in the long run.
        durable: whether there is a store.
        over_http: whether the model is behind HTTP; else it echoes.
        over_websocket: whether a gateway has the sessions, and each has a client.
    """

    sessions: int
    short: int
    long: int
    durable: bool = False
    over_http: bool = False
    over_websocket: bool = False


KINDS: Final = {
    "in_memory": Kind(1, 100, 300),
    "durable_100_sessions": Kind(100, 2, 22, durable=True),
    "over_websocket_durable_50_clients": Kind(50, 5, 25, durable=True, over_websocket=True),
    "over_http": Kind(1, 50, 150, over_http=True),
    "over_http_durable_100_sessions": Kind(100, 2, 6, durable=True, over_http=True),
}
GOAL: Final = 640_000


async def _turns(service: SessionService, session_id: str, count: int) -> None:
    for _ in range(count):
        await service.start_turn(session_id, "hello there")


async def _serve(config: Config, clients: int, turns: int) -> None:
    """Serve clients, which have a process of their own and take turns at once, until all of them have left."""
    async with open_supervisor(config) as service, trio.open_nursery() as nursery:
        address = await nursery.start(serve_gateway, service, GatewayConfig(port=0))
        port = str(address).rpartition(":")[2]
        await trio.run_process(
            [sys.executable, "-m", "benchmarks.instructions", CLIENTS, port, str(clients), str(turns)]
        )
        nursery.cancel_scope.cancel()


async def _clients(port: int, count: int, turns: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(_client, port, turns)


async def _client(port: int, turns: int) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        ask = await websocket(stream)
        for _ in range(turns):
            await ask()


async def _run(config: Config, url: str, sessions: int, turns: int) -> None:
    async with open_supervisor(config, environ={"OPENAI_BASE_URL": url}) as service:
        ids = [(await service.create_session(None)).session_id for _ in range(sessions)]
        async with trio.open_nursery() as nursery:
            for session_id in ids:
                nursery.start_soon(_turns, service, session_id, turns)


def run_turns(kind: str, turns: int, traces: TraceConfig | None = None) -> None:
    """Run turns: the program that is counted."""
    tune()
    chosen = KINDS[kind]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = StoreConfig(folder, projections=False) if chosen.durable else None
        config, url = Config(store=store, model="echo", traces=traces), ""
        if chosen.over_http:
            url = f"{stack.enter_context(started()).url(*SHORT)}/v1"
            config = attrs.evolve(config, model=MODEL, provider="openai")
        if chosen.over_websocket:
            trio.run(_serve, config, chosen.sessions, turns)
        else:
            trio.run(_run, config, url, chosen.sessions, turns)


def _counted(command: Sequence[str], turns: int) -> int:
    """Return the instructions of a process that runs `turns` turns in each session."""
    valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, "-m"]
    run = subprocess.run([*valgrind, *command, str(turns)], stderr=subprocess.PIPE, check=True)
    found = COUNTED.search(run.stderr)
    assert found is not None, run.stderr.decode()
    return int(found[1])


def of_a_turn(kind: str, *command: str) -> int:
    """Return the instructions of a turn of a kind.

    Args:
        kind: the kind.
        command: the module that runs its turns, and its arguments before their number.
    """
    chosen = KINDS[kind]
    more = chosen.sessions * (chosen.long - chosen.short)
    return round((_counted(command, chosen.long) - _counted(command, chosen.short)) / more)


def main() -> None:
    """Print the instructions of a turn of each kind."""
    figures: dict[str, Any] = {}
    goals = []
    if shutil.which("valgrind") is None:
        figures["failed"] = {"valgrind": "is not installed"}
    else:
        figures |= {kind: of_a_turn(kind, "benchmarks.instructions", kind) for kind in KINDS}
        goals.append(Goal("instructions of an in-memory turn", figures["in_memory"], "<=", GOAL))
    report("How many instructions does a turn take?", figures, goals)


if __name__ == "__main__":
    if sys.argv[1:2] == [CLIENTS]:
        trio.run(_clients, int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    elif len(sys.argv) > 1:
        run_turns(sys.argv[1], int(sys.argv[2]))
    else:
        main()
