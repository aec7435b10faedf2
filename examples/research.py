"""Research in parts: a model plans, has a child session look into each part, all at once, and writes the report."""

from collections.abc import Callable

import trio

import warren
from warren import Agent, Budget, Config, ModelReply, ModelRequest, ReasoningPiece, TextPiece, open_supervisor
from warren.messages import UserMessage
from warren.testing import ScriptedModel, call, say

SHELF = {"price": "oats: 200 euros a tonne", "yield": "oats: 5 tonnes a hectare"}
QUESTION = "What does a hectare of oats bring?"
# What the planner chooses. Real models: "claude-sonnet-4-5", and "claude-haiku-4-5" for the parts.
PART = {"model": "reader", "tools": ["look_up"], "budget": {"max_steps": 10}, "time_limit": 600.0}


@warren.tool
async def look_up(subject: str) -> str:
    """Look a subject up."""
    return SHELF.get(subject, "nothing is known")


PLANNER = Agent(
    "planner",
    "Split the question into parts, and delegate all of them in one answer: each to the model reader, with the tool "
    "look_up, and with all that it has to know. Then answer from what comes back.",
    tools=["delegate", "look_up"],
    budget=Budget(max_tokens=200_000, max_seconds=1_800.0),  # shared with the children
)


class Library:
    """A provider with a script for each session, by its first prompt."""

    def __init__(self) -> None:
        """Write the scripts."""
        parts = [call("delegate", prompt=f"Find the {part} of oats.", title=part, **PART) for part in SHELF]
        self.scripts = {QUESTION: ScriptedModel([parts, say("A hectare brings 1000 euros.")])}
        for part, found in SHELF.items():
            self.scripts[f"Find the {part} of oats."] = ScriptedModel([call("look_up", subject=part), say(found)])

    async def complete(self, request: ModelRequest, emit: Callable[[TextPiece | ReasoningPiece], None]) -> ModelReply:
        """Play the next step of the session's script."""
        prompt = next(each.content for each in request.messages if isinstance(each, UserMessage))
        return await self.scripts[prompt].complete(request, emit)


async def main() -> None:
    """Ask, and show what each child did. With a `store` all of it goes on after a restart."""
    config = Config(provider="library", model="planner")
    async with open_supervisor(config, tools=[look_up], agents=[PLANNER], providers={"library": Library()}) as service:
        session = await service.session(PLANNER)
        print((await session.turn(QUESTION)).text)
        children = (await service.list(delegated_by=session.id)).sessions
        for child in sorted(children, key=lambda each: each.title or ""):
            print(f"{child.title}: {(await service.wait_turn(child.session_id)).text}")


if __name__ == "__main__":
    trio.run(main)
