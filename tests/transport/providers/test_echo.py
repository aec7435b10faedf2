"""The echo provider."""

from collections.abc import Sequence
from typing import overload

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import assert_checkpoints

from warren.conversation.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    UserMessage,
)
from warren.conversation.options import ModelOptions
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, Piece
from warren.transport.providers import EchoProvider
from warren.transport.providers.echo import words

RESULTS = ToolResultsMessage((ToolResult("a", "sun"), ToolResult("b", "rain")))


async def echo(*messages: Message, max_tokens: int | None = None) -> tuple[list[str], ModelReply]:
    """Return the pieces and the reply."""
    pieces: list[Piece] = []
    reply = await EchoProvider().complete(
        ModelRequest("echo", messages, options=ModelOptions(max_tokens=max_tokens)), pieces.append
    )
    return [piece.text for piece in pieces], reply


@pytest.mark.parametrize(
    ("messages", "pieces"),
    [
        ([SystemMessage("be brief"), UserMessage("one two")], ["one", " two"]),
        ([UserMessage("one"), AssistantMessage(()), UserMessage(" two\n")], [" two", "\n"]),
        ([UserMessage("one"), AssistantMessage(()), RESULTS], ["sun", "\nrain"]),
        ([UserMessage("one"), AssistantMessage((TextBlock("on"),), "cancelled")], ["one"]),
        ([UserMessage("")], []),
        ([SystemMessage("be brief")], []),
        ([], []),
    ],
)
async def test_answers(messages: list[Message], pieces: list[str]) -> None:
    """The answer is the last user message, or the tool results after it, word by word."""
    got, reply = await echo(*messages)
    assert got == pieces
    assert reply.message.text == "".join(pieces)
    assert reply.message.stop_reason == "end_turn"


async def test_usage() -> None:
    """A token is four characters, rounded up; nothing is estimated."""
    assert (await echo(UserMessage("12345")))[1].usage == Usage(2, 2)
    assert (await echo(UserMessage("")))[1].usage == Usage(0, 0)


async def test_cap() -> None:
    """A capped answer ends at its cap and says so."""
    pieces, reply = await echo(UserMessage("12345 6789"), max_tokens=2)
    assert "".join(pieces) == "12345 67"
    assert (reply.message.stop_reason, reply.usage) == ("max_tokens", Usage(3, 2))


@given(st.text(max_size=200))
def test_words_are_the_text(text: str) -> None:
    """Cut into words, a text stays what it was."""
    assert "".join(words(text)) == text


def test_long_text_has_few_pieces() -> None:
    """A long text gets longer pieces: streaming it does not hold up everybody else."""
    text = "word " * 100_000
    assert len(words(text)) <= 1_000
    assert "".join(words(text)) == text


class Ends(Sequence[Message]):
    """A long transcript that decodes nothing but its last two messages."""

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        assert index in (-1, -2, 998, 999)
        return UserMessage("hi") if index in (-2, 998) else AssistantMessage(())

    def __len__(self) -> int:
        return 1000


async def test_takes_the_last_messages_alone() -> None:
    """A long transcript costs nothing: only its last two messages are looked at."""
    reply = await EchoProvider().complete(ModelRequest("echo", Ends()), lambda _: None)
    assert reply.message.text == "hi"


async def test_one_checkpoint() -> None:
    """A call lets others run, and is cancelled before it says anything."""
    said: list[Piece] = []
    with assert_checkpoints():
        await EchoProvider().complete(ModelRequest("echo", [UserMessage("hi")]), lambda _: None)
    with trio.CancelScope() as scope:
        scope.cancel()
        await EchoProvider().complete(ModelRequest("echo", [UserMessage("hi")]), said.append)
    assert scope.cancelled_caught
    assert said == []
