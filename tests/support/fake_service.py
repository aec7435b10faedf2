"""The one fake of `RuntimeService`: turns do whatever a test says, and every call is recorded.

`tests/service` runs it through the suite of the real service. Use it to publish events that no model makes, to fail at
a chosen place, or to see the arguments of a call. A test that needs only a session and its answer opens a runtime.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Self

import attrs
import outcome
import trio

from tests.support.envelopes import NOW, envelope
from warren.actors.eventlog import EventLog, LogPage, Telling
from warren.actors.watching import Watch, Watchers
from warren.base.end_budget import EndBudget
from warren.base.errors import (
    AgentError,
    InvalidParamsError,
    MemoryDisabledError,
    SessionBusyError,
    SessionNotFoundError,
    SessionNotRunningError,
)
from warren.base.nodes import Node, NodeLoad
from warren.base.principals import LOCAL, Principal
from warren.calls.keywords import made
from warren.calls.requests import DrainRequest, WatchRequest
from warren.calls.service import Capabilities, EventReader, Health, OnBegin, OnEvent, RuntimeService
from warren.calls.tenants import TenantsPage
from warren.conversation.attachments import Attachment, AttachmentContent
from warren.conversation.categories import Answer
from warren.conversation.events import Envelope, Event, FailureCause, RunCompleted, RunFailed, RunStarted, TextDelta
from warren.conversation.inputs import Input
from warren.conversation.memory import MemoryHit, ScoreParts
from warren.conversation.peers import PeerInfo
from warren.conversation.records import CompactionEntry, Lifecycle, SessionRecord
from warren.conversation.usage import Usage
from warren.conversation.views import (
    Billing,
    ContextView,
    HistoryPage,
    SessionPage,
    SessionState,
    SessionSummary,
    SessionView,
    TurnResult,
    summary_of,
)
from warren.reports.audit import AuditEntry, AuditPage, AuditRequest
from warren.reports.ledger import UsageReport, report_of
from warren.reports.metrics import History, Metric, Metrics, Series
from warren.reports.reports import StoreReport
from warren.reports.statistics import RuntimeStatistics

ENTRY: Final = CompactionEntry(4, NOW, 6, 8, 3, "they talked", 2)

Behaviour = Callable[["FakeTurn"], Awaitable[None]]


@attrs.define(eq=False)
class FakeTurn:
    """A running turn, as its behaviour sees it.

    Attributes:
        text: the answer of the turn: the prompt, unless the behaviour sets another one.
        begun: whether the turn has begun; until then an interrupt finds no turn.
        scope: the scope of the behaviour; an interrupt cancels it.
        result: the end of the turn, once it has ended.
        ended: set when the turn has ended.
    """

    service: "FakeService"
    session: "FakeSession"
    prompt: str
    on_begin: OnBegin | None
    text: str = attrs.field(default=attrs.Factory(lambda self: self.prompt, takes_self=True))
    begun: bool = False
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    result: outcome.Outcome[TurnResult] | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)

    @property
    def session_id(self) -> str:
        """The session."""
        return self.session.session_id

    def publish(self, event: Event) -> Envelope:
        """Publish an event to all who read the session."""
        return self.session.publish(event)

    def say(self, text: str) -> Envelope:
        """Publish a piece of the answer."""
        return self.publish(TextDelta(text))


@attrs.define(eq=False)
class FakeSession:
    """A session of the fake.

    Attributes:
        log: all events so far.
        events: the same, for readers; nothing is ever dropped.
        turn: the running turn.
        fault: raised when the store is read.
        gone: the store has no events up to this one.
    """

    session_id: str
    labels: dict[str, str] = attrs.field(factory=dict)
    title: str | None = None
    lifecycle: Lifecycle = "live"
    log: list[Envelope] = attrs.field(factory=list)
    events: EventLog = attrs.field(init=False)
    turn: FakeTurn | None = None
    fault: Exception | None = None
    gone: int = 0

    def __attrs_post_init__(self) -> None:
        self.events = EventLog(self.session_id, self._read, self._last_stored, 10_000)

    def publish(self, event: Event) -> Envelope:
        """Publish an event to all who read."""
        made = envelope(self.events.last_seq + 1, event, self.session_id)
        self.log.append(made)
        self.events.publish(made)
        return made

    def store(self, *, gone: int = 0, fault: Exception | None = None) -> None:
        """Have all events so far in the store alone; it has none up to `gone`, and raises `fault` if it is read."""
        self.gone, self.fault = gone, fault
        self.events.forget(self.events.last_seq)
        self.events.begin(max(gone, self.events.last_seq))

    async def _read(self, _session_id: str, after_seq: int) -> LogPage:
        await trio.lowlevel.checkpoint()
        if self.fault is not None:
            raise self.fault
        return LogPage([each for each in self.log if each.seq > max(after_seq, self.gone)], self.gone)

    async def _last_stored(self, _session_id: str, up_to: int) -> int:
        await trio.lowlevel.checkpoint()
        return min(up_to, self.events.last_seq)

    def end_subscriptions(self) -> None:
        """End every subscription behind the events that it already has."""
        self.events.close()

    async def interrupt(self) -> None:
        """End the running turn, if there is one, and wait for its end."""
        if self.turn is not None:
            self.turn.scope.cancel()
            await self.turn.ended.wait()

    def view(self) -> SessionView:
        """Return the answer to `read`; a message is counted for each event that begins or completes a turn."""
        count = sum(isinstance(each.event, RunStarted | RunCompleted) for each in self.log)
        active = self.turn is not None
        state = SessionState(
            self.session_id, NOW, NOW, count, active, None, self.lifecycle, dict(self.labels), "m", title=self.title
        )
        return SessionView(state, Billing(0, Usage()))

    def summary(self) -> SessionSummary:
        """Return the row of `list`."""
        state = self.view().state
        return SessionSummary(
            self.session_id, NOW, NOW, state.message_count, 0, state.is_active, self.lifecycle, self.labels, "m"
        )


async def echo(turn: FakeTurn) -> None:
    """Say the words of the prompt."""
    for word in turn.prompt.split():
        turn.say(word)
        await trio.lowlevel.checkpoint()


def publishing(*events: Event, text: str = "answer") -> Behaviour:
    """Return a behaviour that publishes events, and ends with an answer."""

    async def behaviour(turn: FakeTurn) -> None:
        turn.text = text
        for event in events:
            turn.publish(event)
            await trio.lowlevel.checkpoint()

    return behaviour


def failing(error: Exception) -> Behaviour:
    """Return a behaviour that fails."""

    async def behaviour(_turn: FakeTurn) -> None:
        await trio.lowlevel.checkpoint()
        raise error

    return behaviour


def until_interrupted(*events: Event) -> Behaviour:
    """Return a behaviour that publishes events, and then waits for an interrupt."""

    async def behaviour(turn: FakeTurn) -> None:
        for event in events:
            turn.publish(event)
        await trio.sleep_forever()

    return behaviour


def sessions_of(*session_ids: str) -> dict[str, FakeSession]:
    """Return sessions without a turn, oldest first."""
    return {each: FakeSession(each) for each in session_ids}


def _row(record: SessionRecord) -> SessionSummary:
    return summary_of(record, live=True, active=False)


@attrs.define(eq=False)
class FakeService(RuntimeService):
    """Sessions whose turns do whatever `behaviour` does.

    It does not claim everything: it keeps no transcripts, checks no options, has no inboxes and no peers, and one
    answer stands for all compactions.

    Attributes:
        behaviour: the body of a turn, between its first and its last event. If it raises an Exception, the turn fails.
        on_begin: awaited before a turn begins.
        on_end: awaited behind the last event of a turn, before its result is there.
        on_read: raised by `read`, if there is one.
        on_subscribe: awaited before a subscription begins.
        hits: the result of every search; None is a runtime without memory.
        compaction: the result of every compaction; an exception is raised. None waits for an interrupt.
        can: the capabilities.
        calls: all calls so far: the method and its arguments.
        watchers: those who watch the list: a test tells them of changes.
        entries: the entries of the audit that surfaces have made.
        principals: those that a service was asked for, each once a call of `as_`.
        sessions: all sessions, oldest first: s1 to s3 exist from the start, and `create_session` adds n1, n2 and so on.
    """

    behaviour: Behaviour = echo
    on_begin: Callable[[], Awaitable[object]] | None = None
    on_end: Callable[[], Awaitable[object]] | None = None
    on_read: BaseException | None = None
    on_subscribe: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint
    hits: Sequence[MemoryHit] | None = None
    compaction: CompactionEntry | Exception | None = ENTRY
    can: Capabilities = attrs.field(factory=lambda: Capabilities(False, False, False))
    calls: list[tuple[str, dict[str, Any]]] = attrs.field(factory=list)
    entries: list[AuditEntry] = attrs.field(factory=list)
    principals: list[Principal] = attrs.field(factory=list)
    watchers: Watchers = attrs.field(factory=Watchers)
    sessions: dict[str, FakeSession] = attrs.field(factory=lambda: sessions_of("s1", "s2", "s3"))
    _created: int = 0
    _draining: bool = False
    _stopped: bool = False
    _compacting: trio.CancelScope | None = None

    @property
    def principal(self) -> Principal:
        """Return the last principal that a service was asked for."""
        return self.principals[-1] if self.principals else LOCAL

    def as_(self, principal: Principal) -> Self:
        """Note the principal: there are sessions of one tenant only."""
        self.principals.append(principal)
        return self

    def called(self, method: str) -> list[dict[str, Any]]:
        """Return the arguments of each call of a method."""
        return [arguments for name, arguments in self.calls if name == method]

    def readers(self, session_id: str) -> int:
        """Return how many read a session's events."""
        return self.sessions[session_id].events.subscriptions

    async def create_session(
        self,
        prompt: str | None,
        *,
        on_event: OnEvent | None = None,
        on_begin: OnBegin | None = None,
        **options: Any,
    ) -> TurnResult:
        self.calls.append(("create_session", {"prompt": prompt, **options}))
        self._check_running()
        if prompt is not None:
            self._check_draining()
        self._created += 1
        session = FakeSession(f"n{self._created}", dict(options.get("labels") or {}), options.get("title"))
        self.sessions[session.session_id] = session
        if prompt is None:
            return TurnResult(session.session_id)
        return await self._turn(session, prompt, on_begin if on_event is None else Telling(on_event))

    async def start_turn(
        self,
        session_id: str,
        prompt: str,
        *,
        on_event: OnEvent | None = None,
        on_begin: OnBegin | None = None,
        **options: Any,
    ) -> TurnResult:
        self.calls.append(("start_turn", {"session_id": session_id, "prompt": prompt, **options}))
        session = self._session(session_id)
        if session.lifecycle == "archived":
            raise SessionNotFoundError("the session is archived", session_id=session_id)
        return await self._turn(session, prompt, on_begin if on_event is None else Telling(on_event))

    async def compact(self, session_id: str, *, instructions: str | None = None) -> CompactionEntry:
        self.calls.append(("compact", {"session_id": session_id, "instructions": instructions}))
        self._session(session_id)
        if self.compaction is None:
            with trio.CancelScope() as self._compacting:
                await trio.sleep_forever()
            raise AgentError("the turn was interrupted", session_id=session_id, cause="cancelled")
        if isinstance(self.compaction, Exception):
            raise self.compaction
        return self.compaction

    async def inject_context(self, session_id: str, text: str, **options: Any) -> bool:
        self.calls.append(("inject_context", {"session_id": session_id, "text": text, **options}))
        self._session(session_id)
        return True

    async def inputs(self, session_id: str) -> tuple[Input, ...]:
        self.calls.append(("inputs", {"session_id": session_id}))
        self._session(session_id)
        return ()

    async def withdraw(self, session_id: str, input_id: str) -> None:
        self.calls.append(("withdraw", {"session_id": session_id, "input_id": input_id}))
        self._session(session_id)

    async def send_message(self, session_id: str, to: str, body: str, **options: Any) -> str:
        self.calls.append(("send_message", {"session_id": session_id, "to": to, "body": body, **options}))
        self._session(session_id)
        return "m1"

    async def peers(self, session_id: str) -> tuple[PeerInfo, ...]:
        self.calls.append(("peers", {"session_id": session_id}))
        self._session(session_id)
        return ()

    async def approve_tool(self, session_id: str, call_id: str, decision: Answer, *, reason: str | None = None) -> None:
        self.calls.append(
            ("approve_tool", {"session_id": session_id, "call_id": call_id, "decision": decision, "reason": reason})
        )
        self._session(session_id)

    async def fork(
        self,
        session_id: str,
        *,
        at: int | None = None,
        labels: Mapping[str, str] | None = None,
        title: str | None = None,
    ) -> SessionView:
        self.calls.append(("fork", {"session_id": session_id, "at": at, "labels": labels, "title": title}))
        return self._session(session_id).view()

    async def label(
        self, session_id: str, labels: Mapping[str, str | None] | None = None, *, title: str | None = None
    ) -> SessionView:
        self.calls.append(("label", {"session_id": session_id, "labels": labels, "title": title}))
        session = self._session(session_id)
        changed = {**session.labels, **(labels or {})}
        session.labels = {name: value for name, value in changed.items() if value is not None}
        session.title = title or session.title
        return session.view()

    async def interrupt(self, session_id: str) -> None:
        self.calls.append(("interrupt", {"session_id": session_id}))
        session = self._session(session_id)
        if self._compacting is not None:
            self._compacting.cancel()
        elif session.turn is None or not session.turn.begun:
            raise SessionNotRunningError("the session runs no turn", session_id=session_id)
        await session.interrupt()

    async def archive(self, session_id: str) -> None:
        self.calls.append(("archive", {"session_id": session_id}))
        session = self._session(session_id)
        if session.turn is not None:
            await session.turn.ended.wait()
        session.lifecycle = "archived"
        session.end_subscriptions()

    async def delete(self, session_id: str) -> None:
        self.calls.append(("delete", {"session_id": session_id}))
        session = self._session(session_id)
        await session.interrupt()
        del self.sessions[session_id]
        session.end_subscriptions()

    async def drain(self) -> None:
        self.calls.append(("drain", {}))
        self._draining = True
        for session in list(self.sessions.values()):
            if session.turn is not None:
                await session.turn.ended.wait()

    async def stop(self, budget: EndBudget | None = None) -> None:  # noqa: ARG002 - it takes no time
        self.calls.append(("stop", {}))
        self._stopped = True
        for session in list(self.sessions.values()):
            await session.interrupt()
            session.end_subscriptions()

    async def resume(self, session_id: str) -> SessionView:
        self.calls.append(("resume", {"session_id": session_id}))
        return self._session(session_id).view()

    async def read(self, session_id: str) -> SessionView:
        self.calls.append(("read", {"session_id": session_id}))
        if self.on_read is not None:
            raise self.on_read
        return self._session(session_id).view()

    async def list(
        self,
        *,
        offset: int = 0,
        limit: int = 50,
        labels: Mapping[str, str] | None = None,
        include_archived: bool = False,
    ) -> SessionPage:
        arguments = {"offset": offset, "limit": limit, "labels": labels, "include_archived": include_archived}
        self.calls.append(("list", arguments))
        self._check_running()
        shown = [
            each.summary()
            for each in reversed(self.sessions.values())
            if (include_archived or each.lifecycle != "archived") and (labels or {}).items() <= each.labels.items()
        ]
        return SessionPage(tuple(shown[offset : offset + limit]))

    async def history(self, session_id: str, *, offset: int = 0, limit: int = 100) -> HistoryPage:
        self.calls.append(("history", {"session_id": session_id, "offset": offset, "limit": limit}))
        self._session(session_id)
        return HistoryPage(session_id, (), offset, 0)

    async def attachment(self, session_id: str, sha256: str) -> AttachmentContent:
        self.calls.append(("attachment", {"session_id": session_id, "sha256": sha256}))
        self._session(session_id)
        return AttachmentContent(Attachment("image/png", sha256, 2), b"hi")

    async def context(self, session_id: str) -> ContextView:
        self.calls.append(("context", {"session_id": session_id}))
        self._session(session_id)
        return ContextView(session_id, "echo", 0, None, None, (), (), None, ())

    @asynccontextmanager
    async def subscribe(self, session_id: str, *, after_seq: int | None = None) -> AsyncIterator[EventReader]:
        self.calls.append(("subscribe", {"session_id": session_id, "after_seq": after_seq}))
        await self.on_subscribe()
        session = self._session(session_id)
        log = session.events
        start = log.last_seq if after_seq is None else after_seq
        if not 0 <= start <= log.last_seq:
            raise InvalidParamsError("is ahead of the log", path="$.after_seq")
        reader = log.read(start)
        try:
            yield reader
        finally:
            reader.close()

    @asynccontextmanager
    async def watch(
        self, *, labels: Mapping[str, str] | None = None, include_archived: bool = False
    ) -> AsyncIterator[Watch]:
        self.calls.append(("watch", {"labels": labels, "include_archived": include_archived}))
        self._check_running()
        watch = Watch(WatchRequest(labels=labels, include_archived=include_archived), LOCAL.tenant, _row)
        self.watchers.add(watch)
        try:
            yield watch
        finally:
            self.watchers.remove(watch)

    async def usage(self, **wanted: Any) -> UsageReport:
        self.calls.append(("usage", wanted))
        self._check_running()
        return report_of("day", {}, 0, 1)

    async def tenants(self, **wanted: Any) -> TenantsPage:
        self.calls.append(("tenants", wanted))
        self._check_running()
        return TenantsPage((), 0)

    async def search_memory(self, query: str, **options: Any) -> tuple[MemoryHit, ...]:
        self.calls.append(("search_memory", {"query": query, **options}))
        self._check_running()
        if self.hits is None:
            raise MemoryDisabledError("semantic memory is disabled")
        return tuple(self.hits)

    async def forget_memory(self, session_id: str, **options: Any) -> int:
        self.calls.append(("forget_memory", {"session_id": session_id, **options}))
        self._check_running()
        if self.hits is None:
            raise MemoryDisabledError("semantic memory is disabled")
        return len(self.hits)

    async def audit(self, **wanted: Any) -> AuditPage:
        made(AuditRequest, **wanted)
        self.calls.append(("audit", wanted))
        self._check_running()
        return AuditPage(tuple(self.entries))

    def note(self, entry: AuditEntry) -> None:
        self.entries.append(entry)

    async def nodes(self) -> tuple[Node, ...]:
        self._check_running()
        return (Node(1, "fake", None, "", NOW, load=NodeLoad(len(self.sessions))),)

    async def drain_node(self, name: str) -> None:
        made(DrainRequest, name)
        self.calls.append(("drain_node", {"name": name}))
        self._check_running()

    async def check_store(self) -> StoreReport:
        self._check_running()
        return StoreReport(healthy=True, seconds=0.0, file=None, database=None)

    def capabilities(self) -> Capabilities:
        return self.can

    @property
    def ready(self) -> bool:
        return not (self._stopped or self._draining)

    def health(self) -> Health:
        running = sum(each.turn is not None for each in self.sessions.values())
        return Health("degraded" if self._stopped or self._draining else "ok", len(self.sessions), running, 10)

    def statistics(self) -> RuntimeStatistics:
        health = self.health()
        readers = sum(each.events.subscriptions for each in self.sessions.values())
        return RuntimeStatistics(health.live_sessions, health.running_turns, subscriptions=readers)

    def load(self) -> History:
        return History(10.0)

    def metrics(self) -> Metrics:
        return Metrics((Metric("warren_sessions_live", "gauge", "", series=(Series((), len(self.sessions)),)),))

    def _check_running(self) -> None:
        if self._stopped:
            raise AgentError("the runtime is shutting down", cause="shutting_down")

    def _check_draining(self) -> None:
        if self._draining:
            raise AgentError("the runtime is shutting down", cause="shutting_down")

    def _session(self, session_id: str) -> FakeSession:
        self._check_running()
        if session_id not in self.sessions:
            raise SessionNotFoundError("no such session", session_id=session_id)
        return self.sessions[session_id]

    async def _turn(self, session: FakeSession, prompt: str, on_begin: OnBegin | None) -> TurnResult:
        self._check_draining()
        if session.turn is not None:
            raise SessionBusyError("another turn runs", session_id=session.session_id)
        turn = session.turn = FakeTurn(self, session, prompt, on_begin)
        # A task of its own: a caller that is cancelled does not take its turn with it.
        trio.lowlevel.spawn_system_task(self._run, turn)
        await turn.ended.wait()
        assert turn.result is not None
        return turn.result.unwrap()

    async def _run(self, turn: FakeTurn) -> None:
        if self.on_begin is not None:
            await self.on_begin()
        turn.begun = True
        log = turn.session.events
        reader = None if turn.on_begin is None else log.read(log.last_seq)
        first = turn.publish(RunStarted(turn.session_id, turn.prompt)).seq
        if turn.on_begin is not None and reader is not None:
            turn.on_begin(reader)
        turn.result = await self._result(turn, first)
        if self.on_end is not None:
            await self.on_end()
        turn.session.turn = None
        turn.ended.set()

    async def _result(self, turn: FakeTurn, first: int) -> outcome.Outcome[TurnResult]:
        error: Exception | None = None
        cause: FailureCause = "crash"
        with turn.scope:
            try:
                await self.behaviour(turn)
            except Exception as exc:  # noqa: BLE001 - it is the error of the turn's caller
                error = exc
        if turn.scope.cancelled_caught:
            cause = "cancelled"
            error = AgentError(
                "the turn was interrupted",
                session_id=turn.session_id,
                cause="shutting_down" if self._stopped else "cancelled",
            )
        if error is not None:
            turn.publish(RunFailed(turn.session_id, str(error), cause))
            return outcome.Error(error)
        last = turn.publish(RunCompleted(turn.session_id, turn.text, Usage())).seq
        return outcome.Value(
            TurnResult(turn.session_id, turn.text, steps=1, stop_reason="end_turn", first_seq=first, last_seq=last)
        )


def hit(content: str, score: float, session_id: str, turn: int) -> MemoryHit:
    """Return a hit of a search that words alone have made."""
    return MemoryHit(content, score, session_id, turn, "7", ScoreParts(2 * score - 1, None, 0.0))
