"""The traces of turns as OpenTelemetry spans. It needs the extra `traces`."""

from warren.transport.tracing.tracer import OtelTracer, open_tracer

__all__ = ["OtelTracer", "open_tracer"]
