"""The messages of a conversation and their parts, independent of any provider."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import attrs

from warren.base.fields import LEFT_OUT
from warren.base.values import frozen
from warren.conversation.agents import AgentRef
from warren.conversation.attachments import Attachment

StopReason = Literal["end_turn", "tool_use", "pause_turn", "max_tokens", "stop_sequence", "content_filter", "cancelled"]
"""The reason for the end of an answer; `pause_turn`: tools of the provider still run, and the next step goes on."""


@frozen
class TextBlock:
    """Text of the model's answer.

    Attributes:
        text: the text.
        metadata: opaque provider data, sent back verbatim; `citations` in it are the sources, in the
            form of the provider.
    """

    text: str
    metadata: Mapping[str, Any] | None = None


@frozen
class ReasoningBlock:
    """The model's reasoning.

    Attributes:
        text: readable reasoning; empty if the provider hides it.
        metadata: opaque provider data (signatures, encrypted reasoning), sent back verbatim.
    """

    text: str
    metadata: Mapping[str, Any] | None = None


@frozen
class ToolUseBlock:
    """A tool call that the model asked for.

    Attributes:
        id: the call's id, unique within the transcript; its result carries it too.
        name: the tool's name.
        args: the arguments; empty if the model sent none, or sent something other than a JSON object.
        invalid_args: the arguments verbatim if they are not a JSON object.
        metadata: opaque provider data, sent back verbatim.
    """

    id: str
    name: str
    args: Mapping[str, Any] = attrs.field(factory=dict)
    invalid_args: str | None = None
    metadata: Mapping[str, Any] | None = None


@frozen
class HostedToolBlock:
    """A call of a tool that the provider runs itself, such as a web search, or its result.

    Attributes:
        kind: the name that the provider has for the block, such as `web_search_call`.
        metadata: opaque provider data, sent back verbatim.
    """

    kind: str
    metadata: Mapping[str, Any] | None = None


@frozen
class FileBlock:
    """A file of the model's answer, such as a picture that it has made.

    Attributes:
        file: the reference.
        metadata: opaque provider data, sent back with the bytes to the model that made the file.
    """

    file: Attachment
    metadata: Mapping[str, Any] | None = None


@frozen
class UnknownBlock:
    """A block that a newer version wrote. It is kept unchanged, and left out of requests to a model."""

    type: str
    data: Mapping[str, Any]


Block = TextBlock | ReasoningBlock | ToolUseBlock | HostedToolBlock | FileBlock | UnknownBlock


@frozen
class ToolResult:
    """The result of one tool call. Every call in a transcript has exactly one."""

    tool_use_id: str
    content: str
    is_error: bool = False
    attachments: tuple[Attachment, ...] = ()


@frozen
class SystemMessage:
    """Instructions of the program that hosts the session. The newest ones stand for all before them.

    Attributes:
        content: the text; an empty one has no instructions.
        agent: the agent that they are of; None if the session had none.
    """

    content: str
    agent: AgentRef | None = attrs.field(default=None, metadata=LEFT_OUT)


@frozen
class UserMessage:
    """A prompt of the user. It opens an exchange, unless it was steered into one.

    Attributes:
        content: the text.
        attachments: the files.
        steered: whether it entered a turn that another prompt had begun.
    """

    content: str
    attachments: tuple[Attachment, ...] = ()
    steered: bool = False


REFUSED: Final = "refused exchange"
"""The source of a sentence that stands for tool calls whose messages were refused; no peer has such a name."""


@frozen
class ContextMessage:
    """Text of the host or of another session between the prompts. The model reads it as text that is not the user's.

    It opens no exchange, and the memory does not remember it.

    Attributes:
        content: the text.
        source: name of the sender, or `REFUSED`; None is the host.
    """

    content: str
    source: str | None = None


@frozen
class AssistantMessage:
    """One answer of the model.

    Attributes:
        blocks: its blocks in order.
        stop_reason: the reason for its end.
        structured_output: the final answer of a turn as data, if a schema was given. No model is sent it.
    """

    blocks: tuple[Block, ...]
    stop_reason: StopReason = "end_turn"
    structured_output: Any = None

    @property
    def text(self) -> str:
        """The texts of the text blocks, joined."""
        return "".join([block.text for block in self.blocks if isinstance(block, TextBlock)])

    @property
    def tool_calls(self) -> tuple[ToolUseBlock, ...]:
        """The tool calls, in the model's order."""
        return tuple([block for block in self.blocks if isinstance(block, ToolUseBlock)])


MAX_BLOCKS: Final = 4_096
"""Blocks of an answer that are kept, its tool calls included."""
MAX_NAME: Final = 256
"""Characters of a call's id and of the name of its tool that are kept; no provider takes longer ones."""


def with_unique_calls(message: AssistantMessage, seen: dict[str, int]) -> AssistantMessage:
    """Return the message with an id for each tool call that is not in `seen`, and add the ids to it.

    Results and decisions are matched with calls by the id. Ids and names are cut at `MAX_NAME` characters.

    Args:
        message: the message.
        seen: the ids, each with the number of the last call that was given it with a number behind it.
    """
    if not message.tool_calls:
        return message
    blocks = tuple(_unlike(block, seen) if isinstance(block, ToolUseBlock) else block for block in message.blocks)
    return message if blocks == message.blocks else attrs.evolve(message, blocks=blocks)


def _unlike(call: ToolUseBlock, seen: dict[str, int]) -> ToolUseBlock:
    own = call.id[:MAX_NAME]
    given, number = own, seen.get(own, 1)
    while given in seen or not given:
        number += 1
        given = f"{own or 'call'}-{number}"
    seen[own] = number
    seen[given] = 1
    name = call.name[:MAX_NAME]
    return call if given == call.id and name == call.name else attrs.evolve(call, id=given, name=name)


@frozen
class ToolResultsMessage:
    """The results of all tool calls of the assistant message before it, in call order."""

    results: tuple[ToolResult, ...]


def begins_turn(message: "Message") -> bool:
    """Tell whether a message is the prompt with which a turn has begun."""
    return isinstance(message, UserMessage) and not message.steered


def newest_answer(messages: Iterable["Message"]) -> AssistantMessage | None:
    """Return the first answer with a text among messages, the newest of which is the first; None if there is none."""
    return next((each for each in messages if isinstance(each, AssistantMessage) and each.text), None)


def files_of(message: "Message") -> tuple[Attachment, ...]:
    """Return the files of a message."""
    if isinstance(message, UserMessage):
        return message.attachments
    if isinstance(message, AssistantMessage):
        return tuple([block.file for block in message.blocks if isinstance(block, FileBlock)])
    if isinstance(message, ToolResultsMessage):
        return tuple(file for result in message.results for file in result.attachments)
    return ()


Message = SystemMessage | UserMessage | ContextMessage | AssistantMessage | ToolResultsMessage
