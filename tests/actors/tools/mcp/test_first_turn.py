"""The first turn of a session whose MCP server takes longer to start than the runtime waits for it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from tests.actors.tools.mcp.world import SOON, bare, pids
from tests.support.asking import ask
from tests.support.models import Emit, FunctionModel, reply
from tests.support.runtime import supervisor_of
from tests.support.waiting import until
from warren.actors.runtime import open_runtime
from warren.actors.tools.mcp.pool import McpPool
from warren.actors.tools.session_tools import RuntimeServers
from warren.base.errors import AgentError, WarrenError
from warren.calls.facade import RuntimeService
from warren.conversation.categories import Gates
from warren.conversation.messages import ToolResultsMessage, ToolUseBlock
from warren.conversation.views import TurnResult
from warren.models.model import ModelReply, ModelRequest
from warren.settings.config import Config, StoreConfig
from warren.settings.tool_config import McpServer
from warren.transport.providers import open_providers
from warren.transport.stores import store_opener


@attrs.define
class Squaring:
    """A model that calls a tool, if it is offered any, and then repeats the result.

    Attributes:
        offered: the tools that it was offered with each request.
    """

    offered: list[set[str]] = attrs.field(factory=list)

    async def complete(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        self.offered.append({spec.name for spec in request.tools})
        last = request.messages[-1]
        if isinstance(last, ToolResultsMessage):
            return reply(last.results[0].content)
        return reply("", ToolUseBlock("a", "square", {"n": 5})) if self.offered[-1] else reply("no tools")


@asynccontextmanager
async def starting(
    server: McpServer, model: Squaring, store: Path | None = None, **settings: Any
) -> AsyncIterator[RuntimeService]:
    """Run sessions that have a server which the runtime did not wait for."""
    config = Config(provider="squaring", **settings)
    opener = None if store is None else store_opener(StoreConfig(store))
    async with (
        open_providers({}, extra={"squaring": FunctionModel(model.complete)}) as providers,
        McpPool.running([server], backoff=SOON, startup=0.01) as pool,
        open_runtime(config, providers, open_store=opener, servers=RuntimeServers(pool, 1)) as runtime,
    ):
        yield runtime.service


async def test_the_first_turn_has_the_tools_of_a_server_that_starts_late(tmp_path: Path) -> None:
    """A turn waits for the first attempt to connect, and then its model is offered the tools and calls one."""
    model, results = Squaring(), list[TurnResult]()
    async with starting(bare(tmp_path, "a", "late"), model) as service, trio.open_nursery() as nursery:

        async def take() -> None:
            results.append(await service.create_session("what is the square of 5?"))

        nursery.start_soon(take)
        await until(lambda: supervisor_of(service).scheduler.running)
        assert model.offered == []
        (tmp_path / "a.go").touch()
    assert "square" in model.offered[0]
    assert results[0].text == "25"


async def test_a_turn_that_goes_on_has_the_tools_of_a_server_that_starts_late(tmp_path: Path) -> None:
    """The calls that the last process has left wait for the first attempt to connect, like a step."""
    model, gates, server, store = Squaring(), Gates(mcp="ask"), bare(tmp_path, "a", "late"), tmp_path / "store"
    (tmp_path / "a.go").touch()
    async with trio.open_nursery() as nursery:
        async with starting(server, model, store, gates=gates) as service:
            session_id = (await service.create_session(None)).session_id
            turn = ask(nursery, service.start_turn, session_id, "what is the square of 5?")
            await until(
                lambda: (actor := supervisor_of(service).find(session_id)) is not None and actor.pending_approvals
            )
        assert (await turn.failure(AgentError)).cause == "shutting_down"
    (tmp_path / "a.go").unlink()
    async with starting(server, model, store) as service, trio.open_nursery() as nursery:
        turn = ask(nursery, service.wait_turn, session_id)
        (pending,) = (await service.read(session_id)).state.pending_approvals
        await service.approve_tool(session_id, pending.call_id, "allow")
        await until(lambda: supervisor_of(service).scheduler.running)
        (tmp_path / "a.go").touch()
        assert (await turn.value()).text == "25"


async def test_a_turn_goes_on_without_a_server_that_does_not_come(tmp_path: Path) -> None:
    """The wait ends when the attempt fails, at the latest after the connection timeout of the server."""
    model = Squaring()
    async with starting(bare(tmp_path, "a", "mute", connect_timeout=0.3), model) as service:
        result = await service.create_session("hello")
        assert (result.text, model.offered) == ("no tools", [set()])


async def test_an_interrupt_ends_the_wait(tmp_path: Path) -> None:
    """A turn that waits for a server can be interrupted like any other."""
    model, causes = Squaring(), list[str | None]()
    async with starting(bare(tmp_path, "a", "late"), model) as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session(None)).session_id

        async def take() -> None:
            try:
                await service.start_turn(session_id, "hello")
            except WarrenError as exc:
                causes.append(exc.cause)

        nursery.start_soon(take)
        await until(lambda: pids(tmp_path, "a") and supervisor_of(service).scheduler.running)
        await service.interrupt(session_id)
    assert (causes, model.offered) == (["cancelled"], [])
