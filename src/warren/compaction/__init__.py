"""Compaction as plain data and functions: the decision to summarise a conversation, and the smaller context.

The names of the public API are exported here. May import `base` and `conversation`.
"""

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
from warren.conversation.options import DEFAULT_THRESHOLD, CompactionConfig

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
