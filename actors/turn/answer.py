"""Tells what is no whole answer of a model: too long, empty, or cut within a call; whoever the provider is."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final

import attrs

from warren.actors.turn.running import KeepFiles
from warren.actors.turn.toolbox import NO_CUTS
from warren.base.errors import ProviderError
from warren.conversation.messages import (
    MAX_BLOCKS,
    AssistantMessage,
    Block,
    ContextMessage,
    FileBlock,
    ReasoningBlock,
    StopReason,
    TextBlock,
    ToolUseBlock,
)
from warren.models.model import ModelReply
from warren.models.tools import Tool

WITHOUT_TEXT: Final[frozenset[StopReason]] = frozenset({"content_filter", "pause_turn", "stop_sequence", "cancelled"})
"""The reasons for which an answer may end before its first word."""
GO_ON: Final = ContextMessage("Your last answer was empty. Go on, or say in a few words that you have finished.")
"""Goes with the second request for an answer to results of tools: asked the same again, models end the same again."""


def too_long(problem: str) -> ProviderError:
    """Return the error of an answer that is given up; `problem` continues after "the model's answer"."""
    return ProviderError(f"the model's answer {problem}", cause="too_long", retryable=False)


def endless(most: int) -> ProviderError:
    """Return the error of an answer that exceeds this number of bytes."""
    return too_long(f"has more than {most} bytes, the bound of limits.max_answer")


async def with_files(reply: ModelReply, keep: KeepFiles) -> AssistantMessage:
    """Store the files of an answer; return it with their references, and with a note for each that is not kept."""
    kept = iter(await keep(reply.files))

    def stored(block: Block) -> Block:
        if not isinstance(block, FileBlock):
            return block
        found = next(kept, f"[{block.file.label}: not kept]")
        return TextBlock(found) if isinstance(found, str) else attrs.evolve(block, file=found)

    return attrs.evolve(reply.message, blocks=tuple(map(stored, reply.message.blocks)))


def bounded(message: AssistantMessage, most_calls: int) -> AssistantMessage:
    """Return an answer with its first tool calls alone. Raises ProviderError if it has too many other blocks."""
    blocks = message.blocks
    if len(message.tool_calls) > most_calls:
        calls = count()
        blocks = tuple([each for each in blocks if not isinstance(each, ToolUseBlock) or next(calls) < most_calls])
        message = attrs.evolve(message, blocks=blocks)
    if len(blocks) > MAX_BLOCKS:
        raise too_long(f"has more than {MAX_BLOCKS} blocks")
    return message


def too_many_calls(asked: int, most: int) -> str | None:
    """Return what the model is told about each call if it has asked for more calls than one answer may have."""
    if asked <= most:
        return None
    shown = f"more than {MAX_BLOCKS}" if asked > MAX_BLOCKS else str(asked)
    return (
        f"not run: the answer has {shown} tool calls, and may have {most} (limits.max_answer_calls): none of them was "
        "run; call fewer tools at once"
    )


def not_empty(reply: ModelReply) -> ModelReply:
    """Return an answer. Raises ProviderError if it says and calls nothing, as one of reasoning or white space alone."""
    message = reply.message
    for block in message.blocks:
        if not isinstance(block, ReasoningBlock) and not (isinstance(block, TextBlock) and not block.text.strip()):
            return reply
    if message.stop_reason in WITHOUT_TEXT:
        return reply
    problem = "it has neither a text nor a tool call"
    if message.stop_reason == "max_tokens":
        problem = f"it was cut {_place(reply.usage.output_tokens)} before its first word; raise max_tokens"
    problem = f"the model's answer is empty: {problem}"
    raise ProviderError(problem, cause="empty_answer", retryable=True, usage=reply.usage)


def cut_calls(calls: Sequence[ToolUseBlock], tools: Mapping[str, Tool], tokens: int) -> Mapping[str, str]:
    """Return the calls of an answer that ended at its cap whose arguments are not whole, by id, with what is told.

    Only the last one can be without arguments for that reason; if its tool has no parameters, it is whole.
    """
    last, told = calls[-1], f"not run: your answer was cut {_place(tokens)}, before the arguments were whole"
    told += "; make the call again with less in it, or in several calls"
    tool = tools.get(last.name)
    blank = not last.args and (tool is None or bool(tool.spec.input_schema.get("properties")))
    return {each.id: told for each in calls if each.invalid_args is not None or (blank and each is last)} or NO_CUTS


def cut_again(tokens: int) -> ProviderError:
    """Return the error of a turn in which two answers in a row were cut within a tool call."""
    problem = f"two answers of the model in a row were cut within a tool call, the last one {_place(tokens)}"
    return ProviderError(f"{problem}: raise max_tokens, or ask for less at once", cause="answer_cut", retryable=False)


def _place(tokens: int) -> str:
    return f"at {tokens} tokens" if tokens else "at its cap"
