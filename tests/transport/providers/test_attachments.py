"""Files in requests to models: their bytes go out with the request, and no request keeps them."""

import tracemalloc
from base64 import b64encode
from typing import Any, Final

import pytest
import trio

from tests.transport.providers.byte_server import Request, status
from tests.transport.providers.calls import CLAUDE, GEMINI, GPT, RESPONSES, on_socket, request
from tests.transport.providers.dialects import told, whole
from tests.transport.providers.targets import BUDGETED, MODELS, PAPER, PHOTO, encoder, provider
from warren.base.errors import ProviderError
from warren.conversation import codec
from warren.conversation.attachments import ANY_KIND, Attachment
from warren.conversation.messages import AssistantMessage, ContextMessage, Message, TextBlock, UserMessage
from warren.conversation.transcript import Transcript
from warren.models.model import Files
from warren.transport.providers.encoded import PIECE
from warren.transport.providers.pace import RequestPace
from warren.transport.providers.remote import Pieces

BYTES: Final = bytes(range(256)) * 4_001
LARGE: Final = Attachment("image/png", "e" * 64, len(BYTES), "large.png")
NOTE: Final = Attachment("text/plain", "f" * 64, 13, "note.txt")
WORDS: Final = 'say "é"\n\ttwo'.encode()
MIB: Final = 1024 * 1024


async def read(file: Attachment, at: int, size: int) -> bytes:
    """Return a part of a file."""
    await trio.lowlevel.checkpoint()
    return (WORDS if file.kind == "text" else BYTES)[at : at + size]


@pytest.mark.parametrize("model", MODELS)
async def test_the_server_gets_the_bytes(model: str) -> None:
    """A file of a megabyte and a text arrive whole, in a body that is as long as it says."""
    got: list[Any] = []

    async def refuse(asked: Request, stream: trio.SocketStream) -> None:
        got.append(asked.body)
        await stream.send_all(status(400, {"error": {"message": "no"}}))

    prompt = UserMessage("what is it?", (LARGE, NOTE))
    with pytest.raises(ProviderError):
        await on_socket(refuse, request(model, "hi", prompt, files=Files(ANY_KIND, read)))
    sent = codec.encode(got[0])
    assert b64encode(BYTES) in sent
    assert codec.encode(WORDS.decode())[1:-1] in sent
    assert b"what is it?" in sent


def context_of(model: str, kinds: frozenset[Any] = ANY_KIND) -> Any:
    """Return an empty context of the protocol of a model that takes some kinds of files."""
    target = provider(model)
    made = target.dialect.context(target.endpoint, model)
    made.kinds = kinds
    return made


@pytest.mark.parametrize("model", MODELS)
def test_a_file_that_is_not_taken_is_a_note(model: str) -> None:
    """The model is told its name, and the user's words are there."""
    data = codec.encode(told(context_of(model, frozenset({"text"})), [UserMessage("and?", (PHOTO,))]))
    assert b"[image photo.png: it is not shown to you" in data
    assert b"and?" in data
    assert b"<photo.png>" not in data


@pytest.mark.parametrize("model", MODELS)
def test_addresses_are_passed_on(model: str) -> None:
    """A URL goes to the provider, which fetches it; a protocol without a way for it has a note."""
    image = Attachment("image/png", url="https://example.org/a.png")
    paper = Attachment("application/pdf", url="https://example.org/b.pdf")
    data = codec.encode(told(context_of(model), [UserMessage("and?", (image, paper))])).decode()
    where = {
        CLAUDE: '"source":{"type":"url","url":"%s"}',
        BUDGETED: '"source":{"type":"url","url":"%s"}',
        GPT: '"image_url":{"url":"%s"}',
        RESPONSES: '_url":"%s"',
        GEMINI: '"fileUri":"%s"',
    }[model]
    assert where % image.url in data
    assert (where % paper.url in data) is (model != GPT)
    assert ("[pdf https://example.org/b.pdf: it is not shown" in data) is (model == GPT)


def test_users_with_and_without_files_in_a_row() -> None:
    """The chat protocol merges what it can, in the order in which it was said."""
    said: list[Message] = [
        ContextMessage("one"),
        UserMessage("two", (NOTE,)),
        UserMessage("three", (PHOTO,)),
        ContextMessage("four"),
        UserMessage("five", (PHOTO,)),
        AssistantMessage((TextBlock("so"),)),
        UserMessage("six", (PHOTO,)),
    ]
    photo = {"type": "image_url", "image_url": {"url": "data:image/png;base64,<photo.png>"}}
    assert told(context_of(GPT), said) == [
        {"role": "user", "content": "one\n\n[text note.txt]\n<note.txt>\n\ntwo"},
        {
            "role": "user",
            "content": [
                photo,
                {"type": "text", "text": "three"},
                {"type": "text", "text": "four"},
                photo,
                {"type": "text", "text": "five"},
            ],
        },
        {"role": "assistant", "content": "so"},
        {"role": "user", "content": [photo, {"type": "text", "text": "six"}]},
    ]


@pytest.mark.parametrize("model", MODELS)
async def test_a_long_conversation_with_files(model: str) -> None:
    """Each request begins with the bytes of the one before, and has each file in its place, wherever pieces end."""
    target, talk, before = provider(model), Transcript(), b""
    encoded = encoder(target)
    for turn in range(9):
        file = Attachment("image/png", "a" * 64, 9, f"{turn}.png")
        talk.append(UserMessage("x" * (PIECE // 3 - 40 * turn), (file, PAPER)))
        parts = target.dialect.body(request(model), target.endpoint, await encoded.encoded(talk, model, ANY_KIND))
        sent = whole(parts)
        read = codec.encode(codec.parse(sent)).decode()
        places = [read.index(f"<{each}.png>") for each in range(turn + 1)]
        assert places == sorted(places)
        assert read.count("<paper.pdf>") == turn + 1
        common = next((at for at, (one, other) in enumerate(zip(before, sent, strict=False)) if one != other), 0)
        assert not before or common > len(before) - 200
        before = sent
        talk.append(AssistantMessage((TextBlock(f"answer {turn}"),)))


async def test_a_file_is_never_in_memory() -> None:
    """A body with an image of 20 MB goes out in pieces, each made when it is sent."""
    size = 20 * MIB
    file = Attachment("image/png", "a" * 64, size, "large.png")

    async def zeros(_file: Attachment, at: int, most: int) -> bytes:
        await trio.lowlevel.checkpoint()
        return bytes(min(most, size - at))

    pieces = Pieces([b"head", file, b"tail"], RequestPace(), zeros)
    tracemalloc.start()
    sent = 0
    async for piece in pieces:
        sent += len(piece)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sent == pieces.size > size * 4 // 3
    assert peak < MIB
    assert pieces.weight < 8 * 1024


def test_marks_of_the_cache_beside_files() -> None:
    """A mark goes behind the last block, and that may be a file's."""
    made = context_of(CLAUDE)
    made.add(UserMessage(" ", (PHOTO,)))
    sent = whole(made.marked({}, b"", {}, b',"cache_control":1'))
    assert codec.parse(sent)["messages"][0]["content"][-1] == {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "<photo.png>"},
        "cache_control": 1,
    }
