"""A server's result for the model: its text, and its files."""

import json
from base64 import b64decode
from typing import Final

import mcp_types as types

from warren.conversation.attachments import MAX_ATTACHMENTS, MAX_NAME, File, media_type_of
from warren.models.tools import ToolError, ToolOutput

LARGE: Final = 256 * 1024
"""Characters of files from which on a thread makes the output of a result."""


def output_of(result: types.CallToolResult) -> str | ToolOutput:
    """Return a result for the model: its texts, or its data as JSON if it has none, and its images, sounds and PDFs.

    Raises ToolError if it is an error.
    """
    parts, files = list[str](), list[File]()
    for block in result.content:
        file = None if result.is_error else file_of(block)
        if file is None:
            parts.append(_shown(block))
        elif len(files) < MAX_ATTACHMENTS:
            files.append(file)
        else:
            parts.append(f"{_shown(block)[:-1]}: left out, as a result has at most {MAX_ATTACHMENTS} files]")
    if result.structured_content is not None and not any(map(_is_text, result.content)):
        parts.insert(0, json.dumps(result.structured_content, ensure_ascii=False))
    text = "\n".join(parts)
    if result.is_error:
        raise ToolError(text or "the tool failed, and does not say why")
    return ToolOutput(text, files) if files else text


def file_of(block: types.ContentBlock) -> File | None:
    """Return the file of a block that can be attached to a result; None for any other. Its size is not checked."""
    match block:
        case types.ImageContent(data=data, mime_type=kind) | types.AudioContent(data=data, mime_type=kind):
            name = None
        case types.EmbeddedResource(resource=types.BlobResourceContents(blob=data, mime_type=kind, uri=uri)):
            name = str(uri).rpartition("/")[2][-MAX_NAME:] or None
        case _:
            return None
    try:
        found = b64decode(data, validate=True)
        file = File(found, media_type=kind or None, name=name)
        media_type_of(found, file)
    except ValueError:  # of no kind that models take: a note says what it was
        return None
    return file


def size_of(result: types.CallToolResult) -> int:
    """Return the characters of a result's files."""
    size = 0
    for block in result.content:
        match block:
            case types.ImageContent(data=data) | types.AudioContent(data=data):
                size += len(data)
            case types.EmbeddedResource(resource=types.BlobResourceContents(blob=data)):
                size += len(data)
    return size


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
