"""The names of spans and attributes: OpenTelemetry's conventions for generative AI, and Warren's own beside them.

The conventions are still in development, so their names change. They are all here, and a test pins them.
"""

from collections.abc import Mapping
from typing import Final

from warren.conversation.messages import StopReason

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/gen-ai/1.42.0"

# Operations, each of which begins the name of its spans.
INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
MODEL: Final = "gen_ai.request.model"
STREAM: Final = "gen_ai.request.stream"
CONVERSATION: Final = "gen_ai.conversation.id"
ANSWERED_BY: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS: Final = "gen_ai.usage.cache_write.input_tokens"
CACHE_CREATION_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"
"""The number of `CACHE_WRITE_TOKENS` under its name in the released conventions, up to 1.42."""
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
SERVER: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"
OTHER_ERROR: Final = "_OTHER"

# The texts of the conversation, only if they are asked for.
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
INSTRUCTIONS: Final = "gen_ai.system_instructions"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"

SESSION: Final = "session.id"
"""The conversation's id once more, under the name by which Phoenix and Langfuse group traces."""

# Warren's own.
TURN: Final = "warren.turn"
TENANT: Final = "warren.tenant"
STEP: Final = "warren.step"
COST: Final = "warren.cost.usd"
DECISION: Final = "warren.decision"
ATTEMPT: Final = "warren.attempt"
RESUMED: Final = "warren.resumed"
REPAIR: Final = "warren.repair"
INPUT_KIND: Final = "warren.input.kind"
BUDGET: Final = "warren.budget"
PERCENT: Final = "warren.budget.percent"
MESSAGES_BEFORE: Final = "warren.messages.before"
MESSAGES_AFTER: Final = "warren.messages.after"
ATTEMPTS: Final = "warren.attempts"
COMPACT: Final = "warren.compact"
EXTRACT: Final = "warren.extract"
APPROVAL: Final = "warren.approval"
COMMIT: Final = "warren.commit"

PROVIDERS: Final[Mapping[str, str]] = {"gemini": "gcp.gemini", "responses": "openai"}
"""The conventions' names of providers that have another one here."""
REASONS: Final[Mapping[StopReason, str]] = {
    "end_turn": "stop",
    "tool_use": "tool_call",
    "max_tokens": "length",
    "stop_sequence": "stop",
    "content_filter": "content_filter",
}
"""The conventions' names of the reasons for which a model stops."""


def provider_of(name: str) -> str:
    """Return the conventions' name of a provider."""
    return PROVIDERS.get(name, name)
