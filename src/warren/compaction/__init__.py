"""Compaction as plain data and functions: the decision to summarise a conversation, and the smaller context.

The names of the public API are exported here. They are loaded on first use, because `warren.records` imports
`warren.compaction.config`, and the other modules import `warren.records`. May import the domain.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warren.compaction.config import DEFAULT_THRESHOLD, CompactionConfig
    from warren.compaction.fit import Fitted, mechanical, summary_request
    from warren.compaction.layout import (
        SUMMARY_PREFIX,
        CompactionError,
        CompactionReason,
        CompactionResult,
        Measured,
        estimate,
        is_summary,
        size_of,
        summary_message,
        verify,
    )
    from warren.compaction.policy import (
        PROMPT,
        CompactionContext,
        Compactor,
        DefaultCompactor,
        NewCompactor,
        compactor_of,
        prompt_with,
    )

__all__ = [
    "DEFAULT_THRESHOLD",
    "PROMPT",
    "SUMMARY_PREFIX",
    "CompactionConfig",
    "CompactionContext",
    "CompactionError",
    "CompactionReason",
    "CompactionResult",
    "Compactor",
    "DefaultCompactor",
    "Fitted",
    "Measured",
    "NewCompactor",
    "compactor_of",
    "estimate",
    "is_summary",
    "mechanical",
    "prompt_with",
    "size_of",
    "summary_message",
    "summary_request",
    "verify",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        from warren.compaction import config, fit, layout, policy  # noqa: PLC0415 - see above

        return next(getattr(module, name) for module in (policy, layout, fit, config) if hasattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
