"""Rows of a store and their values, the same in each home with a database. Each value that is read is checked here."""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from operator import attrgetter
from typing import Any, Final, TypeVar

import attrs

from warren.agents.spec import AgentSpec, StoredAgent, version_of
from warren.base.errors import StoreError
from warren.base.signatures import Scheme
from warren.base.tenant_limits import NO_LIMITS, TokenLimits
from warren.base.values import frozen
from warren.conversation import codec
from warren.conversation.agents import AgentPin
from warren.conversation.budget import NO_EXPENSE, NOTHING_SPENT, Expense, Spent
from warren.conversation.categories import Category, Decision
from warren.conversation.delegation import Delegation
from warren.conversation.events import TurnOutcome
from warren.conversation.inputs import Input, Numbered
from warren.conversation.messages import ToolResult
from warren.conversation.open_turn import CALL_STATES, KeptCall, OpenTurn
from warren.conversation.options import SessionOptions, SessionTemplate, part
from warren.conversation.records import CompactionEntry, EventRow, MessageRow, Parent, SessionRecord, Span
from warren.conversation.schedules import Misfire, Overlap, Run, RunState, Schedule, Timing
from warren.conversation.triggers import DELIVERY_STATES, Delivery, Trigger
from warren.conversation.usage import NO_USAGE, Usage
from warren.conversation.waits import WAIT_REASONS, WAIT_STATES, Wait
from warren.conversation.webhooks import (
    POST_STATES,
    WEBHOOK_EVENTS,
    Post,
    Webhook,
    WebhookEvent,
)
from warren.storage.results import Lost
from warren.storage.standins import NO_SUMMARY

C = TypeVar("C", bound=str)
logger: Final = logging.getLogger("warren.storage")
OPEN: Final = 0
ARCHIVED: Final = 1
DELETED: Final = 2
DELETES: Final = '"kind":"delete"'
"""A part of the body of each notice that deletes its session, and of no other notice: a text has its quotes escaped."""
INSTRUCTS: Final = 'substr(body, 2, 16) = \'"role":"system",\''
"""A message has instructions. Retention keeps these: a fork from before newer ones may need them."""
SEQ_STRIDE: Final = 1_000_000
"""Event numbers that a takeover skips: more than one turn has. A dead holder may have shown some unstored."""
COLUMNS: Final = (
    "session_id, created_at, updated_at, state, model, turns, steps, message_count, last_seq, head, labels, title, "
    "details, tenant, owner, turn, wakes"
)
CALL: Final = "place, call_id, state, body"
"""The columns of a tool call of an open turn."""
WAIT: Final = "reason, wait_id, state, since, until, body"
"""The columns of something that a tool call waits for."""
SCHEDULE: Final = "id, tenant, creation, due, problem, body"
"""The columns of a schedule."""
AGENT: Final = "tenant, name, version, created_at, body"
"""The columns of a version of an agent."""
TRIGGER: Final = "id, tenant, creation, problem, secret, body"
"""The columns of a trigger."""
DELIVERY: Final = "delivery, at, state, body"
"""The columns of a delivery."""
WEBHOOK: Final = "id, tenant, creation, paused, failing, problem, body"
"""The columns of a webhook."""
POST: Final = "id, webhook, tenant, type, created_at, state, due, attempts, attempted_at, status, problem, body"
"""The columns of a delivery to a webhook, without its session."""
TOO_MANY: Final = "more deliveries wait than a webhook may have"
"""The problem of a delivery that is dead at once."""
MAX_NUMBER: Final = 2**62
"""The largest number of a sound row. There must be room above it for all numbers that are still to be given."""
SHOWN: Final = 100
"""Characters of a damaged id that messages show."""


def before(went_back_at: datetime | None) -> int:
    """Return the time up to which a change of a claimed session shows that later ones may be gone."""
    return -1 if went_back_at is None else microseconds(went_back_at)


