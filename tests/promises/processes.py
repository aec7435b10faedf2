"""Two processes on one store."""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from tests.support.telling import Telling, running
from warren.base.errors import StoreError
from warren.calls.facade import SessionService
from warren.compaction import CompactionConfig
from warren.settings.config import Config, PostgresConfig, StoreConfig
from warren.transport.embed import open_supervisor

LEASE: Final = 1.0


PROGRAM: Final = """
import json, sys
from pathlib import Path
import trio
from warren import open_supervisor
from warren.settings.config import Config, PostgresConfig, StoreConfig
from warren.base.errors import WarrenError
from warren.conversation.messages import AssistantMessage, TextBlock
from warren.models.model import ModelReply, TextPiece
from warren.conversation.peers import Peer
from warren.conversation.usage import Usage

def tell(**what):
    print(json.dumps(what), flush=True)

class Echo:
    async def complete(self, request, emit):
        said = request.messages[-1].content
        if said == "wait":
            tell(waits=True)
            await trio.sleep(3600)
        emit(TextPiece(said))
        return ModelReply(AssistantMessage((TextBlock(said),)), Usage(1, 1))

async def main():
    place, settings = sys.argv[1], {"lease": float(sys.argv[2]), "holder": "the other program"}
    in_database = place.startswith("postgresql:")
    store = PostgresConfig(place, **settings) if in_database else StoreConfig(Path(place), **settings)
    config = Config(store=store, model="echo")
    async with open_supervisor(config, providers={"echo": Echo()}, environ={}) as service:
        peer = Peer("owner", ("guest",), keep_alive=True)
        session_id = (await service.create_session("hello", peer=peer)).session_id
        tell(session_id=session_id)
        async for line in trio.lowlevel.FdStream(0):
            for prompt in line.decode().split():
                try:
                    tell(text=(await service.start_turn(session_id, prompt)).text)
                except WarrenError as exc:
                    tell(error=exc.body())

trio.run(main)
"""


@attrs.define
class Other:
    """A process of its own that has one session and takes prompts for it."""

    process: trio.Process
    telling: Telling
    session_id: str

    async def begin_to_wait(self) -> None:
        """Have it begin a turn that does not end."""
        assert await self.ask("wait") == {"waits": True}

    async def ask(self, prompt: str) -> dict[str, Any]:
        """Have it run a turn; return the answer or the error."""
        await self.telling.say(prompt)
        return await self.telling.must()


@asynccontextmanager
async def other(place: Path | str, lease: float = LEASE) -> AsyncIterator[Other]:
    """Run the other program on a store: in a folder, or at the address of a database."""
    async with running([sys.executable, "-c", PROGRAM, str(place), str(lease)]) as (process, telling):
        yield Other(process, telling, (await telling.must())["session_id"])


@asynccontextmanager
async def here(place: Path | str) -> AsyncIterator[SessionService]:
    """Open the store in this process."""
    in_database = isinstance(place, str)
    store = PostgresConfig(str(place), lease=LEASE) if in_database else StoreConfig(Path(place), lease=LEASE)
    async with open_supervisor(Config(store=store, compaction=CompactionConfig()), environ={}) as service:
        yield service


async def soon(holds: Callable[[], Any]) -> Any:
    """Try again until something does not raise StoreError any more."""
    with trio.fail_after(20):
        while True:
            try:
                return await holds()
            except StoreError:
                await trio.sleep(0.05)
