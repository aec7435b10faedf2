"""The files of the console over HTTP. They are the same for everybody, have no secrets and need no token."""

import gzip
import hashlib
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from warren.base.values import frozen
from warren.transport.access.refusals import RefusedError

PATH: Final = "/console/"
INDEX: Final = "index.html"
TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""No script and no style but the console's own files, no eval, and no HTML made of text."""
HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding",
    "X-Content-Type-Options": "nosniff",
}


def console_pages(prefix: str = "") -> Mapping[str, ASGIApp]:
    """Return the application at each path of the console, and the way to it from `/`.

    Args:
        prefix: the path below which browsers reach the gateway. Without one the way is relative to the page that a
            browser has asked for: a proxy may serve it below a path that nobody has told.
    """
    own = files(__package__) / "static"
    names = [each.name for each in own.iterdir() if each.is_file()]
    names += [f"vendor/{each.name}" for each in (own / "vendor").iterdir()]
    served = {f"{PATH}{name}": _File(name) for name in names if name.rpartition(".")[2] in TYPES}
    front = _Front(prefix + PATH if prefix else PATH.lstrip("/"))
    return {"": front, "/": front, PATH.rstrip("/"): front, PATH: _File(INDEX), **served}


@frozen
class _File:
    """One file, by its name below `static`."""

    name: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file, or only say that the client has it."""
        request = _checked(scope)
        plain, packed, tag = _read(self.name)
        headers = HEADERS | {"ETag": tag}
        if tag in request.headers.get("if-none-match", ""):
            await Response(None, 304, headers)(scope, receive, send)
            return
        accepted = "gzip" in request.headers.get("accept-encoding", "")
        if accepted:
            headers["Content-Encoding"] = "gzip"
        response = Response(packed if accepted else plain, 200, headers, TYPES[self.name.rpartition(".")[2]])
        await response(scope, receive, send)


@frozen
class _Front:
    """The way to the console."""

    to: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lead a browser to the console. Raises RefusedError (404) for a program: nothing else is here."""
        request = _checked(scope)
        if scope["path"] in ("", "/") and "text/html" not in request.headers.get("accept", ""):
            raise RefusedError(404, "$.path: nothing is at /", field="$.path")
        await RedirectResponse(self.to, 307, {"Cache-Control": "no-cache", "Vary": "Accept"})(scope, receive, send)


def _checked(scope: Scope) -> Request:
    """Return a request. Raises RefusedError (405) if it would change something."""
    request = Request(scope)
    if request.method not in {"GET", "HEAD"}:
        raise RefusedError(405, f"{request.method} is not for this path", ("Allow", "GET, HEAD"), field="$.method")
    return request


@lru_cache
def _read(name: str) -> tuple[bytes, bytes, str]:
    """Return a file, the same compressed, and the tag of this version."""
    plain = (files(__package__) / "static" / name).read_bytes()
    return plain, gzip.compress(plain, mtime=0), f'"{hashlib.sha256(plain).hexdigest()[:32]}"'
