"""Fake models: a test says what they do, call by call."""

from collections.abc import Awaitable, Callable, Iterable

import attrs
import trio

from warren.errors import ProviderError
from warren.messages import AssistantMessage, Block, TextBlock, ToolUseBlock
from warren.model import ModelChoice, ModelReply, ModelRequest, Piece, TextPiece
from warren.usage import Usage

Emit = Callable[[Piece], None]
Answer = Callable[[ModelRequest, Emit], Awaitable[ModelReply]]
USAGE = Usage(input_tokens=3, output_tokens=2)


def reply(text: str = "", *calls: ToolUseBlock, usage: Usage = USAGE) -> ModelReply:
    """Return a whole answer: the text, then the tool calls."""
    blocks: tuple[Block, ...] = (*((TextBlock(text),) if text else ()), *calls)
    return ModelReply(AssistantMessage(blocks, "tool_use" if calls else "end_turn"), usage)


@attrs.frozen
class FunctionModel:
    """A provider whose every call is the given function."""

    answer: Answer

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelReply:
        return await self.answer(request, emit)


@attrs.frozen
class OneModel:
    """Providers that know a single model under every name."""

    provider: FunctionModel

    def resolve(self, model: str, _provider: str | None) -> ModelChoice:
        return ModelChoice(self.provider, model)


def says(*steps: ModelReply | ProviderError | Iterable[str]) -> FunctionModel:
    """Return a model that does one step a call, whoever calls: gives a reply, raises, or streams pieces.

    Pieces that end with an exception's place are written as a list; a ProviderError alone fails before any piece.
    """
    waiting = list(steps)

    async def answer(_request: ModelRequest, emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        step = waiting.pop(0)
        if isinstance(step, ProviderError):
            raise step
        if isinstance(step, ModelReply):
            if step.message.text:
                emit(TextPiece(step.message.text))
            return step
        pieces = list(step)
        for piece in pieces:
            emit(TextPiece(piece))
        return reply("".join(pieces))

    return FunctionModel(answer)


async def stuck(_request: ModelRequest, emit: Emit) -> ModelReply:
    """Say two words, then nothing for ever."""
    emit(TextPiece("half "))
    await trio.lowlevel.checkpoint()
    emit(TextPiece("an answer"))
    await trio.sleep_forever()
    raise AssertionError("unreachable")


@attrs.define(eq=False)
class GatedModel:
    """A provider whose calls wait until the test lets them go on.

    Attributes:
        entered: calls begun.
        gate: set: calls answer at once.
    """

    text: str = "done"
    entered: int = 0
    gate: trio.Event = attrs.field(factory=trio.Event)

    async def complete(self, _request: ModelRequest, emit: Emit) -> ModelReply:
        self.entered += 1
        await self.gate.wait()
        emit(TextPiece(self.text))
        return reply(self.text)
