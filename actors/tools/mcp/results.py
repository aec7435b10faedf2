"""A server's result for the model: its text, and its files."""

import json
from base64 import b64decode
from typing import Final

import mcp_types as types

from warren.attachments import MAX_ATTACHMENTS, MAX_NAME, File, reference_of
from warren.tools import ToolError, ToolOutput

MAX_FILE: Final = 20 * 1024 * 1024
"""Bytes of a file that the model gets."""
MAX_TEXT: Final = 100_000
"""Characters of a result that the model gets; the rest is left out."""


def output_of(result: types.CallToolResult) -> str | ToolOutput:
    """Return a result for the model: its texts, or its data as JSON if it has none, and its images, sounds and PDFs.

    Raises ToolError if it is an error.
    """
    found = [(block, file_of(block)) for block in result.content]
    parts = [_shown(block) for block, file in found if file is None]
    files = [file for _, file in found if file is not None][:MAX_ATTACHMENTS]
    if result.structured_content is not None and not any(map(_is_text, result.content)):
        parts.insert(0, json.dumps(result.structured_content, ensure_ascii=False))
    text = bounded("\n".join(parts))
    if result.is_error:
        raise ToolError(text or "the tool failed, and does not say why")
    return ToolOutput(text, files) if files else text


def file_of(block: types.ContentBlock) -> File | None:
    """Return the file of a block that can be attached to a result; None for any other block."""
    match block:
        case types.ImageContent(data=data, mime_type=kind) | types.AudioContent(data=data, mime_type=kind):
            name = None
        case types.EmbeddedResource(resource=types.BlobResourceContents(blob=data, mime_type=kind, uri=uri)):
            name = str(uri).rpartition("/")[2][-MAX_NAME:] or None
        case _:
            return None
    try:
        file = File(b64decode(data, validate=True), media_type=kind or None, name=name)
        reference_of(file, MAX_FILE)
    except ValueError:  # of no kind that models take: a note says what it was
        return None
    return file


def bounded(text: str, limit: int = MAX_TEXT) -> str:
    """Cut a text that is too long, and add a note of it."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[{len(text) - limit} more characters are left out]"


def _is_text(block: types.ContentBlock) -> bool:
    if isinstance(block, types.EmbeddedResource):
        return isinstance(block.resource, types.TextResourceContents)
    return isinstance(block, types.TextContent)


def _shown(block: types.ContentBlock) -> str:
    """Return a text as it is, and a note in place of other content."""
    match block:
        case types.TextContent(text=text):
            return text
        case types.EmbeddedResource(resource=types.TextResourceContents(text=text)):
            return text
        case types.EmbeddedResource(resource=resource):
            return f"[resource {resource.uri}, {resource.mime_type or 'of unknown type'}]"
        case types.ResourceLink():
            return f"[link to the resource {block.uri}: {block.name}]"
        case types.ImageContent():
            return f"[image, {block.mime_type}]"
        case types.AudioContent():
            return f"[audio, {block.mime_type}]"
