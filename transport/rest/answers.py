"""Answers over HTTP: results and errors as JSON, in the one shape that every surface shows."""

import math
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from warren.base.errors import BUSY, AgentError, CapacityExceededError, WarrenError
from warren.base.values import define
from warren.conversation import codec
from warren.conversation.attachments import AttachmentContent
from warren.transport.access.refusals import JSON, SOON, RefusedError

MAX_UNREAD: Final = 64 * 1024 * 1024
"""Bytes of large answers that may wait for clients to read them; while there are more, no more are made."""
SHOWN: Final = ("image", "audio")
"""The kinds that a browser shows in place of saving them; none of them can have scripts."""
SAFE: Final[Mapping[str, str]] = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cache-Control": "private, no-cache",
    "Accept-Ranges": "bytes",
}
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


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


def file_answer(found: AttachmentContent, unread: Unread, asked: Mapping[str, str]) -> Response:
    """Return the answer with a file, a range of it, or the word that the client has it already.

    Args:
        found: the file.
        unread: counts it until it is read.
        asked: the headers of the request.

    Raises RefusedError (416) if there is nothing in the range.
    """
    of, tag = found.attachment, f'"{found.attachment.sha256}"'
    headers = {**SAFE, "ETag": tag, "Content-Disposition": _disposition(found)}
    if tag in re.split(r"\s*,\s*", asked.get("if-none-match", "")):
        return Response(b"", 304, headers)
    part = None if asked.get("if-range", tag) != tag else _range(asked.get("range", ""), len(found.data))
    unread.check()
    charset = "; charset=utf-8" if of.kind == "text" else ""
    headers["Content-Type"] = of.media_type + charset
    if part is None:
        return LargeAnswer(unread, found.data, 200, headers)
    headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{len(found.data)}"
    return LargeAnswer(unread, found.data[part.start : part.stop], 206, headers)


def _range(asked: str, size: int) -> range | None:
    """Return the bytes that one range names; None for all of them, and for a header of another form."""
    form = _RANGE.fullmatch(asked)
    if form is None or form.groups() == ("", ""):
        return None
    first, last = form.groups()
    part = range(max(0, size - int(last)), size) if not first else range(int(first), min(int(last or size) + 1, size))
    if first and last and int(last) < int(first):
        return None
    if not part:
        raise RefusedError(
            416, f"the file has {size} bytes", ("Content-Range", f"bytes */{size}"), field="$.headers.range"
        )
    return part


def _disposition(found: AttachmentContent) -> str:
    way = "inline" if found.attachment.kind in SHOWN else "attachment"
    name = found.attachment.name
    return way if name is None else f"{way}; filename*=UTF-8''{quote(name, safe='', errors='replace')}"
