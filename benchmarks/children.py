"""What does it cost to delegate? A turn with 1,000 children over 1,000 plain sessions that each take the same turn.

Both are durable, and on a model that answers at once. The parent's two steps and 1,000 waits are on its side. The
processor's time counts beside the wall time, as other programs on the machine do not change it much. Then the parent
of 1,000 children that never end is interrupted. The process sets the garbage collector as `warren serve` does.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import trio

from benchmarks.report import Goal, Pairs, report
from warren import Config, Limits, SessionService, StoreConfig, ToolsConfig, open_supervisor
from warren.base.errors import AgentError
from warren.conversation.messages import AssistantMessage, TextBlock, ToolResultsMessage, ToolUseBlock, UserMessage
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, Piece
from warren.transport.cli.process.tuning import tune

CHILDREN = 1_000
ROUNDS = 5
WORK = "Do your piece of the work, please."
DELEGATE, HANG = "delegate", "hang"
CALLS = tuple(ToolUseBlock(f"call-{number}", DELEGATE, {"prompt": WORK}) for number in range(CHILDREN))
ENDLESS = tuple(attrs.evolve(each, args={"prompt": HANG}) for each in CALLS)


@attrs.define
class Boss:
    """A model that delegates if it is asked to, and else answers at once; it never answers `hang`."""

    hanging: int = 0

    async def complete(self, request: ModelRequest, _emit: Callable[[Piece], None]) -> ModelReply:
        """Return the answer."""
        await trio.lowlevel.checkpoint()
        last = request.messages[-1]
        text = last.content if isinstance(last, UserMessage) else ""
        if text == HANG:
            self.hanging += 1
            try:
                await trio.sleep_forever()
            finally:
                self.hanging -= 1
        calls = CALLS if text == DELEGATE else ENDLESS if text == f"{DELEGATE} {HANG}" else ()
        if isinstance(last, ToolResultsMessage) and any(each.is_error for each in last.results):
            raise RuntimeError(next(each.content for each in last.results if each.is_error))
        return ModelReply(AssistantMessage((TextBlock("It is done."), *calls)), Usage(100, 100))


def _config(folder: Path) -> Config:
    limits = Limits(children=CHILDREN, max_sessions=2 * CHILDREN, max_answer_calls=CHILDREN)
    tools = ToolsConfig(delegate=True)
    return Config(store=StoreConfig(folder), model="boss", provider="boss", limits=limits, tools=tools)


async def _plain(folder: Path) -> tuple[float, float]:
    """Return the wall time and the processor's of 1,000 sessions with a turn each."""
    async with open_supervisor(_config(folder), providers={"boss": Boss()}) as service:
        begun, cpu = time.perf_counter(), time.process_time()
        async with trio.open_nursery() as nursery:
            for _ in range(CHILDREN):
                nursery.start_soon(service.create_session, WORK)
        return time.perf_counter() - begun, time.process_time() - cpu


async def _delegated(folder: Path) -> tuple[float, float]:
    """Return the wall time and the processor's of a turn that has 1,000 children."""
    async with open_supervisor(_config(folder), providers={"boss": Boss()}) as service:
        begun, cpu = time.perf_counter(), time.process_time()
        await service.create_session(DELEGATE)
        return time.perf_counter() - begun, time.process_time() - cpu


async def _cancelled(folder: Path) -> float:
    """Return the seconds in which the children of an interrupted turn end."""
    model = Boss()
    async with open_supervisor(_config(folder), providers={"boss": model}) as service:
        session_id = (await service.create_session(None)).session_id
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_interrupted, service, session_id)
            await _until(lambda: model.hanging == CHILDREN)
            begun = time.perf_counter()
            await service.interrupt(session_id)
            await _until(lambda: not model.hanging)
        return time.perf_counter() - begun


async def _interrupted(service: SessionService, session_id: str) -> None:
    try:
        await service.start_turn(session_id, f"{DELEGATE} {HANG}")
    except AgentError as exc:
        if exc.cause != "cancelled":
            raise


async def _until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(300):
        while not holds():  # noqa: ASYNC110 - it is the world of the model that changes
            await trio.sleep(0.005)


def _pairs(ours: list[float], theirs: list[float]) -> Pairs:
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    return Pairs(
        statistics.median(ours), statistics.median(theirs), statistics.median(ratios), (min(ratios), max(ratios))
    )


def main() -> None:
    """Print the ratios, and the time of the interrupt."""
    tune()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        delegated, plain, ends = [], [], []
        for number in range(ROUNDS):
            delegated.append(trio.run(_delegated, folder / f"delegated-{number}"))
            plain.append(trio.run(_plain, folder / f"plain-{number}"))
        ends = [trio.run(_cancelled, folder / f"cancelled-{number}") for number in range(ROUNDS)]
    wall = _pairs([each[0] for each in delegated], [each[0] for each in plain])
    cpu = _pairs([each[1] for each in delegated], [each[1] for each in plain])
    figures = {
        "delegated": {"wall_s": round(wall.ours, 3), "processor_s": round(cpu.ours, 3)},
        "plain": {"wall_s": round(wall.theirs, 3), "processor_s": round(cpu.theirs, 3)},
    }
    goals = [
        Goal("1,000 children over 1,000 plain sessions, processor time", cpu.ratio, "<=", 1.5, cpu.spread),
        Goal("1,000 children over 1,000 plain sessions, wall time", wall.ratio, "<=", 1.5, wall.spread),
        Goal(
            "1,000 running children end after an interrupt, s",
            statistics.median(ends),
            "<=",
            1.0,
            (min(ends), max(ends)),
        ),
    ]
    report("What does it cost to delegate?", figures, goals)


if __name__ == "__main__":
    main()
