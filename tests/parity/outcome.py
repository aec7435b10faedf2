"""The outcome of one call, in the same terms on every surface, and the contract's rule for it."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import attrs

from warren.agents.spec import AgentDetails, AgentPage
from warren.base.errors import ErrorCode, WarrenError
from warren.calls.answers import (
    Archived,
    Completed,
    Decided,
    Delegated,
    Deleted,
    Forgotten,
    Injected,
    Inputs,
    Interrupted,
    MemoryHits,
    PeerMessageSent,
    Peers,
    Resent,
    Withdrawn,
)
from warren.calls.facade import Capabilities
from warren.calls.operators import TenantsPage
from warren.conversation import codec
from warren.conversation.events import DELTAS, Envelope, Event
from warren.conversation.messages import AssistantMessage, Message, UserMessage
from warren.conversation.records import CompactionEntry
from warren.conversation.schedules import SchedulePage, ScheduleView
from warren.conversation.triggers import TriggerPage, TriggerView
from warren.conversation.views import ApprovalPage, ContextView, HistoryPage, SessionPage, SessionView, TurnResult
from warren.conversation.webhooks import WebhookDeliveryPage, WebhookPage, WebhookView
from warren.reports.audit import AuditPage
from warren.reports.ledger import UsageReport
from warren.transport.rpc.results import Registered

NUMBERS: Final[Mapping[ErrorCode, Mapping[str, int | None]]] = {
    ErrorCode(code): dict(zip(("jsonrpc", "http", "exit", "acp"), numbers, strict=True))
    for code, numbers in {
        "SESSION_NOT_FOUND": (-32001, 404, 1, -32002),
        "SESSION_BUSY": (-32002, 409, 1, -32600),
        "SESSION_PERSISTENCE_DISABLED": (-32003, 501, 1, -32601),
        "SESSION_COMPACTION_DISABLED": (-32004, 501, 1, -32602),
        "SESSION_NOT_RUNNING": (-32005, 409, 1, None),
        "SESSION_STORE_ERROR": (-32006, 500, 1, -32603),
        "SESSION_MEMORY_DISABLED": (-32007, 501, 1, -32602),
        "CAPACITY_EXCEEDED": (-32008, 503, 1, -32603),
        "PERMISSION_DENIED": (-32009, 403, 1, -32603),
        "PROVIDER_ERROR": (-32010, 502, 1, -32603),
        "BUDGET_EXHAUSTED": (-32011, 429, 2, None),
        "AGENT_ERROR": (-32000, 500, 1, -32603),
        "INVALID_PARAMS": (-32602, 422, 2, -32602),
    }.items()
}
"""The contract's table, written out once more: what the code says of itself is under test."""
RESULTS: Final[Mapping[str, type]] = {
    "session/create": TurnResult,
    "turn/start": TurnResult,
    "turn/wait": TurnResult,
    "turn/interrupt": Interrupted,
    "session/read": SessionView,
    "session/resume": SessionView,
    "session/list": SessionPage,
    "session/history": HistoryPage,
    "session/archive": Archived,
    "session/delete": Deleted,
    "session/compact": CompactionEntry,
    "session/fork": SessionView,
    "session/delegate": Delegated,
    "session/label": SessionView,
    "memory/search": MemoryHits,
    "memory/forget": Forgotten,
    "usage/get": UsageReport,
    "tenants/list": TenantsPage,
    "audit/list": AuditPage,
    "session/inject_context": Injected,
    "session/context": ContextView,
    "session/inputs": Inputs,
    "session/withdraw": Withdrawn,
    "tool/approve": Decided,
    "tool/complete": Completed,
    "approvals/list": ApprovalPage,
    "agents/list": AgentPage,
    "agents/get": AgentDetails,
    "schedule/create": ScheduleView,
    "schedule/change": ScheduleView,
    "schedule/delete": Deleted,
    "schedule/list": SchedulePage,
    "trigger/create": TriggerView,
    "trigger/change": TriggerView,
    "trigger/delete": Deleted,
    "trigger/list": TriggerPage,
    "webhook/create": WebhookView,
    "webhook/change": WebhookView,
    "webhook/delete": Deleted,
    "webhook/list": WebhookPage,
    "delivery/list": WebhookDeliveryPage,
    "delivery/resend": Resent,
    "peer/send": PeerMessageSent,
    "peer/list": Peers,
    "capabilities/get": Capabilities,
    "tools/register": Registered,
}
"""The result of each operation."""


