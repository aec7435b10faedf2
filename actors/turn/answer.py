"""Holds the answer of a model against its bounds, whoever the provider is."""

from itertools import count

import attrs

from warren.errors import ProviderError
from warren.messages import MAX_BLOCKS, AssistantMessage, ToolUseBlock


def too_long(problem: str) -> ProviderError:
    """Return the error of an answer that is given up; `problem` continues after "the model's answer"."""
    return ProviderError(f"the model's answer {problem}", cause="too_long", retryable=False)


def endless(most: int) -> ProviderError:
    """Return the error of an answer with more than so many bytes."""
    return too_long(f"has more than {most} bytes, the bound of limits.max_answer")


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
