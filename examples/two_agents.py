# A desk that asks a clerk, and a person before it pays; its answer is a number. Scripts play both models.
import trio

from warren import Agent, Gates, open_supervisor, tool
from warren.events import ToolApprovalRequested
from warren.testing import ScriptedModel, call, say


@tool
async def pay(order: str, cents: int) -> str:
    """Pay money back for an order."""
    return f"paid {cents} for {order}"


script = ScriptedModel([call("clerk", prompt="17?"), call("pay", order="17", cents=42), say("42")])
clerk = Agent("clerk", "Look the order up.", description="Knows orders.", model=ScriptedModel([say("It is broken.")]))
desk = Agent("desk", "Settle.", model=script, tools=[pay], agents=[clerk], gates=Gates(callback="ask"), output_type=int)


async def main() -> None:
    async with open_supervisor(agents=[desk]) as service:
        session = service.session(desk)
        async with session.stream("Order 17 arrived broken.") as events:
            async for envelope in events:
                if isinstance(envelope.event, ToolApprovalRequested):
                    await session.approve(envelope.event.id)
            print((await events.result()).output)


trio.run(main)
