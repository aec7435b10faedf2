"""Access over HTTP: the pages that may read the answers, as browsers are told."""

from collections.abc import Iterable
from typing import Final

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from warren.transport.access import auth
from warren.transport.rpc.behalf import TENANT_HEADER

METHODS: Final = ("GET", "HEAD", "POST", "PATCH", "DELETE")
SENT: Final = (
    *("authorization", "content-type", "idempotency-key", "last-event-id", TENANT_HEADER),
    *("if-none-match", "if-range", "range"),
    *("mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id"),
    *("traceparent", "tracestate", "baggage"),  # W3C Trace Context and Baggage, which tracing libraries add
)
SHOWN: Final = ("content-disposition", "content-range", "etag", "location", "mcp-session-id", "retry-after")


class Cors(CORSMiddleware):
    """Tells browsers which pages may read the answers."""

    def __init__(self, app: ASGIApp, origins: Iterable[str]) -> None:
        super().__init__(app, allow_methods=METHODS, allow_headers=SENT, expose_headers=SHOWN)
        self._patterns = (*auth.OWN_ORIGINS, *origins)

    def is_allowed_origin(self, origin: str) -> bool:
        """See CORSMiddleware."""
        return auth.origin_allowed(origin, self._patterns)
