"""A receiver of OpenTelemetry's protocol over HTTP, which keeps what it is sent."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import attrs
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@attrs.frozen
class Span:
    """A span as it arrived; ids are hexadecimal."""

    name: str
    trace_id: str
    span_id: str
    parent: str
    seconds: float
    attributes: dict[str, Any]
    events: tuple[str, ...]
    failed: bool
    resource: dict[str, Any]

    @property
    def place(self) -> tuple[int, int]:
        """The numbers of the trace and of the parent."""
        return int(self.trace_id, 16), int(self.parent, 16)


@attrs.define(eq=False)
class Receiver:
    """The receiver.

    Attributes:
        url: its address.
        spans: what has arrived.
        raw: the bodies of the requests.
    """

    url: str
    spans: list[Span] = attrs.field(factory=list)
    raw: list[bytes] = attrs.field(factory=list)

    def take(self, body: bytes) -> None:
        """Keep the spans of a request."""
        self.raw.append(body)
        request = ExportTraceServiceRequest.FromString(body)
        for group in request.resource_spans:
            resource = _plain(group.resource.attributes)
            self.spans += [_span(each, resource) for scope in group.scope_spans for each in scope.spans]

    def named(self, name: str) -> list[Span]:
        """Return the spans of a name."""
        return [span for span in self.spans if span.name == name]


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return [_value(each) for each in found.values] if kind == "array_value" else found


def _span(span: Any, resource: dict[str, Any]) -> Span:
    return Span(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
        _plain(span.attributes),
        tuple(event.name for event in span.events),
        span.status.code == span.status.STATUS_CODE_ERROR,
        resource,
    )


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a receiver on a port of its own for a body."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Take a request."""
            assert self.path == "/v1/traces", self.path
            receiver.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
