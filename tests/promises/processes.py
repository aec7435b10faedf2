"""Two processes on one store."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import trio

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
    session_id: str = ""
    _read: bytes = b""

    async def next(self) -> dict[str, Any]:
        """Return what it tells next."""
        assert self.process.stdout is not None
        while b"\n" not in self._read:
            chunk = await self.process.stdout.receive_some()
            assert chunk, "it ended"
            self._read += chunk
        line, _, self._read = self._read.partition(b"\n")
        told = json.loads(line)
        assert isinstance(told, dict)
        return told

    async def begin_to_wait(self) -> None:
        """Have it begin a turn that does not end."""
        assert await self.ask("wait") == {"waits": True}

    async def ask(self, prompt: str) -> dict[str, Any]:
        """Have it run a turn; return the answer or the error."""
        assert self.process.stdin is not None
        await self.process.stdin.send_all(prompt.encode() + b"\n")
        return await self.next()


@asynccontextmanager
async def other(place: Path | str, lease: float = LEASE) -> AsyncIterator[Other]:
    """Run the other program on a store: in a folder, or at the address of a database."""
    command = [sys.executable, "-c", PROGRAM, str(place), str(lease)]
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        running = Other(process)
        running.session_id = (await running.next())["session_id"]
        yield running
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    await stream.aclose()


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
