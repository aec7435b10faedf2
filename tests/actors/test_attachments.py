"""Files of prompts and of tools' results, from the call to the model and back."""

from base64 import b64encode
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import attrs
import pytest
import trio

from tests.support.asking import ask
from tests.support.faulty_store import Faults
from tests.support.models import GatedModel
from tests.support.runtime import new_session, open_runtime, replay, transcript
from warren.base.errors import (
    CapacityExceededError,
    InvalidParamsError,
    SessionBusyError,
    SessionNotFoundError,
    StoreError,
)
from warren.conversation import codec
from warren.conversation.attachments import ANY_KIND, Attachment, File
from warren.conversation.budget import Budget
from warren.conversation.messages import AssistantMessage, TextBlock, ToolResultsMessage, ToolUseBlock, UserMessage
from warren.conversation.usage import Usage
from warren.models.catalog import ModelEntry
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import ToolOutput, tool
from warren.settings.config import Config, Limits
from warren.storage.operations import Attach
from warren.storage.sqlite.file import FILE_NAME

pytestmark = pytest.mark.virtual_time
PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)
JPEG = b"\xff\xd8\xff" + bytes(20)
ECHO = Config(model="echo")


class Seeing:
    """A model that takes images, and tells the files of the last message; for "draw" it calls the tool of that name."""

    kinds = frozenset({"image", "text"})

    async def complete(self, request: ModelRequest, _emit: object) -> ModelReply:
        """Answer."""
        last = request.messages[len(request.messages) - 1]
        if isinstance(last, UserMessage) and last.content == "draw":
            return ModelReply(AssistantMessage((ToolUseBlock("1", "draw"),), "tool_use"), Usage(1, 1))
        results = last.results if isinstance(last, ToolResultsMessage) else ()
        files = [each for result in results for each in result.attachments]
        files += last.attachments if isinstance(last, UserMessage) else ()
        seen = [f"{each.name} {(await request.files.read(each, 0, 4))!r}" for each in files]
        return ModelReply(AssistantMessage((TextBlock("; ".join(seen) or "nothing"),)), Usage(1, 1))


@tool
def draw() -> ToolOutput:
    """Draw."""
    return ToolOutput("a chart", [File(JPEG, name="chart.jpg")])


async def test_a_prompt_with_files(tmp_path: Path) -> None:
    """The model reads their bytes, the log and the history have their hashes alone, and a restart loses nothing."""
    async with open_runtime(store=tmp_path, config=ECHO) as service:
        image, note = File(PNG, name="a.png"), File(b"two words", name="note.md")
        result = await service.create_session("look", attachments=[image, note])
        assert result.text == "look\n[image a.png: 48 bytes]\n[text note.md: 9 bytes]"
        session_id = result.session_id
        told = codec.encode([codec.to_data(each.event) for each in await replay(service, session_id)])
        assert b"a.png" in told
        assert b64encode(PNG)[:20] not in told
    async with open_runtime(store=tmp_path, config=ECHO) as service:
        prompt = (await transcript(service, session_id))[0]
        assert isinstance(prompt, UserMessage)
        assert [each.media_type for each in prompt.attachments] == ["image/png", "text/markdown"]
        read = await service.attachment(session_id, str(prompt.attachments[0].sha256))
        assert (read.attachment, read.data) == (prompt.attachments[0], PNG)
        with pytest.raises(InvalidParamsError, match=r"\$\.sha256: is that of no attachment"):
            await service.attachment(session_id, "0" * 64)
        again = File(sha256=prompt.attachments[0].sha256, name="b.png")
        fork = (await service.fork(session_id)).state.session_id
        await service.delete(session_id)
        assert (await service.start_turn(fork, "and?", attachments=[again])).text == "and?\n[image b.png: 48 bytes]"


@pytest.mark.parametrize("mode", ["queue", "steer"])
async def test_prompts_that_wait_have_files_too(mode: Any) -> None:
    """And so has the first prompt under a key."""
    async with open_runtime(config=ECHO) as service:
        files = [File(PNG, name="a.png")]
        made = await service.create_session("look", attachments=files, idempotency_key="k")
        assert made == await service.create_session("look", attachments=files, idempotency_key="k")
        with pytest.raises(InvalidParamsError, match="other values of attachments"):
            await service.create_session("look", attachments=[File(JPEG)], idempotency_key="k")
        result = await service.start_turn(made.session_id, "go", mode=mode, attachments=files)
        assert result.text == "go\n[image a.png: 48 bytes]"


async def test_results_of_tools_have_files() -> None:
    """The model sees them; bytes that are equal are stored once."""
    async with open_runtime(Seeing(), tools=[draw]) as service:
        result = await service.create_session("draw")
        assert result.text == f"chart.jpg {JPEG[:4]!r}"
        results = (await transcript(service, result.session_id))[2]
        assert isinstance(results, ToolResultsMessage)
        assert [each.label for each in results.results[0].attachments] == ["image chart.jpg"]


async def test_a_bad_file_does_not_cost_the_result_of_a_tool() -> None:
    """Its text and its good files reach the model, with a note in place of each other one."""

    @tool(name="draw")
    def draws() -> ToolOutput:
        """Draw."""
        large, wrong = File(PNG + bytes(60), name="large.png"), File(PNG, media_type="image/gif")
        return ToolOutput("charts", [large, File(JPEG, name="chart.jpg"), wrong])

    limits = Config(limits=Limits(max_attachment=100))
    async with open_runtime(Seeing(), tools=[draws], config=limits) as service:
        result = await service.create_session("draw")
        assert result.text == f"chart.jpg {JPEG[:4]!r}"
        results = (await transcript(service, result.session_id))[2]
        assert isinstance(results, ToolResultsMessage)
        (told,) = results.results
        assert not told.is_error
        assert told.content.splitlines() == [
            "charts",
            "[large.png: not kept: data has 108 bytes, and may have 100 (limits.max_attachment)]",
            "[image/gif: not kept: media_type is image/gif, but the data is image/png]",
        ]


