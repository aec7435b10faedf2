"""The scripted provider."""

import os
from pathlib import Path
from typing import Any

import pytest
import trio

from warren.base.errors import InvalidParamsError, ProviderError
from warren.base.fields import FieldValueError
from warren.conversation import codec
from warren.conversation.messages import AssistantMessage, Message, ReasoningBlock, TextBlock, ToolUseBlock, UserMessage
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, Piece, ReasoningPiece, TextPiece
from warren.settings.config import Config
from warren.transport.embed import open_supervisor
from warren.transport.providers import Script, ScriptedModel, ScriptedStep, load_script, open_providers
from warren.transport.providers.scripted import MAX_SCRIPT, call, fail, say


def player(*steps: dict[str, Any], **options: object) -> ScriptedModel:
    """Return the provider of a script given as data."""
    return ScriptedModel(codec.from_data(Script, {"steps": list(steps)} | options))


async def play(provider: ScriptedModel, number: int = 0, pieces: list[Piece] | None = None) -> ModelReply:
    """Call the model in a session that has had so many answers."""
    messages: list[Message] = [UserMessage("hello")]
    for _answer in range(number):
        messages += [AssistantMessage(()), UserMessage("go on")]
    got: list[Piece] = [] if pieces is None else pieces
    return await provider.complete(ModelRequest("scripted", messages), got.append)


async def test_step() -> None:
    """A step thinks, speaks in its pieces, calls tools and reports its usage."""
    usage = {"input_tokens": 7, "output_tokens": 3}
    calls = [{"name": "f", "args": {"a": 1}}, {"name": "g", "id": "own", "invalid_args": "{"}]
    pieces: list[Piece] = []
    provider = player({"reasoning": "hm", "chunks": ["a", "b c"], "tool_calls": calls, "usage": usage})
    reply = await play(provider, 0, pieces)
    assert pieces == [ReasoningPiece("hm"), TextPiece("a"), TextPiece("b c")]
    assert reply.message == AssistantMessage(
        (
            ReasoningBlock("hm"),
            TextBlock("ab c"),
            ToolUseBlock("call-0-0", "f", {"a": 1}),
            ToolUseBlock("own", "g", {}, "{"),
        ),
        "tool_use",
    )
    assert reply.usage == Usage(7, 3)


async def test_usage_and_stop_reason() -> None:
    """Without figures of its own a step counts four characters a token; its stop reason can be given."""
    provider = player({"text": "12345", "tool_calls": [{"name": "f"}], "stop_reason": "max_tokens"})
    reply = await play(provider)
    assert reply.usage == Usage(2, 3)
    assert reply.message.stop_reason == "max_tokens"


async def test_step_is_told_by_the_transcript() -> None:
    """The transcript alone says which step is next, whoever else plays the script and whatever restarts."""
    provider = player({"text": "one"}, {"text": "two"})
    said = [(await play(provider, number)).message.text for number in (1, 0, 0, 1)]
    assert said == ["two", "one", "one", "two"]
    assert (await play(player({"text": "one"}, {"text": "two"}), 1)).message.text == "two"


async def test_end() -> None:
    """A script that ends fails every call past its end, for good."""
    with pytest.raises(ProviderError, match="ended after 1 steps") as caught:
        await play(player({"text": "one"}), 1)
    assert (caught.value.cause, caught.value.retryable) == ("script_ended", False)


async def test_loop() -> None:
    """A looping script begins again; its tool calls have other ids each time."""
    provider = player({"tool_calls": [{"name": "f"}, {"name": "g", "id": "own"}]}, {"text": "two"}, loop=True)
    assert (await play(provider, 3)).message.text == "two"
    ids = [call.id for number in (0, 2, 4) for call in (await play(provider, number)).message.tool_calls]
    assert len(set(ids)) == 6
    assert ids[1] == "own"


@pytest.mark.virtual_time
async def test_delays() -> None:
    """A step waits before its first piece and between pieces, on trio's clock."""
    times: list[float] = []
    provider = player({"chunks": ["a", "b", "c"], "delay": 60, "chunk_delay": 0.5})
    began = trio.current_time()
    request = ModelRequest("scripted", [UserMessage("hello")])
    await provider.complete(request, lambda _: times.append(trio.current_time() - began))
    assert times == pytest.approx([60, 60.5, 61])