@attrs.frozen
class Outcome:
    """The outcome of one call.

    Attributes:
        code: the error's; None for a call that went well.
        number: what the surface calls it; None where the surface has no numbers, or none for this.
        retryable: as the error says; None where nothing failed, or the surface does not say.
        cause: likewise.
        path: of the bad field.
        session_id: the session that the error names.
        data: what came back, field by field, as far as the surface shows it.
        events: what the caller was told before it got this, as plain data, adjacent deltas joined.
        seqs: first and last number of each message that brought an event, where the surface numbers them.
    """

    code: ErrorCode | None = None
    number: int | None = None
    retryable: bool | None = None
    cause: str | None = None
    path: str | None = None
    session_id: str | None = None
    data: Mapping[str, Any] = attrs.field(factory=dict)
    events: Sequence[Mapping[str, Any]] = ()
    seqs: Sequence[tuple[int, int]] = ()

    @property
    def kinds(self) -> list[str]:
        """The types of the events."""
        return [event["type"] for event in self.events]


def went_well(data: Mapping[str, Any], envelopes: Iterable[Envelope] = ()) -> Outcome:
    """Return the outcome of a call that went well."""
    return told(Outcome(data=data), envelopes)


def failed(body: Mapping[str, Any], number: int | None, envelopes: Iterable[Envelope] = ()) -> Outcome:
    """Return the outcome of a call that failed, from the error's body; a body of another shape fails the test."""
    assert {"code", "message", "retryable"} <= body.keys() <= ERROR_FIELDS, body
    assert body["message"], body
    details = body.get("details", {})
    outcome = Outcome(
        ErrorCode(body["code"]),
        number,
        body["retryable"],
        details.get("cause"),
        details.get("path"),
        body.get("session_id"),
        details,
    )
    return told(outcome, envelopes)


def raised(exc: WarrenError, envelopes: Iterable[Envelope] = ()) -> Outcome:
    """Return the outcome of a call that raised."""
    return failed(exc.body(), None, envelopes)


def told(outcome: Outcome, envelopes: Iterable[Envelope]) -> Outcome:
    """Return an outcome with the events that came before it."""
    envelopes = list(envelopes)
    spans = [(envelope.first_seq or envelope.seq, envelope.seq) for envelope in envelopes]
    return attrs.evolve(outcome, events=joined(envelope.event for envelope in envelopes), seqs=spans)


ERROR_FIELDS: Final = {"code", "message", "retryable", "session_id", "details"}


def meaning(operation: str, data: Any) -> dict[str, Any]:
    """Return the fields of a result as JSON shows it; one that is not of the operation's class fails the test."""
    return fields(codec.from_data(RESULTS[operation], data))


def fields(value: Any) -> dict[str, Any]:  # noqa: PLR0911 - one return a class
    """Return the fields of a result, those of a view side by side, and what is derived from them for comparisons."""
    match value:
        case SessionView(state, billing):
            return attrs.asdict(state, recurse=False) | attrs.asdict(billing, recurse=False)
        case TurnResult(usage=usage):
            tokens = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
            return attrs.asdict(value, recurse=False) | tokens
        case SessionPage(sessions):
            return {"sessions": sessions, "ids": [row.session_id for row in sessions]}
        case ContextView(messages=seen):
            return attrs.asdict(value, recurse=False) | {"said": said(each.message for each in seen)}
        case HistoryPage(messages=entries):
            return attrs.asdict(value, recurse=False) | {"said": said(entry.message for entry in entries)}
        case MemoryHits(hits):
            return {"found": [(hit.content, hit.session_id, hit.turn) for hit in hits]}
    waiting = [(each.kind, each.text, each.source) for each in value.inputs] if isinstance(value, Inputs) else None
    return attrs.asdict(value, recurse=False) | ({} if waiting is None else {"waiting": waiting})


def fields_of(*classes: type["attrs.AttrsInstance"]) -> frozenset[str]:
    """Return the names of the fields of some classes."""
    return frozenset(field.name for cls in classes for field in attrs.fields(cls))


def said(messages: Iterable[Message]) -> list[tuple[str, str]]:
    """Return who said what."""
    found: list[tuple[str, str]] = []
    for message in messages:
        match message:
            case UserMessage(content):
                found.append(("user", content))
            case AssistantMessage() if message.text:
                found.append(("assistant", message.text))
    return found


def envelope_of(data: Mapping[str, Any]) -> Envelope:
    """Return an envelope as JSON shows it; an event that nobody knows fails the test."""
    envelope = codec.from_data(Envelope, data)
    assert codec.to_data(envelope.event)["type"] in codec.EVENT_TYPES, data
    return envelope


def joined(events: Iterable[Event]) -> list[Mapping[str, Any]]:
    """Return events as plain data, adjacent deltas of one kind as one."""
    found: list[dict[str, Any]] = []
    for event in events:
        data = codec.to_data(event)
        if isinstance(event, DELTAS) and found and found[-1]["type"] == data["type"]:
            found[-1]["delta"] += data["delta"]
        else:
            found.append(data)
    return [*found]


def check_numbers(seqs: Sequence[tuple[int, int]]) -> None:
    """Fail where the numbers of events do not rise."""
    for (_, last), (first, _) in pairwise(seqs):
        assert first > last, f"{first} follows {last}"