def bytes_in(value: Any, column: str) -> bytes:
    """Return a text as its bytes, which may be no UTF-8. Raises ValueError."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise ValueError(f"{column} is {'missing' if value is None else 'no text'}")


def text_in(value: Any, column: str) -> str:
    """Return a text. Raises ValueError."""
    try:
        return bytes_in(value, column).decode()
    except UnicodeDecodeError as exc:
        raise ValueError(f"{column} is not UTF-8 at byte {exc.start}") from None


def number_in(value: Any, column: str) -> int:
    """Return a count or a position. Raises ValueError."""
    if type(value) is not int:
        raise ValueError(f"{column} is {'missing' if value is None else 'no whole number'}")
    if not 0 <= value <= MAX_NUMBER:
        raise ValueError(f"{column} is {value}, out of range")
    return value


def time_in(value: Any, column: str) -> datetime:
    """Return a time. Raises ValueError."""
    if type(value) is not int:
        raise ValueError(f"{column} is {'missing' if value is None else 'no time'}")
    try:
        return moment(value)
    except OverflowError:
        raise ValueError(f"{column} is {value}, a time out of range") from None


def shown(session_id: Any) -> str:
    """Return an id for messages, also if the id is damaged."""
    text = session_id.decode(errors="backslashreplace") if isinstance(session_id, bytes) else str(session_id)
    return text[:SHOWN].encode("ascii", "backslashreplace").decode()


def corrupt(noun: str, problem: Exception, session_id: str | None = None) -> StoreError:
    """Return the error for a row that cannot be read."""
    message = f"{noun} is damaged in the store: {problem}"
    return StoreError(message, session_id=session_id, cause="corrupt", retryable=False)


COMPACTION: Final = "step, created_at, head, messages_before, messages_after, summary, summary_tokens"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


@frozen(kw_only=True)
class _Details(SessionOptions):
    """The column `details`, which no query looks at: the session's options, and fields of its record."""

    spent: Spent = NOTHING_SPENT
    usage: Usage = NO_USAGE
    last_assistant_text: str | None = None
    last_structured_output: Any = None
    last_outcome: TurnOutcome | None = None
    compactions: int = 0
    last_compaction_step: int | None = None
    last_input_tokens: int = 0
    turn_open: bool = False
    parent: Parent | None = None
    left_out: tuple[Span, ...] = ()
    parts_left_out: tuple[Span, ...] = ()
    allowed_tools: tuple[str, ...] = ()
    delegation: Delegation | None = None
    delegated: Expense = NO_EXPENSE
    agent: AgentPin | None = None


_OPTIONS: Final = tuple(attrs.fields_dict(SessionOptions))
_DETAILS: Final = tuple(name for name in attrs.fields_dict(_Details) if name not in _OPTIONS)
_details_of: Final = attrgetter(*_DETAILS)


def microseconds(moment: datetime) -> int:
    """Return a time as whole microseconds since 1970 UTC, exactly. Raises TypeError for a time without a zone."""
    return (moment - _EPOCH) // _MICROSECOND


def moment(stored: int) -> datetime:
    """Return the time (UTC) that `microseconds` made a number of."""
    return _EPOCH + stored * _MICROSECOND


@cache
def _defaults() -> tuple[Any, ...]:
    """Return the values of details that no row has. They are not made at the import: few commands write a session."""
    values: tuple[Any, ...] = _details_of(_Details())
    return values


def record_to_row(record: SessionRecord) -> tuple[Any, ...]:
    """Return the record's values in the order of `COLUMNS`."""
    return (
        record.session_id,
        microseconds(record.created_at),
        microseconds(record.updated_at),
        ARCHIVED if record.archived else OPEN,
        record.model,
        record.turns,
        record.steps,
        record.message_count,
        record.last_seq,
        record.head,
        codec.encode(record.labels).decode() if record.labels else "{}",
        record.title,
        details_text(record),
        record.tenant,
        record.owner,
        None if record.turn is None else _encode_turn()(record.turn).decode(),
        None if record.turn is None or record.turn.wakes is None else microseconds(record.turn.wakes),
    )


def agent_of(record: SessionRecord) -> str | None:
    """Return the name by which a session is found among those of its agent."""
    return None if record.agent is None else record.agent.name


def details_text(record: SessionRecord) -> str:
    """Return the column `details` of a record."""
    # Not a `_Details`, which `codec.encode` takes apart field by field. Defaults are told by identity: a comparison of
    # values takes twice as long as the rest, and a default that is another object is written, which does no harm.
    each = zip(_DETAILS, _details_of(record), _defaults(), strict=True)
    details = {name: value for name, value, default in each if value is not default}
    return codec.encode_whole({**record.options.stored, **details}).decode()


@cache
def _encode_turn() -> Callable[[OpenTurn], bytes]:
    """Return the function that makes the column `turn`, which each step of a turn writes, without its `wakes`."""
    return codec.row_encoder(OpenTurn, "wakes")


