"""When a conversation is summarised, and what is kept of it: pure policy. What does it is in `warren.actors`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import attrs

from warren.compaction.config import DEFAULT_THRESHOLD, CompactionConfig
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
from warren.messages import Message
from warren.windows import Window

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
"""Bytes of a request that are kept however little room there is."""


@attrs.frozen
class CompactionContext:
    """What the decision rests on, at the start of a step.

    Attributes:
        last_input_tokens: of the newest model call, as the provider counted them; 0 after a compaction.
        message_count: messages of the context.
        estimated_history_tokens: see `estimate`.
        last_compaction_turn: the session's step counter at the last attempt, failed ones included; None before any.
        current_turn: the session's step counter now. It never starts over.
    """

    last_input_tokens: int
    message_count: int
    estimated_history_tokens: int
    last_compaction_turn: int | None
    current_turn: int


class Compactor(Protocol):
    """A strategy. It is called on the event loop: it does no I/O and is quick."""

    def should_compact(self, context: CompactionContext) -> bool:
        """Tell whether a compaction is due."""
        ...

    def compaction_prompt(self) -> str:
        """Return what the model is asked for the summary."""
        ...

    def max_summary_tokens(self) -> int:
        """Return the cap of the summary."""
        ...

    def rebuild_history(self, messages: Sequence[Message], summary: str) -> CompactionResult:
        """Return a smaller context. Raises CompactionError where there is none.

        Its rules are those of `verify`, which every result has to pass. The same input gives the same output.
        """
        ...


NewCompactor = Callable[[CompactionConfig, Window | None], Compactor]
"""Makes the compactor of a turn, from its session's settings and what its model takes, where that is known."""
METHODS: Final = ("should_compact", "compaction_prompt", "max_summary_tokens", "rebuild_history")


@attrs.frozen
class DefaultCompactor:
    """Keeps the newest exchanges and a summary of the rest.

    Attributes:
        config: when and how far.
        window: what the model takes; None where that is unknown.
    """

    config: CompactionConfig = attrs.field(factory=CompactionConfig)
    window: Window | None = None

    @property
    def threshold(self) -> int:
        """The tokens from which on a compaction is due, by the provider's count of the whole request."""
        wanted = self.config.auto_compact_threshold or DEFAULT_THRESHOLD
        return wanted if self.window is None else _below(wanted, self.window.request)

    @property
    def history_threshold(self) -> int:
        """The same by our estimate, which is of the messages alone: of a known window the tools take their part too."""
        return self._in_room(self.threshold)

    def should_compact(self, context: CompactionContext) -> bool:
        """Tell whether a token figure has reached the threshold; never at step 0, nor too soon after an attempt."""
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
        """Return the cap of the summary."""
        wanted = self.config.max_summary_tokens
        return wanted if self.window is None else max(1, min(wanted, self.window.tokens // 4))

    def rebuild_history(self, messages: Sequence[Message], summary: str) -> CompactionResult:
        """Return system messages, one summary and the newest exchanges; an older summary is replaced.

        As many complete exchanges are kept as configured. Where that would be no smaller, or more than half of what
        a request has room for, fewer are kept, until the history is also half of what it was; at last the newest
        exchange is cut before one of its answers, and the summary ends with the request that opened it (shortened in
        its middle where it is very long).

        Raises CompactionError: `empty_summary`, `nothing_to_reduce`, `not_smaller`.
        """
        if not summary.strip():
            raise CompactionError("empty_summary", "the model returned an empty summary")
        return _Rebuild.of(Layout.of(messages), summary, self._room).done(self.config.recent_turn_budget)

    def _in_room(self, tokens: int) -> int:
        # Where the tools leave no room at all, no compaction makes any.
        return tokens if self.window is None or self.window.room <= 0 else _below(tokens, self.window.room)

    @property
    def _room(self) -> int:
        """The bytes of which a compacted history may take half.

        A threshold below the default is no measure: it makes compactions frequent, not the exchanges small.
        """
        return self._in_room(max(self.config.auto_compact_threshold or 0, DEFAULT_THRESHOLD)) * BYTES_PER_TOKEN


def compactor_of(given: Compactor | NewCompactor | None, config: CompactionConfig, window: Window | None) -> Compactor:
    """Return the compactor of a turn: what was given, what a function or a class makes, or the default for None.

    Raises TypeError for what is no compactor, and what the function raises.
    """
    made: Any = given(config, window) if callable(given) else given
    if made is None and given is None:
        return DefaultCompactor(config, window)
    missing = [name for name in METHODS if not callable(getattr(made, name, None))]
    if missing:
        raise TypeError(f"{made!r} is no compactor: it has no {', '.join(missing)}")
    return made  # type: ignore[no-any-return]


def _below(tokens: int, room: int) -> int:
    """Return no more tokens than leave a ninth of the room free, for the steps between a failed attempt and the next.

    That is 80 % of a window whose answers have no cap.
    """
    return max(1, min(tokens, room * 8 // 9))


@attrs.frozen
class _Rebuild:
    """The choice of a head.

    Attributes:
        layout: the context.
        whole: the summary in front of whole exchanges.
        cut: the summary in front of a part of one.
        enough: the bytes up to which the result is small enough.
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
            raise CompactionError("not_smaller", "the summary is larger than what it would stand for")
        head = self._head(preferred, sizes)
        return self.layout.rebuilt(head, self.cut if self.layout.cuts(head) else self.whole)

    def _head(self, preferred: int, sizes: Mapping[int, int]) -> int:
        before = self.layout.size
        if sizes.get(preferred, before) < before and sizes[preferred] <= self.enough:
            return preferred
        goal = min(before // 2, self.enough)
        return next((head for head in sizes if sizes[head] <= goal), min(sizes, key=sizes.__getitem__))

    def _sizes(self, preferred: int) -> dict[int, int]:
        """Return the bytes of the result for each head from the preferred one on that discards something."""
        layout, whole, cut = self.layout, size_of(summary_message(self.whole)), size_of(summary_message(self.cut))
        return {
            head: layout.system_size + (cut if layout.cuts(head) else whole) + layout.tails[head]
            for head in layout.heads()
            if head >= max(preferred, layout.first + 1)
        }


def prompt_with(prompt: str, instructions: str | None) -> str:
    """Return a compaction prompt with a person's own wishes added to it."""
    return f"{prompt}\n\nAdditional instructions:\n{instructions}" if instructions and instructions.strip() else prompt
