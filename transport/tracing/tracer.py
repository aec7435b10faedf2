"""The tracer over OpenTelemetry: it samples turns, and a thread makes spans of those that have ended."""

import logging
import queue
import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

import attrs
import trio
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from warren.base.values import define
from warren.base.version import VERSION
from warren.reports.tracing import TraceContext, TracedTurn, Tracer, new_span_id
from warren.settings.config import TraceConfig
from warren.transport.tracing.conventions import SCHEMA_URL
from warren.transport.tracing.spans import SpanData, spans_of

WAITING: Final = 1_000
"""Turns that may wait for the thread; those beyond it are dropped."""
CLOSING: Final = 5.0
"""Seconds for the last spans to be sent when the runtime ends."""
PATH: Final = "v1/traces"
LOWER: Final = 2**64
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
SCOPE: Final = InstrumentationScope("warren", VERSION, SCHEMA_URL)

logger: Final = logging.getLogger(__name__)


@asynccontextmanager
async def open_tracer(config: TraceConfig) -> AsyncIterator[Tracer]:
    """Open a tracer that sends spans by OTLP over HTTP, for a body.

    The variables of OpenTelemetry hold: `OTEL_EXPORTER_OTLP_ENDPOINT` and `_HEADERS`, `OTEL_SERVICE_NAME`,
    `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_BSP_*`. Spans that cannot be sent are dropped, and the log says so.
    """
    endpoint = None if config.endpoint is None else f"{config.endpoint.rstrip('/')}/{PATH}"
    tracer = OtelTracer(BatchSpanProcessor(OTLPSpanExporter(endpoint)), config.sample, content=config.content)
    try:
        yield tracer
    finally:
        # Shielded: the last turns have spans too if the gateway ends by cancellation. Bounded: nobody may answer.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSING):
            await trio.to_thread.run_sync(tracer.close, abandon_on_cancel=True)


def _resource() -> Resource:
    found = Resource.create()
    named = not str(found.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service")
    return found if named else found.merge(Resource({SERVICE_NAME: "warren"}))


@define(eq=False)
class OtelTracer(Tracer):
    """A tracer that gives its spans to a processor of OpenTelemetry, such as a program has already.

    Attributes:
        processor: gets the spans, in a thread of the tracer.
        sample: the share of turns that are traced, 0 to 1. If the caller of a turn is in a trace, that decides.
        content: whether the spans have the texts of the conversation.
        resource: the program, in OpenTelemetry's terms; by its variables unless it is given.
    """

    processor: SpanProcessor
    sample: float = 1.0
    content: bool = attrs.field(default=False, kw_only=True)
    resource: Resource = attrs.field(factory=_resource, kw_only=True)
    _bound: int = attrs.field(init=False)
    _ended: "queue.Queue[TracedTurn | None]" = attrs.field(factory=lambda: queue.Queue(WAITING), init=False)
    _thread: threading.Thread = attrs.field(init=False)
    _dropped: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._bound = round(self.sample * LOWER)
        self._thread = threading.Thread(target=self._run, name="warren-traces", daemon=True)
        self._thread.start()

    def begin(self, parent: TraceContext | None) -> TraceContext:
        if parent is not None:
            return parent.child()
        number = random.getrandbits(128) or 1
        return TraceContext(number, new_span_id(), number % LOWER < self._bound)

    def ended(self, turn: TracedTurn) -> None:
        try:
            self._ended.put_nowait(turn)
        except queue.Full:
            if not self._dropped:
                logger.warning("turns end faster than their traces are made: some have none")
            self._dropped += 1

    def close(self) -> None:
        """Send the spans of all turns that have ended. It blocks."""
        self._ended.put(None)
        self._thread.join()
        self.processor.shutdown()

    def _run(self) -> None:
        while (turn := self._ended.get()) is not None:
            try:
                for span in spans_of(turn, content=self.content):
                    self.processor.on_end(self._readable(turn, span))
            except Exception:
                logger.exception("the trace of a turn of session %s cannot be made", turn.session_id)

    def _readable(self, turn: TracedTurn, span: SpanData) -> ReadableSpan:
        is_whole = span.span_id == turn.place.span_id
        parent = turn.parent if is_whole else turn.place.span_id
        return ReadableSpan(
            span.name,
            context=_context(turn.place, span.span_id),
            parent=None if parent is None else _context(turn.place, parent, is_remote=is_whole),
            resource=self.resource,
            attributes=span.attributes,
            events=[Event(name, about, _nanoseconds(at)) for name, at, about in span.events],
            kind=SpanKind.CLIENT if span.calls_out else SpanKind.INTERNAL,
            status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=_nanoseconds(span.began),
            end_time=_nanoseconds(max(span.began, span.ended)),  # the clock may have been set back
            instrumentation_scope=SCOPE,
        )


def _context(place: TraceContext, span_id: int, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(place.trace_id, span_id, is_remote, TraceFlags(TraceFlags.SAMPLED))


def _nanoseconds(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND * 1000
