"""Events in the form of Meerkat's protocol."""

import uuid
from collections.abc import Mapping
from typing import Any, Final

from warren.conversation import codec, events
from warren.transport.rpc.contracts.meerkat.versions import NEWEST, Version

KNOWN_BUDGETS: Final = ("tokens", "time", "tool_calls")
ERROR_CLASSES: Final[Mapping[events.FailureCause, str]] = {
    "cancelled": "cancelled",
    "budget_exhausted": "budget",
    "provider_error": "llm",
    "store_error": "store",
    "structured_output": "structured_output",
    "denied": "internal",
    "crash": "internal",
}
TERMINAL_CAUSES: Final[Mapping[events.FailureCause, str]] = {
    "budget_exhausted": "budget_exhausted",
    "provider_error": "llm_failure",
    "store_error": "runtime_apply_failure",
    "structured_output": "structured_output_validation_failed",
    "denied": "fatal_failure",
    "crash": "fatal_failure",
}


UNKNOWN_TO_MEERKAT: Final = (
    events.InputTaken,
    events.ToolApprovalRequested,
    events.ToolApprovalResolved,
    events.ExtractionCompleted,
    events.ExtractionFailed,
    events.FilesComplete,
    events.SessionMoved,
    events.TurnResumed,
)
"""Events that Meerkat's clients do not know; from 0.7 on an unknown event ends their stream.

Meerkat's events of extraction have fields that Warren does not have; its outcome is in the result, or in `run_failed`.
"""
TYPED_REASON_SINCE: Final = (0, 8, 0)
"""From this version on, the reason of `stream_truncated` is an object."""


def payload_of(event: events.Event, version: Version = NEWEST) -> dict[str, Any] | None:
    """Return an event as plain data; None for an event that Meerkat's clients do not know."""
    if isinstance(event, events.BudgetWarning) and event.budget_type not in KNOWN_BUDGETS:
        return None
    if isinstance(event, UNKNOWN_TO_MEERKAT):
        return None
    data: dict[str, Any] = codec.to_data(event)
    if isinstance(event, events.ToolResultReceived):
        data.pop("result", None)  # Meerkat's form of the event has no text
    return data | _more(event, version)


def envelope_of(envelope: events.Envelope, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event in the envelope of event streams."""
    name = f"{envelope.session_id}:{envelope.seq}"
    return {
        "event_id": str(uuid.uuid5(uuid.NAMESPACE_OID, name)),
        "source": {"type": "session", "session_id": envelope.session_id},
        "source_id": f"session:{envelope.session_id}",
        "seq": envelope.seq,
        "timestamp_ms": int(envelope.timestamp.timestamp() * 1000),
        "payload": payload,
    }


def _more(event: events.Event, version: Version) -> dict[str, Any]:
    """Return the fields that Meerkat's form of an event has in addition, or with other values."""
    match event:
        case events.RunStarted():
            return {"input": {"kind": "content", "content": event.prompt}}
        case events.RunFailed():
            error_class, cause = ERROR_CLASSES[event.cause], TERMINAL_CAUSES.get(event.cause)
            report = {"error_class": error_class, "error_report": {"class": error_class, "message": event.error}}
            return report | ({"terminal_cause_kind": cause} if cause else {})
        case events.ToolExecutionCompleted():
            return {"content": [{"type": "text", "text": event.result}]}
        case events.BudgetWarning():
            return {"used": round(event.used), "limit": round(event.limit), "percent": event.percent / 100}
        case events.CompactionFailed() | events.StreamTruncated():
            return {"reason": _reason(event, version)}
    return {}


def _reason(event: events.CompactionFailed | events.StreamTruncated, version: Version) -> object:
    if isinstance(event, events.CompactionFailed):
        return {"kind": event.reason}
    if version >= TYPED_REASON_SINCE:
        return {"kind": "stream_lagged", "dropped": event.dropped}
    why = "the reader is too slow" if event.cause is None else "the store is damaged there"
    return f"{event.dropped} events were dropped: {why}"
