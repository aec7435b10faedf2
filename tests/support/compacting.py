"""Sessions that compact: a model that tells summaries from answers, a memory, and what has to hold of it all."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final, Protocol

import apsw
import attrs
import trio

from tests.support.checks import assert_valid_stream, assert_valid_transcript
from tests.support.faulty_store import Faults, HalfDone
from tests.support.models import Answer, Emit, reply
from tests.support.runtime import open_runtime, replay, supervisor_of
from warren.actors.calls.service import Service
from warren.actors.resources.memory import MemoryActor
from warren.actors.supervisor.supervisor import Supervisor
from warren.base.errors import WarrenError
from warren.compaction import PROMPT, SUMMARY_PREFIX, CompactionConfig, estimate, size_of
from warren.conversation.events import (
    TERMINAL,
    CompactionCompleted,
    CompactionFailed,
    CompactionStarted,
    Envelope,
    Event,
    Retrying,
    RunStarted,
)
from warren.conversation.messages import Message, UserMessage
from warren.conversation.records import CompactionEntry
from warren.conversation.usage import Usage
from warren.conversation.views import HistoryEntry
from warren.models.model import ModelReply, ModelRequest, Provider, TextPiece
from warren.models.tools import Tool
from warren.settings.config import Config, RetryPolicy
from warren.storage.operations import Commit, Operation

ANSWER: Final = Usage(20, 10)
SUMMARY: Final = Usage(200, 30)
ABOUT_COMPACTION: Final = (CompactionStarted, CompactionCompleted, CompactionFailed)


def wants_summary(request: ModelRequest) -> bool:
    """Tell whether a request is a compaction's."""
    last = request.messages[-1]
    return isinstance(last, UserMessage) and last.content.startswith(PROMPT)


def summaries(messages: Iterable[Message]) -> list[str]:
    """Return the texts of all summaries in a context."""
    told = (message.content for message in messages if isinstance(message, UserMessage))
    return [text.removeprefix(SUMMARY_PREFIX).strip() for text in told if text.startswith(SUMMARY_PREFIX)]


async def chatty(_request: ModelRequest, emit: Emit) -> ModelReply:
    """Answer with a thousand letters, which is 260 tokens by the estimate."""
    await trio.lowlevel.checkpoint()
    emit(TextPiece("word " * 200))
    return reply("word " * 200, usage=ANSWER)


async def summarise(_request: ModelRequest, emit: Emit) -> ModelReply:
    """Summarise in a few words that no stream may show."""
    await trio.lowlevel.checkpoint()
    emit(TextPiece("SECRET "))
    emit(TextPiece("summary"))
    return reply("SECRET summary", usage=SUMMARY)


@attrs.define(eq=False)
class Model:
    """A provider that answers turns one way and compactions another, and keeps what it was asked.

    Attributes:
        answer: what it does in a turn's step.
        summary: what it does in a compaction.
        asked: every request, its messages as they were.
    """

    answer: Answer = chatty
    summary: Answer = summarise
    asked: list[ModelRequest] = attrs.field(factory=list)

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelReply:
        request = attrs.evolve(request, messages=tuple(request.messages))
        self.asked.append(request)
        return await (self.summary if wants_summary(request) else self.answer)(request, emit)

    @property
    def contexts(self) -> list[Sequence[Message]]:
        """The requests of the steps of a turn."""
        return [request.messages for request in self.asked if not wants_summary(request)]

    @property
    def compactions(self) -> list[ModelRequest]:
        """The requests for summaries."""
        return [request for request in self.asked if wants_summary(request)]


@attrs.define(eq=False)
class FakeMemory:
    """A memory that a test can let refuse or wait.

    Attributes:
        rows: what was indexed, by position; another text in the same place fails the test.
        refusal: what it raises.
        entered: calls begun.
        gate: it waits until this is set.
    """

    rows: dict[int, Message] = attrs.field(factory=dict)
    refusal: WarrenError | None = None
    entered: int = 0
    gate: trio.Event | None = None

    async def index(self, _session: str, position: int, messages: Sequence[Message]) -> None:
        """Take messages, as `MemoryActor.remember` says."""
        self.entered += 1
        await trio.lowlevel.checkpoint()
        if self.gate is not None:
            await self.gate.wait()
        if self.refusal is not None:
            raise self.refusal.copy()
        for at, message in enumerate(messages, position):
            assert self.rows.setdefault(at, message) == message


@attrs.define(eq=False)
class HeadFaults(Faults):
    """A store whose disk is full whenever a head would move, and takes all else.

    Attributes:
        stuck: whether it is so.
    """

    stuck: bool = False

    def spoil(self, operations: Sequence[Operation[Any]]) -> list[Operation[Any]]:
        refusal = apsw.FullError("no space left")
        moves = (self.stuck and isinstance(each, Commit) and each.compaction is not None for each in operations)
        return [HalfDone(each, refusal) if move else each for each, move in zip(operations, moves, strict=True)]


