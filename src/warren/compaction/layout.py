"""The layout of a context: its system messages, summary and exchanges, and the places at which it may be cut."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, Literal, Self, overload

from warren.base.values import frozen
from warren.conversation import codec
from warren.conversation.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolResultsMessage,
    UserMessage,
    begins_turn,
)
from warren.conversation.transcript import Transcript, weight_of

SUMMARY_PREFIX: Final = (
    "[Context compacted] A previous context produced the following summary of work so far."
    " The current tool and session state is preserved."
    " Use this summary to continue without duplicating work:"
)
REQUEST_MARK: Final = "[The request that this work is for, in the user's words]"
GAP: Final = "[Messages after this summary were left out without one: they did not fit into the model's window.]"
BYTES_PER_TOKEN: Final = 4

CompactionReason = Literal[
    "empty_summary", "nothing_to_reduce", "not_smaller", "too_large", "invalid_result", "denied", "hook"
]


class CompactionError(Exception):
    """A context could not be made smaller; nothing was changed.

    Attributes:
        reason: `empty_summary`: the model returned no text. `nothing_to_reduce`: all messages have to stay.
            `not_smaller`: the summary is larger than the messages that it would replace. `too_large`: the newest
            exchange alone does not fit the window. `invalid_result`: a host's own compactor broke the rules.
    """

    def __init__(self, reason: CompactionReason, message: str) -> None:
        super().__init__(message)
        self.reason: CompactionReason = reason


@frozen
class CompactionResult:
    """A smaller context.

    The discarded messages are consecutive and end right before the retained ones: a conversation of `end` messages has
    its new head at `end - len(retained)`, and the discarded messages are at the positions before the head.

    Attributes:
        messages: the new context: system messages, one summary, the messages from the new head on.
        discarded: the messages that left the context, in their order; never a system message or an older summary.
    """

    messages: tuple[Message, ...]
    discarded: tuple[Message, ...]

    @property
    def prefix(self) -> tuple[Message, ...]:
        """The system messages and the summary."""
        return self.messages[: _leading(self.messages)[1]]

    @property
    def retained(self) -> tuple[Message, ...]:
        """The messages that stay."""
        return self.messages[_leading(self.messages)[1] :]

    @property
    def summary(self) -> str | None:
        """The text to store as the summary. `summary_message` makes the context's message from it."""
        system, first = _leading(self.messages)
        return summary_text(self.messages[system]) if first > system else None


def summary_message(summary: str) -> UserMessage:
    """Return the message that replaces all messages before the head."""
    return UserMessage(f"{SUMMARY_PREFIX}\n\n{summary}")


def is_summary(message: Message) -> bool:
    """Tell whether a message is a summary.

    Trap: only the message directly after the system messages is one; another message of this form is a user's pasted
    text. A Transcript knows if it has a summary there; for other sequences the form decides.
    """
    return isinstance(message, UserMessage) and message.content.startswith(SUMMARY_PREFIX)


def summary_text(message: Message) -> str:
    """Return the text of a summary message, as `summary_message` took it; of any other message, nothing."""
    content = message.content if isinstance(message, UserMessage) else ""
    return content.removeprefix(SUMMARY_PREFIX).removeprefix("\n\n") if is_summary(message) else ""


def with_request(summary: str, request: str) -> str:
    """Return a summary that ends with the user's request, for a head inside of an exchange.

    A mark that the model has copied from an older summary loses its brackets, so that `split_request` finds this one.
    """
    text = summary.replace(REQUEST_MARK, REQUEST_MARK[1:-1])
    return f"{text}\n\n{REQUEST_MARK}\n{request}" if request else text


def split_request(summary: str) -> tuple[str, str]:
    """Return the summary and the request at its end: the reverse of `with_request`."""
    text, _, request = summary.partition(f"\n\n{REQUEST_MARK}\n")
    return text, request


def size_of(message: Message) -> int:
    """Return the bytes of a message's JSON, with its attachments as `weight_of` counts them."""
    return weight_of(codec.encode_message(message))