def turn_in(value: Any, message_count: int) -> OpenTurn | None:
    """Return the open turn of a session of so many messages, without its `wakes`; None for NULL. Raises ValueError."""
    if value is None:
        return None
    turn: OpenTurn = codec.decode_stored(OpenTurn, bytes_in(value, "turn"))
    if not 0 <= turn.prompt_at < message_count:
        raise ValueError(f"turn has its prompt at {turn.prompt_at}, and there are {message_count} messages")
    return turn


@frozen
class _CallDetails:
    """The column `body` of a tool call."""

    result: ToolResult | None = None


def call_to_row(call: KeptCall) -> tuple[int, str, str, str]:
    """Return the call's values in the order of `CALL`."""
    return call.place, call.call_id, call.state, codec.encode(_CallDetails(call.result)).decode()


def call_in(row: tuple[Any, ...]) -> KeptCall:
    """Return the tool call of a row of `CALL`. Raises ValueError."""
    place, call_id, state, body = row
    found = _one_of(CALL_STATES, state, "state")
    rest = codec.decode_stored(_CallDetails, bytes_in(body, "body"))
    if (found == "done") != (rest.result is not None):
        raise ValueError(f"state is {found}, and there is {'no' if found == 'done' else 'a'} result")
    return KeptCall(text_in(call_id, "call_id"), number_in(place, "place"), found, rest.result)


@frozen
class _WaitDetails:
    """The column `body` of a wait."""

    name: str
    args: Mapping[str, Any]
    category: Category
    question_of: str | None = None
    may_have_run: bool = False
    decision: Decision | None = None
    result: ToolResult | None = None
    answered_at: datetime | None = None
    data: Mapping[str, Any] | None = None


_WAIT_DETAILS: Final = tuple(attrs.fields_dict(_WaitDetails))


def wait_to_row(wait: Wait) -> tuple[str, str, str, int, int, str]:
    """Return the wait's values in the order of `WAIT`."""
    body = _encode_wait()(wait).decode()
    return wait.reason, wait.wait_id, wait.state, microseconds(wait.since), microseconds(wait.until), body


@cache
def _encode_wait() -> Callable[[Wait], bytes]:
    """Return the function that makes the column `body` of a wait: a thousand children are as many waits."""
    return codec.row_encoder(Wait, *(each.name for each in attrs.fields(Wait) if each.name not in _WAIT_DETAILS))


def wait_in(row: tuple[Any, ...]) -> Wait:
    """Return the wait of a row of `WAIT`. Raises ValueError."""
    reason, wait_id, state, since, until, body = row
    rest = codec.decode_stored(_WaitDetails, bytes_in(body, "body"))
    return Wait(
        wait_id=text_in(wait_id, "wait_id"),
        reason=_one_of(WAIT_REASONS, reason, "reason"),
        state=_one_of(WAIT_STATES, state, "state"),
        since=time_in(since, "since"),
        until=time_in(until, "until"),
        **{name: getattr(rest, name) for name in _WAIT_DETAILS},
    )


def sound_waits(rows: Iterable[tuple[Any, ...]]) -> Iterator[Wait]:
    """Yield the waits of rows of a key and `WAIT` that are not damaged."""
    for _, *columns in rows:
        with contextlib.suppress(ValueError):
            yield wait_in(tuple(columns))


def in_background(wait: Wait) -> bool:
    """Tell whether a wait outlives the turn that began it."""
    return wait.reason == "background"


@frozen
class _ScheduleDetails:
    """The column `body` of a schedule."""

    owner: str
    created_at: datetime
    prompt: str
    timing: Timing
    limits: TokenLimits = NO_LIMITS
    session_id: str | None = None
    new_session: SessionTemplate | None = None
    misfire: Misfire = "once"
    overlap: Overlap = "queue"
    paused: bool = False


_SCHEDULE_DETAILS: Final = tuple(attrs.fields_dict(_ScheduleDetails))


def schedule_to_row(schedule: Schedule) -> tuple[str, str, str | None, int | None, str | None, str]:
    """Return the schedule's values in the order of `SCHEDULE`."""
    due = None if schedule.due is None else microseconds(schedule.due)
    body = codec.encode(part(_ScheduleDetails, schedule)).decode()
    return schedule.schedule_id, schedule.tenant, schedule.key, due, schedule.problem, body


