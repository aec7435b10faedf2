"""A program whose model has three child sessions do work, and that kills itself at one of its writes to the store.

Its arguments are the place of the store and the seconds of its leases. It takes JSON objects, one a line: it asks under
the `key`, tells the `answer`, and with `at` it ends before or after that write, counted from the prompt on.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import trio

from tests.support.models import Emit, FunctionModel, reply
from warren.base.errors import WarrenError
from warren.calls.facade import SessionService
from warren.conversation import codec
from warren.conversation.messages import AssistantMessage, ToolUseBlock, UserMessage
from warren.models.model import ModelReply, ModelRequest
from warren.settings.config import Config, PostgresConfig, StoreConfig
from warren.settings.tool_config import ToolsConfig
from warren.storage.postgres.writer import Writer as DatabaseWriter
from warren.storage.sqlite.writer import Writer
from warren.transport.embed import open_supervisor

PARTS = ("one", "two", "three")
passed, dies_at = 0, -1


def tell(**what: object) -> None:
    """Write a line, past every buffer."""
    os.write(1, codec.encode(what) + b"\n")


def passes() -> None:
    """Count a point before or after a write, and end the process there."""
    global passed  # noqa: PLW0603 - it is the program's
    passed += 1
    if passed == dies_at:
        os.kill(os.getpid(), signal.SIGKILL)


def watch() -> None:
    """Pass a point before and after each write of the store."""
    write, write_there = Writer.write, DatabaseWriter.write

    def counted(self: Writer, operations: Any) -> Any:
        passes()
        outcomes = write(self, operations)
        passes()
        return outcomes

    async def counted_there(self: DatabaseWriter, operations: Any) -> Any:
        passes()
        outcomes = await write_there(self, operations)
        passes()
        return outcomes

    Writer.write, DatabaseWriter.write = counted, counted_there  # type: ignore[method-assign]


async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
    """Delegate three parts, one of which delegates its own; a part is done at once."""
    await trio.lowlevel.checkpoint()
    messages = list(request.messages)
    prompt = next(each for each in messages if isinstance(each, UserMessage)).content
    if not any(isinstance(each, AssistantMessage) for each in messages):
        if prompt.startswith("all"):
            calls = [ToolUseBlock(f"call-{part}", "delegate", {"prompt": f"do {part}"}) for part in PARTS]
            return reply("", *calls)
        if prompt == "do two":
            return reply("", ToolUseBlock("call-half", "delegate", {"prompt": "do half"}))
    return reply(f"done: {prompt}")


async def ask(service: SessionService, told: dict[str, Any]) -> None:
    """Ask under a key, and tell the answer."""
    global passed, dies_at
    passed, dies_at = 0, told.get("at", -1)
    while True:
        try:
            result = await service.create_session(f"all {told['key']}", idempotency_key=told["key"])
        except WarrenError as exc:
            if not exc.retryable:
                tell(error=exc.body())
                return
            await trio.sleep(0.1)
        else:
            tell(answer=result.text, session_id=result.session_id, passed=passed)
            return


async def main() -> None:
    """Do as the lines of the standard input say."""
    place, lease = sys.argv[1], float(sys.argv[2])
    store = (
        PostgresConfig(place, lease=lease)
        if "://" in place
        else StoreConfig(Path(place), lease=lease, projections=False)
    )
    config = Config(store=store, model="worker", provider="office", tools=ToolsConfig(delegate=True))
    watch()
    async with open_supervisor(config, environ={}, providers={"office": FunctionModel(answer)}) as service:
        tell(ready=True)
        async with trio.open_nursery() as nursery:
            read = b""
            async for chunk in trio.lowlevel.FdStream(os.dup(0)):
                *lines, read = (read + chunk).split(b"\n")
                for line in lines:
                    nursery.start_soon(ask, service, json.loads(line))
            await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main)
