"""The one fake of `RuntimeService`: turns do whatever a test says, and every call is recorded.

`tests/service` runs it through the suite of the real service. Use it to publish events that no model makes, to fail at
a chosen place, or to see the arguments of a call. A test that needs only a session and its answer opens a runtime.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Self, TypeVar

import attrs
import outcome
import trio

from tests.support.completions import KEY
from tests.support.envelopes import NOW, envelope
from warren.actors.events.eventlog import EventLog, LogPage, Telling
from warren.actors.events.watching import Watch, Watchers
from warren.actors.supervision import background
from warren.agents.spec import AgentDetails, AgentPage, AgentSpec, view_of
from warren.base.end_budget import EndBudget
from warren.base.errors import (
    AgentError,
    InvalidParamsError,
    MemoryDisabledError,
    SessionBusyError,
    SessionNotFoundError,
    SessionNotRunningError,
)
from warren.base.fields import FieldValueError
from warren.base.nodes import Node, NodeLoad
from warren.base.principals import LOCAL, WRITE, Principal
from warren.calls.agents import AgentRequest, AgentsRequest
from warren.calls.base import Call
from warren.calls.facade import Capabilities, Health, Opened, RuntimeService, SessionService, call_of
from warren.calls.operators import (
    AuditRequest,
    CheckStoreRequest,
    DrainRequest,
    NodesRequest,
    TenantsPage,
    TenantsRequest,
    UsageRequest,
)
from warren.calls.reading import (
    AttachmentRequest,
    ContextViewRequest,
    ForgetRequest,
    HistoryRequest,
    SearchRequest,
    WatchRequest,
)
from warren.calls.schedules import ScheduleChange, ScheduleDeletion, ScheduleRequest, SchedulesRequest
from warren.calls.sessions import (
    ArchiveRequest,
    DelegateRequest,
    DeleteRequest,
    ForkRequest,
    LabelRequest,
    ListRequest,
    ReadRequest,
    ResumeRequest,
)
from warren.calls.streams import EventReader, OnBegin
from warren.calls.triggers import TriggerChange, TriggerDeletion, TriggerRequest, TriggersRequest
from warren.calls.turn_stream import StreamedTurn, TurnStream
from warren.calls.turns import (
    ApprovalsRequest,
    ApproveRequest,
    CompactRequest,
    CompleteRequest,
    ContextRequest,
    InputsRequest,
    InterruptRequest,
    PeerMessage,
    PeersRequest,
    SessionCall,
    TurnCall,
    WaitRequest,
    WithdrawRequest,
)
from warren.calls.webhooks import (
    DeliveriesRequest,
    ResendRequest,
    WebhookChange,
    WebhookDeletion,
    WebhookRequest,
    WebhooksRequest,
)
from warren.conversation.attachments import Attachment, AttachmentContent
from warren.conversation.events import Envelope, Event, FailureCause, RunCompleted, RunFailed, RunStarted, TextDelta
from warren.conversation.memory import MemoryHit, ScoreParts
from warren.conversation.options import given
from warren.conversation.records import CompactionEntry, Lifecycle, SessionRecord
from warren.conversation.schedules import SchedulePage, ScheduleView
from warren.conversation.triggers import SignedCall, TriggerPage, TriggerView
from warren.conversation.usage import Usage
from warren.conversation.views import (
    ApprovalPage,
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
from warren.conversation.webhooks import WEBHOOK_EVENTS, WebhookDeliveryPage, WebhookPage, WebhookView
from warren.reports.audit import AuditEntry, AuditPage
from warren.reports.ledger import report_of
from warren.reports.metrics import History, Metric, Metrics, Series
from warren.reports.reports import StoreReport
from warren.reports.statistics import RuntimeStatistics

ENTRY: Final = CompactionEntry(4, NOW, 6, 8, 3, "they talked", 2)

R = TypeVar("R")
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
        answers: answers to calls in place of those of the table.
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
    answers: "Mapping[type, Answer]" = attrs.field(factory=dict)
    sessions: dict[str, FakeSession] = attrs.field(factory=lambda: sessions_of("s1", "s2", "s3"))
    created: int = 0
    _draining: bool = False
    _stopped: bool = False
    compacting: trio.CancelScope | None = None

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

    async def perform(self, call: Call[R]) -> R:
        """Note a call, and answer it by the table."""
        self.calls.append((METHOD_OF[type(call)], arguments_of(call)))
        answer = self.answers.get(type(call)) or ANSWERS[type(call)]
        result: R = await answer(self, call)
        return result

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

    @asynccontextmanager
    async def stream(self, call: SessionCall | TurnCall) -> AsyncIterator[TurnStream]:
        turn = StreamedTurn(call, self.perform, self.subscribe, trio.Event)
        async with background(turn.run), turn.opened() as events:
            yield events

    @asynccontextmanager
    async def subscribe(self, session_id: str, *, after_seq: int | None = None) -> AsyncIterator[EventReader]:
        self.calls.append(("subscribe", {"session_id": session_id, "after_seq": after_seq}))
        await self.on_subscribe()
        session = self.session_of(session_id)
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
        self.check_running()
        watch = Watch(WatchRequest(labels=labels, include_archived=include_archived), LOCAL.tenant, _row)
        self.watchers.add(watch)
        try:
            yield watch
        finally:
            self.watchers.remove(watch)

    def note(self, entry: AuditEntry) -> None:
        self.entries.append(entry)

    def capabilities(self) -> Capabilities:
        return self.can

    async def bearer(self, token: str) -> Principal:
        try:
            return Principal(KEY.verified(token).tenant, "completion token", frozenset({WRITE}))
        except FieldValueError as exc:
            raise exc.refusal() from None

    async def opened(self, call: SignedCall) -> Opened:
        raise InvalidParamsError.at("$.trigger_id", f"{call.trigger_id} is not here, or not with this signature")

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

    def check_running(self) -> None:
        """Raise AgentError if the service was stopped."""
        if self._stopped:
            raise AgentError("the runtime is shutting down", cause="shutting_down")

    def check_draining(self) -> None:
        """Raise AgentError if the service takes no more turns."""
        if self._draining:
            raise AgentError("the runtime is shutting down", cause="shutting_down")

    def session_of(self, session_id: str) -> FakeSession:
        """Return a session. Raises SessionNotFoundError."""
        self.check_running()
        if session_id not in self.sessions:
            raise SessionNotFoundError("no such session", session_id=session_id)
        return self.sessions[session_id]

    async def run_turn(self, session: FakeSession, prompt: str, on_begin: OnBegin | None) -> TurnResult:
        """Run a turn, and return its result."""
        self.check_draining()
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


Answer = Callable[[FakeService, Any], Awaitable[Any]]


async def _create(service: FakeService, call: SessionCall) -> TurnResult:
    service.check_running()
    if call.prompt is not None:
        service.check_draining()
    service.created += 1
    session = FakeSession(f"n{service.created}", dict(call.labels or {}), call.title)
    service.sessions[session.session_id] = session
    if call.prompt is None:
        return TurnResult(session.session_id)
    return await service.run_turn(session, call.prompt, _on_begin(call))


async def _start(service: FakeService, call: TurnCall) -> TurnResult:
    session = service.session_of(call.session_id)
    if session.lifecycle == "archived":
        raise SessionNotFoundError("the session is archived", session_id=call.session_id)
    return await service.run_turn(session, call.prompt, _on_begin(call))


def _on_begin(call: SessionCall | TurnCall) -> OnBegin | None:
    return call.on_begin if call.on_event is None else Telling(call.on_event)


async def _compact(service: FakeService, call: CompactRequest) -> CompactionEntry:
    service.session_of(call.session_id)
    if service.compaction is None:
        with trio.CancelScope() as service.compacting:
            await trio.sleep_forever()
        raise AgentError("the turn was interrupted", session_id=call.session_id, cause="cancelled")
    if isinstance(service.compaction, Exception):
        raise service.compaction
    return service.compaction


async def _label(service: FakeService, call: LabelRequest) -> SessionView:
    session = service.session_of(call.session_id)
    changed = {**session.labels, **(call.labels or {})}
    session.labels = {name: value for name, value in changed.items() if value is not None}
    session.title = call.title or session.title
    return session.view()


async def _wait(service: FakeService, call: WaitRequest) -> TurnResult:
    turn = service.session_of(call.session_id).turn
    if turn is None:
        raise SessionNotRunningError("the session runs no turn, and none waits", session_id=call.session_id)
    await turn.ended.wait()
    match turn.result:  # an outcome can be unwrapped once, which the turn's caller does
        case outcome.Value(value=TurnResult() as result):
            return result
        case outcome.Error(error=error):
            raise error
    raise AssertionError("the turn has ended")


async def _interrupt(service: FakeService, call: InterruptRequest) -> None:
    session = service.session_of(call.session_id)
    if service.compacting is not None:
        service.compacting.cancel()
    elif session.turn is None or not session.turn.begun:
        raise SessionNotRunningError("the session runs no turn", session_id=call.session_id)
    await session.interrupt()


async def _archive(service: FakeService, call: ArchiveRequest) -> None:
    session = service.session_of(call.session_id)
    if session.turn is not None:
        await session.turn.ended.wait()
    session.lifecycle = "archived"
    session.end_subscriptions()


async def _delete(service: FakeService, call: DeleteRequest) -> None:
    session = service.session_of(call.session_id)
    await session.interrupt()
    del service.sessions[call.session_id]
    session.end_subscriptions()


async def _read(service: FakeService, call: ReadRequest) -> SessionView:
    if service.on_read is not None:
        raise service.on_read
    return service.session_of(call.session_id).view()


async def _list(service: FakeService, call: ListRequest) -> SessionPage:
    service.check_running()
    shown = [
        each.summary()
        for each in reversed(service.sessions.values())
        if (call.include_archived or each.lifecycle != "archived")
        and (call.labels or {}).items() <= each.labels.items()
        and call.turn_state is None  # no turn of this service stays open
        and call.delegated_by is None  # no session of this service has children
        and call.agent is None  # or an agent
    ]
    return SessionPage(tuple(shown[call.offset : call.offset + call.limit]))


async def _search(service: FakeService, _call: SearchRequest) -> tuple[MemoryHit, ...]:
    service.check_running()
    if service.hits is None:
        raise MemoryDisabledError("semantic memory is disabled")
    return tuple(service.hits)


async def _forget(service: FakeService, _call: ForgetRequest) -> int:
    service.check_running()
    if service.hits is None:
        raise MemoryDisabledError("semantic memory is disabled")
    return len(service.hits)


def _of_session(answer: Callable[[FakeSession, Any], object]) -> Answer:
    """Return the answer to a call about a session."""

    async def find(service: FakeService, call: Any) -> object:
        return answer(service.session_of(call.session_id), call)

    return find


def _of_runtime(answer: Callable[[FakeService], object]) -> Answer:
    """Return the answer to a call about the runtime."""

    async def find(service: FakeService, _call: object) -> object:
        service.check_running()
        return answer(service)

    return find


SCHEDULE: Final = ScheduleView(
    schedule_id="schedule-1",
    state="active",
    prompt="water",
    session_id=None,
    new_session=None,
    at=None,
    every="1h",
    cron=None,
    zone="UTC",
    start=None,
    end=None,
    misfire="once",
    overlap="queue",
    next_at=NOW,
    created_at=NOW,
    owner="local",
    problem=None,
)
DESK: Final = AgentSpec("desk", "Complaints.", "Settle it.")
TRIGGER: Final = TriggerView(
    trigger_id="trigger-1",
    state="active",
    prompt="what is {body}?",
    session_id=None,
    new_session=None,
    scheme="standard",
    overlap="queue",
    created_at=NOW,
    owner="local",
    problem=None,
)
WEBHOOK: Final = WebhookView(
    webhook_id="webhook-1",
    state="active",
    url="https://example.org/hook",
    events=WEBHOOK_EVENTS,
    session_id=None,
    labels={},
    created_at=NOW,
    owner="local",
)
ANSWERS: Final[Mapping[type, Answer]] = {
    SessionCall: _create,
    TurnCall: _start,
    CompactRequest: _compact,
    LabelRequest: _label,
    WaitRequest: _wait,
    InterruptRequest: _interrupt,
    ArchiveRequest: _archive,
    DeleteRequest: _delete,
    ReadRequest: _read,
    ListRequest: _list,
    SearchRequest: _search,
    ForgetRequest: _forget,
    DelegateRequest: _of_session(lambda _session, _call: "child-1"),
    ForkRequest: _of_session(lambda session, _call: session.view()),
    ResumeRequest: _of_session(lambda session, _call: session.view()),
    ContextRequest: _of_session(lambda _session, _call: True),
    InputsRequest: _of_session(lambda _session, _call: ()),
    WithdrawRequest: _of_session(lambda _session, _call: None),
    ApproveRequest: _of_session(lambda _session, _call: None),
    CompleteRequest: _of_session(lambda _session, _call: None),
    ApprovalsRequest: _of_runtime(lambda _service: ApprovalPage(())),
    AgentsRequest: _of_runtime(lambda _service: AgentPage((view_of(DESK, DESK.version, here=True),))),
    AgentRequest: _of_runtime(lambda _service: AgentDetails(DESK.version, here=True, spec=DESK)),
    ScheduleRequest: _of_runtime(lambda _service: SCHEDULE),
    ScheduleChange: _of_runtime(lambda _service: SCHEDULE),
    ScheduleDeletion: _of_runtime(lambda _service: None),
    SchedulesRequest: _of_runtime(lambda _service: SchedulePage((SCHEDULE,))),
    TriggerRequest: _of_runtime(lambda _service: attrs.evolve(TRIGGER, secret="whsec_x")),  # noqa: S106 - it is none
    TriggerChange: _of_runtime(lambda _service: TRIGGER),
    TriggerDeletion: _of_runtime(lambda _service: None),
    TriggersRequest: _of_runtime(lambda _service: TriggerPage((TRIGGER,))),
    WebhookRequest: _of_runtime(lambda _service: WEBHOOK),
    WebhookChange: _of_runtime(lambda _service: WEBHOOK),
    WebhookDeletion: _of_runtime(lambda _service: None),
    WebhooksRequest: _of_runtime(lambda _service: WebhookPage((WEBHOOK,))),
    DeliveriesRequest: _of_runtime(lambda _service: WebhookDeliveryPage(())),
    ResendRequest: _of_runtime(lambda _service: 1),
    PeerMessage: _of_session(lambda _session, _call: "m1"),
    PeersRequest: _of_session(lambda _session, _call: ()),
    HistoryRequest: _of_session(lambda session, call: HistoryPage(session.session_id, (), call.offset, 0)),
    AttachmentRequest: _of_session(
        lambda _session, call: AttachmentContent(Attachment("image/png", call.sha256, 2), b"hi")
    ),
    ContextViewRequest: _of_session(
        lambda session, _call: ContextView(session.session_id, "echo", 0, None, None, (), (), None, ())
    ),
    AuditRequest: _of_runtime(lambda service: AuditPage(tuple(service.entries))),
    UsageRequest: _of_runtime(lambda _service: report_of("day", {}, 0, 1)),
    TenantsRequest: _of_runtime(lambda _service: TenantsPage((), 0)),
    NodesRequest: _of_runtime(lambda service: (Node(1, "fake", None, "", NOW, load=NodeLoad(len(service.sessions))),)),
    DrainRequest: _of_runtime(lambda _service: None),
    CheckStoreRequest: _of_runtime(lambda _service: StoreReport(healthy=True, seconds=0.0, file=None, database=None)),
}
"""The answers of the fake."""
METHOD_OF: Final[Mapping[type, str]] = {
    cls: name for name, method in vars(SessionService).items() if (cls := call_of(method)) is not None
}
"""The method of the service that makes each class of calls."""


def arguments_of(call: Call[Any]) -> dict[str, Any]:
    """Return the arguments of a call; those of turns alone that were given, without functions of the caller."""
    cls: Any = type(call)
    if not isinstance(call, SessionCall | TurnCall):
        return {field.name: getattr(call, field.name) for field in attrs.fields(cls)}
    found = {"prompt": call.prompt, **given(cls, call)}
    return {name: value for name, value in found.items() if name not in ("on_begin", "on_event")}


def hit(content: str, score: float, session_id: str, turn: int) -> MemoryHit:
    """Return a hit of a search that words alone have made."""
    return MemoryHit(content, score, session_id, turn, "7", ScoreParts(2 * score - 1, None, 0.0))