def schedule_in(row: tuple[Any, ...]) -> Schedule:
    """Return the schedule of a row of `SCHEDULE`. Raises ValueError."""
    schedule_id, tenant, key, due, problem, body = row
    rest = codec.decode_stored(_ScheduleDetails, bytes_in(body, "body"))
    return Schedule(
        schedule_id=text_in(schedule_id, "id"),
        tenant=text_in(tenant, "tenant"),
        key=None if key is None else text_in(key, "creation"),
        due=None if due is None else time_in(due, "due"),
        problem=None if problem is None else text_in(problem, "problem"),
        **{name: getattr(rest, name) for name in _SCHEDULE_DETAILS},
    )


@frozen
class _RunDetails:
    """The column `body` of a run."""

    state: RunState
    at: datetime
    session_id: str | None = None
    problem: str | None = None


def due_in(stored: Any) -> datetime | None:
    """Return the time at which a schedule is due; None for none, and for one that is damaged."""
    try:
        return None if stored is None else time_in(stored, "due")
    except ValueError:
        return None


def key_of(schedule_id: str, due: datetime) -> str:
    """Return the idempotency key of a run: whichever process fires it, and however often, it happens once.

    Statements make the same text of the columns, to find the prompt of a run.
    """
    return f"schedule/{schedule_id}/{microseconds(due)}"


def run_to_row(run: Run) -> tuple[int, str]:
    """Return the time and the body of the row of a run."""
    return microseconds(run.due), codec.encode(part(_RunDetails, run)).decode()


def run_in(due: Any, body: Any) -> Run:
    """Return the run of a row. Raises ValueError."""
    rest = codec.decode_stored(_RunDetails, bytes_in(body, "body"))
    return Run(time_in(due, "due"), rest.state, rest.at, rest.session_id, rest.problem)


@frozen
class _TriggerDetails:
    """The column `body` of a trigger."""

    owner: str
    created_at: datetime
    prompt: str
    scheme: Scheme
    limits: TokenLimits = NO_LIMITS
    session_id: str | None = None
    new_session: SessionTemplate | None = None
    overlap: Overlap = "queue"
    paused: bool = False


_TRIGGER_DETAILS: Final = tuple(attrs.fields_dict(_TriggerDetails))


def trigger_to_row(trigger: Trigger) -> tuple[str, str, str | None, str | None, str, str]:
    """Return the trigger's values in the order of `TRIGGER`."""
    body = codec.encode(part(_TriggerDetails, trigger)).decode()
    return trigger.trigger_id, trigger.tenant, trigger.key, trigger.problem, trigger.secret, body


def trigger_in(row: tuple[Any, ...]) -> Trigger:
    """Return the trigger of a row of `TRIGGER`. Raises ValueError."""
    trigger_id, tenant, key, problem, secret, body = row
    rest = codec.decode_stored(_TriggerDetails, bytes_in(body, "body"))
    return Trigger(
        trigger_id=text_in(trigger_id, "id"),
        tenant=text_in(tenant, "tenant"),
        key=None if key is None else text_in(key, "creation"),
        problem=None if problem is None else text_in(problem, "problem"),
        secret=text_in(secret, "secret"),
        **{name: getattr(rest, name) for name in _TRIGGER_DETAILS},
    )


@frozen
class _DeliveryDetails:
    """The column `body` of a delivery."""

    session_id: str | None = None
    problem: str | None = None


def delivery_to_row(delivery: Delivery) -> tuple[str, int, str, str]:
    """Return the delivery's values in the order of `DELIVERY`."""
    body = codec.encode(part(_DeliveryDetails, delivery)).decode()
    return delivery.delivery_id, microseconds(delivery.at), delivery.state, body


def delivery_in(row: tuple[Any, ...]) -> Delivery:
    """Return the delivery of a row of `DELIVERY`. Raises ValueError."""
    delivery_id, at, state, body = row
    rest = codec.decode_stored(_DeliveryDetails, bytes_in(body, "body"))
    found = _one_of(DELIVERY_STATES, state, "state")
    return Delivery(text_in(delivery_id, "delivery"), found, time_in(at, "at"), rest.session_id, rest.problem)


@frozen
class _WebhookDetails:
    """The column `body` of a webhook."""

    owner: str
    created_at: datetime
    url: str
    secret: str
    events: tuple[WebhookEvent, ...] = WEBHOOK_EVENTS
    session_id: str | None = None
    labels: Mapping[str, str] = attrs.field(factory=dict)
    old_secret: str | None = None
    old_until: datetime | None = None


