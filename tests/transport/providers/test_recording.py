"""A recorder between a runtime and its models: its scripts play what it has heard."""

from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.support.models import Emit, FunctionModel, reply
from tests.support.runtime import Recorder as Events
from tests.support.runtime import new_session
from warren.base.errors import InvalidParamsError, ProviderError
from warren.conversation.events import TextDelta, ToolCallRequested
from warren.conversation.messages import ToolUseBlock, UserMessage
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, ReasoningPiece, TextPiece
from warren.models.tools import tool
from warren.settings.config import Config, RetryPolicy
from warren.transport.embed import open_supervisor
from warren.transport.providers import load_script
from warren.transport.providers.recording import AnswerRecorder

SECRET = "sk-a-secret-of-the-provider"  # noqa: S105 - of nobody


@tool
async def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sun in {city}"


def model() -> FunctionModel:
    """Return a model that fails once, calls a tool, and then answers in pieces."""
    calls = 0

    async def answer(request: ModelRequest, emit: Emit) -> ModelReply:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ProviderError("busy", cause="overloaded", retryable=True)
        if request.answer_schema is not None:
            return reply('{"sky": "blue"}')
        if request.messages[-1].__class__.__name__ == "ToolResultsMessage":
            for piece in ("It ", "is ", "sunny."):
                emit(TextPiece(piece))
            return reply("It is sunny.", usage=Usage(20, 5))
        emit(ReasoningPiece("hm"))
        emit(TextPiece("Let me see."))
        return reply("Let me see.", ToolUseBlock(f"c{calls}", "weather", {"city": "Rome"}), usage=Usage(10, 5))

    return FunctionModel(answer)


async def talk(config: Config, **options: Any) -> tuple[list[Any], Any]:
    """Run a turn with a tool and an answer as data; return its pieces and calls, and its result."""
    seen = Events()
    async with open_supervisor(config, tools=[weather], environ={"OPENAI_API_KEY": SECRET}, **options) as service:
        schema = {"type": "object", "properties": {"sky": {"type": "string"}}, "required": ["sky"]}
        session = await new_session(service)
        result = await service.start_turn(session, "the weather?", output_schema=schema, on_event=seen)
    return [event for event in seen.events if isinstance(event, TextDelta | ToolCallRequested)], result


async def test_a_script_plays_what_was_heard(tmp_path: Path) -> None:
    """Pieces, calls of tools, their ids, failures that were retried, counts and data are those of the recording."""
    file, calm = tmp_path / "talk.json", RetryPolicy(initial_delay=0, jitter=0)
    said, result = await talk(Config(model="test", record=file, retry=calm), providers={"test": model()})
    again, played = await talk(Config(model=f"scripted:{file}", retry=calm))
    assert again == said
    assert (played.text, played.structured_output) == (result.text, result.structured_output)
    assert played.structured_output == {"sky": "blue"}
    assert played.usage.output_tokens >= result.usage.output_tokens  # the script shows the text of a failed attempt too
    assert SECRET.encode() not in file.read_bytes()


async def test_a_strict_script_says_where_a_request_differs(tmp_path: Path) -> None:
    """Of the new messages and of the tools; the same course is played as before."""
    file, calm = tmp_path / "talk.json", RetryPolicy(initial_delay=0, jitter=0)
    await talk(Config(model="test", record=file, retry=calm), providers={"test": model()})
    file.write_text(file.read_text().replace('{"steps"', '{"strict":true,"steps"', 1))
    _, played = await talk(Config(model=f"scripted:{file}", retry=calm))
    assert played.text == "It is sunny."
    async with open_supervisor(Config(model=f"scripted:{file}"), tools=[weather]) as service:
        with pytest.raises(
            ProviderError, match=r'step 1 .*messages\[0\] is .*"other".*, and was .*"the weather\?"'
        ) as caught:
            await service.create_session("other")
        assert caught.value.cause == "scripted"
    async with open_supervisor(Config(model=f"scripted:{file}")) as service:
        with pytest.raises(ProviderError, match=r'tools\[0\] is missing, and was "weather"'):
            await service.create_session("the weather?")


async def test_sessions_keep_their_files_if_their_first_calls_fail(tmp_path: Path) -> None:
    """Two fail before either is answered: each goes on in the file that it has begun."""
    calls, calm = list[str](), RetryPolicy(initial_delay=0, jitter=0)
    failed, go = trio.Event(), trio.Event()

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        last = request.messages[-1]
        assert isinstance(last, UserMessage)
        text = last.content
        calls.append(text)
        if calls.count(text) == 1:
            if text == "later":
                await failed.wait()
            raise ProviderError("busy", cause="overloaded", retryable=True)
        if text == "first":
            failed.set()
            await go.wait()
        return reply(text)

    config = Config(model="test", record=tmp_path / "talk.json", retry=calm)
    async with (
        open_supervisor(config, providers={"test": FunctionModel(answer)}) as service,
        trio.open_nursery() as turns,
    ):
        turns.start_soon(service.create_session, "first")
        await service.create_session("later")
        go.set()
    for name, text in (("talk.json", "first"), ("talk.2.json", "later")):
        async with open_supervisor(Config(model=f"scripted:{tmp_path / name}", retry=calm)) as service:
            assert (await service.create_session("?")).text == text


async def test_an_answer_costs_what_it_has(tmp_path: Path) -> None:
    """It is added at the end of the file, which is a whole script after each call; what is before stays as it is."""
    recorder, path = AnswerRecorder(tmp_path / "talk.json"), tmp_path / "talk.json"
    asked = ModelRequest("m", [UserMessage("?")], session_id="s")
    data = attrs.evolve(asked, answer_schema={"type": "object"})
    busy = ProviderError("busy" * 40, cause="overloaded", retryable=True)
    texts = list[bytes]()
    for number in range(9):
        if number % 4 == 3:  # one that is tried again has more bytes than the short step in its place
            for _ in range(2):
                await recorder.failed(asked, busy)
        await recorder.answered(asked, [], reply(f"answer {number}"))
        if number % 3 == 0:
            await recorder.failed(data, busy)
            await recorder.answered(data, [], reply('{"a": 1}'))
        texts.append(path.read_bytes())
        script = load_script(path)
        said = [each for each in script.steps if each.text]
        assert [each.text for each in said] == [f"answer {each}" for each in range(number + 1)]
        assert [len(each.structured) for each in said] == [int(each % 3 == 0) for each in range(number + 1)]
    last = [text.rfind(b'{"text"') for text in texts]
    assert all(text[:at] == texts[-1][:at] for text, at in zip(texts, last, strict=True))


async def test_a_turn_outlives_its_recording(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder that is gone ends the recording, which the log tells once; the turns are answered."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    async with open_supervisor(Config(record=folder / "talk.json")) as service:
        folder.rmdir()
        session_id = (await service.create_session("one")).session_id
        assert (await service.start_turn(session_id, "two")).text == "two"
    assert caplog.text.count("the recording ends") == 1


async def test_each_session_has_a_file(tmp_path: Path) -> None:
    """The second session goes beside the first; a file that is there is not replaced."""
    file = tmp_path / "talk.json"
    async with open_supervisor(Config(record=file)) as service:
        for prompt in ("one", "two"):
            await service.create_session(prompt)
    for path, text in ((file, "one"), (tmp_path / "talk.2.json", "two")):
        async with open_supervisor(Config(model=f"scripted:{path}")) as service:
            assert (await service.create_session("?")).text == text
    with pytest.raises(InvalidParamsError) as caught:
        async with open_supervisor(Config(record=file)):
            pass
    assert caught.value.path == "$.record"
