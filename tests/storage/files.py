"""A file of a message."""

import hashlib

import attrs

from warren.conversation import codec
from warren.conversation.attachments import Attachment, Blob
from warren.conversation.messages import UserMessage
from warren.conversation.records import MessageRow
from warren.storage.operations import Commit

BYTES = bytes(range(256)) * 3


def blob(data: bytes = BYTES, name: str | None = "a.png") -> Blob:
    """Return some bytes and their reference."""
    return Blob(Attachment("image/png", hashlib.sha256(data).hexdigest(), len(data), name), data)


def with_file(commit: Commit, of: Blob) -> Commit:
    """Return the end of a turn with a file in its first message."""
    first, *rest = commit.messages
    body = codec.encode(UserMessage("hi", (of.attachment,)))
    return attrs.evolve(commit, messages=(MessageRow(first.position, first.created_at, body), *rest))