@pytest.mark.virtual_time
async def test_interrupted_in_a_delay() -> None:
    """A call that is cancelled ends at once and has said what came before."""
    pieces: list[Piece] = []
    with trio.move_on_after(1) as scope:
        await play(player({"chunks": ["a", "b"], "chunk_delay": 60}), 0, pieces)
    assert scope.cancelled_caught
    assert pieces == [TextPiece("a")]


async def test_error() -> None:
    """An error comes after the step's pieces, with all that the script says of it."""
    error = {"message": "busy", "cause": "overloaded", "retryable": True, "retry_after": 2.5}
    pieces: list[Piece] = []
    with pytest.raises(ProviderError, match="busy") as caught:
        await play(player({"chunks": ["a"], "error": error}), 0, pieces)
    assert (caught.value.cause, caught.value.retryable, caught.value.retry_after) == ("overloaded", True, 2.5)
    assert pieces == [TextPiece("a")]


async def test_error_some_times() -> None:
    """An error that is limited to a number of times is over after them, for each step by itself."""
    provider = player({"text": "one", "error": {"times": 2}}, {"text": "two", "error": {"times": 1}})
    for number in (0, 1, 0):
        with pytest.raises(ProviderError):
            await play(provider, number)
    assert [(await play(provider, number)).message.text for number in (0, 1)] == ["one", "two"]


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({}, "$.steps"),
        ({"steps": []}, "$.steps"),
        ({"steps": "x"}, "$.steps"),
        ({"steps": [{}], "loops": True}, "$.loops"),
        ({"steps": [{"text": 7}]}, "$.steps[0].text"),
        ({"steps": [{}, {"delay": -1}]}, "$.steps[1].delay"),
        ({"steps": [{"delay": "1"}]}, "$.steps[0].delay"),
        ({"steps": [{"text": "a", "chunks": ["a"]}]}, "$.steps[0].chunks"),
        ({"steps": [{"stop_reason": "tired"}]}, "$.steps[0].stop_reason"),
        ({"steps": [{"tool_calls": [{"args": {}}]}]}, "$.steps[0].tool_calls[0].name"),
        ({"steps": [{"error": {"times": 0}}]}, "$.steps[0].error.times"),
        ({"steps": [{"usage": {"tokens": 1}}]}, "$.steps[0].usage.tokens"),
    ],
)
def test_bad_script(data: object, path: str, tmp_path: Path) -> None:
    """A script with a mistake is refused with its file and the path of the bad field."""
    file = tmp_path / "script.json"
    file.write_bytes(codec.encode(data))
    with pytest.raises(InvalidParamsError) as caught:
        load_script(file)
    assert f"{file}: {path}: " in caught.value.message
    assert caught.value.path == "$.model"


async def test_bad_file(tmp_path: Path) -> None:
    """A file that is missing or is not JSON is refused when the model is resolved."""
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    async with open_providers({}) as providers:
        for file, problem in ((tmp_path / "none.json", "No such file"), (tmp_path, "plain"), (broken, "truncated")):
            with pytest.raises(InvalidParamsError, match=problem) as caught:
                providers.resolve(f"scripted:{file}", None)
            assert caught.value.path == "$.model"


