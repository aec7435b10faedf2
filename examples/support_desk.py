"""A support desk: an agent that asks a person before it pays, and that may wait for days, over restarts."""

import tempfile
from pathlib import Path

import trio

import warren
from warren import Agent, Budget, Config, Gates, Limits, StoreConfig, open_supervisor
from warren.events import ToolApprovalRequested
from warren.testing import ScriptedModel, call, say

ORDERS = {"17": "a lamp, 4200 cents, arrived broken"}
PAID: list[str] = []


@warren.tool
async def find(order: str) -> str:
    """Look an order up."""
    return ORDERS.get(order, "there is no such order")


@warren.tool
async def refund(order: str, cents: int) -> str:
    """Pay money back for an order."""
    PAID.append(f"{cents} for {order}")
    return f"paid {cents} cents"


DESK = Agent(
    "desk",
    "Settle the complaint. Look the order up before you pay.",
    model=ScriptedModel([call("find", order="17"), call("refund", order="17", cents=4200), say("You have it back.")]),
    tools=[find, refund],
    budget=Budget(max_steps=20),
    gates=Gates(callback="ask"),
)


async def complain(config: Config) -> None:
    """Begin the conversation. It stops where a person has to allow the payment, and the process ends there."""
    async with open_supervisor(config, agents=[DESK]) as service:
        session = await service.session(DESK)
        async with session.stream("Order 17 arrived broken.") as events:
            async for envelope in events:
                match envelope.event:
                    case ToolApprovalRequested(id=call_id, name="find"):
                        await session.approve(call_id, remember=True)  # this tool needs no further question
                    case ToolApprovalRequested(name=name, args=args):
                        print(f"waits for a person: {name}({args})")
                        break
                    case _:
                        pass


async def decide(config: Config) -> None:
    """Allow what waits, in another process and perhaps days later, and read what comes of it."""
    async with open_supervisor(config, agents=[DESK]) as service:
        (waiting,) = (await service.approvals()).approvals
        await service.approve_tool(waiting.session_id, waiting.call_id, "allow")
        print((await service.wait_turn(waiting.session_id)).text)


async def main() -> None:
    """Play both processes, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        config = Config(store=StoreConfig(Path(folder)), limits=Limits(approval_timeout=7 * 86_400.0))
        await complain(config)
        await decide(config)
        print(*PAID)


if __name__ == "__main__":
    trio.run(main)
