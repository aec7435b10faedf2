"""Nodes in processes of their own whose calls wait, and what a test looks at from outside."""

import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import trio

from tests.promises.waiting_server import Settings
from tests.support.forked import STDERR, Forked, Forking
from tests.support.telling import Telling
from warren.base.errors import WarrenError
from warren.calls.facade import SessionService
from warren.client import connect
from warren.conversation.messages import AssistantMessage, ContextMessage, UserMessage
from warren.conversation.views import SessionState

T = TypeVar("T")
ROOT: Final = Path(__file__).parents[2]
FORKING: Final = Forking(
    "tests.promises.waiting_server",
    (
        "tests.promises.crashing_gateway",
        "tests.support.models",
        "warren.storage.sqlite",
        "warren.transport.cluster.placed",
        "warren.transport.embed",
        "warren.transport.gateway.gateway",
    ),
)


@attrs.define(eq=False)
class Node:
    """A node that runs.

    Attributes:
        process: its process.
        service: a client of it.
        port: its port.
    """

    process: Forked
    service: SessionService
    port: int

    async def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        await self.process.ended()

    async def dies_within(self, call: Callable[[], Awaitable[object]]) -> bool:
        """Make a call, and return whether the node kills itself; if it does not within a while, end it."""
        with trio.move_on_after(20):
            with suppress(WarrenError):
                await call()
            with trio.move_on_after(2):
                return await self.process.ended() == -signal.SIGKILL
        await self.kill()
        return False

    async def state(self, session_id: str) -> SessionState:
        """Return a session."""
        return (await self.service.read(session_id)).state

    async def until(self, session_id: str, holds: Callable[[SessionState], T]) -> T:
        """Return what is found in a session, once it is something."""
        with trio.fail_after(30):
            while not (found := holds(await self.state(session_id))):  # noqa: ASYNC110 - another process has no event
                await trio.sleep(0.05)
        return found

    async def results(self, session_id: str) -> list[str]:
        """Return the results of the session's tools."""
        found = (await self.service.history(session_id)).messages
        return [each.content for entry in found for each in getattr(entry.message, "results", ())]

    async def inputs(self, session_id: str) -> list[str]:
        """Return the texts of the prompts and inputs of a session."""
        found = [entry.message for entry in (await self.service.history(session_id)).messages]
        return [str(each.content) for each in found if isinstance(each, UserMessage | ContextMessage)]

    async def said(self, session_id: str) -> list[str]:
        """Return the texts of the model."""
        found = [entry.message for entry in (await self.service.history(session_id)).messages]
        return [each.text for each in found if isinstance(each, AssistantMessage) and each.text]

    async def until_said(self, session_id: str, number: int) -> list[str]:
        """Return the texts of the model once so many turns have ended."""
        with trio.fail_after(30):
            while await self.waits(session_id) or len(said := await self.said(session_id)) < number:  # noqa: ASYNC110
                await trio.sleep(0.05)
        return said

    async def waits(self, session_id: str) -> bool:
        """Return whether a session has a turn, or a call in the background."""
        state = await self.state(session_id)
        return state.turn is not None or bool(state.background)


@attrs.define(eq=False)
class Nodes:
    """The nodes of one store.

    Attributes:
        place: the folder of the store, or the address of the database.
        folder: for all else.
    """

    place: Path | str
    folder: Path

    @property
    def runs(self) -> list[dict[str, Any]]:
        """The runs of tools so far."""
        log = self.folder / "runs"
        return [json.loads(line) for line in log.read_text("utf-8").splitlines()] if log.exists() else []

    async def until_runs(self, number: int) -> list[dict[str, Any]]:
        """Return the runs once there are so many."""
        with trio.fail_after(30):
            while len(self.runs) < number:  # noqa: ASYNC110 - another process has no event
                await trio.sleep(0.02)
        return self.runs

    def go(self) -> None:
        """Let the tools in the background end."""
        (self.folder / "go").touch()

    @asynccontextmanager
    async def serving(self, **settings: Any) -> AsyncIterator[Node]:
        """Run a node."""
        told = Settings(str(self.place), str(self.folder / "runs"), **settings)
        env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
        process = FORKING.popen([json.dumps(attrs.asdict(told))], self.folder, env, stderr=STDERR)
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin, process.stdout:
            stdin, stdout = (trio.lowlevel.FdStream(os.dup(each.fileno())) for each in (process.stdin, process.stdout))
        try:
            async with stdin, stdout:
                port = (await Telling(stdin, stdout).must())["port"]
                async with connect(f"ws://127.0.0.1:{port}/ws", patience=1) as service:
                    yield Node(process, service, port)
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.ended()
