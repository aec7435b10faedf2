"""The service: what hosts and surfaces call. It checks the input, finds the actor, and asks."""

import heapq
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal, TypeVar

import attrs
import trio

from warren import codec
from warren.actors.checks import (
    check_count,
    check_cursor,
    check_id,
    check_labels,
    check_name,
    check_page,
    check_prompt,
    check_search,
    check_text,
    check_tools,
    check_value,
)
from warren.actors.eventlog import Subscription, utc_now
from warren.actors.memory import SEARCH
from warren.actors.protocol import Compact, Interrupt, Loaded, Retire, StartTurn
from warren.actors.session import SessionActor
from warren.actors.supervisor import Supervisor
from warren.budget import Budget
from warren.compaction import CompactionConfig
from warren.errors import (
    AgentError,
    CompactionDisabledError,
    MemoryDisabledError,
    PersistenceDisabledError,
    SessionNotFoundError,
    SessionNotRunningError,
    StoreError,
    WarrenError,
)
from warren.events import Envelope
from warren.ids import new_session_id
from warren.mailbox import Message
from warren.memory import MemoryHit
from warren.records import CompactionEntry, MessageRow, SessionRecord
from warren.service import Capabilities, Health, OnEvent
from warren.storage import Delete
from warren.tools import Tool
from warren.views import (
    HistoryEntry,
    HistoryPage,
    SessionPage,
    SessionSummary,
    SessionView,
    TurnResult,
    summary_of,
    view_of,
)

if TYPE_CHECKING:
    from warren.storage import Store

R = TypeVar("R")


