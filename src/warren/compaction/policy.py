"""The policy of compaction: the decision to compact, and the smaller context. `warren.actors` carries it out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import attrs

from warren.base.values import frozen
from warren.base.windows import Window
from warren.compaction.fit import shorten
from warren.compaction.layout import (
    BYTES_PER_TOKEN,
    CompactionError,
    CompactionResult,
    Layout,
    size_of,
    summary_message,
    with_request,
)
from warren.conversation.messages import Message
from warren.conversation.options import DEFAULT_THRESHOLD, CompactionConfig

PROMPT: Final = """\
You are performing a CONTEXT COMPACTION. Your job is to create a handoff summary so work can continue seamlessly.

Include:
- Current progress and key decisions made
- Important context, constraints, or user preferences discovered
- What remains to be done (clear next steps)
- Any critical data, file paths, examples, or references needed to continue
- Tool call patterns that worked or failed

Be concise and structured. Prioritize information the next context needs to act, not narrate."""


_SHORTEST_REQUEST: Final = 400
"""Bytes of a request that are kept even if there is less room."""


@frozen
class CompactionContext:
    """The figures for the decision to compact, at the start of a step.

    Attributes:
        last_input_tokens: input tokens of the newest model call by the provider's count; 0 after a compaction.
        message_count: messages of the context.
        estimated_history_tokens: tokens of the context by `estimate`.
        last_compaction_turn: the session's step counter at the newest attempt, failed ones included; None before any.
        current_turn: the session's step counter now. It is never reset.
    """

    last_input_tokens: int
    message_count: int
    estimated_history_tokens: int
    last_compaction_turn: int | None
    current_turn: int


class Compactor(Protocol):
    """A strategy of compaction. It is called on the event loop, so it must be quick and do no I/O."""

    def should_compact(self, context: CompactionContext) -> bool:
        """Tell whether a compaction is due."""

    def compaction_prompt(self) -> str:
        """Return the prompt that asks the model for the summary."""

    def max_summary_tokens(self) -> int:
        """Return the cap of the summary in tokens."""

    def rebuild_history(self, messages: Sequence[Message], summary: str) -> CompactionResult:
        """Return a smaller context. The same input must give the same output.

        Trap: the context knows where the running turn begins, which a copy of it, such as a list, does not.

        Args:
            messages: the context, read-only.
            summary: the model's text.

        Raises:
            CompactionError: if no smaller context is possible. The result must pass `verify`, or the runtime raises it.
        """


NewCompactor = Callable[[CompactionConfig, Window | None], Compactor]
"""Makes the compactor of a turn from the session's settings and the model's window; None is an unknown window."""
METHODS: Final = ("should_compact", "compaction_prompt", "max_summary_tokens", "rebuild_history")


@frozen
class DefaultCompactor:
    """Keeps the newest exchanges and a summary of the rest.

    Attributes:
        config: the settings.
        window: the model's window; None if it is unknown.
    """

    config: CompactionConfig = attrs.field(factory=CompactionConfig)
    window: Window | None = None

    @property
    def threshold(self) -> int:
        """Tokens of a whole request, by the provider's count, from which on a compaction is due."""
        wanted = self.config.auto_compact_threshold or DEFAULT_THRESHOLD
        return wanted if self.window is None else _below(wanted, self.window.request)

    @property
    def history_threshold(self) -> int:
        """Tokens of the messages alone, by `estimate`, from which on a compaction is due.

        It is the smaller one if the window is known, as the tools take a part of the window.
        """
        return self._in_room(self.threshold)

    def should_compact(self, context: CompactionContext) -> bool:
        """Tell whether a figure has reached its threshold. It is False at step 0, and too soon after an attempt."""
        last = context.last_compaction_turn
        if context.current_turn == 0:
            return False
        if last is not None and context.current_turn - last < self.config.min_turns_between_compactions:
            return False
        estimated = context.estimated_history_tokens
        return context.last_input_tokens >= self.threshold or estimated >= self.history_threshold

    def compaction_prompt(self) -> str:
        """Return `PROMPT`."""
        return PROMPT

    def max_summary_tokens(self) -> int:
        """Return the cap of the summary in tokens."""
        wanted = self.config.max_summary_tokens
        return wanted if self.window is None else max(1, min(wanted, self.window.tokens // 4))

    def rebuild_history(self, messages: Sequence[Message], summary: str) -> CompactionResult:
        """Return the system messages, one summary and the newest exchanges. An older summary is replaced.

        The configured number of complete exchanges is kept. If the result is not smaller then, or takes more than half
        of a request's room, fewer exchanges are kept, until the history is also half as large as before. As the last
        resort the newest exchange is cut before one of its answers. The summary then ends with the request that opened
        the exchange; a very long request loses its middle.

        Raises:
            CompactionError: with the reason `empty_summary`, `nothing_to_reduce` or `not_smaller`.
        """
        if not summary.strip():
            raise CompactionError("empty_summary", "the model returned an empty summary")
        return _Rebuild.of(Layout.of(messages), summary, self._room).done(self.config.recent_turn_budget)

    def _in_room(self, tokens: int) -> int:
        # If the tools leave no room at all, compaction cannot make room, so their share is ignored.
        return tokens if self.window is None or self.window.room <= 0 else _below(tokens, self.window.room)

    @property
    def _room(self) -> int:
        """Twice the bytes that a compacted history may have.

        A threshold below the default does not count here: it makes compactions frequent, but not the exchanges small.
        """
        return self._in_room(max(self.config.auto_compact_threshold or 0, DEFAULT_THRESHOLD)) * BYTES_PER_TOKEN


def compactor_of(given: Compactor | NewCompactor | None, config: CompactionConfig, window: Window | None) -> Compactor:
    """Return the compactor of a turn.

    Args:
        given: a compactor, a function or class that makes one, or None for the default.
        config: the session's settings.
        window: the model's window; None if it is unknown.

    Raises:
        TypeError: if the result is not a compactor.
        Exception: the error that the function raised.
    """
    made: Any = given(config, window) if callable(given) else given
    if made is None and given is None:
        return DefaultCompactor(config, window)
    missing = [name for name in METHODS if not callable(getattr(made, name, None))]
    if missing:
        raise TypeError(f"{made!r} is no compactor: it has no {', '.join(missing)}")
    return made  # type: ignore[no-any-return]


def _below(tokens: int, room: int) -> int:
    """Return `tokens`, or less if they would not leave a ninth of the room free.

    The free ninth is for the steps between a failed attempt and the next one. Without a cap of answers, the rest is
    80 % of the window.
    """
    return max(1, min(tokens, room * 8 // 9))


@frozen
class _Rebuild:
    """The choice of a head, which is the first message that stays.

    Attributes:
        layout: the context.
        whole: the summary before whole exchanges.
        cut: the summary before a part of an exchange.
        enough: bytes up to which the result is small enough.
    """

    layout: Layout
    whole: str
    cut: str
    enough: int

    @classmethod
    def of(cls, layout: Layout, summary: str, room: int) -> "_Rebuild":
        enough = layout.system_size + max(0, room - layout.system_size) // 2
        request = shorten(layout.request(), max(_SHORTEST_REQUEST, enough // 8))
        return cls(layout, with_request(summary, ""), with_request(summary, request), enough)

    def done(self, budget: int) -> CompactionResult:
        preferred = self.layout.newest(budget)
        sizes = self._sizes(preferred)
        if not sizes:
            raise CompactionError("nothing_to_reduce", "all of the history has to stay")
        if min(sizes.values()) >= self.layout.size:
            raise CompactionError("not_smaller", "the summary is larger than the messages that it would replace")
        head = self._head(preferred, sizes)
        return self.layout.rebuilt(head, self.cut if self.layout.cuts(head) else self.whole)

    def _head(self, preferred: int, sizes: Mapping[int, int]) -> int:
        before = self.layout.size
        if sizes.get(preferred, before) < before and sizes[preferred] <= self.enough:
            return preferred
        goal = min(before // 2, self.enough)
        return next((head for head in sizes if sizes[head] <= goal), min(sizes, key=sizes.__getitem__))

    def _sizes(self, preferred: int) -> dict[int, int]:
        """Return the bytes of the result for each head from the preferred one on, if it discards a message."""
        layout, whole, cut = self.layout, size_of(summary_message(self.whole)), size_of(summary_message(self.cut))
        return {
            head: layout.system_size + (cut if layout.cuts(head) else whole) + layout.tails[head]
            for head in layout.heads()
            if head >= max(preferred, layout.first + 1)
        }


def prompt_with(prompt: str, instructions: str | None) -> str:
    """Return a compaction prompt with additional instructions of a person."""
    return f"{prompt}\n\nAdditional instructions:\n{instructions}" if instructions and instructions.strip() else prompt
