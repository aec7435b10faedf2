"""Two sessions that speak to one another, on models that follow a script: ann asks, bob answers, ann is told."""

import trio

from warren import Budget, Config, Limits, Peer, SessionService, open_supervisor
from warren.events import RunCompleted, RunStarted, ToolCallRequested
from warren.testing import ScriptedModel, call, say

MODELS = {
    "ann": ScriptedModel(
        [call("send_message", to="bob", body="How many rabbits?"), say("I have asked bob."), say("Bob says five.")]
    ),
    "bob": ScriptedModel([call("send_message", to="ann", body="Five."), say("I have told ann.")]),
}


async def agent(service: SessionService, name: str, peer: str) -> str:
    """Make a session that its peer's messages wake; its budget bounds how long the two can go on."""
    made = await service.create_session(
        None, provider=name, model="scripted", peer=Peer(name, (peer,), keep_alive=True), budget=Budget(max_steps=20)
    )
    return made.session_id


async def watch(service: SessionService, name: str, session_id: str, turns: int) -> None:
    """Show what a session does, until so many of its turns have ended."""
    async with service.subscribe(session_id, after_seq=0) as events:
        async for envelope in events:
            match envelope.event:
                case RunStarted(prompt=prompt):
                    print(f"{name} reads: {' '.join(prompt.split())}")
                case ToolCallRequested(name=tool, args=args):
                    print(f"{name} uses {tool}: {args['body']}")
                case RunCompleted(result=result):
                    print(f"{name} says: {result}")
                    turns -= 1
                case _:
                    pass
            if not turns:
                return


async def main() -> None:
    """Run the two, and begin one turn of ann's: all others come of it."""
    one_at_a_time = Config(limits=Limits(max_sessions=1))  # or an answer may come while the other still speaks
    async with open_supervisor(one_at_a_time, providers=MODELS) as service:
        ann, bob = await agent(service, "ann", "bob"), await agent(service, "bob", "ann")
        await service.start_turn(ann, "Find out how many rabbits there are.")
        await watch(service, "bob", bob, turns=1)
        await watch(service, "ann", ann, turns=2)


if __name__ == "__main__":
    trio.run(main)
