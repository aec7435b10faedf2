"""Random conversations as sessions have them, and what providers and the contract want of one."""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final

import attrs
from hypothesis import strategies as st

from warren.compaction import SUMMARY_PREFIX, is_summary, summary_message
from warren.conversation import codec
from warren.conversation.messages import (
    AssistantMessage,
    Message,
    ReasoningBlock,
    SystemMessage,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
    UnknownBlock,
    UserMessage,
)

PIECES: Final = ("a", "word ", "漢字", "é👍🏽", '"\\', "\x00", "[called it with {}]", "\n\n")
texts: Final = st.builds(lambda piece, times: piece * times, st.sampled_from(PIECES), st.integers(0, 60))
huge: Final = st.builds(lambda piece, times: piece * times, st.sampled_from(PIECES), st.integers(300, 4000))
results: Final = st.one_of(texts, texts, texts, huge)
prompts: Final = st.one_of(texts, texts, texts, texts, huge, texts.map(lambda text: summary_message(text).content))
summaries: Final = texts.filter(str.strip)


@attrs.frozen
class Step:
    """One answer with tool calls, and the results."""

    text: str
    results: tuple[tuple[str, bool], ...]
    reasoning: bool


steps: Final = st.builds(
    Step, texts, st.lists(st.tuples(results, st.booleans()), min_size=1, max_size=3).map(tuple), st.booleans()
)


@attrs.frozen
class Exchange:
    """A user's message, steps, and the answer; None where an interrupted turn has none."""

    prompt: str
    steps: tuple[Step, ...]
    answer: str | None


exchanges: Final = st.builds(Exchange, prompts, st.lists(steps, max_size=4).map(tuple), st.none() | texts)


def conversation(
    script: Sequence[Exchange], *, system: Sequence[str] = (), summary: str | None = None, cut: int = 0
) -> list[Message]:
    """Return a context; with a summary its rows may begin inside of an exchange, `cut` messages after its opening."""
    rows = [message for exchange, ids in zip(script, _ids(), strict=False) for message in _messages(exchange, ids)]
    if summary is None:
        return [*map(SystemMessage, system), *rows]
    while cut and not isinstance(rows[cut], AssistantMessage | UserMessage):
        cut -= 1
    return [*map(SystemMessage, system), summary_message(summary), *rows[cut:]]


@st.composite
def contexts(draw: st.DrawFn) -> list[Message]:
    """Draw a context with or without system messages, summary, tools, huge results and turns that were cut short."""
    script = draw(st.lists(exchanges, min_size=1, max_size=7))
    # Only a Transcript can tell a pasted summary in the first place of all from a real one; it has its own test.
    script[0] = attrs.evolve(script[0], prompt=script[0].prompt.removeprefix(SUMMARY_PREFIX))
    system = draw(st.lists(texts, max_size=2))
    summary = draw(st.none() | summaries)
    length = len(conversation(script))
    return conversation(script, system=system, summary=summary, cut=draw(st.integers(0, length - 1)))


def _ids() -> Iterator[str]:
    return (f"exchange-{number}" for number in count())


def _messages(exchange: Exchange, name: str) -> Iterator[Message]:
    yield UserMessage(exchange.prompt)
    for number, step in enumerate(exchange.steps):
        calls = [ToolUseBlock(f"{name}-{number}-{i}", f"tool_{i}", {"n": i}) for i in range(len(step.results))]
        thought = (ReasoningBlock("hmm", {"anthropic": {"signature": "s"}}), UnknownBlock("new", {"a": 1}))
        blocks = (*(thought if step.reasoning else ()), TextBlock(step.text), *calls)
        yield AssistantMessage(blocks, "tool_use")
        told = (ToolResult(call.id, text, failed) for call, (text, failed) in zip(calls, step.results, strict=True))
        yield ToolResultsMessage(tuple(told))
    if exchange.answer is not None:
        yield AssistantMessage((TextBlock(exchange.answer),))


def system_of(messages: Sequence[Message]) -> list[Message]:
    """Return the system messages at the beginning."""
    return list(messages[: next((i for i, m in enumerate(messages) if not isinstance(m, SystemMessage)), None)])


def rows_of(messages: Sequence[Message]) -> list[Message]:
    """Return what comes after the system messages and the summary."""
    rest = list(messages[len(system_of(messages)) :])
    return rest[1:] if rest and is_summary(rest[0]) else rest


def exchanges_of(rows: Sequence[Message]) -> list[list[Message]]:
    """Return rows exchange by exchange."""
    found: list[list[Message]] = []
    for message in rows:
        if isinstance(message, UserMessage) or not found:
            found.append([])
        found[-1].append(message)
    return found


def is_open(exchange: Sequence[Message]) -> bool:
    """Tell whether an exchange still waits for the model's last word."""
    last = exchange[-1]
    return not (isinstance(last, AssistantMessage) and not last.tool_calls)


def complaint(messages: Sequence[Message]) -> str | None:
    """Say what a provider would refuse in a context; None where it takes it."""
    rest = messages[len(system_of(messages)) :]
    if rest and not isinstance(rest[0], UserMessage):
        return "it does not begin with a user message"
    for before, after in zip([None, *rest], [*rest, None], strict=True):
        asked = [call.id for call in before.tool_calls] if isinstance(before, AssistantMessage) else []
        told = [result.tool_use_id for result in after.results] if isinstance(after, ToolResultsMessage) else []
        if asked != told:
            return f"calls {asked} are followed by results {told}"
    return None


def size(messages: Sequence[Message]) -> int:
    """Return the bytes of all messages."""
    return sum(len(codec.encode(message)) for message in messages)
