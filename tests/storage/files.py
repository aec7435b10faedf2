"""A file of a message."""

import hashlib

from warren.attachments import Attachment, Blob

BYTES = bytes(range(256)) * 3


def blob(data: bytes = BYTES, name: str | None = "a.png") -> Blob:
    """Return some bytes and their reference."""
    return Blob(Attachment("image/png", hashlib.sha256(data).hexdigest(), len(data), name), data)
