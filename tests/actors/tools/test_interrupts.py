"""Every tool that the runtime has itself, all at once in one turn, which is interrupted at any step of its tasks."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import attrs
import pytest
import trio

from tests.actors.tools.mcp.world import bare, descriptors, pids
from tests.actors.tools.pages import open_sockets, page
from tests.actors.tools.shells import MARK, marked
from tests.support.checkpoints import Steps
from tests.support.checks import assert_valid_transcript
from tests.support.crashing import actor_of
from tests.support.models import Emit, FunctionModel, reply
from tests.support.runtime import transcript
from tests.support.waiting import until
from tests.transport.providers.byte_server import serve
from warren.actors.calls.service import Service
from warren.actors.protocol import Interrupt
from warren.base.errors import AgentError, SessionNotRunningError
from warren.conversation.categories import Switches
from warren.conversation.messages import ToolResultsMessage, ToolUseBlock, UserMessage
from warren.models.model import ModelReply, ModelRequest
from warren.settings.config import Config, StoreConfig
from warren.settings.tool_config import ToolsConfig
from warren.transport.embed import open_host

ON: Final = Switches(builtins="enable", shell="enable")
NAMES: Final = ("shell", "fetch", "wait", "square", "read_file", "search_files", "write_file")
RUNS: Final = 6


def calls(url: str) -> tuple[ToolUseBlock, ...]:
    """Return a call of each tool."""
    args: tuple[dict[str, Any], ...] = (
        {"command": "sleep 0.02 & echo begun; wait"},
        {"url": url},
        {"seconds": 0.02},
        {"n": 3},
        {"path": "note.txt"},
        {"pattern": "carrot"},
        {"path": "new.txt", "content": "new"},
    )
    return tuple(ToolUseBlock(f"call-{name}", name, each) for name, each in zip(NAMES, args, strict=True))


@attrs.define
class World:
    """A runtime with all tools.

    Attributes:
        service: its sessions.
        mark: what all processes of its shell have in their environment.
        descriptors: how many files it has open where nothing goes on.
    """

    service: Service
    mark: str
    descriptors: int

    async def turn(self, steps: Steps) -> list[bool]:
        """Run a turn that may be interrupted; return which calls failed, none where it came to no call."""
        session_id = (await self.service.create_session(None, overrides=ON)).session_id
        steps.act = lambda: self._interrupt(session_id)
        trio.lowlevel.add_instrument(steps)
        with suppress(AgentError), trio.fail_after(50):
            await self.service.start_turn(session_id, "go")
        trio.lowlevel.remove_instrument(steps)
        messages = await transcript(self.service, session_id)
        assert_valid_transcript(messages)
        results = [result for each in messages if isinstance(each, ToolResultsMessage) for result in each.results]
        return [result.is_error for result in results]

    def _interrupt(self, session_id: str) -> None:
        actor = actor_of(self.service, session_id)
        if actor is not None:
            with suppress(SessionNotRunningError):
                actor.mailbox.tell(Interrupt())

    async def is_clean(self) -> None:
        """Wait until nothing of a turn is left: a thread that reads a file, for one, takes a moment to see it."""
        await until(lambda: not marked(self.mark))
        await until(lambda: not open_sockets())
        await until(lambda: descriptors() <= self.descriptors)


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    """Open one."""
    (folder / "root").mkdir()
    (folder / "root" / "note.txt").write_text("three carrots")
    mark = uuid4().hex
    async with serve(page(b"a page")) as url:

        async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
            await trio.lowlevel.checkpoint()
            return reply("", *calls(url)) if isinstance(request.messages[-1], UserMessage) else reply("done")

        tools = ToolsConfig(
            root=folder / "root",
            shell=True,
            env=(MARK,),
            fetch=True,
            fetch_allow=("127.0.0.0/8",),
            mcp_servers=(bare(folder, "s"),),
        )
        config = Config(StoreConfig(folder / "store"), provider="all", tools=tools)
        environ = {"PATH": os.environ["PATH"], MARK: mark}
        async with open_host(config, providers={"all": FunctionModel(answer)}, environ=environ) as hosted:
            assert isinstance(hosted.service, Service)
            await until(lambda: all(each.state == "ready" for each in hosted.service.health().mcp or ()))
            yield World(hosted.service, mark, descriptors())


async def at_steps(folder: Path, runs: int | None) -> None:
    """Interrupt turns at so many steps, spread over the whole turn; None stands for all."""
    async with world(folder) as here:
        whole = Steps(0)
        assert await here.turn(whole) == [False] * len(NAMES)
        await until(lambda: not marked(here.mark))
        here.descriptors, failed = descriptors(), 0
        stride = 1 if runs is None else max(1, whole.count // runs)
        for at in range(1, whole.count, stride):
            failed += any(await here.turn(Steps(at)))
            await here.is_clean()
        assert failed  # or they all came too early or too late
        assert len(pids(folder, "s")) == 1  # a call that is cancelled costs its server nothing
        assert await here.turn(Steps(0)) == [False] * len(NAMES)


async def test_at_some_steps(tmp_path: Path) -> None:
    """It ends, its transcript is one that providers take, no process and no socket is left, and the next turn works."""
    await at_steps(tmp_path, RUNS)


@pytest.mark.soak
@pytest.mark.time_limit(100_000)
async def test_at_every_step(tmp_path: Path) -> None:
    """The same, wherever it comes."""
    await at_steps(tmp_path, None)
