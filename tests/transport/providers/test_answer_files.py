"""Pictures that models make: from the server's base64 to the bytes of a file block, and back to the model."""

import wave
from base64 import b64encode
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final

import pytest
import trio

from tests.support.runtime import open_runtime
from tests.transport.providers.byte_server import END, HEAD, Handler, Request, chunk, event, serve
from tests.transport.providers.calls import (
    CLAUDE,
    GEMINI,
    GPT,
    RESPONSES,
    Outcome,
    answered,
    environ,
    on_socket,
    provider_of,
    request,
    servers,
    streamed,
)
from tests.transport.providers.dialects import DONE, STOP, delta, opened, start, stopped, told
from tests.transport.providers.targets import provider
from warren.base.errors import ProviderError
from warren.conversation import codec
from warren.conversation.attachments import Attachment
from warren.conversation.messages import (
    AssistantMessage,
    FileBlock,
    Message,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    UserMessage,
)
from warren.settings.config import Config
from warren.transport.providers import Bounds, open_providers

PNG: Final = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 12_000
"""Three megabytes: three times what an event without a file may have."""
BASE64: Final = b64encode(PNG).decode()
URL: Final = f"data:image/png;base64,{BASE64}"
STORED: Final = Attachment("image/png", "a" * 64, len(PNG), "sea.png")
ANSWER = {"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}]}
PICTURE = {"id": "ig_1", "type": "image_generation_call", "status": "completed", "action": "generate", "size": "1x1"}


def part(**more: object) -> dict[str, Any]:
    """Return a chunk of Gemini with one part."""
    return {"candidates": [{"content": {"parts": [more]}}]}


def item(kind: str, data: object, index: int = 0) -> dict[str, Any]:
    """Return an event about an item of OpenAI's responses."""
    return {"type": f"response.output_item.{kind}", "output_index": index, "item": data}


def completed(*output: object) -> dict[str, Any]:
    """Return the end of an answer of OpenAI's responses."""
    return {"type": "response.completed", "response": {"output": list(output)}}


PICTURES: Final[dict[str, list[Any]]] = {
    GEMINI: [
        part(text="Here: "),
        part(inlineData={"mimeType": "image/png", "data": BASE64}, thoughtSignature="sig"),
        ANSWER,
    ],
    GPT: [
        delta("Here: "),
        delta("", images=[{"type": "image_url", "image_url": {"url": URL}}]),
        delta("", "stop", images=[{"type": "image_url", "image_url": {"url": URL}}]),
        DONE,
    ],
    RESPONSES: [
        item("added", {"type": "message", "id": "m"}),
        {"type": "response.output_text.delta", "output_index": 0, "delta": "Here: "},
        item("added", {**PICTURE, "status": "in_progress"}, 1),
        {"type": "response.image_generation_call.partial_image", "output_index": 1, "partial_image_b64": BASE64},
        item("done", PICTURE | {"result": BASE64}, 1),
        completed({"type": "message", "id": "m", "content": []}, PICTURE | {"result": BASE64}),
    ],
    CLAUDE: [
        start(),
        opened(0, "text", text="Here: "),
        opened(1, "image", source={"type": "base64", "media_type": "image/png", "data": BASE64}),
        stopped(),
        STOP,
    ],
}
MAKERS: Final = tuple(PICTURES)


def streams(events: list[Any]) -> Handler:
    """Return a server's handler that streams some events."""

    async def handle(_: Request, stream: trio.SocketStream) -> None:
        await stream.send_all(HEAD)
        for each in events:
            await stream.send_all(chunk(event(each)))
        await stream.send_all(END)

    return handle


def stored(outcome: Outcome) -> AssistantMessage:
    """Return an answer as the runtime stores it."""
    blocks = [
        FileBlock(STORED, block.metadata) if isinstance(block, FileBlock) else block
        for block in outcome.reply.message.blocks
    ]
    return AssistantMessage(tuple(blocks), outcome.reply.message.stop_reason)


@pytest.mark.parametrize("model", MAKERS)
async def test_pictures_are_files_of_the_answer(model: str) -> None:
    """A picture of megabytes arrives whole beside the text, once; the message has none of its bytes."""
    outcome = await on_socket(streams(PICTURES[model]), request(model))
    (file,) = outcome.reply.files
    assert file.data == PNG
    text, made = outcome.reply.message.blocks
    assert (outcome.text, isinstance(text, TextBlock), isinstance(made, FileBlock)) == ("Here: ", True, True)
    assert len(codec.encode(outcome.reply.message)) < 1000


def sent(model: str, *messages: Message) -> list[dict[str, Any]]:
    """Return messages as the server of a model gets them."""
    target = provider(model)
    context = target.dialect.context(target.endpoint, model)
    context.kinds = frozenset({"image", "text"})
    return told(context, messages)


BACK: Final[dict[str, Callable[[list[dict[str, Any]]], object]]] = {
    GEMINI: lambda turns: turns[1]["parts"],
    RESPONSES: lambda items: items[1:3],
}
MINE: Final[dict[str, object]] = {
    GEMINI: [
        {"text": "Here: "},
        {"inlineData": {"mimeType": "image/png", "data": "<sea.png>"}, "thoughtSignature": "sig"},
    ],
    RESPONSES: [
        {"type": "message", "role": "assistant", "content": "Here: "},
        {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "<sea.png>"},
    ],
}


@pytest.mark.parametrize("model", [GEMINI, RESPONSES])
async def test_the_maker_gets_its_picture_back(model: str) -> None:
    """With its signature or its id, and without the members that requests do not take."""
    answer = stored(await on_socket(streams(PICTURES[model]), request(model)))
    turns = sent(model, UserMessage("draw"), answer, UserMessage("and a boat"))
    assert BACK[model](turns) == MINE[model]
    assert codec.encode(turns).count(b"<sea.png>") == 1


@pytest.mark.parametrize("model", MAKERS)
@pytest.mark.parametrize("by", [GEMINI, GPT])
async def test_other_models_see_it_with_the_next_prompt(model: str, by: str) -> None:
    """A picture of another model is an input of the user's next message, once, and never within the answer."""
    if model == by == GEMINI:
        return
    answer = stored(await on_socket(streams(PICTURES[by]), request(by)))
    turns = sent(model, UserMessage("draw"), answer, UserMessage("what is it?"), answer, UserMessage("and?"))
    own = [codec.encode(turn) for turn in turns if turn["role"] == "user"]
    assert [text.count(b"<sea.png>") for text in own] == [0, 1, 1]
    assert codec.encode(turns).count(b"<sea.png>") == 2


@pytest.mark.parametrize("model", [GPT, CLAUDE, RESPONSES, GEMINI])
async def test_a_picture_beside_a_call_comes_with_the_result(model: str) -> None:
    """A model that takes over within a turn sees it in the next step."""
    answer = AssistantMessage((FileBlock(STORED),))
    results = ToolResultsMessage((ToolResult("1", "sunny"),))
    text = codec.encode(sent(model, UserMessage("draw"), answer, results))
    assert text.count(b"<sea.png>") == 1


async def test_drafts_are_not_files() -> None:
    """Pictures that Gemini makes while it thinks are no part of the answer."""
    draft = part(inlineData={"mimeType": "image/png", "data": BASE64}, thought=True)
    outcome = await streamed(request(GEMINI), draft, part(text="no"), ANSWER)
    assert (outcome.reply.files, outcome.text) == ((), "no")


async def test_whole_answers_have_pictures() -> None:
    """An answer in one piece may be larger than its bound by the picture in it."""
    images = [{"type": "image_url", "image_url": {"url": URL}}]
    body = {"choices": [{"message": {"content": None, "images": images}, "finish_reason": "stop"}]}
    assert [file.data for file in (await answered(request(GPT), body)).reply.files] == [PNG]


async def test_an_address_is_told() -> None:
    """A picture that is elsewhere is not fetched: its address is in the text."""
    outcome = await streamed(
        request(GPT), delta("", images=[{"image_url": {"url": "https://e.org/a.png"}}]), delta("", "stop"), DONE
    )
    assert "![picture](https://e.org/a.png)" in outcome.text
    assert outcome.text == outcome.reply.message.text


BAD: Final[dict[str, list[Any]]] = {
    GEMINI: [part(text="Here: "), part(inlineData={"mimeType": "image/png", "data": "%%%"}), ANSWER],
    GPT: [delta("Here: "), delta("", "stop", images=[{"image_url": {"url": "data:image/png;base64,A"}}]), DONE],
    RESPONSES: [
        {"type": "response.output_text.delta", "output_index": 0, "delta": "Here: "},
        item("done", PICTURE | {"result": "iVBORw0KGgoAAAA=...[abridged]"}, 1),
        completed(),
    ],
    CLAUDE: [
        start(),
        opened(0, "text", text="Here: "),
        opened(1, "image", source={"type": "base64", "media_type": "image/png", "data": "A"}),
        stopped(),
        STOP,
    ],
}


@pytest.mark.parametrize("model", MAKERS)
async def test_bad_base64_costs_the_picture_alone(model: str) -> None:
    """A note stands in its place; the text stays, the call does not fail, and the next request goes on."""
    asked: list[Request] = []

    async def handle(request_: Request, stream: trio.SocketStream) -> None:
        asked.append(request_)
        await streams(BAD[model])(request_, stream)

    async with serve(handle) as url, open_providers(environ(url), servers=servers(f"{url}/v1")) as providers:
        name = provider_of(model)
        choice = providers.resolve(model, name)
        async with open_runtime(
            models={"http": choice.provider}, config=Config(model=model, provider="http")
        ) as service:
            first = await service.create_session("draw")
            assert first.text.startswith("Here: ")
            assert "not in base64: not kept" in first.text
            await service.start_turn(first.session_id, "again")
    assert "not in base64" in codec.encode(asked[1].body).decode()


async def test_an_event_without_a_file_is_bounded_as_before() -> None:
    """Three megabytes of other members fail the call for good."""
    long = part(text="hi", other=["x" * 1000] * 3000)
    with pytest.raises(ProviderError) as caught:
        await on_socket(streams([long]), request(GEMINI))
    assert caught.value.cause == "too_long"
    assert str(Bounds().piece) in caught.value.message


async def test_mistral_thinks_in_parts() -> None:
    """Its lists of parts are reasoning and text, streamed and whole."""
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm. "}]}
    said = [thought, {"type": "text", "text": "Yes."}]
    streaming = await streamed(request(GPT), delta([thought]), delta([said[1]]), delta("", "stop"), DONE)
    body = {"choices": [{"message": {"content": said}, "finish_reason": "stop"}]}
    for outcome in (streaming, await answered(request(GPT), body)):
        reasoning, text = outcome.reply.message.blocks
        assert (getattr(reasoning, "text", ""), getattr(text, "text", "")) == ("Hm. ", "Yes.")
        assert outcome.text == "Yes."


async def test_a_spoken_answer_has_its_transcript() -> None:
    """The words of a sound are the text, and the sound is a file."""
    wav = b"RIFF\x00\x00\x00\x00WAVE"
    audio = {"id": "a", "transcript": "Yes.", "data": b64encode(wav).decode()}
    body = {"choices": [{"message": {"content": None, "audio": audio}, "finish_reason": "stop"}]}
    outcome = await answered(request(GPT), body)
    assert (outcome.text, [file.data for file in outcome.reply.files]) == ("Yes.", [wav])


@pytest.mark.parametrize("padded", [True, False])
async def test_a_streamed_sound_is_a_file(*, padded: bool) -> None:
    """Its fragments are put together, whether each of them has its padding; bare samples become a WAV file."""
    samples = bytes(range(1, 101))
    whole = b64encode(samples).decode()
    cut = [whole[:40], whole[40:72], whole[72:]]
    if padded:
        cut = [b64encode(samples[at : at + 10]).decode() for at in range(0, 100, 10)]
    words = [delta(audio={"id": "a", "transcript": "Yes"}), delta(audio={"transcript": "."})]
    sound = [delta(audio={"data": each}) for each in cut]
    outcome = await streamed(request(GPT), *words, *sound, delta("", "stop"), DONE)
    (file,) = outcome.reply.files
    assert file.data is not None
    with wave.open(BytesIO(file.data)) as read:
        assert (read.getframerate(), read.readframes(1000)) == (24_000, samples)
    text, made = outcome.reply.message.blocks
    assert (outcome.text, isinstance(text, TextBlock), isinstance(made, FileBlock)) == ("Yes.", True, True)


async def test_repeated_pictures_do_not_use_up_the_bound() -> None:
    """Drafts, the picture and its repetition may be larger together than an answer may be; there is an end to it."""
    small = Bounds(size=8 * 1024 * 1024)
    draft = {"type": "response.image_generation_call.partial_image", "output_index": 1, "partial_image_b64": BASE64}
    for drafts, code in ((2, None), (9, "too_long")):
        events = [draft] * drafts + PICTURES[RESPONSES]
        async with serve(streams(events)) as url:
            variables = environ(url)
            async with open_providers(variables, servers=servers(f"{url}/v1"), bounds=small) as providers:
                choice = providers.resolve(RESPONSES, "responses")
                try:
                    reply = await choice.provider.complete(request(RESPONSES), lambda _: None)
                except ProviderError as exc:
                    assert exc.cause == code  # noqa: PT017 - of one of the two
                else:
                    assert (code, [file.data for file in reply.files]) == (None, [PNG])
