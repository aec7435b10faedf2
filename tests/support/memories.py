"""The real memory, with a switch for everything that can go wrong in it, and a model that searches it."""

import functools
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

import apsw
import attrs
import trio

from tests.support.compacting import Model, chatty
from tests.support.faulty_store import CrashError
from tests.support.models import Emit, reply
from warren.actors.calls.service import Service
from warren.actors.resources.memory import SEARCH, OpenMemory
from warren.base.errors import WarrenError
from warren.base.values import frozen
from warren.conversation import codec
from warren.conversation.memory import MemoryConfig, MemoryEntry, Progress, Tail
from warren.conversation.messages import (
    AssistantMessage,
    Message,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
)
from warren.models.model import ModelReply, ModelRequest
from warren.storage.memory import FileMemory
from warren.storage.rows import moment
from warren.storage.runner import Runner, inline_runner

RECALL: Final = "recall "


@attrs.define(eq=False)
class MemoryFaults:
    """The faults to come; a test changes them at any time.

    Attributes:
        refuse: what taking entries in raises.
        refuse_forget: what forgetting raises.
        refuse_catch_up: what bringing the index forward raises.
        crash_before: so many of the next calls to take entries in raise in the actor, nothing stored.
        crash_after: so many of them raise in the actor after they are stored.
        crash_open: so many of the next openings raise.
        behind: as if the index had something to catch up with.
        gate: entries are taken in once it is set.
        catch_up_gate: bringing the index forward ends once it is set.
        open_delay: seconds that opening takes.
        opened: how often the memory was opened.
        caught_up: how often the index was brought forward.
        given: what each call was to take in.
        fresh: how many entries of each call were new.
        told: what happened, in order.
    """

    refuse: WarrenError | None = None
    refuse_forget: WarrenError | None = None
    refuse_catch_up: Exception | None = None
    crash_before: int = 0
    crash_after: int = 0
    crash_open: int = 0
    behind: bool = False
    gate: trio.Event | None = None
    catch_up_gate: trio.Event | None = None
    open_delay: float = 0.0
    opened: int = 0
    caught_up: int = 0
    given: list[tuple[MemoryEntry, ...]] = attrs.field(factory=list)
    fresh: list[int] = attrs.field(factory=list)
    told: list[str] = attrs.field(factory=list)

    def take(self, name: str) -> bool:
        """Use up one of the crashes of that name; return whether there was one."""
        left: int = getattr(self, name)
        setattr(self, name, max(0, left - 1))
        return left > 0


class FaultyMemory(FileMemory):
    """A memory that fails as its `faults` say."""

    faults: MemoryFaults

    @classmethod
    async def prepared(cls, config: MemoryConfig, faults: MemoryFaults, runner: Runner) -> Self:
        """Open the memory."""
        await trio.sleep(faults.open_delay)
        if faults.take("crash_open"):
            raise CrashError("while opening")
        memory = await cls.open(config, runner=runner)
        memory.faults = faults
        faults.opened += 1
        return memory

    @property
    def is_behind(self) -> bool:
        return self.faults.behind or super().is_behind

    async def index(self, entries: Sequence[MemoryEntry], tail: Tail | None = None, *, tenant: str = "default") -> int:
        faults = self.faults
        faults.given.append(tuple(entries))
        if faults.gate is not None:
            await faults.gate.wait()
        if faults.take("crash_before"):
            raise CrashError("before it was stored")
        if faults.refuse is not None:
            raise faults.refuse.copy()
        fresh = await super().index(entries, tail, tenant=tenant)
        faults.fresh.append(fresh)
        if faults.take("crash_after"):
            raise CrashError("after it was stored")
        return fresh

    async def forget(self, session_id: str) -> int:
        if self.faults.refuse_forget is not None:
            raise self.faults.refuse_forget.copy()
        return await super().forget(session_id)

    async def catch_up(self, progress: Progress | None = None) -> None:
        faults = self.faults
        if faults.refuse_catch_up is not None:
            raise faults.refuse_catch_up
        await super().catch_up(progress)
        if faults.catch_up_gate is not None:
            await faults.catch_up_gate.wait()
        faults.behind = False
        faults.caught_up += 1

    async def aclose(self) -> None:
        self.faults.told.append("memory closes")
        await super().aclose()


def memory_in(folder: Path | None, faults: MemoryFaults | None = None, runner: Runner = inline_runner) -> OpenMemory:
    """Return what opens the memory of a folder; None keeps it in the process."""
    return functools.partial(FaultyMemory.prepared, MemoryConfig(folder), faults or MemoryFaults(), runner)


def remembered(folder: Path) -> dict[tuple[str, int], str]:
    """Return the texts in the file of a memory, by session and position."""
    with apsw.Connection(str(folder / "memory.sqlite3"), flags=apsw.SQLITE_OPEN_READONLY) as db:
        rows = db.execute("SELECT session_id, position, content FROM entries JOIN sessions ON session = key")
        found = [((row[0], row[1]), row[2]) for row in rows]
    db.close()
    assert len(dict(found)) == len(found), "a message is remembered twice"
    return dict(found)


def moments(folder: Path) -> dict[int, datetime]:
    """Return when each text in the file of a memory was said, by its position."""
    with apsw.Connection(str(folder / "memory.sqlite3"), flags=apsw.SQLITE_OPEN_READONLY) as db:
        found = {row[0]: moment(row[1]) for row in db.execute("SELECT position, created_at FROM entries")}
    db.close()
    return found


async def recalling(request: ModelRequest, emit: Emit) -> ModelReply:
    """Search the memory where the prompt says `recall` and the arguments as JSON; repeat the result; else chat."""
    last = request.messages[-1]
    if isinstance(last, ToolResultsMessage):
        return reply(last.results[0].content)
    if isinstance(last, UserMessage) and last.content.startswith(RECALL):
        args: dict[str, Any] = codec.parse(last.content.removeprefix(RECALL))
        return reply("", ToolUseBlock(f"call-{len(request.messages)}", SEARCH, args))
    return await chatty(request, emit)


def recalling_model() -> Model:
    """Return a model that searches when it is told to."""
    return Model(answer=recalling)


async def recall(service: Service, session_id: str, **args: object) -> str:
    """Let the session's model search; return what the tool returned."""
    return (await service.start_turn(session_id, RECALL + codec.encode(args).decode())).text


@frozen
class Recalled:
    """A hit as the model reads it."""

    content: str
    score: float
    session_id: str
    turn: int


async def hits(service: Service, session_id: str, **args: object) -> list[Recalled]:
    """Let the session's model search; return what it found."""
    found: list[Recalled] = codec.from_data(list[Recalled], codec.parse(await recall(service, session_id, **args)))
    return found


def results(messages: Iterable[Message]) -> list[ToolResult]:
    """Return all results of tools in a transcript."""
    return [result for message in messages if isinstance(message, ToolResultsMessage) for result in message.results]


async def said_before_head(service: Service, session_id: str) -> dict[tuple[str, int], str]:
    """Return what the user and the model said in front of the head, by session and position."""
    page = await service.history(session_id, limit=1000)
    head = page.compactions[-1].head if page.compactions else 0
    rows = [(entry.position, entry.message) for entry in page.messages if entry.position < head]
    texts = {at: said.content for at, said in rows if isinstance(said, UserMessage)}
    texts |= {at: said.text for at, said in rows if isinstance(said, AssistantMessage) and said.text.strip()}
    return {(session_id, at): text for at, text in texts.items()}
