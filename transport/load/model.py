"""The model of runs in this process: it answers each prompt with the prompt's tag, in pieces, after a wait."""

from collections.abc import Callable, Sequence
from typing import Final

import trio

from warren.base.values import frozen
from warren.conversation.messages import AssistantMessage, Message, TextBlock, ToolUseBlock, UserMessage
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, Piece, TextPiece
from warren.models.tools import Tool, tool
from warren.transport.load.plan import TOOL_WORD, Profile

FILLING: Final = "and so the evening went on in the warren, "
MODEL: Final = "load"
TOOL: Final = "load_lookup"


async def _look_up(key: str) -> str:
    """Return the values for a key."""
    return f"all is well with {key}"


LOOKUP: Final[Tool] = tool(name=TOOL)(_look_up)


@frozen
class LoadModel:
    """A provider with the pace of a profile. If the prompt asks for the tool, it calls the tool first.

    The answer depends on the prompt alone, so that an answer in the wrong session is detected.
    """

    profile: Profile

    async def complete(self, request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        """Wait, then answer."""
        await trio.sleep(self.profile.latency)
        prompt = _last_prompt(request.messages)
        tag, _, rest = prompt.partition(" ")
        usage = Usage(input_tokens=len(prompt) // 4 + 1, output_tokens=self.profile.chunks)
        if rest.startswith(TOOL_WORD) and request.tools and isinstance(request.messages[-1], UserMessage):
            call = ToolUseBlock(f"call-{tag}", TOOL, {"key": tag})
            return ModelReply(AssistantMessage((call,), "tool_use"), usage)
        return ModelReply(AssistantMessage((TextBlock(await self._say(tag, emit)),)), usage)

    async def _say(self, tag: str, emit: Callable[[Piece], None]) -> str:
        pieces = list(pieces_of(tag, self.profile))
        for number, piece in enumerate(pieces):
            if number and self.profile.chunk_delay:
                await trio.sleep(self.profile.chunk_delay)
            emit(TextPiece(piece))
        return "".join(pieces)


def pieces_of(tag: str, profile: Profile) -> Sequence[str]:
    """Return the answer to the prompt with a tag, in pieces."""
    filling = (FILLING * (profile.chunk_size // len(FILLING) + 1))[: profile.chunk_size]
    return [f"{tag} {filling}", *[filling] * (profile.chunks - 1)]


def _last_prompt(messages: Sequence[Message]) -> str:
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        if isinstance(message, UserMessage):
            return message.content
    return ""
