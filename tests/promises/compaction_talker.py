"""A program that is made to be killed at any moment: a conversation that outgrows its window, with a memory."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
import trio

from tests.support.compacting import settings, wants_summary
from tests.support.models import Emit, reply
from warren.compaction import estimate, size_of
from warren.conversation import codec
from warren.conversation.memory import MemoryConfig
from warren.conversation.messages import Message, ToolResultsMessage, ToolUseBlock, UserMessage
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import tool
from warren.settings.config import Config, RetryPolicy, StoreConfig
from warren.transport.embed import open_supervisor

WINDOW: Final = 6_000
CONFIG: Final = settings(
    None, window=WINDOW, recent_turn_budget=4, min_turns_between_compactions=3, config=Config(model="test")
)
SYLLABLES: Final = ("ba", "ce", "di", "fo", "gu", "ha", "je", "ki", "lo", "mu")


def word(number: int) -> str:
    """Return a word that stands for a number and that nothing else has."""
    return "".join(SYLLABLES[int(digit)] for digit in f"{number:05}") + "x"


def fact(number: int) -> str:
    """Return what is to be found again."""
    return f"The parcel of {word(number)} waits on shelf {word(number + 50_000)}."


def question(number: int) -> str:
    """Return how it is asked for."""
    return f"on which shelf waits the parcel of {word(number)}?"


def prompt(number: int) -> str:
    """Return what the user says in a turn."""
    return f"Turn {number}: tell me a long story. {fact(number)}"


def answer(number: int) -> str:
    """Return what the model says to it."""
    return f"Answer {number}: " + "once upon a time there was a house by the sea, and " * 25


def steps(number: int) -> int:
    """Return how often the model calls the tool in a turn: mostly never, sometimes until the exchange has to be cut."""
    return 12 if number % 40 == 20 else int(number % 7 == 3)


@tool
async def leaf(number: int) -> str:
    """Leaf through a book."""
    await trio.lowlevel.checkpoint()
    return f"page {number}: " + "and so it went on for ever " * 80


def tell(**what: object) -> None:
    """Write a line, past every buffer."""
    os.write(1, codec.encode(what) + b"\n")


@attrs.frozen
class Talker:
    """A model that answers at length and tells where a request is too large for it."""

    async def complete(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        if (tokens := estimate(sum(map(size_of, request.messages)))) > WINDOW:
            tell(oversized=tokens)
        if wants_summary(request):
            return reply("There were stories and parcels. " * 10, usage=Usage(4_000, 80))
        number, step = self._where(request.messages)
        if step < steps(number):
            return reply("", ToolUseBlock(f"call-{number}-{step}", "leaf", {"number": step}), usage=Usage(100, 20))
        return reply(answer(number), usage=Usage(100, 300))

    def _where(self, messages: Sequence[Message]) -> tuple[int, int]:
        """Return the turn, and how many of its calls are done."""
        match messages[-1]:
            case UserMessage(content):
                return int(content.split(":")[0].removeprefix("Turn ")), 0
            case ToolResultsMessage(results):
                _, number, step = results[0].tool_use_id.split("-")
                return int(number), int(step) + 1
        raise AssertionError("nothing to answer")


async def main(folder: Path, first: int) -> None:
    """Go on with the one session of the store, or begin it; the turns are numbered from `first` on."""
    config = attrs.evolve(
        CONFIG, store=StoreConfig(folder), memory=MemoryConfig(folder / "memory"), retry=RetryPolicy(max_attempts=1)
    )
    async with open_supervisor(config, tools=[leaf], providers={"test": Talker()}, environ={}) as service:
        page = await service.list()
        known = page.sessions[0].session_id if page.sessions else None
        session_id = known or (await service.create_session(None, system_prompt="Tell stories.")).session_id
        tell(session_id=session_id)
        number = first
        while True:
            tell(asked=number)
            await service.start_turn(session_id, prompt(number))
            tell(answered=number)
            number += 1


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), int(sys.argv[2]))
