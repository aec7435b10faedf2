"""The offline model: it says what it was told."""

import re
import sys
from collections.abc import Callable, Sequence
from typing import Final

import attrs
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

CHARACTERS_PER_TOKEN: Final = 4
MOST_PIECES: Final = 1_000
_WORD: Final = re.compile(r"\s*\S+|\s+")


@attrs.frozen
class EchoProvider:
    """Answers with the last user message, or with the results of the tools that ran after it.

    Deterministic and without delay: the text arrives word by word (at most 1,000 pieces), a token is four characters,
    `input_tokens` counts the answered text alone, and `max_tokens` cuts the answer. It never calls a tool. Asked for
    data it repeats its last answer: a prompt that is JSON comes back as data. The model's name makes no difference.
    """

    async def complete(self, request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        """Return the echo; there is one checkpoint, before the first piece."""
        await trio.lowlevel.checkpoint()
        heard = last_words(request.messages) if request.answer_schema is None else _last_answer(request.messages)
        text, stop_reason = _cut(heard, request.answer_cap(sys.maxsize))
        for piece in words(text):
            emit(TextPiece(piece))
        blocks = (TextBlock(text),) if text else ()
        usage = Usage(input_tokens=tokens(heard), output_tokens=tokens(text))
        return ModelReply(AssistantMessage(blocks, stop_reason), usage)


def last_words(messages: Sequence[Message]) -> str:
    """Return what the next answer is to: the last user message or tool results, of the last two messages.

    It takes no others because `messages` may decode what it is asked for.
    """
    for position in range(len(messages) - 1, max(-1, len(messages) - 3), -1):
        message = messages[position]
        if isinstance(message, UserMessage | ContextMessage):
            return message.content
        if isinstance(message, ToolResultsMessage):
            return "\n".join(result.content for result in message.results)
    return ""


def _last_answer(messages: Sequence[Message]) -> str:
    """Return what was said last: asked for that as data, the echo can only say it again."""
    said = (message.text for message in reversed(messages) if isinstance(message, AssistantMessage))
    return next(said, "")


def words(text: str) -> list[str]:
    """Cut a text after its words; joined, the pieces are the text. A long text gets longer pieces, not more."""
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
