"""The files of messages as content blocks of the protocol, with their bytes."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from warren.base.errors import InvalidParamsError, WarrenError
from warren.calls.facade import SessionService
from warren.conversation.attachments import Attachment
from warren.transport.acp.updates import Block

LARGEST: Final = 15 * 1024 * 1024
"""Bytes of JSON that the files of one update may have; the whole line is then no longer than a client's may be."""
ESCAPED: Final = 6
"""Bytes of JSON that a byte of a text has at most."""
TOO_LARGE: Final = "it is too large for a message"
GONE: Final = "its bytes are no longer stored"


async def blocks_of(service: SessionService, session_id: str, files: Sequence[Attachment]) -> list[Block]:
    """Return a content block for each file of one update.

    Their bytes are read from the store and held in memory, up to `LARGEST` of them as JSON. A text that says why takes
    the place of a file that does not fit, or that cannot be read.
    """
    found, room = list[Block](), LARGEST
    for file in files:
        weight = file.size * ESCAPED if file.kind == "text" else file.size * 4 // 3
        if weight > room:
            found.append(_note(file, TOO_LARGE))
        else:
            found.append(await _block(service, session_id, file))
            room -= weight
    return found


async def _block(service: SessionService, session_id: str, file: Attachment) -> Block:
    if file.sha256 is None:
        return {"type": "resource_link", "uri": file.url, "name": file.name or file.url, "mimeType": file.media_type}
    try:
        data = (await service.attachment(session_id, file.sha256)).data
    except WarrenError as exc:
        return _note(file, GONE if isinstance(exc, InvalidParamsError) else exc.message)
    if file.kind in ("image", "audio"):
        return {"type": file.kind, "data": b64encode(data).decode(), "mimeType": file.media_type}
    # The end of the address is the name: that is what clients show, and what they send back with a prompt.
    uri = f"warren://sessions/{session_id}/attachments/{file.sha256}" + (f"/{quote(file.name)}" if file.name else "")
    contents = {"text": data.decode(errors="replace")} if file.kind == "text" else {"blob": b64encode(data).decode()}
    return {"type": "resource", "resource": {"uri": uri, "mimeType": file.media_type, **contents}}


def _note(file: Attachment, problem: str) -> Block:
    return {"type": "text", "text": f"[{file.label}: not shown: {problem}]"}
