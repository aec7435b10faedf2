"""Compaction as plain data and functions: the decision to summarise a conversation, and the smaller context.

The names of the public API are exported here. May import `base` and `conversation`.
"""

from warren.base.windows import Window as Window
from warren.compaction.fit import Fitted as Fitted
from warren.compaction.fit import mechanical as mechanical
from warren.compaction.fit import summary_request as summary_request
from warren.compaction.layout import SUMMARY_PREFIX as SUMMARY_PREFIX
from warren.compaction.layout import CompactionError as CompactionError
from warren.compaction.layout import CompactionReason as CompactionReason
from warren.compaction.layout import CompactionResult as CompactionResult
from warren.compaction.layout import Measured as Measured
from warren.compaction.layout import estimate as estimate
from warren.compaction.layout import is_summary as is_summary
from warren.compaction.layout import size_of as size_of
from warren.compaction.layout import summary_message as summary_message
from warren.compaction.layout import verify as verify
from warren.compaction.policy import PROMPT as PROMPT
from warren.compaction.policy import CompactionContext as CompactionContext
from warren.compaction.policy import Compactor as Compactor
from warren.compaction.policy import DefaultCompactor as DefaultCompactor
from warren.compaction.policy import NewCompactor as NewCompactor
from warren.compaction.policy import compactor_of as compactor_of
from warren.compaction.policy import prompt_with as prompt_with
from warren.conversation.options import DEFAULT_THRESHOLD as DEFAULT_THRESHOLD
from warren.conversation.options import CompactionConfig as CompactionConfig
