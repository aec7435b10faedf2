"""The service of a runtime: each call is checked against the rights of its caller, and then goes to its handler."""

from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, cast

import attrs
import trio

from warren.actors.calls.handlers import HANDLERS, Handler
from warren.actors.calls.history import INTERVAL, LoadHistory, shown
from warren.actors.calls.incoming import opened
from warren.actors.calls.local import Local, OfSession
from warren.actors.calls.measuring import metrics_of
from warren.actors.events.eventlog import EventLog
from warren.actors.events.watching import Watch
from warren.actors.observe.metrics import LoopLag
from warren.actors.protocol import Loaded, TakeOver
from warren.actors.resources.projector import ProjectorActor
from warren.actors.supervision import background
from warren.agents.agent import Agent
from warren.agents.hooks import Hooks
from warren.base.end_budget import EndBudget
from warren.base.errors import PersistenceDisabledError
from warren.base.fields import FieldValueError
from warren.base.principals import METRICS, READ, WRITE, Principal, Scope, check_right, lacks
from warren.base.values import define
from warren.calls.base import Call, made
from warren.calls.facade import Capabilities, Health, Opened, RuntimeService
from warren.calls.handle import Session
from warren.calls.operators import DrainRequest
from warren.calls.reading import SubscribeRequest, WatchRequest
from warren.calls.streams import EventReader
from warren.calls.turn_stream import StreamedTurn, TurnStream
from warren.calls.turns import SessionCall, TurnCall
from warren.conversation.categories import CATEGORIES
from warren.conversation.triggers import SignedCall
from warren.reports.audit import AuditEntry
from warren.reports.health import Status, worst
from warren.reports.metrics import History, Metrics
from warren.reports.statistics import RuntimeStatistics, SessionStatistics
from warren.settings.config import PostgresConfig
from warren.storage.queries import LostEvents, SessionRow, SessionStart
from warren.storage.rows import SEQ_STRIDE

if TYPE_CHECKING:
    from warren.storage.results import Lost

R = TypeVar("R")
BEARER = "completion token"
"""The name of the principal whose only credential is the completion token of a tool call."""
SHOWN = 100
"""Characters of the session's id, or the node's name, in a refused call that the audit has."""


