"""The model that benchmarks talk to: a fixed answer in a few pieces, at once or after a delay."""

from collections.abc import Callable

import attrs
import trio

from warren.conversation.messages import AssistantMessage, TextBlock
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, Piece, TextPiece

PIECES = ("The answer is long enough to be one. " * 4,) * 3


@attrs.frozen
class FixedModel:
    """Answers every call with the same text, in three pieces, after `delay` seconds."""

    delay: float = 0.0

    async def complete(self, request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        """Return the answer."""
        del request
        await trio.sleep(self.delay)
        for piece in PIECES:
            emit(TextPiece(piece))
        return ModelReply(AssistantMessage((TextBlock("".join(PIECES)),)), Usage(100, 100))
