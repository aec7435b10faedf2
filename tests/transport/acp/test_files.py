"""The files of prompts and of tools' results, as a client is told of them."""

from base64 import b64encode
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio

from tests.support.envelopes import envelope
from tests.support.models import FunctionModel, reply
from tests.support.runtime import open_runtime
from tests.transport.acp.client import Client, connect, said
from warren.conversation.attachments import Attachment, File
from warren.conversation.events import InputTaken
from warren.conversation.messages import ToolUseBlock, UserMessage
from warren.models.catalog import ModelEntry
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import ToolOutput, tool
from warren.settings.config import Config
from warren.storage.sqlite.file import FILE_NAME
from warren.transport.acp import files
from warren.transport.acp.updates import Narrator, UpdateWithFiles

PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)
JPEG = b"\xff\xd8\xff" + bytes(20)
WAV = b"RIFF\0\0\0\0WAVE" + bytes(8)
PDF = b"%PDF-1.7"
ECHO = Config(model="echo")
IMAGE = {"type": "image", "data": b64encode(PNG).decode(), "mimeType": "image/png"}
CHART = {"type": "image", "data": b64encode(JPEG).decode(), "mimeType": "image/jpeg"}


@tool
def draw() -> ToolOutput:
    """Draw."""
    return ToolOutput("two charts", [File(JPEG, name="chart.jpg"), File(b"1,2", name="chart.csv")])


async def draws(request: ModelRequest, _emit: object) -> ModelReply:
    """Call the tool, then answer."""
    await trio.lowlevel.checkpoint()
    return reply("", ToolUseBlock("c1", "draw")) if isinstance(request.messages[-1], UserMessage) else reply("drawn")


async def loaded(client: Client, session_id: str) -> list[Any]:
    """Load a session; return the content blocks of the user's chunks."""
    answer = await client.call("session/load", sessionId=session_id, cwd="/work", mcpServers=[])
    return [update["content"] for update in answer.only("user_message_chunk")]


async def test_loading_brings_the_files_of_a_prompt(tmp_path: Path) -> None:
    """After a restart each file of a prompt comes as the block that the client has sent, behind the text."""
    sound = {"type": "audio", "data": b64encode(WAV).decode(), "mimeType": "audio/wav"}
    async with open_runtime(config=ECHO, store=tmp_path) as service, connect(service) as client:
        session_id = await client.new()
        await client.call("session/prompt", sessionId=session_id, prompt=[*said("look"), IMAGE, sound])
    async with open_runtime(config=ECHO, store=tmp_path) as service, connect(service) as client:
        assert await loaded(client, session_id) == [{"type": "text", "text": "look"}, IMAGE, sound]


async def test_texts_and_pdfs_are_resources_and_addresses_are_links(tmp_path: Path) -> None:
    """The files of every surface are told, with the names that they have there."""
    config = Config(model="echo", models={"echo": ModelEntry(images=True, files=True)})
    given = [
        File(b"caf\xc3\xa9", name="my notes.md"),
        File(PDF, name="plan.pdf"),
        File(PDF + b"2"),
        File(url="https://example.com/a.png", media_type="image/png"),
    ]
    async with open_runtime(config=config, store=tmp_path) as service, connect(service) as client:
        session_id = (await service.create_session("look", attachments=given)).session_id
        _, notes, plan, nameless, link = await loaded(client, session_id)
    assert notes["resource"]["text"] == "café"
    assert notes["resource"]["uri"].startswith(f"warren://sessions/{session_id}/attachments/")
    assert notes["resource"]["uri"].endswith("/my%20notes.md")
    assert (plan["resource"]["mimeType"], plan["resource"]["blob"]) == ("application/pdf", b64encode(PDF).decode())
    assert nameless["resource"]["uri"].rpartition("/")[2].isalnum()
    name = "https://example.com/a.png"
    assert link == {"type": "resource_link", "uri": name, "name": name, "mimeType": "image/png"}


async def test_the_files_of_a_result_are_told_live_and_again(tmp_path: Path) -> None:
    """They are content blocks behind the text of the result, in the same update."""
    async with (
        open_runtime(FunctionModel(draws), store=tmp_path, tools=[draw]) as service,
        connect(service) as client,
    ):
        session_id = await client.new()
        live = (await client.prompt(session_id, "draw")).only("tool_call_update")[-1]
        again = await client.call("session/load", sessionId=session_id, cwd="/work", mcpServers=[])
    assert again.only("tool_call_update") == [live]
    text, chart, table = [each["content"] for each in live["content"]]
    assert (text, chart) == ({"type": "text", "text": "two charts"}, CHART)
    assert (table["resource"]["text"], table["resource"]["mimeType"]) == ("1,2", "text/csv")


def test_a_prompt_that_enters_a_turn_has_its_files() -> None:
    """The client is told of them as it is when the session is loaded."""
    image = Attachment("image/png", "0" * 64, 48)
    text, more = Narrator(None).updates(envelope(1, InputTaken("i1", "steer", "and this?", attachments=(image,))))
    assert not isinstance(text, UpdateWithFiles)
    assert isinstance(more, UpdateWithFiles)
    assert more.filled([IMAGE]) == {"sessionUpdate": "user_message_chunk", "content": IMAGE}
    assert more.files == (image,)


async def test_a_note_stands_for_bytes_that_are_gone(tmp_path: Path) -> None:
    """The rest of the conversation is told all the same."""
    async with open_runtime(config=ECHO, store=tmp_path) as service, connect(service) as client:
        session_id = await client.new()
        await client.call("session/prompt", sessionId=session_id, prompt=[*said("look"), IMAGE])
    with apsw.Connection(str(tmp_path / FILE_NAME)) as db:
        db.execute("DELETE FROM attachments")
    async with open_runtime(config=ECHO, store=tmp_path) as service, connect(service) as client:
        note = "[image image/png: not shown: its bytes are no longer stored]"
        assert await loaded(client, session_id) == [*said("look"), {"type": "text", "text": note}]
        assert (await client.prompt(session_id, "hello")).stop_reason == "end_turn"


async def test_a_note_stands_for_a_file_that_fits_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Together the files of an update keep the bound, and a smaller one behind a large one is shown."""
    monkeypatch.setattr(files, "LARGEST", 60)
    async with (
        open_runtime(FunctionModel(draws), store=tmp_path, tools=[draw]) as service,
        connect(service) as client,
    ):
        session_id = await client.new()
        both = (await client.prompt(session_id, "draw")).only("tool_call_update")[-1]["content"]
        assert [each["content"]["type"] for each in both] == ["text", "image", "resource"]
        monkeypatch.setattr(files, "LARGEST", 20)
        again = await client.call("session/load", sessionId=session_id, cwd="/work", mcpServers=[])
    _, chart, table = [each["content"] for each in again.only("tool_call_update")[0]["content"]]
    assert chart["text"] == "[image chart.jpg: not shown: it is too large for a message]"
    assert table["type"] == "resource"
