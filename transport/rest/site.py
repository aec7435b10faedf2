"""The application behind all paths of the gateway: it finds the one at a path, and answers for its errors."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warren.base.errors import WarrenError
from warren.reports.tracing import HEADER, context_of, here
from warren.transport.access import auth
from warren.transport.access.auth import AccessPolicy
from warren.transport.access.refusals import RefusedError
from warren.transport.rest.answers import failure, internal_error, refusal
from warren.transport.rpc.behalf import TENANT_HEADER

TRACEPARENT: Final = HEADER.encode()
PARAMETER: Final = re.compile(r"{(\w+)}")
VARY: Final = (b"vary", b"Origin")
"""The header of answers to requests that name no origin; `Cors` adds it to the others."""
METHODS: Final = ("GET", "HEAD", "POST", "PATCH", "DELETE")
SENT: Final = (
    *("authorization", "content-type", "idempotency-key", "last-event-id", TENANT_HEADER),
    *("if-none-match", "if-range", "range"),
    *("mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id"),
    *("traceparent", "tracestate", "baggage"),  # W3C Trace Context and Baggage, which tracing libraries add
)
SHOWN: Final = ("content-disposition", "content-range", "etag", "location", "mcp-session-id", "retry-after")


class Site:
    """The applications at their paths, for the pages and the names of the host that are let in.

    Starlette could do the same, for a twelfth more instructions of `GET /health`: it puts four layers around each
    application, and looks at one route after another.

    Attributes:
        paths: the paths, as they were given.
    """

    paths: Sequence[str]

    def __init__(self, policy: AccessPolicy, origins: Sequence[str], apps: Mapping[str, ASGIApp]) -> None:
        """Serve applications.

        Args:
            policy: the pages and names of the host that are let in.
            origins: the pages that may read the answers, besides those of this machine.
            apps: the application at each path. A name in braces stands for a part of a path: the application finds
                the part in the scope under `path_params`, and what is there first is taken.
        """
        self.paths = tuple(apps)
        self._policy = policy
        self._cors = Cors(self._answer, origins)
        self._fixed = {path: app for path, app in apps.items() if not PARAMETER.search(path)}
        self._others = [
            (re.compile(PARAMETER.sub(r"(?P<\1>[^/]+)", path)), app)
            for path, app in apps.items()
            if path not in self._fixed
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        found: dict[bytes, list[str]] = {b"origin": [], b"host": [], TRACEPARENT: []}
        for name, value in scope["headers"]:
            if name in found:
                found[name].append(value.decode("latin-1"))
        # A connection has one task for all its requests, so what the one before has named ends here.
        here.set(context_of(found[TRACEPARENT][0]) if found[TRACEPARENT] else None)
        origins, hosts = found[b"origin"], found[b"host"]
        try:
            self._policy.check_source(origins, hosts)
        except RefusedError as exc:
            await refusal(exc)(scope, receive, send)
            return
        if origins:
            await self._cors(scope, receive, send)
        else:
            await self._answer(scope, receive, send, VARY)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, *more: tuple[bytes, bytes]) -> None:
        """Have the application at the path answer, or answer with the error that it raises before it has begun.

        Other errors are raised, after an answer if none has begun, so that the connection logs them and ends. Each
        answer gets the headers `more`.
        """
        begun = False

        async def send_noted(message: Message) -> None:
            nonlocal begun
            begun = True
            if more and message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        try:
            await self._found(scope)(scope, receive, send_noted)
        except RefusedError as exc:
            if begun:
                raise
            await refusal(exc)(scope, receive, send_noted)
        except WarrenError as exc:
            if begun:
                raise
            await failure(exc)(scope, receive, send_noted)
        except Exception:
            if not begun:
                await internal_error()(scope, receive, send_noted)
            raise

    def _found(self, scope: Scope) -> ASGIApp:
        """Return the application at the path of a request. Raises RefusedError (404) if there is none."""
        path: str = scope["path"]
        scope["path_params"] = {}
        app = self._fixed.get(path)
        if app is not None:
            return app
        for pattern, there in self._others:
            if found := pattern.fullmatch(path):
                scope["path_params"] = found.groupdict()
                return there
        raise RefusedError(404, f"$.path: nothing is at {path[:200]}", field="$.path")


class Cors(CORSMiddleware):
    """Tells browsers which pages may read the answers."""

    def __init__(self, app: ASGIApp, origins: Iterable[str]) -> None:
        super().__init__(app, allow_methods=METHODS, allow_headers=SENT, expose_headers=SHOWN)
        self._patterns = (*auth.OWN_ORIGINS, *origins)

    def is_allowed_origin(self, origin: str) -> bool:
        """Tell whether a page of this origin may call."""
        return auth.origin_allowed(origin, self._patterns)
