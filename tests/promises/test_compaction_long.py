"""A conversation that outgrows its model's window again and again: it goes on, nothing is lost, no turn costs more."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import attrs
import pytest
import trio

from tests.support.checks import assert_valid_transcript
from tests.support.compacting import (
    FakeMemory,
    assert_whole,
    compacting,
    everything,
    settings,
    summaries,
    wants_summary,
    whole_log,
)
from tests.support.models import Emit, reply
from tests.support.runtime import new_session
from warren.base.errors import ProviderError
from warren.calls.facade import SessionService
from warren.compaction import estimate, size_of
from warren.conversation import codec
from warren.conversation.events import CompactionCompleted, CompactionFailed, Envelope, RunCompleted
from warren.conversation.messages import Message, ToolUseBlock, UserMessage
from warren.conversation.transcript import Transcript
from warren.conversation.usage import Usage
from warren.conversation.views import HistoryEntry
from warren.models.model import ModelReply, ModelRequest, TextPiece
from warren.models.tools import tool

pytestmark = pytest.mark.virtual_time
WINDOW: Final = 6_000
SAMPLE: Final = 100
LENGTHS: Final = [400, pytest.param(2_000, marks=pytest.mark.soak)]


@tool
async def lookup(key: int) -> str:
    """Look something up; every seventh answer is far too long."""
    await trio.lowlevel.checkpoint()
    return f"{key}: " + "long " * (5_000 if key % 7 == 0 else 50)


@attrs.define(eq=False)
class Talker:
    """A model that knows how much it was sent; it reads little, so that what is decoded is the runtime's doing.

    Attributes:
        fails: which summaries cannot be had: every so many; 0 is none.
        largest: tokens of the largest request, by our estimate.
        most_summaries: in one context.
        asked: requests so far.
        summarised: summaries asked for.
    """

    fails: int = 0
    largest: int = 0
    most_summaries: int = 0
    asked: int = 0
    summarised: int = 0

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        self.asked += 1
        self.largest = max(self.largest, estimate(_bytes(request.messages)))
        if self.asked % 50 == 0:
            assert_valid_transcript(list(request.messages))
            self.most_summaries = max(self.most_summaries, len(summaries(request.messages)))
        if wants_summary(request):
            return self._summary()
        return self._answer(request.messages[-1], emit)

    def _summary(self) -> ModelReply:
        self.summarised += 1
        if self.fails and self.summarised % self.fails == 0:
            raise ProviderError("not this time", retryable=False)
        return reply(f"SECRET summary {self.summarised} " + "and so on " * 40, usage=Usage(5_000, 100))

    def _answer(self, last: Message, emit: Emit) -> ModelReply:
        number = int(last.content.split()[-1]) if isinstance(last, UserMessage) else -1
        if number >= 0 and number % 5 == 0:
            return reply("", ToolUseBlock(f"call-{number}", "lookup", {"key": number}), usage=Usage(100, 20))
        emit(TextPiece(f"answer {number} "))
        return reply(f"answer {number} " + "word " * 150, usage=Usage(100, 200))


def _bytes(messages: Sequence[Message]) -> int:
    return messages.size if isinstance(messages, Transcript) else sum(map(size_of, messages))


@contextmanager
def counted(*functions: Callable[..., Any]) -> Iterator[Counter[CodeType]]:
    """Count the calls of functions."""
    codes, calls = {function.__code__ for function in functions}, Counter[CodeType]()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code in codes:
            calls[frame.f_code] += 1

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


async def work_of(service: SessionService, session_id: str, first: int) -> float:
    """Run turns and return how many messages and events each of them decoded and encoded."""
    with counted(codec.encode, codec.decode_message) as calls:
        await talk(service, session_id, range(first, first + SAMPLE))
    return calls.total() / SAMPLE


async def talk(service: SessionService, session_id: str, numbers: range) -> None:
    """Run numbered turns."""
    for number in numbers:
        await service.start_turn(session_id, f"question {number}")


@pytest.mark.parametrize("turns", LENGTHS)
@pytest.mark.parametrize("fails", [0, 3, 1])
async def test_a_long_conversation(tmp_path: Path, turns: int, fails: int) -> None:
    """Whether all, most or no summaries can be had: every request fits, all of it is kept, turns cost the same."""
    model, memory = Talker(fails), FakeMemory()
    async with compacting(
        model, tmp_path, config=settings(None, window=WINDOW), tools=[lookup], memory=memory
    ) as service:
        session_id = await new_session(service, system_prompt="be brief")
        await talk(service, session_id, range(SAMPLE))
        early = await work_of(service, session_id, SAMPLE)
        await talk(service, session_id, range(2 * SAMPLE, turns - SAMPLE))
        late = await work_of(service, session_id, turns - SAMPLE)
    assert model.largest <= WINDOW
    assert model.most_summaries == 1
    assert late <= 1.25 * early
    async with compacting(model, tmp_path, config=settings(None, window=WINDOW)) as service:
        (history, _), log = await everything(service, session_id), await whole_log(service, session_id)
        compactions = (await service.read(session_id)).state.compactions
    check_history(history, turns, memory)
    check_log(log, turns, compactions, fails)


def check_history(history: list[HistoryEntry], turns: int, memory: FakeMemory) -> None:
    """Fail where something of the conversation is missing, or in the memory and not in the conversation."""
    messages = [entry.message for entry in history]
    assert [entry.position for entry in history] == list(range(len(history)))
    assert_valid_transcript(messages)
    prompts = [message.content for message in messages if isinstance(message, UserMessage)]
    assert prompts == [f"question {number}" for number in range(turns)]
    indexed = sorted(memory.rows)
    assert indexed == list(range(1, len(indexed) + 1))
    assert [memory.rows[at] for at in indexed] == messages[1 : len(indexed) + 1]


def check_log(log: list[Envelope], turns: int, compactions: int, fails: int) -> None:
    """Fail where the log does not tell of every turn and of every compaction."""
    assert_whole(log)
    kinds = Counter(type(each.event) for each in log)
    assert kinds[RunCompleted] == turns
    assert kinds[CompactionCompleted] == compactions
    assert turns / 40 < compactions < turns / 2
    reasons = {each.event.reason for each in log if isinstance(each.event, CompactionFailed)}
    # Where one far too long result is most of the context, there is nothing to gain yet.
    # What one part of a summary fails at, another compaction does: only without any summary all of them fail.
    assert reasons - {"not_smaller"} <= ({"provider_error"} if fails else set())
    assert fails != 1 or "provider_error" in reasons