def test_only_a_plain_file_of_bounded_size_is_read(tmp_path: Path) -> None:
    """A client names the file: one that never ends, or does not fit, must not hold up the process."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", MAX_SCRIPT + 1)
    for file, problem in ((tmp_path / "pipe", "not a plain file"), (tmp_path / "large", "larger than")):
        with pytest.raises(InvalidParamsError, match=problem):
            load_script(file)


async def test_file(tmp_path: Path) -> None:
    """A script in a file is played under the name of the file, and read again when the file has changed."""
    file = tmp_path / "script.json"
    file.write_text('{"steps": [{"text": "one"}]}')
    request = ModelRequest("", [UserMessage("hello")])
    async with open_providers({}) as providers:
        first = providers.resolve(f"scripted:{file}", None)
        assert providers.resolve(str(file), "scripted").provider is first.provider
        assert (await first.provider.complete(request, lambda _: None)).message.text == "one"
        file.write_text('{"steps": [{"text": "changed"}]}')
        stat = file.stat()
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
        second = providers.resolve(f"scripted:{file}", None)
        assert (await second.provider.complete(request, lambda _: None)).message.text == "changed"


async def test_a_model_by_hand() -> None:
    """Steps are answers, one after the other; a list is one answer, and its parts add up."""
    usage = Usage(7, 3)
    model = ScriptedModel(
        [
            [say("Let me see.", usage=usage), call("dig", where="here", name="n"), call("dig", where="there")],
            say(chunks=["It ", "is dug."], reasoning="hm"),
        ]
    )
    first = await play(model)
    assert first.message.blocks == (
        TextBlock("Let me see."),
        ToolUseBlock("call-0-0", "dig", {"where": "here", "name": "n"}),
        ToolUseBlock("call-0-1", "dig", {"where": "there"}),
    )
    assert (first.message.stop_reason, first.usage) == ("tool_use", usage)
    pieces: list[Piece] = []
    assert (await play(model, 1, pieces)).message.text == "It is dug."
    assert pieces == [ReasoningPiece("hm"), TextPiece("It "), TextPiece("is dug.")]
    with pytest.raises(ProviderError, match="ended after 2 steps"):
        await play(model, 2)
    assert (await play(ScriptedModel([say("one")], loop=True), 2)).message.text == "one"


async def test_a_model_fails_by_hand() -> None:
    """A failure has its cause; with `times` the answer beside it comes after so many of them."""
    model = ScriptedModel([[fail("please wait", cause="rate_limited", retryable=True, times=1), say("Here I am.")]])
    with pytest.raises(ProviderError, match="please wait") as caught:
        await play(model)
    assert (caught.value.cause, caught.value.retryable) == ("rate_limited", True)
    assert (await play(model)).message.text == "Here I am."


async def test_a_model_gives_data_by_hand() -> None:
    """Data is the answer to the request for data, and the text too if there is none."""
    assert say(data={"cents": 5}) == ScriptedStep('{"cents":5}', structured=('{"cents":5}',))
    assert say("Done.", data=[1]) == ScriptedStep("Done.", structured=("[1]",))
    async with open_supervisor(Config(model="mine"), providers={"mine": ScriptedModel([say(data={"cents": 5})])}) as it:
        schema = {"type": "object", "properties": {"cents": {"type": "integer"}}, "required": ["cents"]}
        result = await it.create_session("How much?", output_schema=schema)
    assert result.structured_output == {"cents": 5}


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (["hello"], r"steps\[0\] is a value of type str \('hello'\): write say\(…\), call\(…\) or fail\(…\)"),
        ([say("a"), [say("b"), None]], r"steps\[1\] is a value of type NoneType \(None\): write say"),
        ([[say("a"), say("b")]], r"steps\[0\] has text twice: an answer has one, further answers are steps"),
        ([[fail(), fail("again")]], r"steps\[0\] has error twice"),
        ([[say("a"), say(chunks=["b"])]], "chunks cannot be given together with text"),
        ([], "steps must not be empty"),
    ],
)
def test_a_step_that_is_none(steps: Any, said: str) -> None:
    """A mistake in a script is found when the model is made, and its place is named."""
    with pytest.raises(FieldValueError, match=said):
        ScriptedModel(steps)


async def test_requests_are_kept_as_they_were(tmp_path: Path) -> None:
    """Each is a copy, which does not grow with the conversation; a script by its file keeps none."""
    model = ScriptedModel([say("one"), say("two")])
    async with open_supervisor(Config(model="mine"), providers={"mine": model}) as service:
        session = (await service.create_session("first")).session_id
        await service.start_turn(session, "second")
    said = [[each.content for each in request.messages if isinstance(each, UserMessage)] for request in model.requests]
    assert said == [["first"], ["first", "second"]]
    (tmp_path / "script.json").write_text('{"steps": [{"text": "a"}]}', encoding="utf-8")
    async with open_providers({}) as providers:
        choice = providers.resolve(f"scripted:{tmp_path / 'script.json'}", None)
    played = choice.provider
    assert isinstance(played, ScriptedModel)
    await play(played)
    assert played.requests == []


def test_a_model_of_a_file(tmp_path: Path) -> None:
    """A recorded script can be made strict; a file that is none is refused with its name."""
    path = tmp_path / "script.json"
    path.write_text('{"steps": [{"text": "a"}]}', encoding="utf-8")
    assert ScriptedModel.from_file(path, strict=True).script == Script((ScriptedStep("a"),), strict=True)
    with pytest.raises(InvalidParamsError, match=r"nothing\.json"):
        ScriptedModel.from_file(tmp_path / "nothing.json")
