"""A program that is made to be ended during turns of ten tool calls; it notes each call of the model and of a tool.

It takes commands on its standard input, one JSON object a line, and tells what it does on its standard output:

* With a `key` it asks under that key: for the turn, or for its answer. `point`, `at` and `by` name the point at which
  the process ends first, the number of the pass, and the signal.
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
from warren.base.errors import WarrenError
from warren.calls.facade import SessionService
from warren.conversation import codec
from warren.conversation.messages import AssistantMessage, TextBlock, ToolUseBlock, UserMessage
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, Piece, TextPiece
from warren.models.tools import Tool, current_call, tool
from warren.settings.config import Config, NodeConfig, PostgresConfig, StoreConfig
from warren.transport.embed import open_supervisor

STEPS: Final = (("note",), ("look", "pay", "note"), ("note", "look"), ("pay",), ("look", "look", "note"))
"""The tools that the model asks for, answer by answer: ten calls of each restart class, alone and beside others."""
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
            self.at = None
            note("ends", point)
            os.kill(os.getpid(), self.by)


def note(kind: str, what: str) -> None:
    """Write a line that outlives the process: what happens when, and in which process."""
    line = json.dumps([time.monotonic(), os.getpid(), kind, what]) + "\n"
    os.write(LOG, line.encode())


async def run(seconds: float) -> str:
    """Run a tool for a moment."""
    call = current_call()
    note("runs", f"{call.call_id} {call.name} {call.key}")
    await trio.sleep(seconds)
    return f"{call.name} ran"


def tools() -> list[Tool]:
    """Return a tool for each restart class; their calls take different times, so that their results come apart."""

    @tool(description="Note.", restart="report")
    async def note() -> str:
        return await run(0.01)

    @tool(description="Look.", restart="replay")
    async def look() -> str:
        return await run(0.02)

    @tool(description="Pay.", restart="ask")
    async def pay() -> str:
        return await run(0.03)

    return [note, look, pay]


class Model:
    """Asks for the tools of the next step that the context does not have yet."""

    async def complete(self, request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        messages = list(request.messages)
        begins = max(at for at, each in enumerate(messages) if isinstance(each, UserMessage))
        step = sum(isinstance(each, AssistantMessage) for each in messages[begins:])
        prompt = messages[begins]
        assert isinstance(prompt, UserMessage)
        note("asked", f"{step} {prompt.content}")
        for _ in range(3):
            emit(TextPiece("word "))
            await trio.sleep(0.002)
        said = TextBlock(f"done {prompt.content}" if step == len(STEPS) else "word word word ")
        called = () if step == len(STEPS) else STEPS[step]
        calls = [ToolUseBlock(f"{step}-{at}", each) for at, each in enumerate(called)]
        return ModelReply(AssistantMessage((said, *calls)), Usage(1, 1))


async def allow(service: SessionService) -> None:
    """Allow each call that may have run, for ever, as a person who looks at once."""
    while True:
        for row in (await service.list()).sessions:
            if row.is_active:
                for each in (await service.read(row.session_id)).state.pending_approvals:
                    note("allowed", each.name)
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
                if "count" in told:
                    tell(passed=dict(points.passed))
                    points.passed.clear()
                else:
                    nursery.start_soon(ask, service, told)
    stop()


async def main(place: str, lease: float, node: str | None) -> None:
    """Serve until SIGTERM."""
    in_database = place.startswith("postgresql:")
    store = (
        PostgresConfig(place, lease=lease) if in_database else StoreConfig(Path(place), lease=lease, projections=False)
    )
    named = None if node is None else NodeConfig(name=node)
    config = Config(store=store, model="model", node=named)
    opened = open_supervisor(config, tools=tools(), providers={"model": Model()}, environ={})
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with opened as service, trio.open_nursery() as nursery:
            nursery.start_soon(obey, service, nursery.cancel_scope.cancel)
            tell(ready=time.monotonic())
            async for _ in signals:
                nursery.cancel_scope.cancel()


if __name__ == "__main__":
    points = Points()
    LOG = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for name in POINTS:
        watch(name, partial(points.passes, name), database=sys.argv[1].startswith("postgresql:"))
    trio.run(main, sys.argv[1], float(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else None)
