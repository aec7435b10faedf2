"""The service: what hosts and surfaces call. It checks the input, finds the actor, and asks."""

import heapq
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from warren import codec
from warren.actors.checks import (
    check_count,
    check_cursor,
    check_id,
    check_labels,
    check_page,
    check_prompt,
    check_text,
    check_tools,
)
from warren.actors.eventlog import Subscription, utc_now
from warren.actors.messages import Interrupt, Load, Retire, StartTurn
from warren.actors.supervisor import Supervisor
from warren.budget import Budget
from warren.errors import (
    AgentError,
    PersistenceDisabledError,
    SessionNotFoundError,
    SessionNotRunningError,
)
from warren.events import Envelope
from warren.ids import new_session_id
from warren.records import SessionRecord
from warren.service import Capabilities, Health, OnEvent
from warren.storage import Delete, Store
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
            model=check_text(model, "model") or config.model,
            provider=check_text(provider, "provider") or (None if model else config.provider),
            max_tokens=check_count(max_tokens, "max_tokens") or config.max_tokens,
            tools=check_tools(tools, {**shared.tools, **own_tools}),
            labels=check_labels(labels),
            budget=budget or Budget(),
        )
        turn = None if prompt is None else StartTurn(check_prompt(prompt), on_event=on_event)
        prompt_for_system = check_text(system_prompt, "system_prompt") or config.system_prompt
        shared.providers.resolve(record.model, record.provider)
        if turn is not None:
            self._supervisor.check_capacity()
        actor = self._supervisor.spawn(record, prompt_for_system, own_tools)
        if turn is None:
            await actor.mailbox.ask(Load())
            return TurnResult(record.session_id)
        return await self._supervisor.admit(actor, turn).wait()

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
            check_text(model, "model"),
            check_text(provider, "provider"),
            check_count(max_tokens, "max_tokens"),
            budget,
            on_event,
        )
        actor = self._supervisor.revive(check_id(session_id))
        return await self._supervisor.admit(actor, turn).wait()

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

    # -- views

    async def read(self, session_id: str) -> SessionView:
        """See SessionService."""
        actor = self._supervisor.find(check_id(session_id))
        if actor is not None and actor.record is not None:
            await trio.lowlevel.checkpoint()
            return self._view(actor.record)
        store = self._store
        record = await store.record(session_id) if store is not None else None
        if record is None:
            raise self._supervisor.not_found(session_id)
        return self._view(record)

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
        store = self._store
        if store is not None:
            records = await store.list(offset=offset, limit=limit, labels=wanted, include_archived=include_archived)
        else:
            await trio.lowlevel.checkpoint()
            records = _newest(self._supervisor.records(), wanted, offset, limit)
        return SessionPage(tuple(map(self._summary, records)))

    async def history(self, session_id: str, *, offset: int = 0, limit: int = 100) -> HistoryPage:
        """See SessionService."""
        check_page(offset, limit)
        store = self._store
        if store is None:
            return await self._history_in_memory(session_id, offset, limit)
        view = await self.read(session_id)
        rows, total = await store.messages(session_id, offset=offset, limit=limit)
        if not rows and not total and view.state.message_count:
            raise self._supervisor.not_found(session_id)  # deleted between the two reads
        found = [HistoryEntry(row.position, row.created_at, codec.decode_message(row.body)) for row in rows]
        return HistoryPage(session_id, tuple(found), offset, total)

    async def resume(self, session_id: str) -> SessionView:
        """See SessionService."""
        if self._supervisor.find(check_id(session_id)) is None and self._store is None:
            raise _no_store("only live sessions can be resumed")
        record = await self._supervisor.revive(session_id).mailbox.ask(Load())
        if record.archived:
            raise SessionNotFoundError(
                "the session is archived: it can be read, not continued", session_id=session_id, cause="archived"
            )
        return self._view(record)

    @asynccontextmanager
    async def subscribe(
        self, session_id: str, *, after_seq: int | None = None
    ) -> AsyncIterator[AsyncIterator[Envelope]]:
        """See SessionService."""
        log = await self._supervisor.log_of(check_id(session_id))
        cursor = log.last_seq if after_seq is None else check_cursor(log, after_seq)
        subscription = Subscription(log, cursor, self._supervisor.shared.config.limits.subscription)
        log.attach(subscription)
        try:
            yield subscription
        finally:
            log.detach(subscription)
            self._supervisor.release_log(session_id)

    # -- endings

    async def archive(self, session_id: str) -> None:
        """See SessionService."""
        await self._supervisor.revive(check_id(session_id)).mailbox.ask(Retire("archive"))

    async def delete(self, session_id: str) -> None:
        """See SessionService."""
        storage = self._supervisor.shared.storage
        if storage is None:
            raise _no_store("nothing is stored that could be deleted")
        try:
            await self._supervisor.revive(check_id(session_id)).mailbox.ask(Retire("delete"))
        except SessionNotFoundError:
            await storage.write(Delete(session_id))  # fine where it was deleted before

    def capabilities(self) -> Capabilities:
        """See SessionService."""
        return Capabilities(self._store is not None, session_compaction=False, memory_store=False)

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

    @property
    def _store(self) -> Store | None:
        storage = self._supervisor.shared.storage
        return storage.store if storage is not None else None

    def _view(self, record: SessionRecord) -> SessionView:
        actor = self._supervisor.find(record.session_id)
        return view_of(record, live=actor is not None, active=self._supervisor.is_active(record.session_id))

    def _summary(self, record: SessionRecord) -> SessionSummary:
        actor = self._supervisor.find(record.session_id)
        return summary_of(record, live=actor is not None, active=self._supervisor.is_active(record.session_id))

    async def _history_in_memory(self, session_id: str, offset: int, limit: int) -> HistoryPage:
        actor = self._supervisor.find(check_id(session_id))
        await trio.lowlevel.checkpoint()
        if actor is None or actor.record is None:
            raise self._supervisor.not_found(session_id)
        total = actor.record.message_count
        page = range(offset, min(offset + limit, total))
        found = [HistoryEntry(at, actor.times[at], actor.transcript[at]) for at in page]
        return HistoryPage(session_id, tuple(found), offset, total)


def _newest(
    records: Sequence[SessionRecord], labels: Mapping[str, str], offset: int, limit: int
) -> list[SessionRecord]:
    """Return one page of the records that carry the labels, in the order of `list`."""
    wanted = labels.items()
    matching = (record for record in records if wanted <= record.labels.items())
    return heapq.nsmallest(offset + limit, matching, key=_newest_first)[offset:]


def _newest_first(record: SessionRecord) -> tuple[float, str]:
    return -record.updated_at.timestamp(), record.session_id


def _no_store(problem: str) -> PersistenceDisabledError:
    return PersistenceDisabledError(f"session persistence is disabled: {problem}")
