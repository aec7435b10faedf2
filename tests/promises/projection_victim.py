"""A program that is made to be killed: turns, compactions, archives and deletes, for ever, beside a projector."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import trio

from warren.calls.facade import SessionService
from warren.compaction import CompactionConfig
from warren.conversation import codec
from warren.conversation.messages import AssistantMessage, TextBlock
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, Piece, TextPiece
from warren.settings.config import Config, StoreConfig
from warren.transport.embed import open_supervisor

AT_ONCE = 4


class Talker:
    """A model that says a few words, or a summary."""

    async def complete(self, request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        await trio.sleep(0.001)
        text = f"an answer to {len(request.messages)} messages"
        emit(TextPiece(text))
        return ModelReply(AssistantMessage((TextBlock(text),)), Usage(1, 10))


async def live(service: SessionService) -> None:
    """Lead a session from its beginning to its end, and begin the next one."""
    number = 0
    while True:
        session = (await service.create_session("hello")).session_id
        os.write(1, codec.encode({"session_id": session}) + b"\n")
        for turn in range(20):
            await service.start_turn(session, f"turn {turn}, and so on" * 20)
        number += 1
        if number % 3 == 0:
            await service.archive(session)
        elif number % 3 == 1:
            await service.delete(session)


async def main(folder: Path) -> None:
    """Lead several at a time."""
    compaction = CompactionConfig(auto_compact_threshold=1_000, recent_turn_budget=1)
    config = Config(store=StoreConfig(folder), model="talker", compaction=compaction)
    async with (
        open_supervisor(config, providers={"talker": Talker()}, environ={}) as service,
        trio.open_nursery() as nursery,
    ):
        for _ in range(AT_ONCE):
            nursery.start_soon(live, service)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