class Indexes(Protocol):
    """The methods of a test's memory."""

    async def index(self, _session: str, position: int, messages: Sequence[Message], /) -> None:
        """Take messages."""
        ...


class Wired(MemoryActor):
    """A memory actor in front of a test's memory."""

    resting = False

    def __init__(self, memory: Indexes) -> None:
        """Own nothing."""
        self.memory = memory

    async def remember(
        self,
        session_id: str,
        first: int,
        messages: Sequence[Message],
        *,
        tenant: str = "default",  # noqa: ARG002 - as in the actor
    ) -> None:
        await self.memory.index(session_id, first, messages)


def wire(supervisor: Supervisor, memory: Indexes) -> None:
    """Let sessions that come to life from now on index what their compactions discard."""
    supervisor.shared = attrs.evolve(supervisor.shared, memory=Wired(memory))


def settings(threshold: int | None = 1_000, *, config: Config | None = None, **changes: Any) -> Config:
    """Return a runtime's settings that compact; one exchange is kept, attempts may follow each other at once."""
    values = {"recent_turn_budget": 1, "min_turns_between_compactions": 0, **changes}
    base = config or Config(retry=RetryPolicy(max_attempts=2, jitter=0))
    return attrs.evolve(base, compaction=CompactionConfig(threshold, **values))


def at_the_end(config: Config | None = None) -> Config:
    """Return settings with which a turn is stored at its end, and a compaction stores its beginning before."""
    return attrs.evolve(config or settings(), durability="turn")


@asynccontextmanager
async def compacting(
    model: Provider,
    store: Path | None = None,
    *,
    config: Config | None = None,
    tools: Iterable[Tool] = (),
    faults: Faults | None = None,
    memory: FakeMemory | None = None,
) -> AsyncIterator[Service]:
    """Open a runtime that compacts at 1,000 tokens unless `config` says otherwise."""
    async with open_runtime(model, store=store, config=config or settings(), tools=tools, faults=faults) as service:
        if memory is not None:
            wire(supervisor_of(service), memory)
        yield service


async def talk(service: Service, session_id: str, turns: int, **options: Any) -> None:
    """Run so many turns."""
    for number in count():
        if number == turns:
            return
        await service.start_turn(session_id, f"question {number}", **options)


async def everything(service: Service, session_id: str) -> tuple[list[HistoryEntry], list[CompactionEntry]]:
    """Return the whole history and every move of its head, page by page."""
    found, moves = list[HistoryEntry](), list[CompactionEntry]()
    while True:
        page = await service.history(session_id, offset=len(found), limit=500)
        found += page.messages
        moves += page.compactions
        if len(found) == page.total:
            return found, moves


async def whole_log(service: Service, session_id: str) -> list[Envelope]:
    """Return the whole log, page by page."""
    log: list[Envelope] = []
    while page := await replay(service, session_id, log[-1].seq if log else 0):
        log += page
    return log


def assert_fits(requests: Iterable[ModelRequest], window: int) -> None:
    """Fail where a request is above the window by the project's own estimate, or no provider would take it."""
    for number, request in enumerate(requests):
        tokens = estimate(sum(map(size_of, request.messages)))
        assert tokens <= window, f"request {number} has {tokens} tokens"
        assert_valid_transcript(request.messages)


def assert_whole(envelopes: Sequence[Envelope]) -> None:
    """Fail where a stream is not whole: of turns, of compactions, in its numbers; or where it has a summary."""
    assert_valid_stream([each for each in envelopes if not isinstance(each.event, ABOUT_COMPACTION)])
    assert_whole_compactions([envelope.event for envelope in envelopes])
    assert "SECRET" not in repr(envelopes)


def assert_whole_compactions(events: Iterable[Event]) -> None:
    """Fail where a compaction has not exactly one end, or anything but retries comes before it."""
    running = False
    for event in events:
        if isinstance(event, CompactionStarted):
            assert not running, "a compaction began within a compaction"
            running = True
        elif isinstance(event, CompactionCompleted | CompactionFailed):
            assert running, f"nothing to end: {event}"
            running = False
        elif not isinstance(event, Retrying):
            assert not running, f"amid a compaction: {event}"
    assert not running, "a compaction has no end"


def about_compaction(events: Iterable[Event]) -> list[Event]:
    """Return the events that tell of compactions."""
    return [event for event in events if isinstance(event, ABOUT_COMPACTION)]


def endings(events: Iterable[Event]) -> list[Event]:
    """Return the terminal events."""
    return [event for event in events if isinstance(event, TERMINAL)]


def beginnings(events: Iterable[Event]) -> list[str]:
    """Return the prompts of the turns that began."""
    return [event.prompt for event in events if isinstance(event, RunStarted)]