@pytest.mark.parametrize(
    ("file", "path", "problem"),
    [
        (lambda: File(b""), "data", "empty"),
        (lambda: File(PNG + bytes(60)), "data", "108 bytes, and may have 100"),
        (lambda: File(PNG, media_type="image/jpeg"), "media_type", "is image/jpeg, but the data is image/png"),
        (lambda: File(b"hi", media_type="image/png"), "media_type", "is image/png, but the data is not"),
        (lambda: File(b"\x00\x01"), "data", "none of the kinds"),
        (lambda: File(b"PK\x03\x04\xff", media_type="application/zip"), "media_type", "none of the kinds"),
        (lambda: File(b"\xff\x00", media_type="text/plain"), "media_type", "no text in UTF-8"),
        (lambda: File(sha256="0" * 64), "sha256", "no attachment of the session"),
        (lambda: File(url="https://x.org/a", media_type="text/plain"), "url", "attach the text itself"),
        (lambda: File(url="http://x.org/a.png", media_type="image/png"), "", "https://"),
        (lambda: File(url="https://x.org/a.png"), "", "required for a URL"),
        (File, "", "one of data, url and sha256"),
        (lambda: File(PNG, sha256="0" * 64), "", "one of data, url and sha256"),
    ],
)
async def test_bad_files_are_refused_by_name(file: Any, path: str, problem: str) -> None:
    """On creation and in a turn; nothing has happened then."""
    limits = Limits(max_attachment=100)
    async with open_runtime(config=attrs.evolve(ECHO, limits=limits)) as service:
        session_id = await new_session(service)
        for call in (service.create_session, lambda *args, **more: service.start_turn(session_id, *args, **more)):
            if not path:
                with pytest.raises(ValueError, match=problem):
                    file()
                continue
            with pytest.raises(InvalidParamsError, match=problem) as caught:
                await call("look", attachments=[File(PNG), file()])
            assert caught.value.body()["details"]["path"] == f"$.attachments[1].{path}"
        assert [row.message_count for row in (await service.list()).sessions] == [0]


async def test_a_model_that_does_not_take_a_kind_refuses_it_by_name() -> None:
    """Before the turn, and before a session is made; a setting changes it; after a switch the turn has a note."""
    pdf = File(b"%PDF-1.7", name="a.pdf")
    async with open_runtime(Seeing(), models={"blind": Blind()}) as service:
        for prompt in ([pdf], [File(PNG), pdf]):
            with pytest.raises(InvalidParamsError, match=r"\$\.attachments\[\d\]: the model 'test' takes no pdf"):
                await service.create_session("look", attachments=prompt)
        assert (await service.list()).sessions == ()
        made = await service.create_session("look", attachments=[File(PNG, name="a.png")])
        with pytest.raises(InvalidParamsError, match="'blind' takes no image as an attachment; it takes: none"):
            await service.start_turn(made.session_id, "look", model="blind", attachments=[File(PNG)])
        assert (await service.start_turn(made.session_id, "go on", model="blind")).text == "blind"
        assert (await service.read(made.session_id)).state.message_count == 4


class Blind:
    """A provider that knows nothing of files."""

    async def complete(self, request: ModelRequest, _emit: object) -> ModelReply:
        """Answer, if it is told that it takes no file."""
        assert request.files.kinds == frozenset()
        return ModelReply(AssistantMessage((TextBlock("blind"),)), Usage(1, 1))


def test_what_the_catalog_says_of_kinds() -> None:
    """An unknown model takes texts alone."""
    assert ModelEntry().kinds == {"text"}
    assert ModelEntry(images=True, files=True, audio=True).kinds == ANY_KIND
    assert Attachment("text/x-python").kind == "text"


def blobs_in(store: Path) -> int:
    """Return how many files a store has."""
    db = apsw.Connection(str(store / FILE_NAME))
    try:
        return int(db.execute("SELECT count(*) FROM blobs").get)
    finally:
        db.close()


class Waiting(GatedModel):
    """A gated model that takes images."""

    kinds = frozenset({"image"})


async def test_a_refused_prompt_leaves_no_file(tmp_path: Path) -> None:
    """Whatever refuses it: the running turn, a full inbox, the budget, the store, or the end of the session."""
    model, files, faults = Waiting(), [File(PNG)], Faults()
    config = Config(limits=Limits(inbox=1))
    async with (
        open_runtime(model, store=tmp_path, config=config, faults=faults) as service,
        trio.open_nursery() as tasks,
    ):
        session_id = await new_session(service)
        start = partial(service.start_turn, session_id, "look", attachments=files)
        running = ask(tasks, service.start_turn, session_id, "wait")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(SessionBusyError):
            await start()
        later = ask(tasks, service.start_turn, session_id, "later", mode="queue")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(CapacityExceededError, match="inputs wait"):
            await start(mode="queue")
        model.gate.set()
        await running.value()
        await later.value()
        with pytest.raises(InvalidParamsError, match="prices"):
            await start(budget=Budget(max_cost=1))
        faults.refuse, faults.refuse_kinds = apsw.FullError("the disk is full"), (Attach,)
        with pytest.raises(StoreError):
            await start()
        assert model.entered == 2
        faults.refuse = None
        await service.archive(session_id)
        for mode in ("busy", "queue", "steer"):
            with pytest.raises(SessionNotFoundError):
                await start(mode=mode)
        assert blobs_in(tmp_path) == 0
        await service.create_session("look", attachments=files)
        assert blobs_in(tmp_path) == 1
