"""The room that a model's window leaves for a request, as the server's own counts and refusals correct it."""

from collections.abc import Callable, Iterable
from typing import Final, Literal

import attrs
import trio

from warren.actors.turn.route import Candidate, Route
from warren.base.errors import ProviderError
from warren.base.values import define, frozen
from warren.base.windows import Window
from warren.compaction.layout import estimate
from warren.compaction.policy import Compactor
from warren.conversation.memory import Index
from warren.conversation.transcript import Transcript
from warren.models.model import ModelChoice

OVERSIZE: Final = ("context_length", "too_large")
TOO_LARGE: Final = 413
"""A status that proxies send, too: whatever its body is, a smaller request may pass."""
MOST_TRIES: Final = 10
"""Requests of one step, each smaller than the one before: a window that no refusal names is found in as many."""
LESS: Final = (3, 4)
"""The part of a refused request that is assumed to fit, if the refusal names no window."""
SMALLEST_GUESS: Final = 2_000
"""Tokens of a request below which no window is guessed: it was refused for something else."""
LEAST_COUNTED: Final = 512
"""Estimated tokens of a request below which a count says little: the server's own instructions and frames are in it."""
MOST_SCALE: Final = 3.0
"""The most tokens of the server that one estimated token may stand for."""
REMEMBERED: Final = 3600.0
"""Seconds for which a lesson counts: a server may be started again with another window."""
MOST_MODELS: Final = 1_000
"""Models of which lessons are remembered: clients name models."""


@frozen
class CompactionPlan:
    """The settings of a session's compaction.

    Attributes:
        compactor: the policy.
        distance: steps from a refused attempt to the next one of its kind.
        index: adds the summarised messages to the memory; None without a memory.
    """

    compactor: Compactor
    distance: int
    index: Index | None


Limit = Literal["window", "max_output"]
Within = Callable[[int | None], tuple[Window | None, CompactionPlan | None]]
"""Returns the window of a turn's models and the plan of compaction, given the tokens that a refusal has told."""


@define(eq=False)
class Lessons:
    """Windows and answer limits of a runtime's models, as learned from refusals.

    Attributes:
        known: the tokens of each limit, and the time until which they count; empty as long as nothing was refused.
    """

    known: dict[tuple[str, str, Limit], tuple[int, float]] = attrs.field(factory=dict)

    def of(self, limit: Limit, candidates: Iterable[Candidate]) -> int | None:
        """Return the smallest known limit of some models; None if no refusal has told one lately."""
        now = trio.current_time()
        found = (self.known.get(_key(limit, each.choice), (0, 0.0)) for each in candidates)
        return min((tokens for tokens, until in found if until > now), default=None)

    def learn(self, limit: Limit, choice: ModelChoice, tokens: int) -> None:
        """Remember a limit for a while."""
        if len(self.known) >= MOST_MODELS:
            self.known.clear()
        self.known[_key(limit, choice)] = (tokens, trio.current_time() + REMEMBERED)


def _key(limit: Limit, choice: ModelChoice) -> tuple[str, str, Limit]:
    return choice.name, choice.model, limit


def _number(error: ProviderError, name: str) -> int | None:
    value = error.details.get(name)
    return value if type(value) is int and value > 0 else None


@define(eq=False)
class Room:
    """The room for the requests of a turn.

    A refusal that names the window is believed. Without a number three quarters of the refused request are assumed to
    fit, and that is remembered for other turns only once a request of that size was answered.

    Attributes:
        window: the window; None if it is unknown.
        plan: the settings of compaction; None if it is off.
        within: makes both anew for a window that a refusal has told.
        context: the context.
        route: the models.
        lessons: those of the runtime.
        max_output: the most tokens of an answer, once a refusal has told it.
        caps: whether a refusal has told that answers are to be kept short.
        last_input_tokens: input tokens of the newest model call by the server's count, 0 after a compaction.
    """

    window: Window | None
    plan: CompactionPlan | None
    within: Within
    context: Transcript
    route: Route
    lessons: Lessons
    last_input_tokens: int
    max_output: int | None = None
    caps: bool = False
    _bounded: bool = False  # whether answers are kept within the window, too
    _guess: int | None = None

    def __attrs_post_init__(self) -> None:
        if self.lessons.known:
            self.max_output = self.lessons.of("max_output", (self.route.current,))
            self.caps = self.max_output is not None
        if self.context.counted is None and self.last_input_tokens:  # of an earlier process
            self.context.counted = self.last_input_tokens, self.context.size

    @property
    def scale(self) -> float:
        """The tokens of the server for each estimated one, by its newest count; never below 1."""
        if self.window is None or self.context.counted is None:
            return 1.0
        tokens, size = self.context.counted
        ours = estimate(size) + self.window.tools
        return 1.0 if ours < LEAST_COUNTED else min(max(1.0, tokens / ours), MOST_SCALE)

    def tokens(self, size: int) -> int:
        """Return the tokens of `size` bytes of messages as the server is likely to count them."""
        return int(estimate(size) * self.scale)

    def estimated(self, tokens: int) -> int:
        """Return as many estimated tokens as the server is likely to count as `tokens`."""
        return int(tokens / self.scale)

    @property
    def rebuilding(self) -> CompactionPlan | None:
        """The settings of compaction for a window in estimated tokens, in which a compactor measures messages."""
        if self.window is None or self.scale == 1:
            return self.plan
        return self.within(self.estimated(self.window.tokens))[1]

    def answer_cap(self, left: int | None, size: int) -> int | None:
        """Return the most tokens of an answer to a request: of what a budget leaves, as far as refusals allow it."""
        caps = [left, self.max_output]
        if self._bounded and self.window is not None:
            caps.append(
                max(1, self.window.tokens // 4, self.window.tokens * 19 // 20 - self.tokens(size) - self.window.tools)
            )
        return min((cap for cap in caps if cap is not None), default=None)

    def learn(self, error: ProviderError, size: int, *, capped: bool = False) -> bool:
        """Learn from a refusal of a request with `size` bytes of messages; return whether a smaller one may succeed."""
        choice = self.route.current.choice
        most, named, counted = (_number(error, name) for name in ("max_output", "window", "counted"))
        if most is not None:
            news = self.max_output is None or most < self.max_output
            self.max_output, self.caps = most, True
            self.lessons.learn("max_output", choice, most)
            return news
        if error.retryable or not (error.cause in OVERSIZE or error.details.get("status") == TOO_LARGE):
            return False
        before = self.window
        if counted is not None:
            self.context.counted = counted, size
        sent = counted or self.tokens(size) + (0 if before is None else before.tools)
        tokens = sent * LESS[0] // LESS[1] if named is None else named
        if named is None and sent < SMALLEST_GUESS:
            return False
        if before is not None and tokens >= before.tokens:
            # It is no news: the answer's cap counts, or the server counts more than the estimate.
            tokens = before.tokens if not self._bounded else min(before.tokens, sent) * LESS[0] // LESS[1]
        elif named is not None:
            self.lessons.learn("window", choice, tokens)
        # The cap of the answer or a file may be what is too large: that says nothing to other sessions.
        about_text = error.cause == "context_length" or not self.context.has_files
        self._guess = tokens if named is None and about_text and not capped else None
        self._bounded = self.caps = True
        self.window, self.plan = self.within(tokens)
        return True

    def answered(self) -> None:
        """Note that a request was answered after a refusal: a window that was guessed is remembered."""
        if self._guess is not None:
            self.lessons.learn("window", self.route.current.choice, self._guess)
            self._guess = None
