"""The memory actor: stores texts one batch after another, and answers searches beside them."""

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Protocol

import attrs
import trio

from warren.actors.events.eventlog import utc_now
from warren.actors.observe.counters import OF_CALLS, Histogram
from warren.actors.protocol import Forget, ForgetTexts, Remember
from warren.actors.resources.erasing import Forgets, finish_erasing
from warren.actors.resources.owner import Owner
from warren.actors.resources.storage import Storage
from warren.actors.supervision import Restarts, background
from warren.base.errors import SessionNotFoundError, StoreError, WarrenError
from warren.base.principals import DEFAULT_TENANT
from warren.base.values import define
from warren.calls.reading import SearchRequest
from warren.conversation import codec
from warren.conversation.memory import MAX_HITS, Chosen, Index, MemoryEntry, MemoryHit, Progress, Tail
from warren.conversation.messages import AssistantMessage, Message, UserMessage, begins_turn
from warren.conversation.records import MessageRow, SessionRecord
from warren.mailbox import Mail
from warren.models.tools import Tool, tool
from warren.reports.health import MemoryHealth
from warren.storage.queries import ANY_TENANT, SessionRow, StoredMessages

if TYPE_CHECKING:
    from warren.storage.memory_store import MemoryStore

OpenMemory = Callable[[], Awaitable["MemoryStore"]]
SEARCH: Final = "memory_search"
USAGE: Final = """\
Search semantic memory for past conversation content. Memory contains text from earlier conversation turns that were \
compacted away to save context space. Use it before you say that you do not know or remember something the user may \
have told you, and when a summary lacks a detail: ask with the words that the passage itself is likely to have."""
TOLD: Final = ("content", "score", "session_id", "turn")
"""The fields of a hit that the model reads: each one costs tokens."""
RETRY_AFTER: Final = 60.0
"""Seconds until a failed deletion is retried, and a failed update of the index unless new texts come before."""
SETTLE_AFTER: Final = timedelta(minutes=10)
"""Age at which a remembered tail is compared with the store. The commit that follows a tail takes seconds at most."""
logger: Final = logging.getLogger("warren.memory")


async def _signature(
    query: Annotated[str, "Natural language search query describing what you want to recall"],
    limit: Annotated[int, f"Maximum number of results, {MAX_HITS} at most"] = 5,
    scope: Annotated[Literal["session", "project"], "This conversation, or all of the project"] = "session",
) -> str:
    """Carry the schema of the tool's arguments; `tool_of` puts a session's search in the place of this function."""
    raise NotImplementedError


# Made once: the schema of a tool takes longer to make than a turn takes, and every turn offers this tool.
_TOOL: Final = tool(name=SEARCH, description=USAGE, category="memory", restart="replay")(_signature)


class Memory(Forgets, Protocol):
    """The memory of a runtime, as its sessions and its service use it.

    Attributes:
        works: whether anything is remembered.
    """

    works: ClassVar[bool]

    @property
    def searches(self) -> Histogram | None:
        """The durations of searches that succeeded; None if nothing is remembered."""

    def index_of(self, session: SessionRecord) -> Index | None:
        """Return the function that remembers messages of a session; None if nothing is remembered."""

    def tools_of(self, session_id: str, tenant: str) -> Mapping[str, Tool]:
        """Return the tools by which a session's model searches, by name."""

    async def search(self, wanted: SearchRequest, tenant: str) -> Sequence[MemoryHit]:
        """Return the best matches, of one session or of all of a tenant.

        Raises StoreError and MemoryDisabledError, and InvalidParamsError if the request names no session to search.
        """

    async def texts(self, tenant: str, sessions: Collection[str] | None = None) -> int:
        """Return the number of texts of a tenant, or of some sessions of it. Raises StoreError."""

    async def cut(self, session_id: str, first: int, tenant: str) -> None:
        """Forget the texts of a session from a position on: the store has gone back behind them. Raises StoreError."""

    async def forget_texts(self, chosen: Chosen) -> int | None:
        """Forget some texts of a session for good; return how many, None if the tenant has no such session.

        Raises StoreError and MemoryDisabledError.
        """

    def health(self) -> MemoryHealth | None:
        """Return the health of the memory; None if the runtime has none by its settings. Never waits."""


