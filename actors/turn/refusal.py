"""The messages that leave the context when a provider refuses them, and the sentences that stand for what ran."""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import attrs

from warren.base.values import define
from warren.conversation import codec
from warren.conversation.events import RepairAction
from warren.conversation.messages import (
    REFUSED,
    AssistantMessage,
    ContextMessage,
    Message,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
)
from warren.conversation.records import SessionRecord, Span
from warren.conversation.transcript import Transcript

MOST_TOLD: Final = 20_000
"""Characters of results that a sentence quotes."""
MOST_QUOTED: Final = 2_000
"""Characters of one result, or of the arguments of one call, that a sentence quotes."""
_CALLS: Final = "These tool calls ran. Their messages were refused by the model's provider, so they are told in words:"
_RESULTS: Final = "\n\nTheir results:\n"
Ran = list[tuple[ToolUseBlock, ToolResult]]


@define(eq=False)
class Refusals:
    """Takes what a provider refuses out of the context, and leaves what ran in it.

    A request that is refused differs from the last one that was answered by the messages since then: the model's
    answer with its tool calls, their results, and inputs. If calls ran, a sentence stands for them, first with their
    results and then without. The messages that were answered stay.

    Attributes:
        context: the context of the session.
        record: the record at the start of the turn.
    """

    context: Transcript
    record: SessionRecord
    _gone: dict[int, int | None] = attrs.field(factory=dict)  # by place, that of the sentence that stands for it
    _told: set[int] = attrs.field(factory=set)  # the positions of the sentences of this turn that tell results
    _tried: set[int] = attrs.field(factory=set)  # places of earlier turns without which one was tried
    _shortened: tuple[Collection[int], int] | None = None  # sentences without whose results one was said, and its place

    @property
    def left_out(self) -> tuple[Span, ...]:
        """The ranges of messages outside the context, in order: those of earlier turns, and those of this one."""
        spans, earlier = list[Span](), self.record.left_out
        new = (Span(at, at + 1, told=told) for at, told in self._gone.items())
        for span in sorted([*earlier, *new], key=lambda each: each.first):
            if spans and span.first <= spans[-1].end and span.told == spans[-1].told:
                spans[-1] = attrs.evolve(span, first=spans[-1].first)
            else:
                spans.append(span)
        return tuple(spans)

    def tell(self, answered: int) -> tuple[RepairAction, str] | None:
        """Let a sentence stand for the tool calls that ran since a request was answered; if one does, take its results.

        Args:
            answered: the position up to which the messages were answered.

        Return what was done, in the terms of `RequestRepaired`; None if nothing is left to be told.
        """
        places, ran = self._ran(self._unanswered(answered))
        if ran:
            self._told.add(self._say(_sentence(ran, results=True), places))
            return "replaced", f"the results of {len(ran)} tool calls"
        standing = {at: text for at, text in self._sentences().items() if _RESULTS in text}
        if standing:
            self._shortened = standing, self._say("\n".join(map(_without_results, standing.values())), standing)
            return "dropped", "the results of tool calls that were told in words"
        if stale := self._stale(answered):
            self._tried = stale
            self._leave(stale)
            return "dropped", f"{len(stale)} earlier messages that no answer has followed"
        return None

    def earlier(self, answered: int) -> bool:
        """Return whether messages of earlier turns were in no answered request."""
        standing = any(_RESULTS in text for text in self._sentences().values())
        return standing or self._unanswered(answered) < self.record.message_count or bool(self._stale(answered))

    def _stale(self, answered: int) -> set[int]:
        """Return the places of prompts and inputs of earlier turns that no answer has followed."""
        found = set[int]()
        if answered <= self.record.message_count:
            for at in reversed(self.context.positions):
                message = self._at(at)
                if at < self.record.message_count and not isinstance(message, UserMessage | ContextMessage):
                    break
                if at < self.record.message_count and getattr(message, "source", None) != REFUSED:
                    found.add(at)
        return found

    def give_up(self, answered: int, *, declined: bool) -> None:
        """Leave out of the context all that may have been refused, as the turn ends with it.

        Args:
            answered: the position up to which the messages were answered.
            declined: whether the model itself has declined to go on, which may be for any message of the turn.
        """
        begin, end = max(self.record.message_count, self.context.head), self.context.end
        if declined:
            places, ran = self._ran(self._unanswered(begin))
            said = {at: text for at, text in self._sentences().items() if at >= begin or _RESULTS in text}
            told = [*map(_without_results, said.values()), *([_sentence(ran, results=False)] if ran else [])]
            stood = {*places, *said}
            if told:  # a fork from before gets the calls with their prompt back, and no answer behind them
                self._say("\n".join(told), {*range(begin, max(stood)), *stood})
            self._leave(range(begin, end))
            return
        if self._shortened is not None and self._shortened[1] >= answered:  # that has not helped
            longer, short = self._shortened
            for at in longer:
                del self._gone[at]
            self._leave({short})
        if self._tried and answered <= self.record.message_count:  # that has not helped: this turn is refused alone
            for at in self._tried:
                self._gone.pop(at, None)
        ran_here = any(isinstance(self._at(at), ToolResultsMessage) for at in range(begin, end))
        first = max(answered, begin) if ran_here else begin
        self._leave(set(range(first, end)) - (self._told - self._gone.keys()))

    def _say(self, text: str, instead_of: Iterable[int]) -> int:
        at = self.context.end
        self.context.append(ContextMessage(text, REFUSED))
        self._leave(instead_of, told=at)
        return at

    def _leave(self, places: Iterable[int], *, told: int | None = None) -> None:
        for at in places:
            self._gone.setdefault(at, told)  # the first sentence is nearest to what it stands for
        self.context.leave_out(self.left_out)

    def _at(self, position: int) -> Message:
        return codec.decode_message(self.context.rows[position - self.context.head])

    def _unanswered(self, answered: int) -> int:
        """Return the position from which on calls were in no answered request; the turn before may have left some."""
        if answered <= self.record.message_count:
            for at in reversed(self.context.positions):
                if at < answered and isinstance(message := self._at(at), AssistantMessage):
                    return at if message.tool_calls else answered
        return max(answered, self.context.head)

    def _ran(self, first: int) -> tuple[set[int], Ran]:
        """Return the positions of the tool calls in the context and of their results from a position on, and both."""
        places, ran, calls = set[int](), Ran(), tuple[ToolUseBlock, ...]()
        for at in self.context.positions:
            if at >= first:
                message = self._at(at)
                if isinstance(message, AssistantMessage):
                    calls = message.tool_calls
                elif isinstance(message, ToolResultsMessage):
                    places |= {at - 1, at}
                    ran += zip(calls, message.results, strict=True)
        return places, ran

    def _sentences(self) -> dict[int, str]:
        """Return the sentences in the context that stand for calls, by their positions."""
        rows, head, mark = self.context.rows, self.context.head, REFUSED.encode()
        found = {at: self._at(at) for at in self.context.positions if mark in rows[at - head]}
        return {
            at: each.content
            for at, each in found.items()
            if isinstance(each, ContextMessage) and each.source == REFUSED
        }


def _sentence(ran: Sequence[tuple[ToolUseBlock, ToolResult]], *, results: bool) -> str:
    most, text = min(MOST_QUOTED, MOST_TOLD // len(ran)), _CALLS
    for number, (call, result) in enumerate(ran, 1):
        args = _quoted(codec.encode(call.args).decode(), most)
        text += f"\n{number}. {call.name}({args}): it {'failed' if result.is_error else 'succeeded'}"
    if results:
        text += _RESULTS
        for number, (_, result) in enumerate(ran, 1):
            files = "".join(f" [{file.label}]" for file in result.attachments)
            text += f"{number}. {_quoted(result.content, most)}{files}\n"
    return text


def _without_results(sentence: str) -> str:
    return sentence.partition(_RESULTS)[0]


def _quoted(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"
