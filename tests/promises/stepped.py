"""A program that has one session and runs a turn of it word by word, as its input says; it tells all that it shows.

Each line of its input is a step: `turn` begins a turn, `say WORD` has the model say a word, `tool WORD` ends its answer
with a call of a tool, `end` ends it.
"""

import os
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

import attrs
import trio

from warren import tool
from warren.base.errors import WarrenError
from warren.calls.facade import SessionService
from warren.conversation import codec
from warren.conversation.events import Envelope, TextDelta
from warren.conversation.messages import AssistantMessage, Block, TextBlock, ToolUseBlock
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, Piece, TextPiece
from warren.settings.config import Config, PostgresConfig, StoreConfig
from warren.transport.embed import open_supervisor


def tell(**what: object) -> None:
    """Write a line, past every buffer."""
    os.write(1, codec.encode(what) + b"\n")


@tool
def note(word: str) -> str:
    """Note a word."""
    tell(ran=word)
    return word


@attrs.define(eq=False)
class Stepped:
    """A model whose words are steps of the input."""

    steps: deque[str] = attrs.field(factory=deque)
    news: trio.Event = attrs.field(factory=trio.Event)

    async def complete(self, _request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        """Do the steps up to the end of one answer."""
        words: list[str] = []
        tell(asked=True)
        while True:
            kind, _, word = (await self._next()).partition(" ")
            if kind == "say":
                words.append(word)
                emit(TextPiece(word))
                continue
            text: tuple[Block, ...] = (TextBlock(" ".join(words)),) if words else ()
            calls: tuple[Block, ...] = (ToolUseBlock("c1", "note", {"word": word}),) if kind == "tool" else ()
            return ModelReply(AssistantMessage((*text, *calls), "tool_use" if calls else "end_turn"), Usage(1, 1))

    async def _next(self) -> str:
        while not self.steps:
            await self.news.wait()
        return self.steps.popleft()

    def add(self, step: str) -> None:
        """Take a step in."""
        self.steps.append(step)
        self.news.set()
        self.news = trio.Event()


async def follow(service: SessionService, session_id: str) -> None:
    """Tell what a subscriber is shown."""
    async with service.subscribe(session_id, after_seq=0) as events:
        tell(session_id=session_id)
        async for envelope in events:
            show(envelope)


def show(envelope: Envelope) -> None:
    """Tell one event."""
    event = envelope.event
    said = {"text": event.delta} if isinstance(event, TextDelta) else {}
    tell(seq=envelope.seq, event=type(event).__name__, **said)


async def run_turn(service: SessionService, session_id: str) -> None:
    """Run a turn whose prompt waits in the inbox until the turn is stored; tell how it ends."""
    try:
        result = await service.start_turn(session_id, "go", mode="queue")
    except WarrenError as exc:
        tell(failed=exc.cause)
    else:
        tell(acknowledged=result.text)


async def main(place: str, lease: float) -> None:
    """Do the steps of the input, a turn at a time."""
    in_database = place.startswith("postgresql:")
    store = PostgresConfig(place, lease=lease) if in_database else StoreConfig(Path(place), lease=lease)
    config, model = Config(store=store, model="echo"), Stepped()
    async with (
        open_supervisor(config, tools=[note], providers={"echo": model}, environ={}) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = (await service.create_session(None)).session_id
        nursery.start_soon(follow, service, session_id)
        rest = b""
        async for chunk in trio.lowlevel.FdStream(os.dup(0)):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line == b"turn":
                    nursery.start_soon(run_turn, service, session_id)
                else:
                    model.add(line.decode())
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], float(sys.argv[2]))
