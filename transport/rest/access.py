"""Who may ask over HTTP: the pages and the names that the gateway lets in."""

from collections.abc import Iterable
from typing import Final

import attrs
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from warren.transport.http import auth
from warren.transport.http.config import GatewayConfig
from warren.transport.http.handshake import RefusedError, check_hosts, check_origins
from warren.transport.rest.answers import refusal

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


@attrs.frozen
class Door:
    """An application that only lets in what is meant for it.

    A page of another origin than the allowed ones gets 403. So does, where there is no token, a request for a host of
    another name: a page may have a name that leads to this machine, and then no browser asks us about its origin.

    Attributes:
        app: the application.
        config: has the token, the origins, and the host's name.
    """

    app: ASGIApp
    config: GatewayConfig

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer why not."""
        headers = Headers(scope=scope)
        try:
            check_origins(headers.getlist("origin"), self.config.origins)
            if self.config.token is None:
                check_hosts(headers.getlist("host"), self.config.host)
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
