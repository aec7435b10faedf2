"""The memory actor: owns what is remembered, takes new things one after another, answers searches beside them."""

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

import attrs
import trio

from warren import codec
from warren.actors.eventlog import utc_now
from warren.actors.owner import Owner
from warren.actors.protocol import Forget, Rebuild, Remember
from warren.actors.supervision import Restarts, supervised_nursery
from warren.errors import WarrenError
from warren.mailbox import Mail
from warren.memory import MAX_HITS, MemoryEntry, MemoryHit
from warren.messages import AssistantMessage, Message, UserMessage
from warren.records import SessionRecord
from warren.tools import Tool, tool

if TYPE_CHECKING:
    from warren.storage.memory import MemoryStore

OpenMemory = Callable[[], Awaitable["MemoryStore"]]
SEARCH: Final = "memory_search"
USAGE: Final = """\
Search semantic memory for past conversation content. Memory contains text from earlier conversation turns that were \
compacted away to save context space. Use it before you say that you do not know or remember something the user may \
have told you, and when a summary lacks a detail: ask with the words that the passage itself is likely to have."""
RETRY_AFTER: Final = 60.0
"""Seconds until an index that could not be brought forward is tried again, where nothing asks for it before."""
logger: Final = logging.getLogger("warren.memory")


async def _signature(
    query: Annotated[str, "Natural language search query describing what you want to recall"],
    limit: Annotated[int, f"Maximum number of results, {MAX_HITS} at most"] = 5,
    scope: Annotated[Literal["session", "project"], "This conversation, or all of the project"] = "session",
) -> str:
    """Say what the tool's arguments are; each session's tool puts its own search in the place of this."""
    raise NotImplementedError


# Made once: a tool's schema takes longer than a turn, and every turn of every session has this one.
_TOOL: Final = tool(name=SEARCH, description=USAGE)(_signature)


@attrs.define(eq=False)
class MemoryActor(Owner["MemoryStore"]):
    """Owns the memory. Searches go past its mailbox and never wait for what is being remembered."""

    name: ClassVar[str] = "memory"
    _work: trio.Event = attrs.field(factory=trio.Event)

    async def remember(self, session_id: str, record: SessionRecord, first: int, messages: Sequence[Message]) -> None:
        """Take in what was said in messages of a session, the first of them at position `first`: all or nothing.

        Taking in the same messages again changes nothing. Raises WarrenError: then nothing was taken in.
        """
        said = [(first + index, indexable(message)) for index, message in enumerate(messages)]
        now = utc_now()
        entries = tuple(MemoryEntry(session_id, at, record.turns, text, now) for at, text in said if text.strip())
        if entries:
            await self.mailbox.ask(Remember(entries))

    async def add(self, entries: Sequence[MemoryEntry]) -> int:
        """Take in entries of the caller's own; return how many were new."""
        return await self.mailbox.ask(Remember(tuple(entries)))

    async def forget(self, session_id: str) -> None:
        """Drop all that is remembered of a session, for good: nothing of it is taken in any more."""
        await self.mailbox.ask(Forget(session_id))

    async def search(self, query: str, *, limit: int, session_id: str | None) -> list[MemoryHit]:
        """Return the best matches, of one session or of all. Raises StoreError."""
        return await (await self.reader()).search(query, limit=limit, session_id=session_id)

    def tool_of(self, session_id: str) -> Tool:
        """Return the tool by which a session's model searches."""
        return attrs.evolve(_TOOL, call=partial(self._answer, session_id))

    async def _answer(self, session_id: str, query: str, limit: int, scope: str) -> str:
        wanted = min(max(1, limit), MAX_HITS)
        hits = await self.search(query, limit=wanted, session_id=session_id if scope == "session" else None)
        return codec.encode(hits).decode()

    async def _take(self, owned: "MemoryStore", batch: list[Mail[Any]]) -> None:
        for mail in batch:
            try:
                mail.answer(await self._do(owned, mail))
            except WarrenError as exc:
                mail.refuse(exc)
        self._work.set()

    async def _do(self, owned: "MemoryStore", mail: Mail[Any]) -> int | None:
        match mail.message:
            case Remember(entries):
                return await owned.index(entries)
            case Forget(session_id):
                await owned.forget(session_id)
            case Rebuild(progress):
                await owned.rebuild(progress)
        return None

    async def _close(self, owned: "MemoryStore", *, crashed: bool) -> None:
        if crashed:
            self._work.set()  # the one that is opened in its place has an index to bring forward
        await owned.aclose()

    async def keep_up(self) -> None:
        """Bring the index forward whenever it is behind; searches are answered meanwhile.

        The index is a cache of what is stored: nothing that goes wrong with it ends anything but this attempt.
        """
        while True:
            self._work = work = trio.Event()  # before the look: what comes during it is looked at next
            with trio.move_on_after(math.inf if await self._caught_up() else RETRY_AFTER):
                await work.wait()

    async def _caught_up(self) -> bool:
        try:
            store = await self.reader()
            if store.is_behind:
                await store.catch_up()
        except (WarrenError, OSError) as exc:
            logger.warning("the memory's index is behind: %s", exc)
        except Exception:
            logger.exception("the memory's index is behind")
        else:
            return True
        return False


@asynccontextmanager
async def remembering(open_it: OpenMemory, restarts: Restarts) -> AsyncIterator[MemoryActor]:
    """Open the memory, run its actor and keep its index up; on leaving, what waits is done first."""
    async with MemoryActor.running(open_it, restarts) as actor, supervised_nursery() as nursery:
        nursery.start_soon(actor.keep_up)
        try:
            yield actor
        finally:
            nursery.cancel_scope.cancel()


def indexable(message: Message) -> str:
    """Return the text of a message that is worth remembering: what the user and the model said."""
    match message:
        case UserMessage(content):
            return content
        case AssistantMessage():
            return message.text
    return ""
