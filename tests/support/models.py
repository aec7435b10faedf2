"""Fake models: a test says what they do, call by call."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import attrs
import trio

from warren.base.errors import ProviderError
from warren.conversation.messages import AssistantMessage, Block, TextBlock, ToolUseBlock, UserMessage
from warren.conversation.usage import Usage
from warren.models.model import Emitted, ModelChoice, ModelReply, ModelRequest, ReasoningPiece, TextPiece
from warren.structured.output import INSTRUCTION

Emit = Callable[[Emitted], None]
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


@attrs.define(eq=False)
class Puppet:
    """A provider that streams the pieces that a test gives it, and ends its answer at None.

    Attributes:
        said: the channel for the pieces.
        calls: number of calls that began.
    """

    said: trio.MemorySendChannel[str | None] = attrs.field(init=False)
    calls: int = 0
    _heard: trio.MemoryReceiveChannel[str | None] = attrs.field(init=False)
    _called: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    def __attrs_post_init__(self) -> None:
        self.said, self._heard = trio.open_memory_channel[str | None](10_000)

    def say(self, *pieces: str | None) -> None:
        for piece in pieces:
            self.said.send_nowait(piece)

    async def reached(self, calls: int) -> None:
        """Return when so many calls have begun."""
        while self.calls < calls:
            await self._called.park()

    async def complete(self, _request: ModelRequest, emit: Emit) -> ModelReply:
        self.calls += 1
        self._called.unpark_all()
        pieces: list[str] = []
        while (piece := await self._heard.receive()) is not None:
            pieces.append(piece)
            emit(TextPiece(piece))
        return ModelReply(AssistantMessage((TextBlock("".join(pieces)),)), Usage(input_tokens=1, output_tokens=1))


@attrs.define(eq=False)
class Flood:
    """A provider that streams many large pieces, and lets other tasks run after each `burst` of them."""

    pieces: int
    piece: str = "0123456789abcdef" * 256
    burst: int = 1

    async def complete(self, _request: ModelRequest, emit: Emit) -> ModelReply:
        for number in range(1, self.pieces + 1):
            emit(TextPiece(self.piece))
            if number % self.burst == 0:
                await trio.lowlevel.checkpoint()
        return ModelReply(AssistantMessage((TextBlock("enough"),)), Usage(input_tokens=1, output_tokens=1))


@attrs.define(eq=False)
class Formed:
    """A model that says `text`, and asked for data the next of `answers`, or raises it; it keeps what it was asked."""

    text: str = "She is called Ann."
    answers: list[Any] = attrs.field(factory=list)
    asked: list[ModelRequest] = attrs.field(factory=list)

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        if not is_for_data(request):
            emit(TextPiece(self.text))
            return reply(self.text)
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        emit(ReasoningPiece("secretly"))
        emit(TextPiece(answer))
        return reply(answer)


def is_for_data(request: ModelRequest) -> bool:
    """Tell whether a request asks for data."""
    asked = [message for message in request.messages if isinstance(message, UserMessage)]
    return any(message.content.startswith(INSTRUCTION) for message in asked)
