"""A program that is made to be killed in the middle of a compaction: it tells where it is and stays there."""

import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from tests.support.compacting import Model, settings, summaries, summarise, wire
from tests.support.models import Emit, reply
from warren.actors.runtime import open_runtime
from warren.base.errors import WarrenError
from warren.conversation import codec
from warren.conversation.events import CompactionCompleted, CompactionStarted, Envelope
from warren.conversation.messages import Message
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest
from warren.settings.config import StoreConfig
from warren.storage.operations import Commit, Operation
from warren.storage.sqlite import SqliteStore
from warren.transport.providers import open_providers

STAGES = ("started", "summary", "index", "before the commit", "after the commit", "completed", "the answer", "the end")
"""The places at which it can be killed, in the order of the steps."""
OLD = STAGES[:4]
"""Here the history still is the old one."""


def tell(**what: object) -> None:
    """Write a line, past every buffer."""
    os.write(1, codec.encode(what) + b"\n")


@attrs.frozen
class Stops:
    """Stops the program at one of the stages."""

    stage: str

    async def at(self, stage: str) -> None:
        """Stay here for ever, if this is the stage."""
        if stage == self.stage:
            tell(at=stage)
            await trio.sleep_forever()

    def show(self, envelope: Envelope) -> None:
        """Tell an event's number: somebody has seen it; it may be the last thing that happens."""
        tell(seq=envelope.seq)
        kinds = {"started": CompactionStarted, "completed": CompactionCompleted}
        if self.stage in kinds and isinstance(envelope.event, kinds[self.stage]):
            tell(at=self.stage)
            time.sleep(3600)

    async def answer(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """Answer at length; stop where the context was compacted."""
        if summaries(request.messages):
            await self.at("the answer")
        await trio.lowlevel.checkpoint()
        del emit
        return reply("word " * 200, usage=Usage(20, 10))

    async def summarise(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """Summarise."""
        await self.at("summary")
        return await summarise(request, emit)

    async def index(self, _session: str, _position: int, _messages: Sequence[Message]) -> None:
        """Take the messages into a memory that forgets."""
        await self.at("index")


class StoppingStore(SqliteStore):
    """The real store, which stops around the commit of a new head."""

    stops: Stops

    async def write(self, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        commits = [each for each in operations if isinstance(each, Commit)]
        if any(each.compaction is not None for each in commits):
            await self.stops.at("before the commit")
            outcomes = await super().write(operations)
            await self.stops.at("after the commit")
            return outcomes
        if any(each.record.compactions for each in commits):
            await self.stops.at("the end")
        return await super().write(operations)


async def open_store(folder: Path, stops: Stops) -> SqliteStore:
    """Open the store of a folder."""
    store = await StoppingStore.open(StoreConfig(folder))
    store.stops = stops
    return store


async def main(folder: Path, stage: str) -> None:
    """Run turns on a new session until its context is compacted, and stop at the stage."""
    stops = Stops(stage)
    model = Model(stops.answer, stops.summarise)
    config = attrs.evolve(settings(min_turns_between_compactions=2), model="test")
    async with (
        open_providers({}, extra={"test": model}) as providers,
        open_runtime(config, providers, open_store=partial(open_store, folder, stops)) as runtime,
    ):
        wire(runtime.supervisor, stops)
        service = runtime.service
        session_id = (await service.create_session(None)).session_id
        tell(session_id=session_id)
        for number in range(10):
            await service.start_turn(session_id, f"question {number}", on_event=stops.show)
            tell(answered=number + 1)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), sys.argv[2])
