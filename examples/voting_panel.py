"""A panel that votes: three agents judge the same text, each in a session of its own and all at once."""

from collections import Counter

import trio

from warren import Agent, Config, RuntimeService, open_supervisor
from warren.testing import ScriptedModel, say

RULES = "Answer with one word: keep, or drop."
PANEL = (
    Agent("editor", f"You care for the language. {RULES}", model=ScriptedModel([say("keep")])),
    Agent("lawyer", f"You care for the law. {RULES}", model=ScriptedModel([say("drop")])),
    Agent("reader", f"You care for what is fun to read. {RULES}", model=ScriptedModel([say("Keep!")])),
)


async def vote(service: RuntimeService, judge: Agent, text: str, votes: dict[str, str]) -> None:
    """Have one judge read the text."""
    result = await service.session(judge, labels={"panel": "sayings"}).turn(text)
    votes[judge.name] = "keep" if "keep" in result.text.lower() else "drop"


async def judged(service: RuntimeService, text: str) -> str:
    """Return what most of the panel say; a judge that fails ends the vote."""
    votes: dict[str, str] = {}
    async with trio.open_nursery() as nursery:
        for judge in PANEL:
            nursery.start_soon(vote, service, judge, text, votes)
    for name in sorted(votes):
        print(f"{name}: {votes[name]}")
    ((most, count),) = Counter(votes.values()).most_common(1)
    return f"{most}, by {count} of {len(votes)}"


async def main() -> None:
    """Vote on a saying."""
    async with open_supervisor(Config(), agents=PANEL) as service:
        print(await judged(service, "A rabbit that hunts two carrots at once catches both."))


if __name__ == "__main__":
    trio.run(main)
