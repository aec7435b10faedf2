"""The messages that leave the context when a provider refuses them, and the sentence that stands for what ran."""

from collections.abc import Collection, Sequence
from typing import Final, Literal

import attrs

from warren import codec
from warren.messages import (
    REFUSED,
    AssistantMessage,
    ContextMessage,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
)
from warren.records import SessionRecord, Span
from warren.transcript import Transcript
from warren.values import define

Detail = Literal["results", "calls"]
"""How much a sentence tells of the tool calls that ran: their results too, or the calls alone."""
DETAILS: Final[Sequence[Detail]] = ("results", "calls")
"""In this order, until the provider takes one."""
MOST_TOLD: Final = 20_000
"""Characters of results that a sentence quotes."""
MOST_QUOTED: Final = 2_000
"""Characters of one result, or of the arguments of one call, that a sentence quotes."""
_HEADS: Final = {
    "results": "These tool calls ran. The provider has refused the messages with them, so they are told in words:",
    "calls": "These tool calls ran. The provider has refused the messages with their results, which are not shown:",
}


@define(eq=False)
class Refusals:
    """Takes what a provider refuses out of the context of a turn, and leaves what ran in the turn in it.

    A request that is refused differs from the last one that was answered by the messages since then: the model's
    answer with its tool calls, their results, and inputs. If calls ran, a sentence stands for them, first with their
    results and then without. The messages that were answered stay.

    Attributes:
        context: the context of the session.
        record: the record at the start of the turn.
    """

    context: Transcript
    record: SessionRecord
    _gone: set[int] = attrs.field(factory=set)
    _sentences: dict[Detail, int] = attrs.field(factory=dict)  # their positions

    @property
    def left_out(self) -> tuple[Span, ...]:
        """The ranges of messages outside the context, of earlier turns and of this one; behind them those of parts."""
        spans = [span for span in self.record.left_out if span.part is None]
        for at in sorted(self._gone):
            first = spans.pop().first if spans and spans[-1].end == at else at
            spans.append(Span(first, at + 1))
        return (*spans, *(span for span in self.record.left_out if span.part is not None))

    def tell(self, detail: Detail, answered: int) -> int:
        """Let a sentence stand for the tool calls that ran since a request was answered.

        Args:
            detail: how much it tells.
            answered: the position up to which the messages were answered.

        Return the number of calls; if it is 0, nothing was changed.
        """
        first = max(answered, self.context.head)
        places, ran = self._ran(first)
        if ran:
            earlier = {at for at in self._sentences.values() if at >= first}
            self._sentences[detail] = self.context.end
            self.context.append(_sentence(detail, ran))
            self._leave(places | earlier)
        return len(ran)

    def give_up(self, answered: int, *, declined: bool) -> None:
        """Leave out of the context all that may have been refused, as the turn ends with it.

        Args:
            answered: the position up to which the messages were answered.
            declined: whether the model itself has declined to go on, which may be for any message of the turn.
        """
        begin = max(self.record.message_count, self.context.head)
        _, ran = self._ran(begin)
        first, kept = begin, set[int]()
        if ran and declined:
            kept.add(self.context.end)
            self.context.append(_sentence("calls", ran))
        elif ran:
            first = max(answered, begin)
            kept |= {at for detail, at in self._sentences.items() if detail == "results" and at >= first}
        self._gone -= kept
        self._leave(set(range(first, self.context.end)) - kept)

    def _ran(self, first: int) -> tuple[set[int], list[tuple[ToolUseBlock, ToolResult]]]:
        """Return the positions of tool calls and of their results from a position on, and both as pairs."""
        places, ran, calls = set[int](), list[tuple[ToolUseBlock, ToolResult]](), tuple[ToolUseBlock, ...]()
        for at, body in enumerate(self.context.since(first), first):
            message = codec.decode_message(body)
            if isinstance(message, AssistantMessage):
                calls = message.tool_calls
            elif isinstance(message, ToolResultsMessage):
                places |= {at - 1, at}
                ran += zip(calls, message.results, strict=True)
        return places, ran

    def _leave(self, places: Collection[int]) -> None:
        self._gone |= set(places)
        self.context.leave_out(self.left_out)


def _sentence(detail: Detail, ran: Sequence[tuple[ToolUseBlock, ToolResult]]) -> ContextMessage:
    most = min(MOST_QUOTED, MOST_TOLD // len(ran))
    lines = [_HEADS[detail]]
    for call, result in ran:
        told = "it failed" if result.is_error else "it succeeded"
        if detail == "results":
            files = "".join(f" [{file.label}]" for file in result.attachments)
            told += f": {_quoted(result.content, most)}{files}"
        lines.append(f"- {call.name}({_quoted(codec.encode(call.args).decode(), most)}): {told}")
    return ContextMessage("\n".join(lines), REFUSED)


def _quoted(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"
