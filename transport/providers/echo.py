"""The offline model: it repeats the prompt."""

import re
import sys
from collections.abc import Callable, Sequence
from typing import Final

import trio

from warren.messages import (
    AssistantMessage,
    ContextMessage,
    Message,
    StopReason,
    TextBlock,
    ToolResultsMessage,
    UserMessage,
)
from warren.model import ModelReply, ModelRequest, Piece, TextPiece
from warren.usage import Usage
from warren.values import frozen

CHARACTERS_PER_TOKEN: Final = 4
MOST_PIECES: Final = 1_000
_WORD: Final = re.compile(r"\s*\S+|\s+")


@frozen
class EchoProvider:
    """A provider that answers with the last user message, or with the results of the tools that ran after it.

    Deterministic and without delay: the text arrives word by word (at most 1,000 pieces), a token is four characters,
    `input_tokens` counts the answered text alone, and `max_tokens` cuts the answer. It never calls a tool. If data is
    asked for, it repeats its last answer, so a prompt in JSON comes back as data. It ignores the model's name.
    """

    async def complete(self, request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        """Return the answer. The only checkpoint is before the first piece."""
        await trio.lowlevel.checkpoint()
        heard = last_words(request.messages) if request.answer_schema is None else _last_answer(request.messages)
        text, stop_reason = _cut(heard, request.answer_cap(sys.maxsize))
        for piece in words(text):
            emit(TextPiece(piece))
        blocks = (TextBlock(text),) if text else ()
        usage = Usage(input_tokens=tokens(heard), output_tokens=tokens(text))
        return ModelReply(AssistantMessage(blocks, stop_reason), usage)


def last_words(messages: Sequence[Message]) -> str:
    """Return the last user message or tool results, if they are among the last two messages; else an empty text.

    Earlier messages are not looked at, because `messages` may decode each message on access.
    """
    for position in range(len(messages) - 1, max(-1, len(messages) - 3), -1):
        message = messages[position]
        if isinstance(message, (UserMessage, ContextMessage)):  # a union would be made anew at each look
            return message.content
        if isinstance(message, ToolResultsMessage):
            return "\n".join(result.content for result in message.results)
    return ""


def _last_answer(messages: Sequence[Message]) -> str:
    """Return the last answer, which the echo repeats if the request is for data."""
    texts = (message.text for message in reversed(messages) if isinstance(message, AssistantMessage))
    return next(texts, "")


def words(text: str) -> list[str]:
    """Cut a text after its words into at most 1,000 pieces, which joined are the text."""
    found: list[str] = _WORD.findall(text)
    size = -(-len(found) // MOST_PIECES)
    if size <= 1:
        return found
    return ["".join(found[start : start + size]) for start in range(0, len(found), size)]


def tokens(text: str) -> int:
    """Return a text's length in the tokens of the offline models: four characters each, rounded up."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def _cut(text: str, max_tokens: int | None) -> tuple[str, StopReason]:
    if max_tokens is None or tokens(text) <= max_tokens:
        return text, "end_turn"
    return text[: max_tokens * CHARACTERS_PER_TOKEN], "max_tokens"
