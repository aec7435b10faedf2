"""A conversation that outgrows its context again and again still knows what was said early on."""

import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

import pytest
import trio

from tests.support.compacting import Model, assert_fits, everything, settings, summaries
from tests.support.memories import hits, memory_in, recalling, remembered
from tests.support.models import Emit, reply
from tests.support.runtime import new_session, open_runtime
from warren.actors.calls.service import Service
from warren.actors.resources.memory import indexable
from warren.conversation.messages import UserMessage
from warren.models.model import ModelReply, ModelRequest, TextPiece

WINDOW: Final = 6_000
TOPICS: Final = ("the harbour", "a violin", "the budget", "our garden", "the old bridge", "a translation", "bread")
FACTS: Final = (
    ("The key of the boathouse hangs behind the blue barometer.", "where does the key of the boathouse hang?"),
    ("My sister Ilse was born in Tromsø on a Thursday.", "where was my sister Ilse born?"),
    ("The passphrase of the wine cellar is seventeen herons.", "what is the passphrase of the wine cellar?"),
)


async def chatting(request: ModelRequest, emit: Emit) -> ModelReply:
    """Answer at some length about what was asked; search where that is asked for."""
    last = request.messages[-1]
    if not isinstance(last, UserMessage) or not last.content.startswith("Turn"):
        return await recalling(request, emit)
    await trio.lowlevel.checkpoint()
    text = f"On {last.content.lower()} there is much to be said, and it is a long story. " * 8
    emit(TextPiece(text))
    return reply(text)


def prompts(turns: int, planted: dict[int, str]) -> list[str]:
    """Return what the user says, turn by turn; some of it is to be found again."""
    return [
        f"Turn {turn}: tell me more about {TOPICS[turn % len(TOPICS)]}. {planted.get(turn, '')}".strip()
        for turn in range(turns)
    ]


def plan(turns: int) -> dict[int, str]:
    """Plant the facts early, at a quarter and at three quarters of the conversation."""
    return dict(zip((5, turns // 4, turns * 3 // 4), (fact for fact, _ in FACTS), strict=True))


async def converse(service: Service, session_id: str, said: list[str]) -> list[float]:
    """Run the turns; return how many seconds each took."""
    took = []
    for prompt in said:
        began = time.perf_counter()
        await service.start_turn(session_id, prompt)
        took.append(time.perf_counter() - began)
    return took


async def assert_found(service: Service, session_id: str) -> None:
    """Fail where a fact is not among the first hits of the tool."""
    for fact, question in FACTS:
        found = await hits(service, session_id, query=question, limit=3)
        assert any(fact in hit.content for hit in found), question


async def outgrow(folder: Path, turns: int) -> list[float]:
    """Hold such a conversation, look at it and at what a second process sees; return the seconds of each turn."""
    model, memory = Model(answer=chatting), folder / "memory"
    config = settings(None, window=WINDOW, recent_turn_budget=4)
    async with open_runtime(model, store=folder, config=config, memory=memory_in(memory)) as service:
        session_id = await new_session(service, system_prompt="You are a patient listener.")
        took = await converse(service, session_id, prompts(turns, plan(turns)))
        await converse(service, session_id, [f"Turn {turn}: and now the weather" for turn in range(turns, turns + 20)])
        assert not [fact for fact, _ in FACTS if fact in repr(model.contexts[-1])], "it has not left the context"
        await assert_found(service, session_id)
        await assert_remembered(service, session_id, memory)
    async with open_runtime(model, store=folder, config=config, memory=memory_in(memory)) as service:
        await assert_found(service, session_id)
    assert_fits(model.asked, WINDOW)
    assert all(len(summaries(context)) <= 1 for context in model.contexts)
    assert len(model.compactions) > turns // 60
    return took


async def assert_remembered(service: Service, session_id: str, memory: Path) -> None:
    """Fail unless what was said in front of the head is remembered, each message once, in its place."""
    entries, moves = await everything(service, session_id)
    head = max(move.head for move in moves)
    said = {(session_id, entry.position): indexable(entry.message) for entry in entries if entry.position < head}
    assert remembered(memory) == {key: text for key, text in said.items() if text}


@pytest.mark.virtual_time
async def test_facts_of_a_conversation_that_outgrew_its_window(tmp_path: Path) -> None:
    """Through hundreds of turns each request fits a 6,000-token window; what was said early is found by the tool."""
    await outgrow(tmp_path, 240)


@pytest.mark.soak
@pytest.mark.time_limit(600)
async def test_two_thousand_turns(tmp_path: Path) -> None:
    """The same over 2,000 turns, with facts of turns 5, 500 and 1,500; the last turns take no longer than the first."""
    took = await outgrow(tmp_path, 2_000)
    quarters = [median(took[at : at + 500]) for at in range(0, 2_000, 500)]
    assert all(later < 2 * earlier + 0.002 for earlier, later in pairwise(quarters)), quarters