@define(eq=False)
class Service(RuntimeService):
    """The sessions of one runtime, for one caller; the promise of each method is that of `RuntimeService`.

    Attributes:
        local: the sessions, for the handlers of calls.
    """

    local: Local = attrs.field(repr=False)  # the actors know one another: it would never end
    _loop: LoopLag = attrs.field(repr=False)
    _history: LoadHistory = attrs.field(repr=False)
    _projector: ProjectorActor | None = attrs.field(default=None, repr=False)

    @property
    def principal(self) -> Principal:
        """The principal of all calls: they have its rights, and find its tenant's sessions."""
        return self.local.principal

    def as_(self, principal: Principal) -> Self:
        return attrs.evolve(self, local=attrs.evolve(self.local, principal=principal))

    # -- calls

    def perform(self, call: Call[R]) -> Coroutine[Any, Any, R]:
        """Carry a call out by its handler, if the caller has its scope and finds its session.

        A session of another tenant is not found, in the same way as an unknown one: by one look-up in the store. A
        live session of the tenant costs no wait. Raises RuntimeError in another event loop than the runtime's.
        """
        facts, local = call.facts, self.local
        local.supervisor.check_loop()
        if facts.scope is not None and facts.scope not in local.principal.scopes:  # `allows`, without its call
            return self._denied(call, facts.scope)
        handler = HANDLERS[type(call)]
        if not facts.finds or local.has_live(call.session_id):  # type: ignore[attr-defined] # all that are found have one
            return handler(local, call)
        return self._found(handler, call)

    def allows(self, call: Call[Any]) -> bool:
        """Return whether the caller has the scope of a call."""
        scope = call.facts.scope
        return scope is None or scope in self.principal.scopes

    async def _found(self, handler: Handler, call: Call[R]) -> R:
        await self.local.find_for(cast("OfSession", call))
        result: R = await handler(self.local, call)
        return result

    async def _denied(self, call: Call[Any], scope: Scope) -> NoReturn:
        """Raise PermissionDeniedError; the audit has an entry if calls of that class are audited."""
        local = self.local
        if isinstance(call, DrainRequest):
            local.note(attrs.evolve(local.drain_entry(call.name[:SHOWN]), outcome="refused"))
        elif call.audited is not None:
            session_id: str | None = getattr(call, "session_id", None)
            shown_id = None if session_id is None else session_id[:SHOWN]  # as the caller has written it
            local.note(attrs.evolve(local.entry(call.audited, shown_id), outcome="refused"))
        raise lacks(scope)

    def session(
        self,
        agent: Agent[Any] | str | None = None,
        *,
        id: str | None = None,  # noqa: A002 - as a session's attribute is named
        labels: Mapping[str, str] | None = None,
        title: str | None = None,
        hooks: Sequence[Hooks] = (),
    ) -> Session:
        if isinstance(agent, Agent):
            shared = self.local.supervisor.shared
            shared.agents.add(agent, shared.providers)
        return super().session(agent, id=id, labels=labels, title=title, hooks=hooks)

    # -- events and changes

    @asynccontextmanager
    async def stream(self, call: SessionCall | TurnCall) -> AsyncIterator[TurnStream]:
        self.local.supervisor.check_loop()
        turn = StreamedTurn(call, self.perform, self.subscribe, trio.Event)
        async with background(turn.run), turn.opened() as events:
            yield events

    @asynccontextmanager
    async def subscribe(self, session_id: str, *, after_seq: int | None = None) -> AsyncIterator[EventReader]:
        reader = await self.follow(session_id, after_seq=after_seq)
        try:
            yield reader
        finally:
            reader.close()

    async def follow(self, session_id: str, *, after_seq: int | None = None) -> EventReader:
        """Return the reader of a subscription, for a caller that closes it itself. Raises as `subscribe` does."""
        made(SubscribeRequest, session_id, after_seq=after_seq)
        check_right(self.principal, READ)
        supervisor = self.local.supervisor
        supervisor.check_loop()
        supervisor.check_open()
        if after_seq is not None and not supervisor.shared.storage.durable:
            await self._check_here(session_id)
        if not self.local.has_live(session_id):
            await self.local.find(session_id)
        actor = supervisor.revive(session_id)
        reader = actor.log.read()  # before the wait: a log without readers is dropped when its actor ends
        try:
            await actor.mailbox.ask(Loaded())
            await self.place(actor.log, reader, after_seq)
        except BaseException:
            reader.close()
            raise
        return reader

    async def _check_here(self, session_id: str) -> None:
        """Raise PersistenceDisabledError if the session is not in this process: only a store could have it."""
        if await self.local.read(SessionRow(session_id, self.principal.tenant)) is None:
            problem = "only events of sessions of this process can be replayed"
            raise PersistenceDisabledError(f"session persistence is disabled: {problem}")

    async def place(self, log: EventLog, reader: EventReader, after_seq: int | None) -> None:
        """Move the reader of a new subscription to its beginning. Raises InvalidParamsError, StoreError."""
        if after_seq is not None and after_seq > max(log.last_seq, log.bound):
            # What is known here may be old: another process may have gone on with the session.
            stored = await self.local.read(SessionStart(log.session_id))
            log.bound = max(log.bound, 0 if stored is None else stored.seq_floor)
        if after_seq is not None and after_seq > max(log.last_seq, log.bound):
            if self.local.supervisor.shared.storage.went_back_at is None or after_seq > log.last_seq + SEQ_STRIDE:
                raise FieldValueError("after_seq", f"must be from 0 to {log.last_seq}, the log's end").refusal()
            reader.cursor = after_seq
            log.doubt_place(reader)
            return
        reader.cursor = log.last_seq if after_seq is None else after_seq
        if after_seq and not log.has(after_seq):  # else its turn is known here
            await self._look_for_lost_turn(log, reader, after_seq)

    async def _look_for_lost_turn(self, log: EventLog, reader: EventReader, after_seq: int) -> None:
        """Have a reader told of the end of the turn whose beginning it saw, if the turn dies or has died unstored."""
        session_id = log.session_id
        lost = await self._lost(session_id, after_seq)
        if lost is None and after_seq <= log.last_seq:  # it is stored
            return
        log.expect_lost(reader, self._lost)
        if lost is not None and not lost.final:
            # Its process may only hang. Without the lease it stores nothing below the numbers that the reader waits
            # for. If it lives, or if another process was faster, the reader is told once the log goes on above them.
            await self.local.supervisor.mailbox(session_id).ask(TakeOver())

    async def _lost(self, session_id: str, seq: int) -> "Lost | None":
        return await self.local.read(LostEvents(session_id, self.principal.tenant, seq))

    @asynccontextmanager
    async def watch(
        self, *, labels: Mapping[str, str] | None = None, include_archived: bool = False
    ) -> AsyncIterator[Watch]:
        wanted = made(WatchRequest, labels=labels, include_archived=include_archived)
        check_right(self.principal, READ)
        self.local.supervisor.check_loop()
        self.local.supervisor.check_open()
        watch, watchers = Watch(wanted, self.principal.tenant, self.local.summary), self.local.supervisor.watchers
        watchers.add(watch)
        for handle in self.local.supervisor.registry:
            record = None if handle.actor is None or not handle.actor.turn_runs else handle.actor.record
            if record is not None and record.tenant == watch.tenant:
                watch.changed(record.session_id, record, leaves=False)
        await trio.lowlevel.checkpoint()
        try:
            yield watch
        finally:
            watchers.remove(watch)

    def note(self, entry: AuditEntry) -> None:
        self.local.note(entry)

    # -- the runtime

    async def drain(self) -> None:
        self.local.supervisor.check_loop()
        await self.local.supervisor.drain()

    async def stop(self, budget: EndBudget | None = None) -> None:
        self.local.supervisor.check_loop()
        await self.local.supervisor.stop(budget)

    def capabilities(self) -> Capabilities:
        shared = self.local.supervisor.shared
        return Capabilities(
            session_store=shared.storage.durable,
            session_compaction=shared.config.compaction is not None,
            memory_store=shared.memory.works,
            tools={name: shared.switch_of(name) for name in CATEGORIES},
        )

    async def bearer(self, token: str) -> Principal:
        completions = self.local.supervisor.shared.completions
        try:
            claims = (await completions.key()).verified(token)
        except FieldValueError as exc:
            raise exc.refusal() from None
        return Principal(claims.tenant, BEARER, frozenset({WRITE}))

    async def opened(self, call: SignedCall) -> Opened:
        self.local.supervisor.check_open()
        return await opened(self.local, call)

    @property
    def ready(self) -> bool:
        return not self.local.supervisor.scheduler.closed and self.local.supervisor.shared.storage.answers

    def health(self) -> Health:
        scheduler, shared = self.local.supervisor.scheduler, self.local.supervisor.shared
        store, place = shared.storage.health(), shared.config.store
        if store is not None and place is not None:
            store = attrs.evolve(store, kind="database" if isinstance(place, PostgresConfig) else "file")
        projector = self._projector.health() if self._projector is not None else None
        memory = shared.memory.health()
        loop = self._loop.health()
        mcp = () if shared.servers is None else tuple(shared.servers.health())
        tools = shared.counters.left_out.health()
        of_parts = [part.status for part in (store, projector, memory, loop, *mcp, *tools) if part is not None]
        turns: Status = "degraded" if scheduler.restricted else "ok"
        return Health(
            status=worst(turns, *of_parts),
            live_sessions=len(scheduler.live),
            running_turns=len(scheduler.running),
            parked_turns=self.local.supervisor.parked_turns,
            waiting_turns=self.local.supervisor.waiting_turns,
            max_sessions=shared.config.limits.max_sessions,
            store=store,
            projector=projector,
            memory=memory,
            mcp=mcp or None,
            tools=tools or None,
            loop=loop,
        )

    def statistics(self) -> RuntimeStatistics:
        return self.local.supervisor.statistics()

    def load(self) -> History:
        return shown(self.load_for_nodes())

    def load_for_nodes(self) -> History:
        """Return the load as `load` does, with the buckets by which other nodes add it up."""
        check_right(self.principal, METRICS)
        return History(INTERVAL, tuple(self._history.samples))

    def metrics(self) -> Metrics:
        check_right(self.principal, METRICS)
        return metrics_of(self.local.supervisor, self._loop, self.health())

    def session_statistics(self, session_id: str) -> SessionStatistics | None:
        """Return the figures of a session at this moment; None if it is not live. Never waits."""
        actor = self.local.supervisor.find(session_id)
        if actor is None:
            return None
        return SessionStatistics(
            turn_runs=actor.turn_runs,
            mailbox_messages=actor.mailbox.statistics().waiting,
            waiting_inputs=len(actor.conversation.inbox.shown()),
            last_seq=actor.log.last_seq,
            subscriptions=actor.log.subscriptions,
        )
