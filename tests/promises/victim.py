"""A program that is made to be killed: it runs turns on one session for ever and tells what it sees on stdout."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import trio

from warren.conversation import codec
from warren.conversation.events import Envelope
from warren.conversation.messages import AssistantMessage, TextBlock
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, Piece, TextPiece
from warren.settings.config import Config, StoreConfig
from warren.transport.embed import open_supervisor


def tell(**what: object) -> None:
    """Write a line, past every buffer."""
    os.write(1, codec.encode(what) + b"\n")


class Talker:
    """A model that says ten words, slowly enough to be killed in between."""

    async def complete(self, _request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        for number in range(10):
            emit(TextPiece(f"{number} "))
            await trio.sleep(0.002)
        text = "".join(f"{number} " for number in range(10))
        return ModelReply(AssistantMessage((TextBlock(text),)), Usage(1, 10))


def show(envelope: Envelope) -> None:
    """Tell an event's number: somebody has seen it."""
    tell(seq=envelope.seq)


async def main(folder: Path) -> None:
    """Go on with the one session of the store, or begin it."""
    config = Config(store=StoreConfig(folder), model="talker")
    async with open_supervisor(config, providers={"talker": Talker()}, environ={}) as service:
        page = await service.list()
        known = page.sessions[0].session_id if page.sessions else None
        session_id = known or (await service.create_session(None)).session_id
        tell(session_id=session_id)
        answered = 0
        while True:
            await service.start_turn(session_id, "talk", on_event=show)
            answered += 1
            tell(answered=answered)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
