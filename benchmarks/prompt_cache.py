"""What does a long conversation cost with prompt caching? Dollars of 200 turns with it, over those without it.

The model is a server on this machine that speaks Anthropic's protocol over HTTP, keeps requests as Anthropic documents
it, and counts the tokens; the prices are those of the catalog. The turns come a minute apart, by the server's clock. No
time is measured, and the figures are the same on each machine.
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

import trio
from tests.support.prompt_cache import PromptCache
from tests.transport.providers.byte_server import END, HEAD, Request, chunk, event, serve
from tests.transport.providers.dialects import STOP, more, opened, start, stopped

from benchmarks.report import Goal, report
from warren import Config, SessionService, open_supervisor
from warren.compaction import CompactionConfig
from warren.models.tools import tool

MODEL: Final = "claude-sonnet-5"
TURNS: Final = 200
STEP_SECONDS: Final = 30.0
SYSTEM: Final = "You help an engineer with the code of a large program. " * 100
PROMPT: Final = "Look at the next function, please, and say what may go wrong in it. " * 5
FOUND: Final = "def function(argument): return argument  # as it was found in the file\n" * 20
ANSWER: Final = "The function is right as far as one can see, but for its name. " * 8
OUTPUT_TOKENS: Final = 150
GOAL: Final = 0.25


@tool(name="read_function")
async def read_function(number: int) -> str:
    """Return the source of a function."""
    await trio.lowlevel.checkpoint()
    return f"# {number}\n{FOUND}"


def _answer(number: int, body: Mapping[str, Any], usage: dict[str, int]) -> Iterator[object]:
    """Yield the events of an answer: a call of the tool for a prompt, and a text for all else, such as a summary."""
    yield start(**usage)
    if "tools" not in body or body["messages"][-1]["content"][-1]["type"] == "tool_result":
        yield from (opened(0, "text"), more(0, text=ANSWER), stopped("end_turn", output_tokens=OUTPUT_TOKENS), STOP)
        return
    yield opened(0, "tool_use", id=f"call_{number}", name="read_function", input={"number": number})
    yield from (stopped("tool_use", output_tokens=OUTPUT_TOKENS), STOP)


async def _converse(service: SessionService, prompt_cache: Any) -> Any:
    """Return the tokens and the cost of a conversation."""
    session_id = (await service.create_session(None, system_prompt=SYSTEM, prompt_cache=prompt_cache)).session_id
    for _turn in range(TURNS):
        await service.start_turn(session_id, PROMPT)
    return (await service.read(session_id)).billing.usage


async def _measure(prompt_cache: str) -> Any:
    cache, asked = PromptCache(), 0

    async def handler(request: Request, stream: trio.SocketStream) -> None:
        nonlocal asked
        asked += 1
        cache.now += STEP_SECONDS
        answer = _answer(asked, request.body, cache.usage(request.body))
        await stream.send_all(HEAD + b"".join(chunk(event(each)) for each in answer) + END)

    async with serve(handler) as url:
        environ = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none"}
        config = Config(model=MODEL, compaction=CompactionConfig())
        async with open_supervisor(config, tools=[read_function], environ=environ) as service:
            return await _converse(service, prompt_cache)


def main() -> None:
    """Print the dollars and the ratio."""
    usages = {chosen: trio.run(_measure, chosen) for chosen in ("off", "5m", "1h")}
    costs = {chosen: usage.cost or Decimal("NaN") for chosen, usage in usages.items()}
    figures = {
        f"{TURNS} turns, cache {chosen}": {
            "dollars": round(float(costs[chosen]), 4),
            "input_tokens": usage.input_tokens,
            "written_tokens": usage.cache_creation_tokens,
            "read_tokens": usage.cache_read_tokens,
        }
        for chosen, usage in usages.items()
    }
    ratio = float(costs["5m"] / costs["off"])
    goal = Goal(f"cost of {TURNS} turns with prompt caching over without", ratio, "<=", GOAL)
    report("What does a long conversation cost with prompt caching?", figures, [goal])


if __name__ == "__main__":
    main()
