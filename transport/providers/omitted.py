"""The parts of a conversation that a server has refused, and messages without them. No I/O."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs

from warren.base.values import frozen
from warren.conversation.attachments import Attachment
from warren.conversation.messages import (
    AssistantMessage,
    FileBlock,
    Message,
    TextBlock,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
)
from warren.conversation.records import OPAQUE

NO_FILES: Final[frozenset[Attachment]] = frozenset()


@frozen
class Omitted:
    """The parts of a conversation that its server has refused, and does not get again.

    Attributes:
        reasoning: the messages before this position go without encrypted reasoning, signatures, and items of the
            server's own tools, which belong to them.
        files: the files that are told in words.
        why: the words of the server about the files.
    """

    reasoning: int = 0
    files: frozenset[Attachment] = NO_FILES
    why: str = ""

    def applied(self, message: Message, *, old: bool) -> Message:
        """Return a message without these parts; `old` says whether it is before the position."""
        match message:
            case AssistantMessage() if old:
                return attrs.evolve(message, blocks=tuple(_bare(message)))
            case UserMessage() if self.files.intersection(message.attachments):
                return attrs.evolve(message, **self._told(message.content, message.attachments))
            case ToolResultsMessage():
                told = (
                    attrs.evolve(each, **self._told(each.content, each.attachments))
                    if self.files.intersection(each.attachments)
                    else each
                    for each in message.results
                )
                return attrs.evolve(message, results=tuple(told))
        return message

    def note(self, file: Attachment) -> str:
        """Return the words in place of a file."""
        return f"[{file.label}: left out, as the server refused it: {self.why}]"

    def _told(self, text: str, files: Sequence[Attachment]) -> dict[str, Any]:
        gone = [self.note(file) for file in files if file in self.files]
        kept = tuple(file for file in files if file not in self.files)
        return {"content": "\n\n".join([*gone, *filter(None, [text])]), "attachments": kept}


WHOLE: Final = Omitted()


def _bare(message: AssistantMessage) -> Iterator[Any]:
    for block in message.blocks:
        if isinstance(block, TextBlock | ToolUseBlock | FileBlock):
            yield attrs.evolve(block, metadata=None) if block.metadata else block
        elif not isinstance(block, OPAQUE):
            yield block
