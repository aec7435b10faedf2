"""The context windows of known models."""

from collections.abc import Mapping
from typing import Final

from warren.values import frozen

WINDOWS: Final[Mapping[str, int]] = {
    "claude-": 200_000,
    "claude-opus-4-6": 1_000_000,
    "claude-opus-4-7": 1_000_000,
    "claude-opus-4-8": 1_000_000,
    "claude-opus-5": 1_000_000,
    "claude-sonnet-4-6": 1_000_000,
    "claude-sonnet-5": 1_000_000,
    "chatgpt-4o": 128_000,
    "gpt-3.5-turbo": 16_385,
    "gpt-4": 8_192,
    "gpt-4-turbo": 128_000,
    "gpt-4o": 128_000,
    "gpt-4.1": 1_047_576,
    "gpt-4.5": 128_000,
    "gpt-5": 272_000,
    "gpt-5-chat": 128_000,
    "gpt-5.1-chat": 128_000,
    "gpt-5.2-chat": 128_000,
    "gpt-5.3-chat": 128_000,
    "gpt-5.4": 922_000,
    "gpt-5.4-mini": 272_000,
    "gpt-5.4-nano": 272_000,
    "o1": 200_000,
    "o1-mini": 128_000,
    "o1-preview": 128_000,
    "o3": 200_000,
    "o4-mini": 200_000,
}
"""Tokens of a context window by the beginning of the model's name. If a provider caps only the input, it is that cap.

A name that is newer than this table gets its family's smallest window: one that is too small costs a compaction, one
that is too large a failed turn.
"""


@frozen
class Window:
    """A model's context window and its fixed parts, in estimated tokens.

    Attributes:
        tokens: the whole window, for a request and its answer together.
        answer: cap of the answer. A cap above a quarter of the window counts as a quarter: few answers are so long.
        tools: the part of a request that the definitions of the tools take.
    """

    tokens: int
    answer: int = 0
    tools: int = 0

    @property
    def request(self) -> int:
        """Tokens that a request may have. A tenth of the window is reserved for the error of the estimate."""
        return self.tokens * 9 // 10 - min(self.answer, self.tokens // 4)

    @property
    def room(self) -> int:
        """Tokens that the messages of a request may have; 0 or less if the tools take all."""
        return self.request - self.tools


def window_of(model: str, windows: Mapping[str, int] | None = None) -> int | None:
    """Return a model's window in tokens, or None if it is unknown.

    The longest matching beginning counts, and one of `windows` counts before one of the table.

    Args:
        model: the model's name. A path before the name, as in `anthropic/claude-sonnet-5`, is ignored for the table
            and kept for `windows`.
        windows: windows in tokens by the beginning of the model's name.
    """
    own = _longest(model, windows or {})
    return own if own is not None else _longest(model.rpartition("/")[2], WINDOWS)


def _longest(model: str, windows: Mapping[str, int]) -> int | None:
    found = [prefix for prefix in windows if model.startswith(prefix)]
    return windows[max(found, key=len)] if found else None
