"""Traces: the place of a call in the trace of its caller, and the turns that a tracer makes spans of. No I/O.

The places have the form of W3C Trace Context, so they pass through any system that knows it. Its `tracestate` is not
passed on.
"""

import random
import re
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, Protocol

import attrs

from warren.base.values import value
from warren.conversation.events import Envelope, FailureCause
from warren.conversation.usage import NO_USAGE, Usage

HEADER: Final = "traceparent"
"""The name of the header that has a place."""
KEPT: Final = 64 * 1024
"""Bytes of the messages before a turn that its trace has."""
SAMPLED: Final = 0x01
_PLACE: Final = r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
"""The form of a place. `re` compiles it at its first use, and keeps it."""


@value
class TraceContext:
    """A place in a trace: a span, which others may be children of.

    Attributes:
        trace_id: the number of the trace, of 128 bits.
        span_id: the number of the span, of 64 bits.
        sampled: whether the spans of the trace are kept.
    """

    trace_id: int
    span_id: int
    sampled: bool

    @property
    def traceparent(self) -> str:
        """The place as the value of the header `traceparent`."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"

    def child(self) -> "TraceContext":
        """Return the place of a new span in the same trace."""
        return TraceContext(self.trace_id, new_span_id(), self.sampled)


def new_span_id() -> int:
    """Return the number of a new span."""
    return random.getrandbits(64) or 1


def context_of(header: object) -> TraceContext | None:
    """Return the place that a header names. One that is none counts as missing, as the W3C wants it."""
    found = re.fullmatch(_PLACE, header.strip()) if isinstance(header, str) else None
    if found is None or (found[1] == "00" and found[5]):  # only later versions may have more
        return None
    return TraceContext(int(found[2], 16), int(found[3], 16), bool(int(found[4], 16) & SAMPLED))


here: Final[ContextVar[TraceContext | None]] = ContextVar("here", default=None)
"""The place of the running task: that of its turn, or the one that the request which it serves has named."""


def caller() -> TraceContext | None:
    """Return the place from which the running task calls: `here`, or else the program's own OpenTelemetry span.

    A program without OpenTelemetry pays one look-up for it.
    """
    place = here.get()
    if place is None and (api := sys.modules.get("opentelemetry.trace")) is not None:
        place = _current_span(api)
    return place


def _current_span(api: Any) -> TraceContext | None:
    try:
        span = api.get_current_span().get_span_context()
        sampled = bool(span.trace_flags & SAMPLED)
        return TraceContext(span.trace_id, span.span_id, sampled) if span.is_valid else None
    except AttributeError:  # another thread is in the middle of its first import
        return None


@value
class TracedTurn:
    """A sampled turn that has ended, or a compaction that ran alone.

    Attributes:
        place: its own span.
        parent: the number of its caller's span; None if it begins its trace.
        session_id: its session.
        tenant: the tenant of the session.
        number: its number within the session, from 1 on; None for a compaction alone.
        provider: the name of the model's provider.
        model: the model that it was planned with.
        began: the time of its beginning.
        ended: the time at which the answer of the store was there.
        events: its events in order, each run of deltas by its first one.
        failure: the cause if it failed.
        usage: the tokens of the turn.
        before: the messages before it as JSON: the first one, and the newest ones, as many as `KEPT` allows.
        servers: the addresses of the servers of its models, by the names of the models, in their order.
        cut: whether later events were left out, as there are too many.
    """

    place: TraceContext
    parent: int | None
    session_id: str
    tenant: str
    number: int | None
    provider: str
    model: str
    began: datetime
    ended: datetime
    events: Sequence[Envelope] = ()
    failure: FailureCause | None = None
    usage: Usage = attrs.field(default=NO_USAGE)
    before: Sequence[bytes] = ()
    servers: Mapping[str, str | None] = attrs.field(factory=dict)
    cut: bool = False


class Tracer(Protocol):
    """The port to the traces of a runtime. Its methods do not wait; they are called on the event loop.

    One that raises loses the trace of the turn, and nothing else.
    """

    def begin(self, parent: TraceContext | None) -> TraceContext:
        """Return the place of a new turn, and decide whether it is sampled.

        Args:
            parent: the place of its caller; None begins a trace.
        """

    def ended(self, turn: TracedTurn) -> None:
        """Take a sampled turn that has ended."""