_WEBHOOK_DETAILS: Final = tuple(attrs.fields_dict(_WebhookDetails))


def webhook_to_row(webhook: Webhook) -> tuple[str, str, str | None, int, int | None, str | None, str]:
    """Return the webhook's values in the order of `WEBHOOK`."""
    failing = None if webhook.failing_since is None else microseconds(webhook.failing_since)
    body = codec.encode(part(_WebhookDetails, webhook)).decode()
    return webhook.webhook_id, webhook.tenant, webhook.key, int(webhook.paused), failing, webhook.problem, body


def webhook_in(row: tuple[Any, ...]) -> Webhook:
    """Return the webhook of a row of `WEBHOOK`. Raises ValueError, whose text has nothing of the secret."""
    webhook_id, tenant, key, paused, failing, problem, body = row
    try:
        rest = codec.decode_stored(_WebhookDetails, bytes_in(body, "body"))
    except ValueError:
        raise ValueError("body cannot be read") from None
    return Webhook(
        webhook_id=text_in(webhook_id, "id"),
        tenant=text_in(tenant, "tenant"),
        key=None if key is None else text_in(key, "creation"),
        paused=bool(number_in(paused, "paused")),
        failing_since=None if failing is None else time_in(failing, "failing"),
        problem=None if problem is None else text_in(problem, "problem"),
        **{name: getattr(rest, name) for name in _WEBHOOK_DETAILS},
    )


def agent_to_row(tenant: str, spec: AgentSpec, created_at: datetime) -> tuple[str, str, str, int, str]:
    """Return the values of a version of an agent in the order of `AGENT`."""
    return tenant, spec.name, spec.version, microseconds(created_at), spec.body


def agent_in(row: tuple[Any, ...]) -> StoredAgent:
    """Return the version of an agent of a row of `AGENT`. Raises ValueError."""
    tenant, name, version, created_at, body = row
    text, number = text_in(body, "body"), text_in(version, "version")
    if version_of(text) != number:
        raise ValueError("version is not that of the body")
    spec: AgentSpec = codec.decode_stored(AgentSpec, text.encode())
    if spec.name != text_in(name, "name"):
        raise ValueError("name is not that of the body")
    return StoredAgent(text_in(tenant, "tenant"), number, time_in(created_at, "created_at"), spec)


def post_to_row(delivery: Post) -> tuple[Any, ...]:
    """Return the delivery's values in the order of `POST`."""
    return (
        delivery.delivery_id,
        delivery.webhook_id,
        delivery.tenant,
        delivery.type,
        microseconds(delivery.created_at),
        delivery.state,
        None if delivery.due is None else microseconds(delivery.due),
        delivery.attempts,
        None if delivery.attempted_at is None else microseconds(delivery.attempted_at),
        delivery.status,
        delivery.problem,
        delivery.body,
    )


def post_in(row: tuple[Any, ...], session_id: Any) -> Post:
    """Return the delivery of a row of `POST`. Raises ValueError."""
    delivery_id, webhook_id, tenant, kind, created_at, state, due, attempts, at, status, problem, body = row
    return Post(
        delivery_id=text_in(delivery_id, "id"),
        webhook_id=text_in(webhook_id, "webhook"),
        tenant=text_in(tenant, "tenant"),
        session_id=text_in(session_id, "session"),
        type=_one_of(WEBHOOK_EVENTS, kind, "type"),
        created_at=time_in(created_at, "created_at"),
        state=_one_of(POST_STATES, state, "state"),
        due=None if due is None else time_in(due, "due"),
        attempts=number_in(attempts, "attempts"),
        attempted_at=None if at is None else time_in(at, "attempted_at"),
        status=None if status is None else number_in(status, "status"),
        problem=None if problem is None else text_in(problem, "problem"),
        body=text_in(body, "body"),
    )


def _one_of(choices: tuple[C, ...], value: Any, column: str) -> C:
    found = text_in(value, column)
    for each in choices:
        if each == found:
            return each
    raise ValueError(f"{column} is {shown(found)}, and has to be one of {', '.join(choices)}")


@frozen
class Continued:
    """The part of a claimed session that a process goes on with.

    Attributes:
        record: the record, without an open turn that nobody can go on with.
        calls: the calls of the open turn.
        waits: the waits that are not settled.
        problems: a description of each damaged part.
        lost: the keys of damaged waits.
    """

    record: SessionRecord
    calls: tuple[KeptCall, ...] = ()
    waits: tuple[Wait, ...] = ()
    problems: tuple[str, ...] = ()
    lost: tuple[int, ...] = ()


