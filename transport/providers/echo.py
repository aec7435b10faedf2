"""The offline model: it repeats the prompt."""

import re
import sys
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

import trio

from warren.base.values import frozen
from warren.conversation.attachments import Attachment
from warren.conversation.messages import (
    AssistantMessage,
    ContextMessage,
    Message,
    StopReason,
    TextBlock,
    ToolResultsMessage,
    UserMessage,
)
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, Piece, TextPiece
from warren.models.tools import Loop

CHARACTERS_PER_TOKEN: Final = 4
MOST_PIECES: Final = 1_000
_WORD: Final = re.compile(r"\s*\S+|\s+")


@frozen
class EchoProvider:
    """A provider that answers with the last user message, or with the results of the tools that ran after it.

    It reads the attachments of that message, and names them with their sizes in bytes.

    Deterministic and without delay: the text arrives word by word (at most 1,000 pieces), a token is four characters,
    `input_tokens` counts the answered text alone, and `max_tokens` cuts the answer. It never calls a tool. If data is
    asked for, it repeats its last answer, so a prompt in JSON comes back as data. It ignores the model's name.
    """

    loop: ClassVar[Loop] = "trio"

    async def complete(self, request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        """Return the answer. The only checkpoint is before the first piece."""
        await trio.lowlevel.checkpoint()
        if request.answer_schema is None:
            message = _last(request.messages)
            heard = _words_of(message)
            for file in _files_of(message):
                heard += await _named(request, file)
        else:
            heard = _last_answer(request.messages)
        text, stop_reason = _cut(heard, request.answer_cap(sys.maxsize))
        for piece in words(text):
            emit(TextPiece(piece))
        blocks = (TextBlock(text),) if text else ()
        usage = Usage(input_tokens=tokens(heard), output_tokens=tokens(text))
        return ModelReply(AssistantMessage(blocks, stop_reason), usage)


def last_words(messages: Sequence[Message]) -> str:
    """Return the last user message or tool results, if they are among the last two messages; else an empty text."""
    return _words_of(_last(messages))


def _last(messages: Sequence[Message]) -> Message | None:
    """Return the last user message or tool results, if they are among the last two messages.

    Earlier messages are not looked at, because `messages` may decode each message on access.
    """
    for back in range(1, min(len(messages), 2) + 1):
        message = messages[-back]
        if isinstance(message, (UserMessage, ContextMessage, ToolResultsMessage)):  # a union would be made anew
            return message
    return None


def _words_of(message: Message | None) -> str:
    if isinstance(message, (UserMessage, ContextMessage)):
        return message.content
    return "\n".join(result.content for result in message.results) if isinstance(message, ToolResultsMessage) else ""


def _files_of(message: Message | None) -> Sequence[Attachment]:
    if isinstance(message, UserMessage):
        return message.attachments
    results = message.results if isinstance(message, ToolResultsMessage) else ()
    return [each for result in results for each in result.attachments]


async def _named(request: ModelRequest, file: Attachment) -> str:
    """Return the name of a file, and how many of its bytes can be read."""
    size = 0 if file.sha256 is None else len(await request.files.read(file, 0, file.size + 1))
    return f"\n[{file.label}: {size} bytes]"


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
