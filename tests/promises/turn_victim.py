"""A program that is made to be ended during turns of ten tool calls, which servers elsewhere run for it.

It takes commands on its standard input, one JSON object a line, and tells what it does on its standard output:

* With a `key` it asks under that key: for the turn, or for its answer. `point`, `at` and `by` name the point at which
  the process ends first, the number of the pass, and the signal. It tells that it `ends`, and when.
* With `end` it ends now, unless it is about to.
* With `count` it tells how often each point was passed since the last time.
"""

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from tests.promises.crashing_gateway import watch
from tests.promises.turn_servers import MODEL, environ, model_server, tool_server
from warren.base.errors import WarrenError
from warren.calls.facade import SessionService
from warren.conversation import codec
from warren.settings.config import Config, NodeConfig, PostgresConfig, StoreConfig
from warren.settings.tool_config import ToolsConfig
from warren.transport.embed import open_supervisor

POINTS: Final = (
    "before a transaction",
    "after a transaction",
    "after a turn is written",
    "after a commit is known",
    "before a step is stored",
    "after a step is stored",
    "before a tool runs",
    "after a tool runs",
    "before an event is shown",
    "before a turn is told to have ended",
    "after a turn is told to have ended",
)
"""The points that a turn passes."""


def tell(**what: object) -> None:
    """Write a line, past every buffer."""
    os.write(1, codec.encode(what) + b"\n")


@attrs.define
class Points:
    """Counts the points that the process passes, and ends it at one of them.

    Attributes:
        passed: how often each was passed.
        at: the point and the number of the pass at which the process ends.
        by: the signal that ends it.
    """

    passed: Counter[str] = attrs.field(factory=Counter)
    at: tuple[str, int] | None = None
    by: int = signal.SIGKILL

    def passes(self, point: str) -> None:
        """Count a pass."""
        self.passed[point] += 1
        if self.at == (point, self.passed[point]):
            self.end(point)

    def end(self, point: str) -> None:
        """End the process, once."""
        if self.at is not None:
            self.at = None
            tell(ends=point, when=time.monotonic())
            os.kill(os.getpid(), self.by)


async def allow(service: SessionService) -> None:
    """Allow each call that may have run, for ever, as a person who looks at once."""
    while True:
        for row in (await service.list()).sessions:
            if row.turn is not None:
                for each in (await service.read(row.session_id)).state.pending_approvals:
                    await service.approve_tool(row.session_id, each.call_id, "allow")
        await trio.sleep(0.02)


async def ask(service: SessionService, told: dict[str, Any]) -> None:
    """Ask in a session, and tell the answer; the first time it is made."""
    try:
        session_id = told.get("session_id") or (await service.create_session(None)).session_id
        tell(session_id=session_id)
        if (by := told.get("by")) is not None:
            points.passed.clear()
            points.by, points.at = getattr(signal, by), (told["point"], told["at"])
        answer = await service.start_turn(session_id, told["key"], mode="queue", idempotency_key=told["key"])
        tell(answer=[answer.text, answer.steps, answer.tool_calls, answer.first_seq, answer.last_seq])
    except WarrenError as exc:
        tell(error=exc.body())


async def obey(service: SessionService, stop: Callable[[], None]) -> None:
    """Do as the lines of the standard input say."""
    read = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(allow, service)
        async for chunk in trio.lowlevel.FdStream(os.dup(0)):
            *lines, read = (read + chunk).split(b"\n")
            for line in lines:
                told = json.loads(line)
                if "end" in told:
                    points.end("after its answer")
                elif "count" in told:
                    tell(passed=dict(points.passed))
                    points.passed.clear()
                else:
                    nursery.start_soon(ask, service, told)
    stop()


async def main(place: str, lease: float, model: str, tools: str, node: str | None) -> None:
    """Serve until SIGTERM."""
    in_database = place.startswith("postgresql:")
    store = (
        PostgresConfig(place, lease=lease) if in_database else StoreConfig(Path(place), lease=lease, projections=False)
    )
    named = None if node is None else NodeConfig(name=node)
    served = ToolsConfig(mcp_servers=(tool_server(tools),))
    servers = (model_server(model),)
    config = Config(store=store, model=MODEL, provider="kept", model_servers=servers, tools=served, node=named)
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with open_supervisor(config, environ=environ()) as service, trio.open_nursery() as nursery:
            nursery.start_soon(obey, service, nursery.cancel_scope.cancel)
            tell(ready=time.monotonic())
            async for _ in signals:
                nursery.cancel_scope.cancel()


if __name__ == "__main__":
    points = Points()
    settings = json.loads(sys.argv[1])
    for name in POINTS:
        watch(name, partial(points.passes, name), database=settings["place"].startswith("postgresql:"))
    trio.run(partial(main, **settings))
