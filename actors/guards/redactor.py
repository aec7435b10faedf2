"""The ways of a redaction through texts, data and messages."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from warren.actors.guards.secrets import Span
from warren.base.fields import FieldValueError
from warren.base.values import frozen
from warren.conversation.messages import (
    AssistantMessage,
    Block,
    ContextMessage,
    HostedToolBlock,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolResultsMessage,
    ToolUseBlock,
    UnknownBlock,
    UserMessage,
)

Find = Callable[[str], Iterable[Span]]


@frozen
class Redactor:
    """Replaces what finders find by its kind in brackets.

    Attributes:
        finders: each with the kind of what it finds, in their order.
    """

    finders: Sequence[tuple[str, Find]]

    def text(self, text: str) -> str:
        """Return a text without its secrets."""
        for kind, find in self.finders:
            parts, at = list[str](), 0
            for begin, end in find(text):
                parts += text[at:begin], f"[{kind}]"
                at = end
            if parts:
                text = "".join([*parts, text[at:]])
        return text

    def data(self, value: Any) -> Any:
        """Return JSON data without the secrets in its texts and whole numbers; the same object if it has none."""
        match value:
            case str():
                return self.text(value)
            case Mapping():
                changed = {self.text(key): self.data(each) for key, each in value.items()}
                return value if changed == value else changed
            case list() | tuple():
                items = [self.data(each) for each in value]
                return value if items == list(value) else items
            case int() | float() if not isinstance(value, bool) and value == value // 1:
                text = str(int(value))
                return value if (told := self.text(text)) == text else told
        return value

    def message(self, message: Message) -> Message:
        """Return a message without its secrets; the same object if it has none. Instructions of the program stay."""
        match message:
            case UserMessage() | ContextMessage() if (text := self.text(message.content)) != message.content:
                return attrs.evolve(message, content=text)
            case ToolResultsMessage(results=results):
                told = tuple(attrs.evolve(each, content=self.text(each.content)) for each in results)
                return message if told == results else ToolResultsMessage(told)
            case AssistantMessage():
                return self.answer(message)
        return message

    def answer(self, message: AssistantMessage) -> AssistantMessage:
        """Return an answer without its secrets; the same object if it has none."""
        found = [self._block(each) for each in message.blocks]
        blocks = tuple(each for each in found if each is not None)
        output = self.data(message.structured_output)
        same = blocks == message.blocks and output is message.structured_output
        return message if same else attrs.evolve(message, blocks=blocks, structured_output=output)

    def _block(self, block: Block) -> Block | None:
        """Return a block without its secrets; None if it cannot be without them.

        What a provider keeps of a block, such as a signature, is of the block as it was, and goes if that changes.
        """
        match block:
            case TextBlock():
                text = self.text(block.text)
                return block if text == block.text and self._is_clean(block.metadata) else TextBlock(text)
            case ReasoningBlock():
                return block if self.text(block.text) == block.text and self._is_clean(block.metadata) else None
            case ToolUseBlock():
                invalid = None if block.invalid_args is None else self.text(block.invalid_args)
                args = self.data(block.args)
                same = args is block.args and invalid == block.invalid_args and self._is_clean(block.metadata)
                return block if same else ToolUseBlock(block.id, block.name, args, invalid)
            case HostedToolBlock():
                return attrs.evolve(block, metadata=self.data(block.metadata))
            case UnknownBlock():
                return attrs.evolve(block, data=self.data(block.data))
        return block

    def _is_clean(self, data: Mapping[str, Any] | None) -> bool:
        return self.data(data) is data


def finder(kind: str, pattern: str | re.Pattern[str]) -> Find:
    """Return what finds the matches of a regular expression of the user. Raises FieldValueError if it is none."""
    try:
        own = re.compile(pattern)
    except (re.error, TypeError) as exc:
        raise FieldValueError(f"patterns.{kind}", f"must be a regular expression: {exc}") from None
    return lambda text: (each.span() for each in own.finditer(text) if each.end() > each.start())
