"""The memory actor: owns what is remembered, takes new things one after another, answers searches beside them."""

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

import attrs
import trio

from warren import codec
from warren.actors.eventlog import utc_now
from warren.actors.owner import Owner
from warren.actors.protocol import Forget, Remember
from warren.actors.storage import StorageActor
from warren.actors.supervision import Restarts, supervised_nursery
from warren.errors import SessionNotFoundError, StoreError, WarrenError
from warren.health import MemoryHealth
from warren.mailbox import Mail
from warren.memory import MAX_HITS, MemoryEntry, MemoryHit, Progress, Tail
from warren.messages import AssistantMessage, Message, UserMessage
from warren.records import MessageRow, SessionRecord
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
SETTLE_AFTER: Final = timedelta(minutes=10)
"""How long the commit of what was remembered may be on its way, in any process: much longer than it ever is."""
logger: Final = logging.getLogger("warren.memory")


async def _signature(
    query: Annotated[str, "Natural language search query describing what you want to recall"],
    limit: Annotated[int, f"Maximum number of results, {MAX_HITS} at most"] = 5,
    scope: Annotated[Literal["session", "project"], "This conversation, or all of the project"] = "session",
) -> str:
    """Say what the tool's arguments are; each session's tool puts its own search in the place of this."""
    raise NotImplementedError


# Made once: a tool's schema takes longer than a turn, and every turn of every session has this one.
_TOOL: Final = tool(name=SEARCH, description=USAGE, category="memory")(_signature)


@attrs.define(eq=False)
class MemoryActor(Owner["MemoryStore"]):
    """Owns the memory. Searches go past its mailbox and never wait for what is being remembered.

    Attributes:
        storage: where the sessions are stored, None where nothing is.
    """

    name: ClassVar[str] = "memory"
    storage: StorageActor | None = None
    _work: trio.Event = attrs.field(factory=trio.Event)
    _error: str | None = None
    _refused: str | None = None

    async def remember(self, session_id: str, first: int, messages: Sequence[Message]) -> None:
        """Take in what was said in messages of a session, the first of them at position `first`: all or nothing.

        It happens before they are committed, and the commit may fail: what an earlier attempt left from that position
        on gives way, and what no commit ever followed is dropped within a quarter of an hour, or by the next process.
        Taking in the same messages again changes nothing.

        Raises StoreError(cause="conflict") where the session's head has moved past `first` in the store, by another
        process, and whatever the memory raises: then nothing was taken in.
        """
        record = await self._stored(session_id)
        if record is not None and record.head > first:
            problem = "another process has compacted the session further"
            raise StoreError(problem, session_id=session_id, cause="conflict", retryable=False)
        entries = await self._entries(session_id, first, messages)
        await self.mailbox.ask(Remember(entries, Tail(session_id, first)))

    async def _entries(self, session_id: str, first: int, messages: Sequence[Message]) -> tuple[MemoryEntry, ...]:
        """Return what is worth remembering, each with its turn and its time."""
        before, turn = await (await self.reader()).last_before(session_id, first)
        rows = await self._rows(session_id, before + 1, first + len(messages))
        times = {row.position: row.created_at for row in rows}
        turn += sum(isinstance(codec.decode_message(row.body), UserMessage) for row in rows if row.position < first)
        now, found = utc_now(), []
        for at, message in enumerate(messages, first):
            turn += isinstance(message, UserMessage)
            if (text := indexable(message)).strip():
                found.append(MemoryEntry(session_id, at, turn, text, times.get(at, now)))
        return tuple(found)

    async def _rows(self, session_id: str, first: int, end: int) -> Sequence[MessageRow]:
        if self.storage is None:
            return ()
        rows, _ = await (await self.storage.reader()).messages(session_id, offset=first, limit=end - first)
        return rows

    async def _stored(self, session_id: str) -> SessionRecord | None:
        return None if self.storage is None else await (await self.storage.reader()).record(session_id)

    async def add(self, entries: Sequence[MemoryEntry]) -> int:
        """Take in entries of the caller's own; return how many were new."""
        return await self.mailbox.ask(Remember(tuple(entries)))

    async def forget(self, session_id: str) -> None:
        """Drop all that is remembered of a session, for good: nothing of it is taken in any more."""
        await self.mailbox.ask(Forget(session_id))

    async def rebuild(self, progress: Progress | None = None) -> None:
        """Make the index anew, beside everything else: searches, compactions and deletes do not wait for it.

        Cancelled, the rest is done by and by. Raises what `MemoryStore.rebuild` does; StoreError(cause="closed") where
        the runtime ends meanwhile, and then the next one does the rest.
        """
        try:
            await (await self.reader()).rebuild(progress)
        finally:
            self._work.set()

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
                self._refused = None
            except WarrenError as exc:
                if not isinstance(exc, SessionNotFoundError):  # else it is the session's fault
                    self._refused = str(exc)
                mail.refuse(exc)
        self._work.set()

    async def _do(self, owned: "MemoryStore", mail: Mail[Any]) -> int | None:
        match mail.message:
            case Remember(entries, tail):
                return await owned.index(entries, tail)
            case Forget(session_id):
                await owned.forget(session_id)
        return None

    async def _close(self, owned: "MemoryStore", *, crashed: bool) -> None:
        if crashed:
            self._work.set()  # the one that is opened in its place has an index to bring forward
        await owned.aclose()

    async def keep_up(self) -> None:
        """Bring the index forward whenever it is behind, and drop what was never committed.

        Searches are answered meanwhile. The index is a cache of what is stored: nothing that goes wrong with it ends
        anything but this attempt.
        """
        while True:
            self._work = work = trio.Event()  # before the look: what comes during it is looked at next
            done = await self._caught_up()
            done &= await self._settled()
            with trio.move_on_after(math.inf if done else RETRY_AFTER):
                await work.wait()

    async def _caught_up(self) -> bool:
        try:
            store = await self.reader()
            if store.is_behind:
                await store.catch_up()
        except (WarrenError, OSError) as exc:
            self._error = str(exc)
            logger.warning("the memory's index is behind: %s", exc)
        except Exception as exc:
            self._error = repr(exc)
            logger.exception("the memory's index is behind")
        else:
            self._error = None
            return True
        return False

    def health(self) -> MemoryHealth:
        """Return how far the index is, and what is wrong; never waits."""
        behind = 0 if self._owned is None else self._owned.behind
        error = self._refused or self._error
        return MemoryHealth("ok" if error is None else "degraded", behind, error)

    async def _settled(self) -> bool:
        """Drop what was remembered of messages that no commit followed; return whether nothing is left to look at."""
        if self.storage is None:
            return True
        try:
            store = await self.reader()
            for mark in await store.unsettled():
                if utc_now() - mark.since < SETTLE_AFTER:
                    return False
                record = await self._stored(mark.session_id)
                await store.settle(mark, None if record is None else record.message_count)
        except WarrenError as exc:
            logger.warning("the memory may hold what was never stored: %s", exc)
            return False
        return True


@asynccontextmanager
async def remembering(
    open_it: OpenMemory, restarts: Restarts, storage: StorageActor | None = None
) -> AsyncIterator[MemoryActor]:
    """Open the memory of the sessions in `storage`, run its actor and keep its index up.

    On leaving, what waits is done first.
    """
    async with MemoryActor.running(open_it, restarts) as actor, supervised_nursery() as nursery:
        actor.storage = storage
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