def continued(
    record: SessionRecord, turn: Any, rows: Iterable[tuple[Any, ...]], waits: Iterable[tuple[Any, ...]]
) -> Continued:
    """Return the open turn of a claimed session, and what its calls wait for.

    If a part of the turn is damaged, nobody can go on with it. Waits in the background are no part of it.

    Args:
        record: the record of the row.
        turn: the column `turn`.
        rows: the rows of `CALL`, in order.
        waits: a key and `WAIT` of the rows that are not settled, in order.
    """
    calls, found, of_turn, beside, lost = list[KeptCall](), list[Wait](), list[str](), list[str](), list[int]()
    try:
        turn_in(turn, record.message_count)
    except ValueError as exc:
        of_turn.append(f"the open turn of session {record.session_id} is damaged in the store: {exc}")
    for row in rows:
        try:
            calls.append(call_in(row))
        except ValueError as exc:
            problem = f"a tool call of the open turn of session {record.session_id} is damaged in the store"
            of_turn.append(f"{problem}: {exc}")
    for key, *columns in waits:
        try:
            found.append(wait_in(tuple(columns)))
        except ValueError as exc:
            lost.append(key)
            concerned = beside if columns[0] in ("background", b"background") else of_turn
            concerned.append(f"a wait of session {record.session_id} is damaged in the store: {exc}")
    problems = (*of_turn, *beside)
    if of_turn:
        return Continued(record.changed(turn=None), (), tuple(filter(in_background, found)), problems, tuple(lost))
    return Continued(record, tuple(calls), tuple(found), problems, tuple(lost))


def _is_archived(state: Any) -> bool:
    if state not in (OPEN, ARCHIVED):
        raise ValueError(f"state is {shown(state)}, and has to be {OPEN} or {ARCHIVED}")
    return bool(state == ARCHIVED)


def row_to_record(row: tuple[Any, ...]) -> SessionRecord:
    """Return the record of a row of `COLUMNS`. Raises StoreError(cause="corrupt").

    An open turn that cannot be read is one that nobody can go on with: the session ends it.
    """
    session_id, created_at, updated_at, state, model, turns, steps, message_count, last_seq, head, *texts = row
    labels, title, details, tenant, owner, turn, wakes = texts
    name = shown(session_id)
    try:
        archived = _is_archived(state)
        rest = codec.decode_stored(_Details, bytes_in(details, "details"))
        found = SessionRecord(
            session_id=text_in(session_id, "session_id"),
            created_at=time_in(created_at, "created_at"),
            updated_at=time_in(updated_at, "updated_at"),
            archived=archived,
            model=text_in(model, "model"),
            turns=number_in(turns, "turns"),
            steps=number_in(steps, "steps"),
            message_count=number_in(message_count, "message_count"),
            last_seq=number_in(last_seq, "last_seq"),
            head=number_in(head, "head"),
            labels=codec.decode_stored(dict[str, str], bytes_in(labels, "labels")),
            title=None if title is None else text_in(title, "title"),
            tenant=text_in(tenant, "tenant"),
            owner=text_in(owner, "owner"),
            options=part(SessionOptions, rest),
            **{name: getattr(rest, name) for name in _DETAILS},
        )
    except ValueError as exc:
        raise corrupt(f"session {name}", exc, name) from exc
    return (
        found if turn is None else found.changed(turn=_readable_turn(turn, wakes, found.message_count), turn_open=True)
    )


def _readable_turn(turn: Any, wakes: Any, message_count: int) -> OpenTurn | None:
    try:
        found = turn_in(turn, message_count)
    except ValueError:
        return None
    if found is None or wakes is None:
        return found
    try:
        return found.changed(wakes=time_in(wakes, "wakes"))
    except ValueError:  # it goes on at once
        return found


def compaction(row: tuple[Any, ...]) -> CompactionEntry:
    """Return a compaction of `COMPACTION`. Raises ValueError."""
    step, created_at, head, before, after, summary, tokens = row
    return CompactionEntry(
        number_in(step, "step"),
        time_in(created_at, "created_at"),
        number_in(head, "head"),
        number_in(before, "messages_before"),
        number_in(after, "messages_after"),
        text_in(summary, "summary"),
        number_in(tokens, "summary_tokens"),
    )


