"""A node whose model calls the tools that its prompt names.

Each run of a tool is a line of a log that outlives the process. The tools for the background work until there is a file
`go` beside the log. The one argument of the program is its `Settings` as JSON; it tells its port on its standard
output.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from tests.promises.crashing_gateway import die_at
from tests.support.models import Emit, FunctionModel, reply
from warren.conversation.categories import Gates, Switches
from warren.conversation.messages import ToolResultsMessage, ToolUseBlock, UserMessage
from warren.conversation.options import Durability
from warren.models.model import ModelReply, ModelRequest, TextPiece
from warren.models.tools import Restart, Tool, ToolOutput, current_call, tool
from warren.settings.config import Config, Limits, NodeConfig, PostgresConfig, StoreConfig
from warren.transport.access.config import GatewayConfig
from warren.transport.embed import open_supervisor
from warren.transport.gateway.gateway import serve_gateway


@attrs.frozen
class Settings:
    """The settings of a node.

    Attributes:
        place: the folder of the store, or the address of the database.
        log: the file of the runs.
        port: its port.
        name: its name, if it is one of several.
        crash: the point at which it kills itself, and the number of the pass.
        lease: the seconds of its leases.
        limits: its limits.
        durability: whether it keeps its turns step by step.
    """

    place: str
    log: str
    port: int = 0
    name: str | None = None
    crash: tuple[str, int] | None = None
    lease: float = 2.0
    limits: dict[str, Any] = attrs.field(factory=dict)
    durability: Durability = "step"


async def answer(request: ModelRequest, emit: Emit) -> ModelReply:
    """Call the tools that a prompt names after the word `call`; to all else say what was heard last."""
    await trio.lowlevel.checkpoint()
    last = request.messages[-1]
    if isinstance(last, UserMessage) and str(last.content).startswith("call "):
        names = str(last.content).split()[1:]
        return reply("", *(ToolUseBlock(f"call-{number}", name, {}) for number, name in enumerate(names)))
    heard = last.results[-1].content if isinstance(last, ToolResultsMessage) else getattr(last, "content", "")
    emit(TextPiece(f"heard: {heard}"))
    return reply(f"heard: {heard}")


def tools_of(settings: Settings) -> list[Tool]:
    """Return the tools."""

    def note(**more: object) -> None:
        call = current_call()
        told = {"tool": call.name, "key": call.key, "pid": os.getpid(), **more}
        with Path(settings.log).open("a", encoding="utf-8") as log:
            log.write(json.dumps(told) + "\n")

    async def works() -> str:
        note()
        while not Path(settings.log).with_name("go").exists():  # noqa: ASYNC110 - another process makes it
            await trio.sleep(0.02)
        return f"{current_call().name} has worked"

    def background(restart: Restart) -> Tool:
        return tool(name=restart, description=restart, restart=restart, background=True)(partial(works))

    @tool(category="shell")
    async def pay() -> str:
        """Pay, which somebody has to allow."""
        await trio.lowlevel.checkpoint()
        note()
        return "paid"

    @tool(restart="replay")
    async def later() -> ToolOutput:
        """Have something done elsewhere."""
        await trio.lowlevel.checkpoint()
        token = current_call().token(expires=3600)
        note(token=token)
        return ToolOutput.later(token)

    @tool(restart="report", background=True)
    async def elsewhere() -> ToolOutput:
        """Have something done elsewhere, in the background."""
        await trio.lowlevel.checkpoint()
        token = current_call().token(expires=3600)
        note(token=token)
        return ToolOutput.later(token)

    return [background("replay"), background("ask"), background("report"), pay, later, elsewhere]


async def main(settings: Settings) -> None:
    """Serve until killed, or until SIGTERM."""
    in_database = "://" in settings.place
    lease = settings.lease
    place = (
        PostgresConfig(settings.place, lease=lease) if in_database else StoreConfig(Path(settings.place), lease=lease)
    )
    node = None if settings.name is None else NodeConfig(settings.name, f"ws://127.0.0.1:{settings.port}")
    limits = Limits(**{"approval_timeout": 3600, **settings.limits})
    config = Config(
        store=place,
        node=node,
        provider="caller",
        model="m",
        gates=Gates(shell="ask"),
        switches=Switches(shell="enable"),
        limits=limits,
        durability=settings.durability,
    )
    runtime = open_supervisor(config, tools=tools_of(settings), providers={"caller": FunctionModel(answer)}, environ={})
    async with runtime as service, trio.open_nursery() as nursery:
        port = await nursery.start(serve_gateway, service, GatewayConfig(port=settings.port, runtime=config))
        sys.stdout.write(json.dumps({"port": port}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    settings = Settings(**json.loads(sys.argv[1]))
    if settings.crash is not None:
        die_at(*settings.crash, database="://" in settings.place)
    trio.run(main, settings)
