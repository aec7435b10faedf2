"""The result of a tool of an MCP server, as a model gets it."""

from base64 import b64encode

import mcp_types as types
import pytest

from warren.actors.tools.mcp.results import output_of
from warren.conversation.attachments import MAX_ATTACHMENTS, File
from warren.models.tools import ToolError, ToolOutput

PNG = b"\x89PNG\r\n\x1a\n" + bytes(9)
PDF = b"%PDF-1.7"


def test_files_are_beside_the_text() -> None:
    """Images and PDFs are attached; content that no model takes, or that is not what it says, is a note."""
    content: list[types.ContentBlock] = [
        types.TextContent(text="here:"),
        types.ImageContent(data=b64encode(PNG).decode(), mime_type="image/png"),
        types.ImageContent(data=b64encode(PNG).decode(), mime_type="image/jpeg"),
        types.EmbeddedResource(
            resource=types.BlobResourceContents(
                uri="file:///a/b.pdf", blob=b64encode(PDF).decode(), mime_type="application/pdf"
            )
        ),
        types.AudioContent(data="not base64", mime_type="audio/wav"),
    ]
    with pytest.raises(ToolError, match=r"here:\n\[image, image/png\]\n"):
        output_of(types.CallToolResult(content=content, is_error=True))
    assert output_of(types.CallToolResult(content=content)) == ToolOutput(
        "here:\n[image, image/jpeg]\n[audio, audio/wav]",
        [File(PNG, media_type="image/png"), File(PDF, media_type="application/pdf", name="b.pdf")],
    )


def test_more_files_than_a_result_may_have() -> None:
    """The model is told of each that it does not get."""
    image = types.ImageContent(data=b64encode(PNG).decode(), mime_type="image/png")
    found = output_of(types.CallToolResult(content=[image] * (MAX_ATTACHMENTS + 2)))
    assert isinstance(found, ToolOutput)
    assert len(found.files) == MAX_ATTACHMENTS
    assert found.text.count("[image, image/png: left out") == 2
