"""The promises of every provider, tested on all of them.

The HTTP ones are asked on a strict server of our own, and on llm-katan, a model server of a third party.
"""

import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import attrs
import httpx
import pytest
import trio
from trio.testing import assert_checkpoints

from tests.transport.providers import strict
from tests.transport.providers.byte_server import serve
from tests.transport.providers.calls import CLAUDE, GPT, WEATHER, Outcome, environ, heard, request
from warren.conversation.messages import (
    AssistantMessage,
    Message,
    ReasoningBlock,
    SystemMessage,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
    UnknownBlock,
    UserMessage,
)
from warren.models.model import Emitted, ModelChoice
from warren.transport.providers import Script, ScriptedCall, ScriptedModel, ScriptedStep, open_providers

KATAN_STARTS_WITHIN = 30.0
SCRIPT = Script((ScriptedStep(text="hello from the script", tool_calls=(ScriptedCall("weather"),)),), loop=True)


@attrs.frozen
class Subject:
    """A provider under test: how to open it, whether it answers with the prompt, whether it calls tools.

    And whether its pieces come one by one: a server may have sent all of them before the first is read.
    """

    open: Callable[[], AbstractAsyncContextManager[ModelChoice]]
    echoes: bool = True
    calls_tools: bool = True
    one_by_one: bool = True


@pytest.fixture(scope="session")
def katan() -> Iterator[str]:
    """Run llm-katan on a free port of this machine; yields its base URL."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    # The last options keep it from writing a statistics file into the home folder, and from serving pages.
    options = f"-m katan -b echo --host 127.0.0.1 --port {port} --providers openai,anthropic --max-concurrent 50"
    command = [
        str(Path(sys.executable).with_name("llm-katan")),
        *options.split(),
        "--stats-file",
        "",
        "--disable-dashboard",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_for(f"http://127.0.0.1:{port}/health", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + KATAN_STARTS_WITHIN
    while time.monotonic() < deadline:
        assert process.poll() is None, "llm-katan ended by itself"
        try:
            httpx.get(url, trust_env=False)
        except httpx.TransportError:
            time.sleep(0.05)
        else:
            return
    pytest.fail("llm-katan does not answer")


@asynccontextmanager
async def offline(model: str) -> AsyncIterator[ModelChoice]:
    """Open one of the offline providers."""
    async with open_providers({}, extra={"scripted": ScriptedModel(SCRIPT)}) as providers:
        yield providers.resolve(model, None)


@asynccontextmanager
async def on_our_server(model: str) -> AsyncIterator[ModelChoice]:
    """Open one of the HTTP providers on the strict server."""
    async with serve(strict.answer) as url, open_providers(environ(url)) as providers:
        yield providers.resolve(model, None)


@asynccontextmanager
async def on_katan(model: str, url: str) -> AsyncIterator[ModelChoice]:
    """Open one of the HTTP providers on llm-katan."""
    async with open_providers(environ(url)) as providers:
        yield providers.resolve(model, None)


@pytest.fixture(params=["echo", "scripted", "openai", "anthropic", "katan-openai", "katan-anthropic"])
def subject(request: pytest.FixtureRequest) -> Subject:
    """Each provider, and each HTTP one on two servers."""
    name: str = request.param
    model = GPT if name.endswith("openai") else CLAUDE
    if name.startswith("katan"):
        url = request.getfixturevalue("katan")
        return Subject(lambda: on_katan(model, url), one_by_one=False)
    if name in ("openai", "anthropic"):
        return Subject(lambda: on_our_server(model))
    return Subject(lambda: offline(name), echoes=name == "echo", calls_tools=name == "scripted")


async def ask(choice: ModelChoice, *messages: Message | str, **options: object) -> Outcome:
    """Call the model."""
    pieces: list[Emitted] = []
    asked = request(choice.model, *messages, **options)
    return await heard(choice.provider, asked, pieces)


async def test_pieces_are_the_answer(subject: Subject) -> None:
    """The pieces, joined, are the reply's text; it ends by itself, and tokens are counted."""
    async with subject.open() as choice:
        outcome = await ask(choice, SystemMessage("be brief"), "tell me of rabbits")
    message = outcome.reply.message
    assert len(outcome.pieces) > (1 if subject.one_by_one else 0)
    assert outcome.text == message.text
    assert "rabbits" in message.text or not subject.echoes
    assert message.stop_reason == ("tool_use" if message.tool_calls else "end_turn")
    assert outcome.reply.usage.input_tokens > 0
    assert outcome.reply.usage.output_tokens > 0
    assert not outcome.reply.usage.estimated


