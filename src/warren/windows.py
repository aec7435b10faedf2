"""How much a request to a known model may hold."""

from collections.abc import Mapping
from typing import Final

import attrs

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
"""Tokens of a request by the beginning of the model's name; where a provider caps the input alone, that cap.

A name that is newer than this table gets its family's smallest window: too small costs a compaction, too large a turn.
"""


@attrs.frozen
class Window:
    """How much a model takes, in tokens by our estimate.

    Attributes:
        tokens: of a request and its answer together.
        answer: cap of the answer. More than a quarter of the window counts as a quarter: few answers come to that.
        tools: what the definitions of the tools take of a request.
    """

    tokens: int
    answer: int = 0
    tools: int = 0

    @property
    def request(self) -> int:
        """What a request may take; a tenth of the window is for the estimate's error."""
        return self.tokens * 9 // 10 - min(self.answer, self.tokens // 4)

    @property
    def room(self) -> int:
        """What its messages may take; 0 or less where the tools leave nothing."""
        return self.request - self.tools


def window_of(model: str, overrides: Mapping[str, int] | None = None) -> int | None:
    """Return a model's window in tokens, or None where it is unknown.

    The longest matching beginning decides; one of `overrides` wins over the table. A path before the name, as
    routers of many providers have it (`anthropic/claude-sonnet-5`), is passed over in the table, not in `overrides`.
    """
    own = _longest(model, overrides or {})
    return own if own is not None else _longest(model.rpartition("/")[2], WINDOWS)


def _longest(model: str, windows: Mapping[str, int]) -> int | None:
    found = [prefix for prefix in windows if model.startswith(prefix)]
    return windows[max(found, key=len)] if found else None
