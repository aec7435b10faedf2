"""The text of a server's result for the model."""

import json
from typing import Final

import mcp_types as types

from warren.tools import ToolError

MAX_TEXT: Final = 100_000
"""Characters of a result that the model gets; the rest is left out."""


def text_of(result: types.CallToolResult) -> str:
    """Return the texts of a result, or its data as JSON if it has none. Raises ToolError if it is an error."""
    parts = [_shown(block) for block in result.content]
    if result.structured_content is not None and not any(map(_is_text, result.content)):
        parts.insert(0, json.dumps(result.structured_content, ensure_ascii=False))
    text = bounded("\n".join(parts))
    if result.is_error:
        raise ToolError(text or "the tool failed, and does not say why")
    return text


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
