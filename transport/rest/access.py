"""Access over HTTP: the pages that may read the answers, as browsers are told."""

from collections.abc import Iterable
from typing import Final

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from warren.transport.http import auth
from warren.transport.rpc.behalf import TENANT_HEADER

METHODS: Final = ("GET", "POST", "PATCH", "DELETE")
SENT: Final = (
    "authorization",
    "content-type",
    "idempotency-key",
    "last-event-id",
    "mcp-protocol-version",
    "mcp-session-id",
    TENANT_HEADER,
)
SHOWN: Final = ("location", "mcp-session-id", "retry-after")


class Cors(CORSMiddleware):
    """Tells browsers which pages may read the answers."""

    def __init__(self, app: ASGIApp, origins: Iterable[str]) -> None:
        super().__init__(app, allow_methods=METHODS, allow_headers=SENT, expose_headers=SHOWN)
        self._patterns = (*auth.OWN_ORIGINS, *origins)

    def is_allowed_origin(self, origin: str) -> bool:
        """See CORSMiddleware."""
        return auth.origin_allowed(origin, self._patterns)