def message(row: tuple[Any, ...]) -> MessageRow:
    """Return a message of `position, created_at, body`. Raises ValueError."""
    position, added, body = row
    text = bytes_in(body, "body")
    codec.decode_message(text)
    return MessageRow(position, time_in(added, "created_at"), text)


def readable_compaction(row: tuple[Any, ...], head: int) -> CompactionEntry:
    """Return the newest compaction, with a summary in place of one that cannot be read."""
    try:
        return compaction(row)
    except ValueError as exc:
        logger.error("a compaction to position %d cannot be read: %s", head, exc)  # noqa: TRY400 - no bug of ours
        try:
            summary = text_in(row[5], "summary")
        except ValueError:
            summary = NO_SUMMARY
        return CompactionEntry(0, moment(0), head, 0, 0, summary, 0)


def event_or_empty(row: tuple[Any, ...]) -> EventRow:
    """Return an event as `event` does. A row with a damaged column has an empty body, which is no event."""
    try:
        return event(row)
    except ValueError:
        seq, first_seq, *_ = row
        first = first_seq if type(first_seq) is int and 0 <= first_seq <= seq else seq
        return EventRow(first, seq, moment(0), b"")


def event(row: tuple[Any, ...]) -> EventRow:
    """Return an event of `seq, first_seq, timestamp, body, cuts`. Raises ValueError."""
    seq, first_seq, timestamp, body, cuts = row
    if number_in(first_seq, "first_seq") > seq:
        raise ValueError(f"first_seq is {first_seq}, after seq")
    lengths = None if cuts is None else bytes_in(cuts, "cuts")
    return EventRow(first_seq, seq, time_in(timestamp, "timestamp"), bytes_in(body, "body"), lengths)


def encode_notice(notice: Input) -> bytes:
    """Return the column `body` of a notice, which the end of each child writes."""
    return _notice_encoder()(notice)


@cache
def _notice_encoder() -> Callable[[Input], bytes]:
    return codec.row_encoder(Input)


def decoded(body: Any, session_id: str) -> Input:
    """Return an input as it was stored. Raises StoreError(cause="corrupt")."""
    try:
        found: Input = codec.decode_stored(Input, bytes_in(body, "body"))
    except ValueError as exc:
        raise corrupt(f"an input of session {session_id}", exc, session_id) from exc
    return found


def outcome_of(outcome: Any, session_id: str) -> bytes:
    """Return the outcome of an earlier input. Raises StoreError(cause="corrupt")."""
    try:
        found = bytes_in(outcome, "outcome")
        codec.decode_stored(dict[str, Any], found or b"{}")
    except ValueError as exc:
        raise corrupt(f"an outcome of session {session_id}", exc, session_id) from exc
    return found


def live_seq(stored: Any, state: Any) -> int | None:
    """Return the number of a session's last event; None if it is archived, or damaged: then a load says so."""
    return stored if state == OPEN and type(stored) is int else None


def readable_inputs(rows: list[Any]) -> list[tuple[str, Numbered]]:
    """Return the inputs that are not damaged; the next claim of their session reports and passes over the others."""
    found = []
    for number, body, session_id in rows:
        try:
            found.append((shown(session_id), Numbered(number, decoded(body, shown(session_id)))))
        except StoreError:
            continue
    return found


def lost_around(
    seq: int,
    last_seq: int,
    gone: int,
    before: int | None,
    following: tuple[int, Any] | None,
    *,
    final: bool,
    open_: bool,
) -> Lost | None:
    """Return the lost events around one that a reader was shown, None if it is stored, or may be some day.

    Args:
        seq: the event.
        last_seq: the last number of the session.
        gone: retention has removed events up to this number.
        before: the end of the row before the event.
        following: the beginning of the next row, and whether that row is of the turn of the event: its end, or the
            event with which it goes on.
        final: whether no other living process has the session.
        open_: whether the session has an open turn that is to go on.
    """
    if seq <= gone:
        return None
    first = max(before or 0, gone) + 1
    if following is not None:
        first_seq, is_of_turn = following
        # A turn that was stored in part ends with an event of its own.
        return None if first_seq <= seq + 1 else Lost(first, first_seq - 1, bool(is_of_turn))
    last = last_seq if final else last_seq + SEQ_STRIDE
    # With no later row the event is of the open turn: the first rows of that are stored, and so is its end some day.
    return Lost(first, last, open_, final) if last > seq else None
