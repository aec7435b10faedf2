"""Answers over HTTP: results and errors as JSON, in the one shape that every surface shows."""

import logging
import math
from collections.abc import Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ExceptionHandler, Receive, Scope, Send

from warren import codec
from warren.errors import AgentError, CapacityExceededError, InvalidParamsError, ProviderError, WarrenError
from warren.transport.http.refusals import JSON, SOON, RefusedError
from warren.values import define

MAX_UNREAD: Final = 64 * 1024 * 1024
"""Bytes of large answers that may wait for clients to read them; while there are more, no more are made."""

logger: Final = logging.getLogger(__name__)


@define
class Unread:
    """The large answers that clients have not read yet.

    Attributes:
        size: their bytes.
    """

    size: int = 0

    def check(self) -> None:
        """Raise CapacityExceededError if there are too many to make another one."""
        if self.size >= MAX_UNREAD:
            problem = (
                f"large answers of {self.size} bytes are not read by their clients yet: read them, or ask for less"
            )
            raise CapacityExceededError(problem, cause="unread")


class LargeAnswer(Response):
    """An answer that counts as unread until it is sent, or its client is gone."""

    def __init__(self, unread: Unread, *args: Any) -> None:
        super().__init__(*args)
        self._unread = unread
        unread.size += len(self.body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See Response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._unread.size -= len(self.body)


def answer(data: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return plain data or a domain object as a response."""
    return Response(codec.encode(data), status, headers, JSON)


def refusal(exc: RefusedError) -> Response:
    """Return the response of a refusal."""
    return answer(exc.error.body(), exc.status, dict(exc.headers))


def failure(exc: WarrenError, status: int | None = None) -> Response:
    """Return the response to a call that failed, with the error's own status unless another one is given.

    `Retry-After` is in whole seconds, if there is a time to wait for.
    """
    wait = _wait(exc)
    headers = None if wait is None else {"Retry-After": str(math.ceil(wait))}
    return answer(exc.body(), status or exc.numbers.http, headers)


def _wait(exc: WarrenError) -> float | None:
    match exc:
        case CapacityExceededError():
            return float(SOON)
        case ProviderError(retry_after=seconds):
            return seconds
    return None


def internal_error() -> Response:
    """Return the response to a request that failed in a way that is our fault; it says nothing of how."""
    return failure(AgentError("internal error", cause="internal"))


async def _on_refused(_request: Request, exc: Any) -> Response:
    return refusal(exc)


async def _on_failure(_request: Request, exc: Any) -> Response:
    return failure(exc)


async def _on_starlettes(request: Request, exc: Any) -> Response:
    """Answer a request that Starlette refuses itself: nothing is at its path."""
    error = InvalidParamsError(f"$.path: nothing is at {request.url.path[:200]}", path="$.path")
    return answer(error.body(), exc.status_code, exc.headers)


async def _on_bug(_request: Request, _exc: Exception) -> Response:
    return internal_error()


HANDLERS: Final[Mapping[Any, ExceptionHandler]] = {
    RefusedError: _on_refused,
    WarrenError: _on_failure,
    HTTPException: _on_starlettes,
    Exception: _on_bug,
}
"""The answers to exceptions of a route."""
