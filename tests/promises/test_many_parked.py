"""A process that starts with many parked turns: it serves at once, and takes them up bounded and fair by tenant."""

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio

from tests.support.postgres import database
from warren.actors.calls.service import Service
from warren.base.errors import WarrenError
from warren.base.principals import Principal
from warren.conversation.messages import AssistantMessage, TextBlock, UserMessage
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, Piece
from warren.settings.config import Config, Limits, PostgresConfig, StoreConfig
from warren.transport.embed import open_supervisor

ROOM: Final = 50
"""Turns that run at once."""
FEW: Final = 20
"""Turns of the small tenant, which come after those of the large one."""


@attrs.define(eq=False)
class Model:
    """Answers after a moment, or never.

    Attributes:
        answers: whether it answers.
        asked: what it was asked, in this order.
        most: the number of calls that were under way at once.
    """

    answers: bool = False
    asked: list[str] = attrs.field(factory=list)
    most: int = 0
    _now: int = 0

    async def until(self, number: int) -> None:
        """Wait until it was asked so often."""
        while len(self.asked) < number:  # noqa: ASYNC110 - as good as any wait
            await trio.sleep(0.01)

    async def complete(self, request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        """Answer."""
        del emit
        last = request.messages[-1]
        assert isinstance(last, UserMessage)
        self.asked.append(last.content)
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            await trio.sleep(0.01 if self.answers else 3600)
        finally:
            self._now -= 1
        return ModelReply(AssistantMessage((TextBlock(last.content),)), Usage(1, 1))


def resident() -> float:
    """Return the MiB that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


async def park(store: Any, number: int) -> None:
    """Begin turns of two tenants, and stop."""

    async def begin(service: Service, prompt: str) -> None:
        try:
            session_id = (await service.create_session(None)).session_id
            await service.start_turn(session_id, prompt, mode="queue", idempotency_key="k")
        except WarrenError as exc:
            assert exc.retryable, exc  # noqa: PT017 - a task of its own

    model = Model()
    async with trio.open_nursery() as nursery:
        config = Config(store=store, model="model")
        async with open_supervisor(config, providers={"model": model}, environ={}) as opened:
            assert isinstance(opened, Service)
            large, small = (opened.as_(Principal(each, "ann")) for each in ("large", "small"))
            for at in range(number):
                name = "large" if at < number - FEW else "small"
                nursery.start_soon(begin, small if name == "small" else large, f"{name} {at}")
                await model.until(at - 200)
            await model.until(number)


async def taken_up(store: Any, number: int, seconds: float) -> None:
    """Open the store with so many parked turns: it answers a new session in time, and all of them end, once."""
    model, before, begins = Model(answers=True), resident(), time.monotonic()
    config = Config(store=store, model="model", limits=Limits(max_sessions=ROOM, max_live=4 * ROOM))
    async with open_supervisor(config, providers={"model": model}, environ={}) as opened:
        assert isinstance(opened, Service)
        opens = time.monotonic() - begins
        service = opened.as_(Principal("new", "ann"))
        answer = await service.create_session("new")
        answers = time.monotonic() - begins
        assert answer.text == "new"
        assert answers < seconds
        with trio.fail_after(600):
            await model.until(number + 1)
        ends = time.monotonic() - begins
        await trio.sleep(1)  # the last ones are stored
    assert len(model.asked) == len(set(model.asked)) == number + 1
    assert model.most <= ROOM
    again = Model(answers=True)
    async with open_supervisor(config, providers={"model": again}, environ={}):
        await trio.sleep(1)
    assert again.asked == []
    last = max(at for at, each in enumerate(model.asked) if each.startswith("small"))
    sys.stdout.write(
        f"{number} parked turns: open after {opens:.2f} s, a new session answered after {answers:.2f} s, "
        f"all asked for after {ends:.1f} s, the small tenant's before {last}, {resident() - before:.0f} MiB\n"
    )


async def run(store: Any, number: int, seconds: float) -> None:
    """Park turns, and let the next process take them up."""
    await park(store, number)
    await taken_up(store, number, seconds)


@pytest.mark.parametrize("kind", ["files", "database"])
async def test_a_process_serves_while_it_takes_turns_up(tmp_path: Path, kind: str) -> None:
    """A new session has its answer soon, no more turns run than may, and each runs once."""
    if kind == "files":
        await run(StoreConfig(tmp_path, projections=False), 300, 5)
    else:
        with database() as url:
            await run(PostgresConfig(url), 300, 5)


@pytest.mark.soak
@pytest.mark.time_limit(1800)
@pytest.mark.parametrize("kind", ["files", "database"])
async def test_a_process_serves_while_it_takes_very_many_turns_up(tmp_path: Path, kind: str) -> None:
    """The same with ten thousand."""
    if kind == "files":
        await run(StoreConfig(tmp_path, projections=False), 10_000, 5)
    else:
        with database() as url:
            await run(PostgresConfig(url), 10_000, 5)
