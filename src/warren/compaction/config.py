"""Settings of compaction. They are part of a session's record, and the policy is above the records."""

from typing import Final

import attrs

from warren.fields import fits, is_whole, is_whole_or_none, not_negative, positive

DEFAULT_THRESHOLD: Final = 100_000


@attrs.frozen
class CompactionConfig:
    """When and how far to compact.

    Attributes:
        auto_compact_threshold: tokens from which on it is due; None is 100,000. Either way no more than 80 % of the
            model's window, where that is known, and less where answers (`max_tokens`) or tools take much of it.
        recent_turn_budget: complete exchanges that are kept; fewer where so many would leave the history too large.
        max_summary_tokens: cap of the summary; at most a quarter of a known window.
        min_turns_between_compactions: steps (model calls) from one attempt to the next.
        window: tokens that a request may hold; None looks the model's name up, and takes none for an unknown one.
    """

    auto_compact_threshold: int | None = attrs.field(default=None, validator=[is_whole_or_none, positive, fits])
    recent_turn_budget: int = attrs.field(default=4, validator=[is_whole, not_negative, fits])
    max_summary_tokens: int = attrs.field(default=4096, validator=[is_whole, positive, fits])
    min_turns_between_compactions: int = attrs.field(default=3, validator=[is_whole, not_negative, fits])
    window: int | None = attrs.field(default=None, validator=[is_whole_or_none, positive, fits])
