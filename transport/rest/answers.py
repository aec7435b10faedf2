"""Answers over HTTP: results and errors as JSON, in the one shape that every surface shows."""

import math
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from warren.base.errors import BUSY, AgentError, CapacityExceededError, WarrenError
from warren.base.values import define
from warren.conversation import codec
from warren.transport.access.refusals import JSON, SOON, RefusedError

MAX_UNREAD: Final = 64 * 1024 * 1024
"""Bytes of large answers that may wait for clients to read them; while there are more, no more are made."""


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
    status = status or exc.numbers.http
    told: float | None = exc.details.get("retry_after")
    wait = float(SOON) if told is None and status == BUSY and exc.retryable else told
    headers = None if wait is None else {"Retry-After": str(math.ceil(wait))}
    return answer(exc.body(), status, headers)


def internal_error() -> Response:
    """Return the response to a request that failed in a way that is our fault; it says nothing of how."""
    return failure(AgentError("internal error", cause="internal"))
