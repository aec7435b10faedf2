"""The methods of `SessionService` that read: sessions, histories, events, the memory, health."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import attrs
import trio

from warren.actors.calls import tenants
from warren.actors.calls.access import check_right, check_scope, guarded, scoped
from warren.actors.calls.checking import StoreChecks
from warren.actors.calls.history import INTERVAL, LoadHistory, shown
from warren.actors.calls.measuring import metrics_of
from warren.actors.calls.seen import context_of
from warren.actors.eventlog import LogReader
from warren.actors.observe.metrics import LoopLag
from warren.actors.projector import ProjectorActor
from warren.actors.protocol import Loaded, TakeOver
from warren.actors.session.comms import Comms
from warren.actors.session.inboxes import Inboxes
from warren.actors.supervisor.supervisor import Supervisor
from warren.actors.watching import Watch
from warren.base.errors import SessionNotFoundError
from warren.base.fields import FieldValueError
from warren.base.nodes import Node, not_drained
from warren.base.principals import LOCAL, Principal, Scope
from warren.base.values import define
from warren.calls.keywords import keywords_of, made
from warren.calls.requests import (
    AttachmentRequest,
    DrainRequest,
    HistoryRequest,
    ListRequest,
    SearchRequest,
    SessionRef,
    SubscribeRequest,
    UsageRequest,
    WatchRequest,
)
from warren.calls.service import Capabilities, EventReader, Health
from warren.calls.tenants import TenantsPage, TenantsRequest
from warren.conversation import codec
from warren.conversation.attachments import AttachmentContent
from warren.conversation.categories import CATEGORIES, Answer
from warren.conversation.inputs import Input
from warren.conversation.memory import MemoryHit
from warren.conversation.peers import PeerInfo
from warren.conversation.records import PARTS, MessageRow, SessionRecord, Span, has_part, within
from warren.conversation.views import (
    ContextView,
    HistoryEntry,
    HistoryPage,
    SessionPage,
    SessionSummary,
    SessionView,
    summary_of,
    view_of,
)
from warren.reports.audit import Action, AuditEntry, AuditPage, AuditRequest, Outcome
from warren.reports.health import Status, worst
from warren.reports.ledger import UsageReport, report_of
from warren.reports.metrics import History, Metrics
from warren.reports.reports import StoreReport
from warren.reports.statistics import RuntimeStatistics, SessionStatistics
from warren.settings.config import PostgresConfig
from warren.storage import not_found
from warren.storage.queries import (
    ANY_TENANT,
    AttachmentBytes,
    AuditEntries,
    HasSession,
    LedgerSums,
    LivingNodes,
    LostEvents,
    Query,
    SessionList,
    SessionRow,
    SessionStart,
    StoredAttachment,
    StoredHistory,
    WaitingInputs,
)
from warren.storage.rows import SEQ_STRIDE

if TYPE_CHECKING:
    from warren.storage.results import Lost


R = TypeVar("R")
OFF_THE_LOOP: Final = 256 * 1024
"""Bytes of messages from which on a thread reads them."""


def _entries(rows: Sequence[MessageRow], left_out: Sequence[Span], end: int) -> tuple[HistoryEntry, ...]:
    gone = within(left_out, 0, end)
    parts = [(part, within(left_out, 0, end, part)) for part in PARTS] if left_out else []
    entries = list[HistoryEntry]()
    for row in rows:
        message = codec.decode_message(row.body)
        part = next((part for part, places in parts if row.position in places and has_part(message, part)), None)
        entries.append(HistoryEntry(row.position, row.created_at, message, row.position in gone, part))
    return tuple(entries)


class _Nobody:
    """A session that is in no process: its record is nobody's."""

    tenant: Final = ""

    @property
    def record(self) -> Self:
        """The record."""
        return self


_NOBODY: Final = _Nobody()

ACROSS: Final[Scope] = "tenant:admin"
"""The scope of reads of other tenants' data."""
SHOWN: Final = 100
"""Characters of the session's id, or the node's name, in a refused call that the audit has."""
AUDITED: Final[Mapping[str, Action]] = {
    "create_session": "create",
    "fork": "fork",
    "archive": "archive",
    "delete": "delete",
    "forget_memory": "forget",
    "interrupt": "interrupt",
    "audit": "read",
}
"""The actions of methods whose refusals are entries of the audit, besides `approve_tool` and `drain_node`."""


