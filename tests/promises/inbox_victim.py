"""A program that is made to be killed: it queues prompts and sends messages to a peer, and tells what was confirmed."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from tests.promises.crashing_gateway import die_at
from warren.actors.calls.service import Service
from warren.base.errors import AgentError
from warren.calls.facade import SessionService
from warren.compaction import PROMPT, CompactionConfig
from warren.conversation import codec
from warren.conversation.messages import AssistantMessage, TextBlock, UserMessage
from warren.conversation.peers import Peer
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, Piece
from warren.settings.config import Config, StoreConfig
from warren.transport.embed import open_supervisor

COMPACTION: Final = CompactionConfig(300, recent_turn_budget=1, min_turns_between_compactions=2)


class Talker:
    """A model that takes a moment; its answers make contexts grow until they are compacted."""

    async def complete(self, request: ModelRequest, _emit: Callable[[Piece], None]) -> ModelReply:
        last = request.messages[-1]
        await trio.sleep(0.002)
        summary = isinstance(last, UserMessage) and last.content.startswith(PROMPT)
        return ModelReply(AssistantMessage((TextBlock("in short" if summary else "word " * 40),)), Usage(1, 10))


def tell(**what: object) -> None:
    """Write a line, past every buffer."""
    os.write(1, codec.encode(what) + b"\n")


async def queue(service: SessionService, session_id: str, number: int) -> None:
    """Queue and steer prompts for ever, each with a key; the first may be known from an earlier life."""
    while True:
        for mode in ("queue", "steer"):
            try:
                await service.start_turn(
                    session_id,
                    f"{mode} {number}",
                    mode=mode,
                    idempotency_key=f"{mode} {number}",
                )
            except AgentError as exc:
                assert exc.cause == "outcome_unknown", exc  # noqa: PT017 - a program, not a test
        tell(done=number)
        number += 1


async def send(service: SessionService, session_id: str, life: int) -> None:
    """Send messages to the peer for ever."""
    number = 0
    while True:
        number += 1
        await service.send_message(session_id, "bob", f"note {life}-{number}.")
        tell(sent=f"note {life}-{number}.")


async def main(folder: Path, life: int, first: int) -> None:
    """Go on with the two sessions of the store, or make them."""
    config = Config(store=StoreConfig(folder), model="talker", compaction=COMPACTION)
    async with open_supervisor(config, providers={"talker": Talker()}, environ={}) as service:
        assert isinstance(service, Service)
        known = {each.labels["name"]: each.session_id for each in (await service.list()).sessions}
        for name, other in (("ann", "bob"), ("bob", "ann")):
            if name not in known:
                peer = Peer(name, (other,), keep_alive=name == "bob")
                known[name] = (await service.create_session(None, labels={"name": name}, peer=peer)).session_id
        tell(ready=known)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(queue, service, known["ann"], first)
            nursery.start_soon(send, service, known["ann"], life)


if __name__ == "__main__":
    place, _, count = os.environ.get("WARREN_CRASH", "").rpartition(":")
    if place:
        die_at(place, int(count))
    trio.run(main, Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
