"""A program whose agent has a hook around its one tool call, and that kills itself at a place on the call's way.

Its arguments are the folder or the database of the store and a file. It takes a JSON object: the `act` of the hook, the
`restart` of the tool, and the place at which it ends `at`: `hook`, `tool` or `result`, or before or after the write
`before` or `after` a denial. It writes the calls of its hook and of its tool to the file, and tells the answer.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import trio

from tests.support.models import Emit, FunctionModel, reply
from warren.agents.agent import Agent
from warren.agents.hooks import Asked, Denied, Go, HookedCall, Hooks, ToolOutcome
from warren.base.errors import WarrenError
from warren.conversation import codec
from warren.conversation.messages import ToolResultsMessage, ToolUseBlock
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import tool
from warren.settings.config import Config, PostgresConfig, StoreConfig
from warren.storage.postgres.writer import Writer as DatabaseWriter
from warren.storage.sqlite.writer import Writer
from warren.transport.embed import open_supervisor

LEASE = 1.5
told: dict[str, Any] = {}
denied = False


def tell(**what: object) -> None:
    """Write a line, past every buffer."""
    os.write(1, codec.encode(what) + b"\n")


def note(what: str) -> None:
    """Write a line to the file, which outlives the process."""
    with Path(sys.argv[2]).open("a") as file:
        file.write(f"{what}\n")


def pass_by(place: str) -> None:
    """End the process if it is to end here."""
    if told.get("at") == place:
        os.kill(os.getpid(), signal.SIGKILL)


def watch() -> None:
    """Pass by places before and after the first write behind a denial."""
    write, write_there = Writer.write, DatabaseWriter.write

    def watched(self: Writer, operations: Any) -> Any:
        if denied:
            pass_by("before")
        outcomes = write(self, operations)
        if denied:
            pass_by("after")
        return outcomes

    async def watched_there(self: DatabaseWriter, operations: Any) -> Any:
        if denied:
            pass_by("before")
        outcomes = await write_there(self, operations)
        if denied:
            pass_by("after")
        return outcomes

    Writer.write, DatabaseWriter.write = watched, watched_there  # type: ignore[method-assign]


class Guard(Hooks):
    """Denies the call, has a person decide about it, or changes its result."""

    async def on_tool(self, call: HookedCall, go: Go[HookedCall, ToolOutcome]) -> ToolOutcome | Denied | Asked:
        """Do what the program is told to."""
        global denied  # noqa: PLW0603 - it is the program's
        note(f"hook {call.runs_again}")
        pass_by("hook")
        if told["act"] == "deny":
            denied = True
            return call.deny("too much")
        if told["act"] == "ask" and call.given is None:
            return call.ask("Is it lost?")
        outcome = await go()
        pass_by("result")
        return call.result(f"[{outcome.text}]")


async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
    """Make one call, then say its result."""
    await trio.lowlevel.checkpoint()
    last = request.messages[-1]
    if isinstance(last, ToolResultsMessage):
        return reply(last.results[0].content)
    return reply("", ToolUseBlock("c1", "pay", {"order": "17"}))


async def main() -> None:
    """Run a turn, or go on with it."""
    told.update(json.loads(sys.stdin.readline()))
    place = sys.argv[1]

    @tool(restart=told["restart"])
    async def pay(order: str) -> str:
        """Pay money back for an order."""
        await trio.lowlevel.checkpoint()
        note("tool")
        pass_by("tool")
        return f"paid {order}"

    store = PostgresConfig(place, lease=LEASE) if "://" in place else StoreConfig(Path(place), projections=False)
    agent = Agent("clerk", "You pay.", model=FunctionModel(answer), tools=[pay], hooks=[Guard()])
    watch()
    async with open_supervisor(Config(store=store, model="echo"), environ={}, agents=[agent]) as service:
        if told.get("decision"):
            (pending,) = (await service.approvals()).approvals
            await service.approve_tool(pending.session_id, pending.call_id, told["decision"])
        async with trio.open_nursery() as nursery:
            if not told.get("decision"):
                nursery.start_soon(wait_asked, service)
            while True:
                try:
                    result = await service.create_session("Pay.", agent="clerk", idempotency_key="k")
                except WarrenError as exc:
                    if not exc.retryable:
                        raise
                    await trio.sleep(0.1)
                else:
                    tell(answer=result.text)
                    nursery.cancel_scope.cancel()
                    break


async def wait_asked(service: Any) -> None:
    """Tell that the call waits for a person."""
    while not (await service.approvals()).approvals:  # noqa: ASYNC110 - as a client sees it
        await trio.sleep(0.05)
    tell(waits=True)


if __name__ == "__main__":
    trio.run(main)