def action_of(decision: Answer) -> Action:
    """Return the action of a decision about a tool call."""
    return "approve" if decision == "allow" else "deny"


@define(eq=False)
class Reads:
    """The reading half of the service; each method's promise is written down in `warren.calls.service.SessionService`.

    Attributes:
        principal: the caller: all calls have its rights, and find its tenant's sessions.
    """

    _supervisor: Supervisor
    _loop: LoopLag
    _history: LoadHistory
    _projector: ProjectorActor | None = None
    principal: Principal = LOCAL
    _checks: StoreChecks = attrs.field(factory=StoreChecks)  # one for all principals

    @property
    def _comms(self) -> Comms:
        return self._supervisor.comms

    @property
    def _inboxes(self) -> Inboxes:
        return self._supervisor.inboxes

    def as_(self, principal: Principal) -> Self:
        """See RuntimeService."""
        return attrs.evolve(self, principal=principal)

    # -- whose a session is

    def has_live(self, session_id: str) -> bool:
        """Return whether a live session is known to be the tenant's. Never waits."""
        # As much work for a session that is not here as for one of another tenant: no caller can tell them apart.
        record = (self._supervisor.find(session_id) or _NOBODY).record
        return record is not None and record.tenant == self.principal.tenant

    async def find(self, session_id: str) -> None:
        """Raise SessionNotFoundError if a session is not the tenant's, or there is none.

        A session that was deleted is found, so that it can be deleted again; all other methods refuse it.
        """
        self._supervisor.check_open()
        if not await self._ask(HasSession(session_id, self.principal.tenant)):
            raise not_found(session_id)

    @keywords_of(SessionRef)
    @guarded
    async def read(self, session: SessionRef) -> SessionView:
        """See SessionService."""
        return await self._view(session.session_id)

    async def _view(self, session_id: str) -> SessionView:
        self._supervisor.check_open()
        actor = self._supervisor.find(session_id)
        if actor is not None and actor.current:
            await trio.lowlevel.checkpoint()
            return actor.view()
        record = await self._ask(SessionRow(session_id, self.principal.tenant))
        if record is None:
            raise not_found(session_id)
        return view_of(record, live=self._supervisor.is_live(actor), active=actor is not None and actor.turn_runs)

    @keywords_of(ListRequest)
    @scoped
    async def list(self, wanted: ListRequest) -> SessionPage:
        """See SessionService."""
        self._supervisor.check_open()
        page = wanted.offset, wanted.limit, wanted.labels or {}, wanted.include_archived
        records = await self._ask(SessionList(self.principal.tenant, *page))
        return SessionPage(tuple(map(self._summary, records)), tuple(records.damaged))

    @keywords_of(HistoryRequest)
    @guarded
    async def history(self, wanted: HistoryRequest) -> HistoryPage:
        """See SessionService."""
        session_id, offset = wanted.session_id, wanted.offset
        view = await self._view(session_id)
        page = await self._ask(StoredHistory(session_id, self.principal.tenant, offset, wanted.limit))
        if not page.total and view.state.message_count:
            raise not_found(session_id)  # deleted between the two reads
        large = sum(len(row.body) for row in page.rows) > OFF_THE_LOOP
        made = partial(_entries, page.rows, page.left_out, offset + len(page.rows))
        entries = await trio.to_thread.run_sync(made) if large else made()
        damaged = (*page.rows.damaged, *page.compactions.damaged)
        return HistoryPage(session_id, entries, offset, page.total, tuple(page.compactions), page.kept_from, damaged)

    @keywords_of(AttachmentRequest)
    @guarded
    async def attachment(self, wanted: AttachmentRequest) -> AttachmentContent:
        """See SessionService."""
        self._supervisor.check_open()
        of = wanted.session_id, self.principal.tenant, wanted.sha256
        found = await self._ask(StoredAttachment(*of))
        data = None if found is None else await self._ask(AttachmentBytes(*of, 0, found.size))
        if found is None or data is None:
            await self._view(wanted.session_id)  # says it if the session is gone
            raise FieldValueError("sha256", "is that of no attachment of the session").refusal()
        return AttachmentContent(found, data)

    @keywords_of(SessionRef)
    @guarded
    async def context(self, session: SessionRef) -> ContextView:
        """See SessionService."""
        session_id = session.session_id
        self._supervisor.check_open()
        actor = self._supervisor.find(session_id)
        known = actor.record if actor is not None and actor.current else None
        record = known or await self._ask(SessionRow(session_id, self.principal.tenant))
        if record is None:
            raise not_found(session_id)
        return await context_of(self._supervisor, record)

    @keywords_of(SessionRef)
    @guarded
    async def resume(self, session: SessionRef) -> SessionView:
        """See SessionService."""
        session_id = session.session_id
        self._supervisor.check_open()
        actor = self._supervisor.revive(session_id)
        record = await actor.mailbox.ask(Loaded())
        if record.archived:
            problem = "the session is archived: it can be read, not continued"
            raise SessionNotFoundError(problem, session_id=session_id, cause="archived")
        return view_of(record, live=True, active=actor.turn_runs)

    @asynccontextmanager
    async def subscribe(self, session_id: str, *, after_seq: int | None = None) -> AsyncIterator[EventReader]:
        """See SessionService."""
        reader = await self.follow(session_id, after_seq=after_seq)
        try:
            yield reader
        finally:
            reader.close()

    async def follow(self, session_id: str, *, after_seq: int | None = None) -> LogReader:
        """Return the reader of a subscription, for a caller that closes it itself. Raises as `subscribe` does."""
        made(SubscribeRequest, session_id, after_seq=after_seq)
        check_scope(self.principal, "subscribe")
        supervisor = self._supervisor
        supervisor.check_open()
        if not self.has_live(session_id):
            await self.find(session_id)
        actor = supervisor.revive(session_id)
        reader = actor.log.read()  # before the wait: a log without readers is dropped when its actor ends
        try:
            await actor.mailbox.ask(Loaded())
            await self.place(reader, after_seq)
        except BaseException:
            reader.close()
            raise
        return reader

    async def place(self, reader: LogReader, after_seq: int | None) -> None:
        """Move the reader of a new subscription to its beginning. Raises InvalidParamsError, StoreError."""
        log = reader.log
        if after_seq is not None and after_seq > max(log.last_seq, log.bound):
            # What is known here may be old: another process may have gone on with the session.
            stored = await self._ask(SessionStart(log.session_id))
            log.bound = max(log.bound, 0 if stored is None else stored.seq_floor)
        if after_seq is not None and after_seq > max(log.last_seq, log.bound):
            if self._supervisor.shared.storage.went_back_at is None or after_seq > log.last_seq + SEQ_STRIDE:
                raise FieldValueError("after_seq", f"must be from 0 to {log.last_seq}, the log's end").refusal()
            reader.cursor = after_seq
            reader.doubt()
            return
        reader.cursor = log.last_seq if after_seq is None else after_seq
        if after_seq and not log.has(after_seq):  # else its turn is known here
            await self._look_for_lost_turn(reader, after_seq)

    async def _look_for_lost_turn(self, reader: LogReader, after_seq: int) -> None:
        """Have a reader told of the end of the turn whose beginning it saw, if the turn dies or has died unstored."""
        session_id = reader.session_id
        lost = await self._lost(session_id, after_seq)
        if lost is None and after_seq <= reader.log.last_seq:  # it is stored
            return
        reader.find_lost = self._lost
        if lost is not None and not lost.final:
            # Its process may only hang. Without the lease it stores nothing below the numbers that the reader waits
            # for. If it lives, or if another process was faster, the reader is told once the log goes on above them.
            await self._supervisor.mailbox(session_id).ask(TakeOver())

    async def _lost(self, session_id: str, seq: int) -> "Lost | None":
        return await self._ask(LostEvents(session_id, self.principal.tenant, seq))

    @asynccontextmanager
    async def watch(
        self, *, labels: Mapping[str, str] | None = None, include_archived: bool = False
    ) -> AsyncIterator[Watch]:
        """See SessionService."""
        wanted = made(WatchRequest, labels=labels, include_archived=include_archived)
        check_scope(self.principal, "watch")
        self._supervisor.check_open()
        watch, watchers = Watch(wanted, self.principal.tenant, self._summary), self._supervisor.watchers
        watchers.add(watch)
        for handle in self._supervisor.registry:
            record = None if handle.actor is None or not handle.actor.turn_runs else handle.actor.record
            if record is not None and record.tenant == watch.tenant:
                watch.changed(record.session_id, record, leaves=False)
        await trio.lowlevel.checkpoint()
        try:
            yield watch
        finally:
            watchers.remove(watch)

    @keywords_of(UsageRequest)
    @scoped
    async def usage(self, wanted: UsageRequest) -> UsageReport:
        """See SessionService."""
        self._supervisor.check_open()
        if wanted.all_tenants:
            self._check_across()
        tenant = ANY_TENANT if wanted.all_tenants else self.principal.tenant
        sums = await self._ask(LedgerSums(tenant, wanted.by, wanted.since, wanted.until))
        return report_of(wanted.by, sums, wanted.offset, wanted.limit)

    @keywords_of(TenantsRequest)
    @scoped
    async def tenants(self, wanted: TenantsRequest) -> TenantsPage:
        """See SessionService."""
        self._supervisor.check_open()
        if wanted.all_tenants:
            self._check_across()
        return await tenants.report(self._supervisor, wanted, self.principal.tenant)

    @keywords_of(SearchRequest)
    @scoped
    async def search_memory(self, wanted: SearchRequest) -> tuple[MemoryHit, ...]:
        """See SessionService."""
        self._supervisor.check_open()
        return tuple(await self._supervisor.shared.memory.search(wanted, self.principal.tenant))

    @keywords_of(SessionRef)
    @guarded
    async def inputs(self, session: SessionRef) -> tuple[Input, ...]:
        """See SessionService."""
        session_id = session.session_id
        await self._view(session_id)
        stored = await self._ask(WaitingInputs(session_id, self.principal.tenant))
        actor = self._supervisor.find(session_id)
        # The store lists the inputs that a running turn has taken until that turn is stored.
        return tuple(each.input for each in stored if actor is None or actor.conversation.inbox.may_take(each.number))

    @keywords_of(SessionRef)
    @guarded
    async def peers(self, session: SessionRef) -> tuple[PeerInfo, ...]:
        """See SessionService."""
        return tuple(await self._comms.peers(await self._record(session.session_id)))

    # -- the audit

    @keywords_of(AuditRequest)
    @scoped
    async def audit(self, wanted: AuditRequest) -> AuditPage:
        """See SessionService."""
        self._supervisor.check_open()
        if wanted.all_tenants:
            self._check_across()
        await self._supervisor.shared.auditor.settle()
        return await self._ask(AuditEntries(ANY_TENANT if wanted.all_tenants else self.principal.tenant, wanted))

    def _check_across(self) -> None:
        """Add a read of all tenants to the audit. Raises PermissionDeniedError if the caller may not read them."""
        outcome: Outcome = "done" if ACROSS in self.principal.scopes else "refused"
        self.note(attrs.evolve(self._entry("read", tenant="*"), outcome=outcome))
        check_right(self.principal, ACROSS)

    def note(self, entry: AuditEntry) -> None:
        """See RuntimeService."""
        self._supervisor.shared.auditor.note(entry)

    def note_denied(self, method: str, value: Any) -> None:
        """See Bound."""
        self._supervisor.check_loop()
        action = action_of(value.decision) if method == "approve_tool" else AUDITED.get(method)
        if isinstance(value, DrainRequest):
            self.note(attrs.evolve(self._drain(value.name[:SHOWN]), outcome="refused"))
        elif action is not None:
            session_id: str | None = getattr(value, "session_id", None)
            shown = None if session_id is None else session_id[:SHOWN]  # as the caller has written it
            self.note(attrs.evolve(self._entry(action, shown), outcome="refused"))

    def _drain(self, name: str) -> AuditEntry:
        """Return the entry of a drain: nodes are of no tenant, so it is in the caller's own, wherever it works now."""
        tenant, who = self.principal.token
        return attrs.evolve(self._entry("drain", node=name), tenant=tenant, who=who, by="principal")

    def _entry(self, action: Action, session_id: str | None = None, **details: str) -> AuditEntry:
        """Return the entry of an action of the caller, which is done now."""
        return self._supervisor.shared.auditor.entry(self.principal, action, session_id, **details)

    # -- the nodes

    async def nodes(self) -> tuple[Node, ...]:
        """See SessionService."""
        check_scope(self.principal, "nodes")
        self._supervisor.check_open()
        return tuple(await self._ask(LivingNodes()))

    @keywords_of(DrainRequest)
    @scoped
    async def drain_node(self, wanted: DrainRequest) -> None:
        """See SessionService."""
        self._supervisor.check_open()
        store = await self._supervisor.shared.storage.reader()
        if not await store.ask_to_drain(wanted.name):
            raise FieldValueError("name", not_drained(wanted.name, await store.read(LivingNodes()))).refusal()
        self.note(self._drain(wanted.name))

    async def check_store(self) -> StoreReport:
        """See SessionService."""
        check_scope(self.principal, "check_store")
        self._supervisor.check_open()
        return await self._checks.run(self._supervisor.shared.config, ids=ACROSS in self.principal.scopes)

    def capabilities(self) -> Capabilities:
        """See SessionService."""
        shared = self._supervisor.shared
        return Capabilities(
            session_store=shared.storage.durable,
            session_compaction=shared.config.compaction is not None,
            memory_store=shared.memory.works,
            tools={name: shared.switch_of(name) for name in CATEGORIES},
        )

    @property
    def ready(self) -> bool:
        """See RuntimeService."""
        return not self._supervisor.scheduler.closed and self._supervisor.shared.storage.answers

    def health(self) -> Health:
        """See SessionService."""
        scheduler, shared = self._supervisor.scheduler, self._supervisor.shared
        store, place = shared.storage.health(), shared.config.store
        if store is not None and place is not None:
            store = attrs.evolve(store, kind="database" if isinstance(place, PostgresConfig) else "file")
        projector = self._projector.health() if self._projector is not None else None
        memory = shared.memory.health()
        loop = self._loop.health()
        mcp = tuple(shared.mcp_health()) if shared.mcp_health is not None else ()
        tools = shared.counters.left_out.health()
        of_parts = [part.status for part in (store, projector, memory, loop, *mcp, *tools) if part is not None]
        turns: Status = "degraded" if scheduler.restricted else "ok"
        return Health(
            status=worst(turns, *of_parts),
            live_sessions=len(scheduler.live),
            running_turns=len(scheduler.running),
            max_sessions=shared.config.limits.max_sessions,
            store=store,
            projector=projector,
            memory=memory,
            mcp=mcp or None,
            tools=tools or None,
            loop=loop,
        )

    def statistics(self) -> RuntimeStatistics:
        """See SessionService."""
        return self._supervisor.statistics()

    def load(self) -> History:
        """See RuntimeService."""
        return shown(self.load_for_nodes())

    def load_for_nodes(self) -> History:
        """Return the load as `load` does, with the buckets by which other nodes add it up."""
        check_scope(self.principal, "load")
        return History(INTERVAL, tuple(self._history.samples))

    def metrics(self) -> Metrics:
        """See RuntimeService."""
        check_scope(self.principal, "metrics")
        return metrics_of(self._supervisor, self._loop, self.health())

    def session_statistics(self, session_id: str) -> SessionStatistics | None:
        """Return the figures of a session at this moment; None if it is not live. Never waits."""
        actor = self._supervisor.find(session_id)
        if actor is None:
            return None
        return SessionStatistics(
            turn_runs=actor.turn_runs,
            mailbox_messages=actor.mailbox.statistics().waiting,
            waiting_inputs=len(actor.conversation.inbox.shown()),
            last_seq=actor.log.last_seq,
            subscriptions=actor.log.subscriptions,
        )

    async def _ask(self, query: Query[R]) -> R:
        return await self._supervisor.shared.storage.read(query)

    async def _record(self, session_id: str) -> SessionRecord:
        """Return a session's record, loaded if need be."""
        return await self._supervisor.mailbox(session_id).ask(Loaded())

    def _summary(self, record: SessionRecord) -> SessionSummary:
        actor, node = self._supervisor.find(record.session_id), self._supervisor.shared.storage.node
        name = None if node is None else node.name
        if actor is not None and actor.current:
            return actor.summary(name)
        active = actor is not None and actor.turn_runs
        return summary_of(record, live=self._supervisor.is_live(actor), active=active, node=name)