@define(eq=False)
class MemoryActor(Owner["MemoryStore"]):
    """Owns the memory. Searches do not go through the mailbox, so they never wait for texts that are being stored.

    Attributes:
        storage: the store of the sessions, which tells the times of messages and whether they were committed.
        searches: the durations of searches that succeeded.
    """

    name: ClassVar[str] = "memory"
    optional: ClassVar[bool] = True
    works: ClassVar[bool] = True
    storage: Storage = attrs.field(kw_only=True)
    searches: Histogram = attrs.field(factory=lambda: Histogram(OF_CALLS))
    _work: trio.Event = attrs.field(factory=trio.Event)
    _unforgotten: trio.Event = attrs.field(factory=trio.Event)
    _index_error: str | None = None
    _write_error: str | None = None

    def index_of(self, session: SessionRecord) -> Index | None:
        """Return None while the actor rests too: compactions go on without a memory."""
        return None if self.resting else partial(self.remember, session.session_id, tenant=session.tenant)

    async def remember(
        self, session_id: str, first: int, messages: Sequence[Message], *, tenant: str = DEFAULT_TENANT
    ) -> None:
        """Remember the texts of messages, all or none. Idempotent.

        Call it before the commit of the compaction that takes the messages out of the context. If that commit fails,
        the next attempt replaces the texts from `first` on; texts without any commit are dropped within a quarter of
        an hour, or by the next process.

        Args:
            session_id: the session.
            first: the position of the first message.
            messages: the messages, in order.
            tenant: the tenant of the session.

        Raises:
            StoreError: if another process has moved the session's head past `first` (cause "conflict"), or the memory
                cannot be written. Nothing was remembered.
        """
        record = await self._record(session_id)
        if record is not None and record.head > first:
            problem = "another process has compacted the session further"
            raise StoreError(problem, session_id=session_id, cause="conflict", retryable=False)
        entries = await self._entries(session_id, first, messages)
        await self.mailbox.ask(Remember(entries, Tail(session_id, first), tenant))

    async def _entries(self, session_id: str, first: int, messages: Sequence[Message]) -> tuple[MemoryEntry, ...]:
        """Return the entries of messages that have a text, each with its turn and its time."""
        before, turn = await (await self.reader()).last_before(session_id, first)
        rows = await self._rows(session_id, before + 1, first + len(messages))
        times = {row.position: row.created_at for row in rows}
        turn += sum(begins_turn(codec.decode_message(row.body)) for row in rows if row.position < first)
        now, found = utc_now(), []
        for at, message in enumerate(messages, first):
            turn += begins_turn(message)
            if (text := indexable(message)).strip():
                found.append(MemoryEntry(session_id, at, turn, text, times.get(at, now)))
        return tuple(found)

    async def _rows(self, session_id: str, first: int, end: int) -> Sequence[MessageRow]:
        rows, _ = await self.storage.read(StoredMessages(session_id, first, end - first))
        return rows

    async def _record(self, session_id: str) -> SessionRecord | None:
        return await self.storage.read(SessionRow(session_id, ANY_TENANT))

    async def add(self, entries: Sequence[MemoryEntry]) -> int:
        """Remember entries that the caller has made; return how many were new. Raises as `MemoryStore.index`."""
        return await self.mailbox.ask(Remember(tuple(entries)))

    async def texts(self, tenant: str, sessions: Collection[str] | None = None) -> int:
        return await (await self.reader()).texts(tenant, sessions)

    async def cut(self, session_id: str, first: int, tenant: str) -> None:
        await self.mailbox.ask(Remember((), Tail(session_id, first), tenant))

    async def forget(self, session_id: str) -> bool:
        try:
            await self.mailbox.ask(Forget(session_id))
        except WarrenError:
            self._unforgotten.set()
            raise
        return True

    async def forget_texts(self, chosen: Chosen) -> int | None:
        return await self.mailbox.ask(ForgetTexts(chosen))

    async def rebuild(self, progress: Progress | None = None) -> None:
        """Make the index again; searches, compactions and deletes go on meanwhile.

        If it is cancelled, `keep_up` does the rest. Raises as `MemoryStore.rebuild`; StoreError(cause="closed") if the
        runtime ends meanwhile, and then the next runtime does the rest.
        """
        try:
            await (await self.reader()).rebuild(progress)
        finally:
            self._work.set()

    async def search(self, wanted: SearchRequest, tenant: str) -> list[MemoryHit]:
        return await self._search(wanted.query, wanted.limit, wanted.within, tenant)

    async def _search(self, query: str, limit: int, within: str | None, tenant: str) -> list[MemoryHit]:
        began = trio.current_time()
        hits = await (await self.reader()).search(query, limit=limit, session_id=within, tenant=tenant)
        self.searches.add(trio.current_time() - began)
        return hits

    def tools_of(self, session_id: str, tenant: str) -> Mapping[str, Tool]:
        return {SEARCH: attrs.evolve(_TOOL, call=partial(self._answer, session_id, tenant))}

    async def _answer(self, session_id: str, tenant: str, query: str, limit: int, scope: str) -> str:
        within = session_id if scope == "session" else None
        hits = await self._search(query, min(max(1, limit), MAX_HITS), within, tenant)
        return codec.encode([{name: getattr(hit, name) for name in TOLD} for hit in hits]).decode()

    async def _handle(self, resource: "MemoryStore", batch: list[Mail[Any]]) -> None:
        for mail in batch:
            try:
                mail.answer(await self._do(resource, mail))
                self._write_error = None
            except WarrenError as exc:
                if not isinstance(exc, SessionNotFoundError):  # a deleted session says nothing about the memory
                    self._write_error = str(exc)
                mail.refuse(exc)
        self._work.set()

    async def _do(self, resource: "MemoryStore", mail: Mail[Any]) -> int | None:
        match mail.message:
            case Remember(entries, tail, tenant):
                return await resource.index(entries, tail, tenant=tenant)
            case Forget(session_id):
                await resource.forget(session_id)
            case ForgetTexts(chosen):
                return await resource.forget_texts(chosen)
        return None

    async def _close(self, resource: "MemoryStore", *, crashed: bool) -> None:
        if crashed:
            self._work.set()  # the store that is opened next has an index to update
        await resource.aclose()

    async def keep_up(self) -> None:
        """Update the index whenever it is behind, and drop texts whose messages were never committed. Never returns.

        Searches are answered meanwhile. The index is a cache of the rows: an error ends this attempt and nothing else.
        """
        while True:
            # A new event before the work: texts that come during the work set this one, so they are seen next time.
            self._work = work = trio.Event()
            done = await self._catch_up()
            done &= await self._drop_uncommitted()
            with trio.move_on_after(math.inf if done else RETRY_AFTER):
                await work.wait()

    async def finish_forgetting(self) -> None:
        """Finish deletions that the memory has refused, or was away for, until none is due. Never returns."""
        while True:
            await self._unforgotten.wait()
            self._unforgotten = trio.Event()
            await trio.sleep(RETRY_AFTER)
            await finish_erasing(self.storage, self)

    async def _catch_up(self) -> bool:
        try:
            store = await self.reader()
            if store.is_behind:
                if store.behind:
                    lacking = (
                        "%s texts of the memory have no vector of its embedder: until it has made them, words find them"
                    )
                    logger.warning(lacking, store.behind)
                await store.catch_up()
        except (WarrenError, OSError) as exc:
            self._index_error = str(exc)
            logger.warning("the memory's index is behind: %s", exc)
        except Exception as exc:
            self._index_error = repr(exc)
            logger.exception("the memory's index is behind")
        else:
            self._index_error = None
            return True
        return False

    def health(self) -> MemoryHealth:
        """Return the progress of the index, and the newest error. Never waits."""
        behind = 0 if self._resource is None else self._resource.behind
        error = self.last_crash or self._write_error or self._index_error
        weighs = None if self._resource is None else self._resource.weighs
        return MemoryHealth("ok" if error is None else "degraded", behind, error, weighs)

    async def _drop_uncommitted(self) -> bool:
        """Drop texts of messages that no commit followed; return whether no session is left to check."""
        try:
            store = await self.reader()
            for mark in await store.unsettled():
                if utc_now() - mark.since < SETTLE_AFTER:
                    return False
                record = await self._record(mark.session_id)
                await store.settle(mark, None if record is None else record.message_count)
        except WarrenError as exc:
            logger.warning("texts of uncommitted messages are still in the memory: %s", exc)
            return False
        except Exception:
            logger.exception("texts of uncommitted messages are still in the memory")
            return False
        return True


@asynccontextmanager
async def remembering(open_it: OpenMemory, restarts: Restarts, storage: Storage) -> AsyncIterator[MemoryActor]:
    """Open the memory of the sessions in `storage`, run its actor and keep its index up to date.

    At the end of the block the mail that waits is handled first. Raises StoreError if the memory cannot be opened.
    """
    async with (
        MemoryActor(open_it, storage=storage).running(restarts) as actor,
        background(actor.keep_up, actor.finish_forgetting),
    ):
        yield actor


def indexable(message: Message) -> str:
    """Return the text to remember of a message: the words of the user or of the model; empty for other messages."""
    match message:
        case UserMessage(content):
            return content
        case AssistantMessage():
            return message.text
    return ""
