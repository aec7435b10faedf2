"""Access over HTTP: the pages and the names of the host that the gateway lets in."""

from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from warren.transport.http import auth
from warren.transport.http.refusals import RefusedError
from warren.transport.rest.answers import refusal
from warren.values import frozen

METHODS: Final = ("GET", "POST", "PATCH", "DELETE")
SENT: Final = (
    "authorization",
    "content-type",
    "idempotency-key",
    "last-event-id",
    "mcp-protocol-version",
    "mcp-session-id",
)
SHOWN: Final = ("location", "mcp-session-id", "retry-after")


@frozen
class HostGuard:
    """An application that refuses foreign pages and foreign names of the host, with 403.

    Attributes:
        app: the application behind.
        policy: the pages and names that are let in.
    """

    app: ASGIApp
    policy: auth.AccessPolicy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer with the reason."""
        headers = Headers(scope=scope)
        try:
            self.policy.check_source(headers.getlist("origin"), headers.getlist("host"))
        except RefusedError as exc:
            await refusal(exc)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


class Cors(CORSMiddleware):
    """Tells browsers which pages may read the answers."""

    def __init__(self, app: ASGIApp, origins: Iterable[str]) -> None:
        super().__init__(app, allow_methods=METHODS, allow_headers=SENT, expose_headers=SHOWN)
        self._patterns = (*auth.OWN_ORIGINS, *origins)

    def is_allowed_origin(self, origin: str) -> bool:
        """See CORSMiddleware."""
        return auth.origin_allowed(origin, self._patterns)
