"""The settings of compaction. They are part of a session's record, so the records import this module."""

from typing import Final

import attrs

from warren.fields import fits, is_whole, not_negative, optional, positive
from warren.values import frozen

DEFAULT_THRESHOLD: Final = 100_000


@frozen
class CompactionConfig:
    """The threshold and the size of compactions.

    Attributes:
        auto_compact_threshold: tokens from which on a compaction is due; None is 100,000. If the model's window is
            known, it is at most 80 % of that, and less if the cap of answers or tools take much of it.
        recent_turn_budget: complete exchanges that are kept; fewer if so many would leave the history too large.
        max_summary_tokens: cap of the summary in tokens; at most a quarter of a known window.
        min_turns_between_compactions: steps (model calls) from one attempt to the next.
        window: tokens that a request may have; None looks up the model's name, and an unknown model has no limit.
    """

    auto_compact_threshold: int | None = attrs.field(default=None, validator=optional(is_whole, positive, fits))
    recent_turn_budget: int = attrs.field(default=4, validator=[is_whole, not_negative, fits])
    max_summary_tokens: int = attrs.field(default=4096, validator=[is_whole, positive, fits])
    min_turns_between_compactions: int = attrs.field(default=3, validator=[is_whole, not_negative, fits])
    window: int | None = attrs.field(default=None, validator=optional(is_whole, positive, fits))
