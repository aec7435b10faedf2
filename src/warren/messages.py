"""The messages of a conversation, by the name that programs import them by."""

from warren.conversation.messages import AssistantMessage as AssistantMessage
from warren.conversation.messages import Block as Block
from warren.conversation.messages import ContextMessage as ContextMessage
from warren.conversation.messages import FileBlock as FileBlock
from warren.conversation.messages import HostedToolBlock as HostedToolBlock
from warren.conversation.messages import Message as Message
from warren.conversation.messages import ReasoningBlock as ReasoningBlock
from warren.conversation.messages import StopReason as StopReason
from warren.conversation.messages import SystemMessage as SystemMessage
from warren.conversation.messages import TextBlock as TextBlock
from warren.conversation.messages import ToolResult as ToolResult
from warren.conversation.messages import ToolResultsMessage as ToolResultsMessage
from warren.conversation.messages import ToolUseBlock as ToolUseBlock
from warren.conversation.messages import UnknownBlock as UnknownBlock
from warren.conversation.messages import UserMessage as UserMessage
