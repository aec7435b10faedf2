"""The metadata by which OAuth clients find out how to get a token for an application of the gateway (RFC 9728)."""

import re
from collections.abc import Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from warren.base.principals import SCOPES, Principal, Scope
from warren.base.values import frozen
from warren.transport.access.addresses import path_in
from warren.transport.access.config import GatewayConfig
from warren.transport.access.refusals import RefusedError
from warren.transport.rest.answers import answer

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
CHALLENGE: Final = "WWW-Authenticate"
LEAST: Final[tuple[Scope, ...]] = ("session:read", "session:write")
"""The scopes that most tools need."""
_HOST: Final = re.compile(r"[A-Za-z0-9._\[\]:-]+")


@frozen
class Metadata:
    """The metadata of the application at a path, as an application of its own. It needs no token.

    Attributes:
        path: the path of the application.
        config: has the address of the gateway, and the issuer of tokens.
    """

    path: str
    config: GatewayConfig

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive)
        if request.method not in ("GET", "HEAD"):
            problem = f"{request.method} is not for this path"
            raise RefusedError(405, problem, ("Allow", "GET, HEAD"), field="$.method")
        found: dict[str, Any] = {
            "resource": self._base(request) + self.path,
            "bearer_methods_supported": ["header"],
            "resource_name": "Warren",
        }
        if names := self._least():
            found["scopes_supported"] = names
        if self.config.jwt is not None:
            found["authorization_servers"] = [self.config.jwt.issuer]
        await answer(found)(scope, receive, send)

    def demand(self, request: Request, exc: RefusedError) -> RefusedError:
        """Return the refusal of a client without a token, with the way to one in its `WWW-Authenticate`."""
        challenge = dict(exc.headers).get(CHALLENGE)
        if challenge is None:
            return exc
        return exc.answered_with(CHALLENGE, self._challenge(request, challenge, self._least()))

    def challenge(self, scope: AsgiScope, principal: Principal, needed: Scope) -> str:
        """Return the challenge to a client whose token lacks a scope.

        It names the scopes of the token too: a client asks for the named ones alone, and would lose the others.
        """
        scopes = [scope for scope in SCOPES if scope == needed or scope in principal.scopes]
        names = self._names(scopes) if self._names([needed]) else ()
        return self._challenge(Request(scope), 'Bearer error="insufficient_scope"', names)

    def _challenge(self, request: Request, start: str, scopes: Sequence[str]) -> str:
        url = self._base(request) + WELL_KNOWN + self.path
        parts = [*([f'scope="{" ".join(scopes)}"'] if scopes else ()), f'resource_metadata="{url}"']
        return f"{start}{',' if ' ' in start else ''} {', '.join(parts)}"

    def _least(self) -> Sequence[str]:
        """Return the scopes with which a client can begin."""
        return self._names(LEAST) if self.config.mcp_scopes is None else self.config.mcp_scopes

    def _names(self, scopes: Sequence[Scope]) -> Sequence[str]:
        return scopes if self.config.jwt is None else self.config.jwt.names_of(scopes)

    def _base(self, request: Request) -> str:
        """Return the address of the gateway; without a setting it is the one that the client has used."""
        if base := self.config.base:
            return base
        host = request.headers.get("host", "")
        if not _HOST.fullmatch(host):
            host = self.config.host if path_in(self.config.host) is None else "localhost"
        return f"{request.scope['scheme']}://{host}"