@frozen
class Measured(Sequence[Message]):
    """A context that is decoded and measured once for several readers.

    Attributes:
        messages: the messages.
        sizes: bytes of each message's JSON.
        summarised: whether a summary follows the system messages; None lets the form of the message decide.
        turn: index of the first message of the running turn; None if none runs, or if it is not known.
    """

    messages: tuple[Message, ...]
    sizes: tuple[int, ...]
    summarised: bool | None = None
    turn: int | None = None

    @classmethod
    def of(cls, messages: Sequence[Message]) -> "Measured":
        """Measure a context. A Transcript knows its sizes already, and a Measured is returned as it is."""
        if isinstance(messages, Measured):
            return messages
        every = tuple(messages)
        if isinstance(messages, Transcript):
            sizes = tuple(map(weight_of, messages.bodies))
            begun = None if messages.turn is None else len(every) - messages.seen_from(messages.turn)
            return cls(every, sizes, None if messages.prefix else False, begun)
        return cls(every, tuple(map(size_of, every)))

    def __len__(self) -> int:
        return len(self.messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...

    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        return self.messages[index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)


def estimate(size: int) -> int:
    """Return the estimated tokens of `size` bytes of JSON.

    Trap: the estimate is coarse. Scripts without spaces, and base64, have up to twice as many tokens.
    """
    return size // BYTES_PER_TOKEN


@frozen
class Layout:
    """The parts of a context, by the indexes of its messages.

    Attributes:
        messages: all messages.
        system: number of system messages at the beginning.
        first: index of the first message after the system messages and the summary, if there is one.
        starts: index of the beginning of each exchange. The oldest may lack its user message, after a cut inside of it.
            All of a running turn is one exchange, with the inputs that have entered it.
        in_flight: index of the beginning of the running turn, or of the exchange that waits for an answer;
            `len(messages)` if none waits.
        tails: bytes from each index to the end.
    """

    messages: tuple[Message, ...]
    system: int
    first: int
    starts: tuple[int, ...]
    in_flight: int
    tails: tuple[int, ...]

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Self:
        """Return the layout of a context."""
        measured = Measured.of(messages)
        every, end = measured.messages, len(measured)
        system, first = _leading(every)
        first = system if measured.summarised is False else first
        turn = end if measured.turn is None else max(measured.turn, first)
        starts = [i for i in range(first, turn) if i == first or begins_turn(every[i])]
        if turn < end:
            starts.append(turn)
        in_flight = starts[-1] if starts and (turn < end or not _is_answer(every[-1])) else end
        return cls(every, system, first, tuple(starts), in_flight, tails(measured.sizes))

    @property
    def end(self) -> int:
        """The index after the last message."""
        return len(self.messages)

    @property
    def summary(self) -> str:
        """The text of the summary; empty if there is none."""
        return "".join(map(summary_text, self.messages[self.system : self.first]))

    @property
    def size(self) -> int:
        """The bytes of all messages."""
        return self.tails[0]

    @property
    def system_size(self) -> int:
        """The bytes of the system messages."""
        return self.tails[0] - self.tails[self.system]

    def newest(self, count: int) -> int:
        """Return the head that keeps the newest `count` complete exchanges and the one in flight."""
        complete = [start for start in self.starts if start < self.in_flight]
        kept = complete[max(0, len(complete) - count) :]
        return kept[0] if kept else self.in_flight

    def heads(self) -> list[int]:
        """Return every index at which the retained part may begin, oldest first.

        First come the beginnings of exchanges, then the answers inside the newest exchange: a cut before an answer
        leaves every tool result with its call. An exchange in flight keeps at least its last step.
        """
        if not self.starts:
            return []
        newest = self.starts[-1]
        inside = [i for i in range(newest + 1, self.end) if isinstance(self.messages[i], AssistantMessage)]
        return [*self.starts, *inside] + ([self.end] if self.in_flight == self.end else [])

    def cuts(self, head: int) -> bool:
        """Tell whether one of `heads` is inside of the newest exchange."""
        return bool(self.starts) and self.starts[-1] < head < self.end

    def request(self) -> str:
        """Return the user's request of the newest exchange, and the inputs that were steered into it.

        The part before an earlier cut is at the end of the summary.
        """
        start = self.starts[-1] if self.starts else self.end
        newest = self.messages[start:]
        told = [message.content for message in newest if isinstance(message, UserMessage)]
        if newest and not isinstance(newest[0], AssistantMessage | ToolResultsMessage):
            return "\n\n".join(told)
        before = split_request(self.summary)[1]
        # It ends with the inputs that stayed in the context.
        known = next((count for count in range(len(told), 0, -1) if _ends_with(before, told[:count])), 0)
        return "\n\n".join(filter(None, [before, *told[known:]]))

    def rebuilt(self, head: int, summary: str | None) -> CompactionResult:
        """Return the context with another head and summary."""
        told = () if summary is None else (summary_message(summary),)
        kept = (*self.messages[: self.system], *told, *self.messages[head:])
        return CompactionResult(kept, self.messages[self.first : head])


def tails(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the sum of the sizes from each index to the end, with a 0 for the end itself."""
    return tuple(accumulate(reversed(sizes), initial=0))[::-1]


def _leading(messages: Sequence[Message]) -> tuple[int, int]:
    """Return the number of system messages at the beginning, and that number with the summary after them."""
    end = len(messages)
    system = next((i for i, message in enumerate(messages) if not isinstance(message, SystemMessage)), end)
    return system, system + (system < end and is_summary(messages[system]))


def _ends_with(text: str, parts: Sequence[str]) -> bool:
    return f"\n\n{text}".endswith("\n\n" + "\n\n".join(parts))


def _is_answer(message: Message) -> bool:
    """Tell whether a message is an answer that ends its exchange: without tool calls, and not paused."""
    return isinstance(message, AssistantMessage) and not message.tool_calls and message.stop_reason != "pause_turn"


def verify(messages: Sequence[Message], result: CompactionResult) -> CompactionResult:
    """Return the result of a host's own compactor if it keeps the rules.

    The discarded and the retained messages must be all messages of the input in their order, with one summary between
    the system messages and the retained ones. No tool result may lose its call, and the exchange in flight may not be
    discarded.

    Args:
        messages: the context before the compaction.
        result: the compactor's result.

    Raises:
        CompactionError: if a rule is broken, with the reason `invalid_result`, `empty_summary` or `not_smaller`.
    """
    layout = Layout.of(messages)
    head = layout.first + len(result.discarded)
    if result != layout.rebuilt(head, result.summary or ""):
        raise CompactionError("invalid_result", "the compactor lost, doubled or changed messages")
    if not (result.summary or "").strip():
        raise CompactionError("empty_summary", "the compactor kept no summary")
    if head < layout.end and isinstance(layout.messages[head], ToolResultsMessage):
        raise CompactionError("invalid_result", "the compactor parted a tool call from its result")
    if head == layout.end > layout.in_flight:
        raise CompactionError("invalid_result", "the compactor discarded the exchange in flight")
    if layout.system_size + size_of(result.messages[layout.system]) + layout.tails[head] >= layout.size:
        raise CompactionError("not_smaller", "the compacted history is not smaller")
    return result
