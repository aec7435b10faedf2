"""The metadata by which OAuth clients find out how to get a token for an application of the gateway (RFC 9728)."""

import re
from typing import Any, Final

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from warren.transport.http.config import GatewayConfig
from warren.transport.http.refusals import RefusedError
from warren.transport.http.token_list import GRANTED
from warren.transport.rest.answers import answer
from warren.values import frozen

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
CHALLENGE: Final = "WWW-Authenticate"
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

    def url(self, request: Request) -> str:
        """Return the address of the metadata, as the client of a request reaches it."""
        return self._base(request) + WELL_KNOWN + self.path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive)
        if request.method not in ("GET", "HEAD"):
            problem = f"{request.method} is not for this path"
            raise RefusedError(405, problem, ("Allow", "GET, HEAD"), field="$.method")
        found: dict[str, Any] = {
            "resource": self._base(request) + self.path,
            "bearer_methods_supported": ["header"],
            "scopes_supported": list(GRANTED),
            "resource_name": "Warren",
        }
        if self.config.jwt is not None:
            found["authorization_servers"] = [self.config.jwt.issuer]
        await answer(found)(scope, receive, send)

    def _base(self, request: Request) -> str:
        """Return the address of the gateway; without a setting it is the one that the client has used."""
        if self.config.public_url is not None:
            return self.config.public_url.rstrip("/")
        host = request.headers.get("host", "")
        return f"http://{host if _HOST.fullmatch(host) else self.config.host}"


def with_metadata(exc: RefusedError, url: str) -> RefusedError:
    """Return the refusal of an application; the `WWW-Authenticate` of a 401 has the address of the metadata."""
    challenge = dict(exc.headers).get(CHALLENGE)
    if challenge is None:
        return exc
    comma = "," if " " in challenge else ""
    return exc.answered_with(CHALLENGE, f'{challenge}{comma} resource_metadata="{url}"')
