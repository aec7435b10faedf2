"""A model of your own: a class with one method, which thinks aloud, answers in pieces, and asks for a tool."""

from collections.abc import Callable

import trio

import warren
from warren import (
    Config,
    ModelReply,
    ModelRequest,
    Provider,
    ReasoningPiece,
    RuntimeService,
    Session,
    TextPiece,
    Tool,
    ToolSpec,
    TurnStream,
    Usage,
    open_supervisor,
)
from warren.messages import AssistantMessage, TextBlock, ToolResultsMessage, ToolUseBlock


class Gardener:
    """A model that looks every question up with the first tool that it is offered."""

    async def complete(self, request: ModelRequest, emit: Callable[[TextPiece | ReasoningPiece], None]) -> ModelReply:
        """Call the tool, and then say what it has returned."""
        newest = request.messages[-1]
        if not isinstance(newest, ToolResultsMessage):
            asked: ToolSpec = request.tools[0]
            emit(ReasoningPiece(f"{asked.name} may know."))
            return ModelReply(AssistantMessage((ToolUseBlock("call-1", asked.name, {}),), "tool_use"), Usage(1, 1))
        said = f"There are {newest.results[0].content}."
        for word in said.replace(" ", " |").split("|"):
            await trio.sleep(0.01)  # the network, in a real provider
            emit(TextPiece(word))
        return ModelReply(AssistantMessage((TextBlock(said),)), Usage(1, len(said) // 4))


@warren.tool
async def beds() -> str:
    """Count the beds."""
    return "five beds"


GARDENER: Provider = Gardener()
TOOLS: list[Tool] = [beds]


async def talk(service: RuntimeService) -> str:
    """Ask a question, and show the answer as it comes."""
    gardener: Session = service.session(warren.Agent("gardener", tools=TOOLS))
    events: TurnStream
    async with gardener.stream("How many beds?") as events:
        async for piece in events.texts():
            print(piece, end="", flush=True)
        print()
        return (await events.result()).text


async def main() -> None:
    """Open a runtime whose sessions have the model."""
    async with open_supervisor(Config(model="mine"), providers={"mine": GARDENER}) as service:
        assert await talk(service) == "There are five beds."


if __name__ == "__main__":
    trio.run(main)
