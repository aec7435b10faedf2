"""A check for compactors of your own: the rules that a runtime relies on, on conversations of every shape."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from warren.base.windows import Window
from warren.compaction.layout import CompactionError, CompactionResult, Measured, summary_message, verify
from warren.compaction.policy import CompactionContext, Compactor, NewCompactor, compactor_of
from warren.conversation.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
)
from warren.conversation.options import CompactionConfig

SUMMARY: Final = "We talked about burrows; what remains is to count the rabbits of the north one."
WORDS: Final = "the key hangs by the blue door of the north burrow, and nobody has counted the rabbits there yet; "


def check_compactor(compactor: Compactor | NewCompactor) -> None:
    """Check that a compactor keeps the rules that a runtime relies on.

    The rules: a compactor is pure, so the same call has the same result and changes no argument. It never compacts
    before the first model call. It has a prompt and a cap for the summary. Its rebuilt conversations pass
    `warren.compaction.verify`, or it raises CompactionError. Some long conversations become smaller.

    Args:
        compactor: the compactor, or a function that makes one.

    Raises:
        AssertionError: if a rule is broken; the message names the rule and the conversation.
    """
    for window in (None, Window(32_000, 4_000, 500)):
        made = compactor_of(compactor, CompactionConfig(), window)
        _check_questions(made)
        shortened = [_check_rebuilt(made, name, messages) for name, messages in conversations()]
        if not any(shortened):
            raise AssertionError("rebuild_history shortened none of the conversations")


def conversations() -> Iterator[tuple[str, tuple[Message, ...]]]:
    """Yield the conversations for the check, each with its name."""
    system, long = SystemMessage("Be brief."), [part for number in range(12) for part in _exchange(number)]
    tools = [part for number in range(6) for part in (*_with_tools(number), _said("Done."))]
    yield "a long conversation", tuple(long)
    yield "one with a system message", (system, *long)
    yield "one with tool calls", (system, *tools)
    yield "one whose newest prompt has no answer yet", (system, *long, UserMessage("And now?"))
    yield "one in the middle of its tool calls", (*long, *_with_tools(99))
    yield "one that was compacted before", (system, summary_message("An older summary."), *long)
    yield (
        "a single exchange with many steps",
        (UserMessage("Count."), *(m for n in range(9) for m in _with_tools(n)[1:])),
    )
    yield "a short one", tuple(_exchange(0))
    yield "one with nothing but a system message", (system,)
    yield "an empty one", ()


def _exchange(number: int) -> tuple[Message, ...]:
    return UserMessage(f"Question {number}: {WORDS * 3}"), _said(f"Answer {number}: {WORDS * 3}")


def _with_tools(number: int) -> tuple[Message, ...]:
    calls = [ToolUseBlock(f"call-{number}-{each}", "look", {"at": each}) for each in range(2)]
    results = [ToolResult(call.id, WORDS * 5) for call in calls]
    prompt = UserMessage(f"Look {number}: {WORDS}")
    return prompt, AssistantMessage(tuple(calls), "tool_use"), ToolResultsMessage(tuple(results))


def _said(text: str) -> AssistantMessage:
    return AssistantMessage((TextBlock(text),))


def _check_questions(compactor: Compactor) -> None:
    first = CompactionContext(10**9, 2, 10**9, None, 0)
    for context in (first, *(CompactionContext(size, 50, size, last, 20) for size in (0, 10**9) for last in (None, 5))):
        due: Any = compactor.should_compact(context)
        _hold(isinstance(due, bool), f"should_compact must answer True or False, not {due!r}")
        _hold(due == compactor.should_compact(context), f"should_compact must answer the same again for {context}")
    _hold(not compactor.should_compact(first), "should_compact must answer False at step 0, before any model call")
    prompt: Any = compactor.compaction_prompt()
    _hold(isinstance(prompt, str) and bool(prompt.strip()), f"compaction_prompt must be a text, not {prompt!r}")
    cap: Any = compactor.max_summary_tokens()
    whole = isinstance(cap, int) and not isinstance(cap, bool) and cap > 0
    _hold(whole, f"max_summary_tokens must be a whole number above 0, not {cap!r}")


def _check_rebuilt(compactor: Compactor, name: str, messages: Sequence[Message]) -> bool:
    """Check the rebuilt form of a conversation, and return whether it became shorter."""
    result, again = (_rebuilt(compactor, name, given) for given in (Measured.of(messages), tuple(messages)))
    _hold(result == again, f"rebuild_history must return the same for the same input: {name}")
    _hold(_rebuilt(compactor, name, messages, " ") is None, f"an empty summary must be a CompactionError: {name}")
    return result is not None


def _rebuilt(
    compactor: Compactor, name: str, messages: Sequence[Message], summary: str = SUMMARY
) -> CompactionResult | None:
    """Return the rebuilt form of a conversation, or None for a CompactionError."""
    try:
        result: Any = compactor.rebuild_history(messages, summary)
    except CompactionError:
        return None
    _hold(
        isinstance(result, CompactionResult), f"rebuild_history must return a CompactionResult, not {result!r}: {name}"
    )
    try:
        return verify(messages, result)
    except CompactionError as exc:
        if exc.reason == "not_smaller":  # the runtime leaves such a conversation as it is
            return None
        raise AssertionError(f"{exc}: {name}") from None


def _hold(kept: bool, rule: str) -> None:  # noqa: FBT001 - a condition and its words
    if not kept:
        raise AssertionError(rule)