@attrs.define(eq=False)
class Service:
    """The sessions of one runtime; each method's promise is written down in `warren.service.SessionService`."""

    _supervisor: Supervisor

    # -- turns

    async def create_session(
        self,
        prompt: str | None,
        *,
        model: str | None = None,
        provider: str | None = None,
        system_prompt: str | None = None,
        max_tokens: int | None = None,
        labels: Mapping[str, str] | None = None,
        budget: Budget | None = None,
        compaction: CompactionConfig | None = None,
        tools: Sequence[str | Tool] | None = None,
        on_event: OnEvent | None = None,
    ) -> TurnResult:
        """See SessionService."""
        shared, config = self._supervisor.shared, self._supervisor.shared.config
        own_tools = {tool.spec.name: tool for tool in tools or () if isinstance(tool, Tool)}
        now = utc_now()
        record = SessionRecord(
            session_id=new_session_id(),
            created_at=now,
            updated_at=now,
            model=check_name(model, "model") or config.model,
            provider=check_name(provider, "provider") or (None if model else config.provider),
            max_tokens=check_count(max_tokens, "max_tokens") or config.max_tokens,
            tools=check_tools(tools, {*shared.tools, *own_tools, *([SEARCH] if shared.memory else [])}),
            labels=check_labels(labels),
            budget=check_value(budget, Budget, "budget") or Budget(),
            compaction=check_value(compaction, CompactionConfig, "compaction"),
        )
        if compaction is not None and config.compaction is None:
            raise _no_compaction()
        turn = None if prompt is None else StartTurn(check_prompt(prompt), on_event=on_event)
        prompt_for_system = check_text(system_prompt, "system_prompt") or config.system_prompt
        shared.providers.resolve(record.model, record.provider)
        if turn is not None:
            self._supervisor.check_capacity()
        actor = self._supervisor.spawn(record, prompt_for_system, own_tools)
        if turn is None:
            await actor.mailbox.ask(Loaded())
            return TurnResult(record.session_id)
        return await self._turn(actor, turn)

    async def start_turn(
        self,
        session_id: str,
        prompt: str,
        *,
        model: str | None = None,
        provider: str | None = None,
        max_tokens: int | None = None,
        budget: Budget | None = None,
        on_event: OnEvent | None = None,
    ) -> TurnResult:
        """See SessionService."""
        turn = StartTurn(
            check_prompt(prompt),
            check_name(model, "model"),
            check_name(provider, "provider"),
            check_count(max_tokens, "max_tokens"),
            check_value(budget, Budget, "budget"),
            on_event,
        )
        return await self._turn(self._supervisor.revive(check_id(session_id)), turn)

    async def interrupt(self, session_id: str) -> None:
        """See SessionService."""
        actor = self._supervisor.find(check_id(session_id))
        if actor is None:
            await self.read(session_id)
            raise SessionNotRunningError("the session runs no turn", session_id=session_id)
        grace = self._supervisor.shared.config.limits.interrupt_grace
        with trio.move_on_after(grace):
            return await actor.mailbox.ask(Interrupt())
        raise AgentError(
            f"the turn has not ended within {grace:g} s; it will", session_id=session_id, cause="interrupt_timeout"
        )

    async def _turn(self, actor: SessionActor, turn: Message[R]) -> R:
        try:
            reply = self._supervisor.admit(actor, turn)
        except WarrenError:
            await (
                trio.lowlevel.checkpoint()
            )  # or a caller that tries again and again would starve the turn it waits for
            raise
        return await reply.wait()

    async def compact(self, session_id: str, *, instructions: str | None = None) -> CompactionEntry:
        """See SessionService."""
        request = Compact(check_text(instructions, "instructions"))
        check_id(session_id)
        if not self.capabilities().session_compaction:
            raise _no_compaction()
        return await self._turn(self._supervisor.revive(session_id), request)

    # -- views

    async def read(self, session_id: str) -> SessionView:
        """See SessionService."""
        actor = self._supervisor.find(check_id(session_id))
        self._supervisor.check_open()
        if actor is not None and actor.record is not None:
            await trio.lowlevel.checkpoint()
            return actor.view()
        store = await self._reader()
        record = await store.record(session_id) if store is not None else None
        if record is None:
            raise self._supervisor.not_found(session_id)
        return view_of(record, live=actor is not None, active=actor is not None and actor.turn_runs)

    async def list(
        self,
        *,
        offset: int = 0,
        limit: int = 50,
        labels: Mapping[str, str] | None = None,
        include_archived: bool = False,
    ) -> SessionPage:
        """See SessionService."""
        check_page(offset, limit)
        wanted = check_labels(labels)
        self._supervisor.check_open()
        store = await self._reader()
        if store is not None:
            records = await store.list(offset=offset, limit=limit, labels=wanted, include_archived=include_archived)
            return SessionPage(tuple(map(self._summary, records)))
        await trio.lowlevel.checkpoint()
        return SessionPage(tuple(_newest(self._supervisor.loaded(), wanted, offset, limit)))

    async def history(self, session_id: str, *, offset: int = 0, limit: int = 100) -> HistoryPage:
        """See SessionService."""
        check_page(offset, limit)
        view = await self.read(session_id)
        store = await self._reader()
        if store is None:
            actor = self._supervisor.find(session_id)
            if actor is None:
                raise self._supervisor.not_found(session_id)
            return actor.history(offset, limit)
        rows, total = await store.messages(session_id, offset=offset, limit=limit)
        if not total and view.state.message_count:
            raise self._supervisor.not_found(session_id)  # deleted between the two reads
        moved = await store.compactions(session_id, offset=offset, limit=limit)
        return HistoryPage(session_id, tuple(map(_entry, rows)), offset, total, tuple(moved))

    async def resume(self, session_id: str) -> SessionView:
        """See SessionService."""
        self._supervisor.check_open()
        self._supervisor.check_open()
        if self._supervisor.find(check_id(session_id)) is None and self._supervisor.shared.storage is None:
            raise _no_store("only live sessions can be resumed")
        actor = self._supervisor.revive(session_id)
        record = await actor.mailbox.ask(Loaded())
        if record.archived:
            problem = "the session is archived: it can be read, not continued"
            raise SessionNotFoundError(problem, session_id=session_id, cause="archived")
        return view_of(record, live=True, active=actor.turn_runs)

    @asynccontextmanager
    async def subscribe(
        self, session_id: str, *, after_seq: int | None = None
    ) -> AsyncIterator[AsyncIterator[Envelope]]:
        """See SessionService."""
        actor = self._supervisor.revive(check_id(session_id))
        log = actor.log
        subscription = Subscription(log, 0, self._supervisor.shared.config.limits.subscription)
        log.attach(subscription)  # before the wait: a stream that nobody watches is forgotten when its actor ends
        try:
            await actor.mailbox.ask(Loaded())
            subscription.cursor = log.last_seq if after_seq is None else check_cursor(log, after_seq)
            yield subscription
        finally:
            log.detach(subscription)
            self._supervisor.release(session_id)

    async def search_memory(
        self,
        query: str,
        *,
        session_id: str | None = None,
        scope: Literal["session", "project"] = "session",
        limit: int = 5,
    ) -> tuple[MemoryHit, ...]:
        """See SessionService."""
        check_search(query, session_id, scope, limit)
        self._supervisor.check_open()
        memory = self._supervisor.shared.memory
        if memory is None:
            raise MemoryDisabledError("semantic memory is disabled: the runtime was started without it")
        within = session_id if scope == "session" else None
        return tuple(await memory.search(query, limit=limit, session_id=within))

    # -- endings

    async def archive(self, session_id: str) -> None:
        """See SessionService."""
        await self._supervisor.revive(check_id(session_id)).mailbox.ask(Retire("archive"))

    async def delete(self, session_id: str) -> None:
        """See SessionService."""
        storage = self._supervisor.shared.storage
        if storage is None:
            self._supervisor.check_open()
            raise _no_store("nothing is stored that could be deleted")
        try:
            await self._supervisor.revive(check_id(session_id)).mailbox.ask(Retire("delete"))
        except (SessionNotFoundError, StoreError):
            if self._supervisor.find(session_id) is not None:
                raise  # its actor lives, and must not be robbed of its rows
            # Deleted before, which is fine, or damaged so that no actor can load it.
            await storage.write(Delete(session_id))
            if (memory := self._supervisor.shared.memory) is not None:
                await memory.forget(session_id)

    def capabilities(self) -> Capabilities:
        """See SessionService."""
        shared = self._supervisor.shared
        return Capabilities(
            session_store=shared.storage is not None,
            session_compaction=shared.config.compaction is not None,
            memory_store=shared.memory is not None,
        )

    def health(self) -> Health:
        """See SessionService."""
        supervisor = self._supervisor
        storage = supervisor.shared.storage
        store = None if storage is None else storage.last_error or "ok"
        degraded = supervisor.stopping or store not in (None, "ok")
        return Health(
            "degraded" if degraded else "ok",
            supervisor.live,
            supervisor.running,
            supervisor.shared.config.limits.max_sessions,
            store,
        )

    async def _reader(self) -> "Store | None":
        storage = self._supervisor.shared.storage
        return await storage.reader() if storage is not None else None

    def _summary(self, record: SessionRecord) -> SessionSummary:
        actor = self._supervisor.find(record.session_id)
        if actor is not None and actor.record is not None:
            return actor.summary()
        return summary_of(record, live=actor is not None, active=actor is not None and actor.turn_runs)


def _newest(actors: Iterable[SessionActor], labels: Mapping[str, str], offset: int, limit: int) -> list[SessionSummary]:
    """Return one page of the sessions that carry the labels, in the order of `list`."""
    summaries = (actor.summary() for actor in actors)
    matching = (summary for summary in summaries if labels.items() <= summary.labels.items())
    return heapq.nsmallest(offset + limit, matching, key=_newest_first)[offset:]


def _newest_first(summary: SessionSummary) -> tuple[float, str]:
    return -summary.updated_at.timestamp(), summary.session_id


def _entry(row: MessageRow) -> HistoryEntry:
    try:
        return HistoryEntry(row.position, row.created_at, codec.decode_message(row.body))
    except ValueError as exc:
        raise StoreError(f"message {row.position}: {exc}", cause="corrupt", retryable=False) from exc


def _no_compaction() -> CompactionDisabledError:
    return CompactionDisabledError("session compaction is disabled: the runtime was started without it")


def _no_store(problem: str) -> PersistenceDisabledError:
    return PersistenceDisabledError(f"session persistence is disabled: {problem}")
