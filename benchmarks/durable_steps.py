"""What does it cost to keep the steps of a turn? Turns with `durability = "step"` over those with "turn", in one run.

A text turn has to cost the same, as it has no step to keep: one commit at its end. A turn with one call of a tool is
committed twice more: before the call begins, and with its result before the model is asked again.
"""

import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import trio

import warren
from benchmarks.models import FixedModel
from benchmarks.report import Goal, Pairs, median_ratio, report
from warren import Config, SessionService, StoreConfig, open_supervisor
from warren.conversation.messages import AssistantMessage, ToolResultsMessage, ToolUseBlock
from warren.conversation.options import Durability
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, Piece
from warren.transport.cli.process.tuning import tune

ROUNDS = 7
SESSIONS = 100


@warren.tool
async def look() -> str:
    """Look."""
    await trio.lowlevel.checkpoint()
    return "there is nothing"


@attrs.frozen
class CallingModel:
    """Calls a tool, and answers once it has the result."""

    said: FixedModel = attrs.field(factory=FixedModel)

    async def complete(self, request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        """Return the call, or the answer."""
        if isinstance(request.messages[-1], ToolResultsMessage):
            return await self.said.complete(request, emit)
        await trio.lowlevel.checkpoint()
        return ModelReply(AssistantMessage((ToolUseBlock("call", "look"),), "tool_use"), Usage(100, 100))


async def _turns(service: SessionService, session_id: str, count: int) -> None:
    for _ in range(count):
        await service.start_turn(session_id, "Go on, please.")


async def _run(folder: Path, durability: Durability, turns: int, *, calls: bool) -> tuple[float, float]:
    """Return turns per second of processor time and of wall time."""
    config = Config(store=StoreConfig(folder), model="said", provider="said", durability=durability)
    model = CallingModel() if calls else FixedModel()
    async with open_supervisor(config, providers={"said": model}, tools=[look]) as service:
        ids = [(await service.create_session(None)).session_id for _ in range(SESSIONS)]
        worked, began = time.process_time(), time.perf_counter()
        async with trio.open_nursery() as nursery:
            for session_id in ids:
                nursery.start_soon(_turns, service, session_id, turns)
        count = SESSIONS * turns
        return count / (time.process_time() - worked), count / (time.perf_counter() - began)


def _measure(turns: int, which: int, *, calls: bool) -> Pairs:
    """Return turns per second with kept steps and without; `which` is 0 for processor time and 1 for wall time."""
    with tempfile.TemporaryDirectory() as name:
        runs = itertools.count()

        def rate(durability: Durability) -> float:
            return trio.run(lambda: _run(Path(name) / str(next(runs)), durability, turns, calls=calls))[which]

        rate("step")
        return median_ratio(lambda: rate("step"), lambda: rate("turn"), ROUNDS)


def main() -> None:
    """Print the ratios for a text turn and for a turn with one call of a tool."""
    tune()
    figures, goals = {}, []
    for what, calls, which, turns, relation, goal in (
        ("processor time of a text turn, steps kept over not kept", False, 0, 30, "<=", 1.02),
        ("processor time of a turn with one call of a tool, steps kept over not kept", True, 0, 20, "<=", 1.25),
        ("turns/s with one call of a tool at 100 sessions, steps kept over not kept", True, 1, 20, ">=", 0.8),
    ):
        pairs = _measure(turns, which, calls=calls)
        figures[what] = {"turns_per_s": round(pairs.ours), "turns_per_s_not_kept": round(pairs.theirs)}
        inverted = which == 0
        ratio = 1 / pairs.ratio if inverted else pairs.ratio
        spread = (1 / pairs.spread[1], 1 / pairs.spread[0]) if inverted else pairs.spread
        goals.append(Goal(what, ratio, "<=" if relation == "<=" else ">=", goal, spread))
    report("What does it cost to keep the steps of a turn?", figures, goals)


if __name__ == "__main__":
    main()