async def test_many_at_once(subject: Subject) -> None:
    """One provider serves many calls at once, and each gets the answer to its own question."""
    outcomes: dict[int, Outcome] = {}
    async with subject.open() as choice, trio.open_nursery() as nursery:

        async def one(number: int) -> None:
            outcomes[number] = await ask(choice, f"question {number} of many")

        for number in range(20):
            nursery.start_soon(one, number)
    for number in range(20):
        assert outcomes[number].text == outcomes[number].reply.message.text
        assert f"question {number} " in outcomes[number].text or not subject.echoes


async def test_tools(subject: Subject) -> None:
    """A model calls the tool it is offered, under an id of its own in the transcript, and takes its result."""
    async with subject.open() as choice:
        context: list[Message] = [UserMessage("how is the weather?")]
        for _round in range(3 if subject.calls_tools else 0):
            message = (await ask(choice, *context, tools=(WEATHER,))).reply.message
            (call,) = message.tool_calls
            assert (call.name, call.invalid_args, message.stop_reason) == ("weather", None, "tool_use")
            assert call.id not in called(context)
            context += [message, ToolResultsMessage((ToolResult(call.id, "sunny"),))]
            assert (await ask(choice, *context)).reply.message.text
            context += [AssistantMessage((TextBlock("sunny"),)), UserMessage("and now?")]
        if not subject.calls_tools:
            assert (await ask(choice, *context, tools=(WEATHER,))).reply.message.tool_calls == ()


def called(context: list[Message]) -> set[str]:
    """Return the ids of the calls in a transcript."""
    return {call.id for message in context if isinstance(message, AssistantMessage) for call in message.tool_calls}


TWO_CALLS = AssistantMessage(
    (TextBlock("see"), ToolUseBlock("a", "f"), ToolUseBlock("b:1", "g h", {}, "{bad")), "tool_use"
)
TWO_RESULTS = ToolResultsMessage((ToolResult("a", "fine"), ToolResult("b:1", "bad arguments", is_error=True)))
NO_TEXTS = ToolResultsMessage((ToolResult("a", ""), ToolResult("b:1", " \n", is_error=True)))
ODD_TRANSCRIPTS: dict[str, list[Message]] = {
    "results without a text": [UserMessage("one"), TWO_CALLS, NO_TEXTS, UserMessage("two")],
    "users in a row": [UserMessage("one"), UserMessage("two")],
    "results answered by nobody": [UserMessage("one"), TWO_CALLS, TWO_RESULTS],
    "a prompt after results": [UserMessage("one"), TWO_CALLS, TWO_RESULTS, UserMessage("two")],
    "an empty answer": [UserMessage("one"), AssistantMessage(()), UserMessage("two")],
    "an answer of blank text": [UserMessage("one"), AssistantMessage((TextBlock("  "),)), UserMessage("two")],
    "interrupted in the text": [
        UserMessage("one"),
        AssistantMessage((ReasoningBlock("h"), TextBlock("half")), "cancelled"),
        UserMessage("two"),
    ],
    "interrupted and not answered": [UserMessage("one"), AssistantMessage((TextBlock("half "),), "cancelled")],
    "blocks of others": [
        UserMessage("one"),
        AssistantMessage((ReasoningBlock("hm", {"other": {"x": 1}}), UnknownBlock("video", {"x": 1}), TextBlock("a"))),
        UserMessage("two"),
    ],
}


@pytest.mark.parametrize("name", ODD_TRANSCRIPTS)
async def test_odd_transcripts(subject: Subject, name: str) -> None:
    """Every transcript that a turn can leave behind is accepted and answered."""
    async with subject.open() as choice:
        outcome = await ask(choice, *ODD_TRANSCRIPTS[name])
    assert outcome.text == outcome.reply.message.text != ""


async def test_cancelling(subject: Subject) -> None:
    """A cancelled call ends at once, and the next one is not disturbed."""
    async with subject.open() as choice:
        with trio.CancelScope() as scope:
            scope.cancel()
            await ask(choice, "never mind")
        assert scope.cancelled_caught
        for _attempt in range(3):
            with trio.CancelScope() as inner:
                asked = request(choice.model, "one two three")
                await choice.provider.complete(asked, lambda _, cancel=inner.cancel: cancel())  # type: ignore[misc]
        with assert_checkpoints():
            outcome = await ask(choice, "again please")
    assert outcome.text == outcome.reply.message.text != ""
