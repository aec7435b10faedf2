"""Files that models make: from the reply into the store, into the history, and back to models."""

from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Final

import pytest

from tests.support.postgres import database
from tests.support.runtime import new_session, open_runtime, replay, transcript
from warren.base.errors import InvalidParamsError
from warren.conversation import codec
from warren.conversation.attachments import Attachment, File
from warren.conversation.events import FilesComplete, TextComplete, TextDelta
from warren.conversation.messages import (
    AssistantMessage,
    FileBlock,
    Message,
    TextBlock,
    ToolResultsMessage,
    ToolUseBlock,
    files_of,
)
from warren.conversation.transcript import ATTACHED, weight_of
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import tool
from warren.settings.config import Config, Limits, PostgresConfig, StoreConfig
from warren.storage.maintenance.doctor import examine

PNG: Final = b"\x89PNG\r\n\x1a\n" + bytes(400_000)
JPEG: Final = b"\xff\xd8\xff" + bytes(20)
SEA: Final = Attachment("image/png", sha256(PNG).hexdigest(), len(PNG))


class Painter:
    """A model that paints, and tells the files of its earlier answers; for "frame" it calls a tool beside it."""

    async def complete(self, request: ModelRequest, _emit: object) -> ModelReply:
        """Answer."""
        last = request.messages[len(request.messages) - 1]
        if isinstance(last, ToolResultsMessage):
            return ModelReply(AssistantMessage((TextBlock("framed"),)), Usage(1, 1))
        made = [block.file for each in request.messages for block in _blocks(each)]
        seen = [f"{file.size} {(await request.files.read(file, 0, 4))!r}" for file in made]
        text, picture = TextBlock("; ".join(seen) or "new"), FileBlock(Attachment("image/png"), {"signed": "s"})
        if getattr(last, "content", "") == "frame":
            call = ToolUseBlock("1", "frame")
            return ModelReply(AssistantMessage((text, picture, call), "tool_use"), Usage(1, 1), (File(PNG),))
        return ModelReply(AssistantMessage((text, picture, picture)), Usage(1, 1), (File(PNG), File(JPEG)))


def _blocks(message: Message) -> list[FileBlock]:
    blocks = message.blocks if isinstance(message, AssistantMessage) else ()
    return [block for block in blocks if isinstance(block, FileBlock)]


@tool
def frame() -> str:
    """Frame the picture."""
    return "done"


@pytest.mark.parametrize("kind", ["file", "database"])
async def test_pictures_stay(kind: str, tmp_path: Path) -> None:
    """The result, the events and the history name them, a restart loses none, and no message has their bytes.

    A fork has them too; they go with the last session that has them.
    """
    if kind == "file":
        return await _stay(tmp_path)
    with database() as url:
        return await _stay(PostgresConfig(url))


async def _stay(store: Path | PostgresConfig) -> None:
    async with open_runtime(Painter(), store=store) as service:
        result = await service.create_session("paint")
        session_id = result.session_id
        assert [file.size for file in result.attachments] == [len(PNG), len(JPEG)]
        events = [each.event for each in await replay(service, session_id)]
        assert [each.attachments for each in events if isinstance(each, FilesComplete)] == [result.attachments]
        assert b64encode(PNG)[:40] not in codec.encode([codec.to_data(each) for each in events])
    async with open_runtime(Painter(), store=store) as service:
        answer = (await transcript(service, session_id))[1]
        assert files_of(answer) == result.attachments
        assert _blocks(answer)[0].metadata == {"signed": "s"}
        assert len(codec.encode_message(answer)) < 1000
        assert (await service.attachment(session_id, str(SEA.sha256))).data == PNG
        again = await service.start_turn(session_id, "paint")
        assert again.text == f"{len(PNG)} {PNG[:4]!r}; {len(JPEG)} {JPEG[:4]!r}"
        fork = (await service.fork(session_id)).state.session_id
        await service.delete(session_id)
        assert (await service.attachment(fork, str(SEA.sha256))).attachment == SEA
        await service.delete(fork)
        other = await new_session(service)
        with pytest.raises(InvalidParamsError, match="is that of no attachment"):
            await service.attachment(other, str(SEA.sha256))
    if isinstance(store, Path):
        assert examine(StoreConfig(store), full=True).healthy


@pytest.mark.virtual_time
async def test_a_picture_beside_a_call() -> None:
    """The result of the turn has the pictures of all its steps."""
    async with open_runtime(Painter(), tools=[frame]) as service:
        result = await service.create_session("frame")
        assert (result.text, result.attachments) == ("framed", (SEA,))


@pytest.mark.virtual_time
async def test_a_picture_that_is_not_kept_is_told() -> None:
    """A file over the bound is a note in the answer, in the events as in the history; the others are kept."""
    async with open_runtime(Painter(), config=Config(limits=Limits(max_attachment=100))) as service:
        result = await service.create_session("paint")
        note = f"[a file: not kept: data has {len(PNG)} bytes, and may have 100 (limits.max_attachment)]"
        assert result.text == f"new{note}"
        assert [file.size for file in result.attachments] == [len(JPEG)]
        events = [each.event for each in await replay(service, result.session_id)]
        assert [each.content for each in events if isinstance(each, TextComplete)] == [result.text]
        assert not any(isinstance(each, TextDelta) for each in events)
        answer = (await transcript(service, result.session_id))[1]
        assert [type(block) for block in getattr(answer, "blocks", ())] == [TextBlock, TextBlock, FileBlock]


@pytest.mark.virtual_time
async def test_a_reply_without_the_bytes_of_a_file() -> None:
    """A provider of a program that gives too few files loses no answer: a note takes the place of the file."""

    class Forgetful:
        async def complete(self, _request: ModelRequest, _emit: object) -> ModelReply:
            blocks = (FileBlock(Attachment("image/png")), FileBlock(Attachment("image/gif")))
            return ModelReply(AssistantMessage(blocks), Usage(1, 1), (File(PNG),))

    async with open_runtime(Forgetful()) as service:
        result = await service.create_session("paint")
        assert (result.text, result.attachments) == ("[image image/gif: not kept]", (SEA,))


def test_a_picture_counts_in_estimates() -> None:
    """As other attachments do, and not by its bytes."""
    assert weight_of(codec.encode_message(AssistantMessage((FileBlock(SEA),)))) > ATTACHED
