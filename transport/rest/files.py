"""The bytes of a file as an answer that no page can be tricked into running."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from warren.conversation.attachments import AttachmentContent
from warren.transport.access.refusals import RefusedError
from warren.transport.rest.answers import LargeAnswer, Unread

SHOWN: Final = ("image", "audio")
"""The kinds that a browser shows in place of saving them; none of them can have scripts."""
SAFE: Final[Mapping[str, str]] = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cache-Control": "private, no-cache",
    "Accept-Ranges": "bytes",
}
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


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
    """Return the bytes that one range names; None for all of them, also if the header is of another form."""
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
