"""How long is the way of one turn? Calls and files of the plainest stored turn over a WebSocket.

A gateway with a store and the echo model runs in this process, the client is plain bytes on a socket. Each call of a
Python function below the package is counted, in the event loop and in the threads of the store, from the request's
bytes to the bytes of the reply. Calls repeat exactly, so they tell what timings on a busy machine cannot. Only
tasks that look around now and then, such as the projector, may fall into a turn: the turn with the fewest calls counts.
"""

import dis
import functools
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import attrs
import trio

import warren
from benchmarks.gateway import Client
from benchmarks.report import Goal, report
from warren import Config, StoreConfig, open_supervisor
from warren.transport.access.config import GatewayConfig
from warren.transport.gateway.gateway import serve_gateway

WARM: Final = 5
"""Turns before the ones that are counted."""
TURNS: Final = 10
PACKAGE: Final = f"{Path(warren.__file__).parent}/"
LARGEST: Final = 12


@attrs.define
class Walk:
    """Counts calls while it is switched on.

    Attributes:
        on: whether calls are counted.
        calls: how often each function was called.
    """

    on: bool = False
    calls: Counter[CodeType] = attrs.field(factory=Counter)

    def profile(self, frame: FrameType, event: str, argument: object) -> None:
        """Count a call: the hook of `sys.setprofile`."""
        del argument
        # The hook also hears of a coroutine that goes on after a wait: only at its start it has run nothing yet.
        if self.on and event == "call" and frame.f_lasti <= _start_of(frame.f_code):
            self.calls[frame.f_code] += 1

    def ours(self) -> Counter[tuple[str, str]]:
        """Return the calls of functions of the package, by file and name."""
        found: Counter[tuple[str, str]] = Counter()
        for code, count in self.calls.items():
            if code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):
                found[code.co_filename.removeprefix(PACKAGE), code.co_qualname] += count
        return found


@functools.cache
def _start_of(code: CodeType) -> int:
    """Return the last offset at which a call of the function has run none of its own code."""
    return next((each.offset for each in dis.get_instructions(code) if each.opname == "RESUME"), 0)


async def _walk(walk: Walk, folder: Path) -> None:
    config = Config(store=StoreConfig(folder), model="echo")
    async with open_supervisor(config) as service, trio.open_nursery() as nursery:
        port = await nursery.start(serve_gateway, service, GatewayConfig(port=0))
        async with await trio.open_tcp_stream("127.0.0.1", int(str(port).rpartition(":")[2])) as stream:
            client = Client(stream)
            await client.open()
            _, reply = await client.ask("session/create", prompt=None)
            session_id = reply.partition(b'"session_id":"')[2].partition(b'"')[0].decode()
            turns = list[Counter[CodeType]]()
            for turn in range(WARM + TURNS):
                walk.calls, walk.on = Counter(), turn >= WARM
                await client.ask("turn/start", session_id=session_id, prompt="hello there")
                walk.on = False
                turns.append(walk.calls)
            walk.calls = min(turns[WARM:], key=Counter.total)
        nursery.cancel_scope.cancel()


def main() -> None:
    """Print files, functions and calls, and the files with the most calls."""
    walk = Walk()
    threading.setprofile(walk.profile)
    sys.setprofile(walk.profile)
    with tempfile.TemporaryDirectory() as name:
        trio.run(_walk, walk, Path(name))
    sys.setprofile(None)
    calls = walk.ours()
    files: Counter[str] = Counter()
    for (file, _), count in calls.items():
        files[file] += count
    figures: dict[str, Any] = {
        "files": len(files),
        "functions": len(calls),
        "calls": sum(calls.values()),
        "calls_in": dict(files.most_common(LARGEST)),
    }
    goals = [
        Goal("files of one stored echo turn over a WebSocket", len(files), "<=", 36),
        Goal("calls of one stored echo turn over a WebSocket", figures["calls"], "<=", 350),
    ]
    if "--all" in sys.argv:
        for (file, function), count in sorted(calls.items()):
            print(f"{count:4} {file} {function}", file=sys.stderr)
    report("How long is the way of one turn?", figures, goals)


if __name__ == "__main__":
    main()
