"""Models that make the same tool calls again and again."""

from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.models import Emit, reply
from tests.support.runtime import Recorder, new_session, open_runtime, transcript
from warren.actors.calls.service import Service
from warren.base.errors import AgentError, BudgetExhaustedError
from warren.conversation.events import RunFailed
from warren.conversation.messages import ToolResultsMessage, ToolUseBlock
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import tool
from warren.settings.config import Config, Limits

pytestmark = pytest.mark.virtual_time
BOUNDS = Config(limits=Limits(repeated_calls_note=3, repeated_calls=6))
Call = tuple[str, dict[str, object]]


@tool
async def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing {where}"


@tool(polls=True)
async def wait(where: str) -> str:
    """Wait for something."""
    return f"nothing {where}"


@attrs.define(eq=False)
class Caller:
    """A model that makes calls, an answer after the other, and says in the end that it is done.

    Attributes:
        calls: returns the calls of an answer by its number; none is the end.
        hangs_at: the number of an answer that is never made; the next one is of that number, too.
        answers: the answers so far.
    """

    calls: Callable[[int], Sequence[Call]]
    hangs_at: int | None = None
    answers: int = 0

    async def complete(self, _request: ModelRequest, _emit: Emit) -> ModelReply:
        """Make the next calls."""
        await trio.lowlevel.checkpoint()
        if self.hangs_at == self.answers + 1:
            self.hangs_at = None
            await trio.sleep_forever()
        self.answers += 1
        calls = self.calls(self.answers)
        return reply("" if calls else "done", *(ToolUseBlock(f"call-{n}", *call) for n, call in enumerate(calls)))


async def results(service: Service, session_id: str) -> list[str]:
    """Return the results of all calls."""
    messages = [each for each in await transcript(service, session_id) if isinstance(each, ToolResultsMessage)]
    return [each.content for message in messages for each in message.results]


@pytest.mark.parametrize(
    ("calls", "answers"),
    [
        (lambda _: [("look", {"where": "here"})], 6),
        (lambda _: [("look", {"wher": "here"})], 6),
        (lambda _: [("lok", {"where": "here"})], 6),
        (lambda n: [("lok", dict([("a", {"x": 1, "y": 2}), ("b", 2)][:: (-1) ** n]))], 6),
        (lambda _: [("look", {"where": "here"}), ("look", {"where": "there"})], 6),
        (lambda _: [("look", {"where": "here"}), ("look", {"where": "here"})], 6),
        (lambda _: [("look", {"where": "here"}), ("wait", {"where": "there"})], 6),
        (lambda n: [("look", {"where": "here" if n % 2 else "there"})], 12),
        (lambda n: [("look", {"where": ("here", "there", "beyond")[n % 3]})], 18),
    ],
)
async def test_the_same_calls_end_the_turn(calls: Callable[[int], Sequence[Call]], answers: int) -> None:
    """Also failed ones, and several in turn or at once; the model is told before, once for each call."""
    model, recorder = Caller(calls), Recorder()
    async with open_runtime(model, tools=[look, wait], config=BOUNDS) as service:
        session_id = await new_session(service)
        with pytest.raises(BudgetExhaustedError, match=r"limits\.repeated_calls") as caught:
            await service.start_turn(session_id, "look", on_event=recorder)
        told = [each for each in await results(service, session_id) if "3 times" in each]
        assert isinstance(recorder.events[-1], RunFailed)
        assert recorder.events[-1].cause == "budget_exhausted"
        model.calls = lambda _: ()
        assert (await service.start_turn(session_id, "again")).text == "done"
    assert caught.value.cause == "repeated_calls"
    assert caught.value.details["limit"] == 6
    assert answers - 1 <= model.answers - 1 <= answers
    assert 1 <= len(told) <= 3


@pytest.mark.parametrize(
    "calls",
    [
        lambda _: [("wait", {"where": "here"})],
        lambda n: [("look", {"where": str(n)})],
        lambda n: [("look", {"where": "here" if n % 2 else str(n)})],
        lambda n: [("look", {"where": "here"}), ("look", {"where": str(n)})],
        lambda _: [("look", {"where": "here"})] * 30,
    ],
)
async def test_calls_that_are_no_loop(calls: Callable[[int], Sequence[Call]]) -> None:
    """Polling, other arguments, something new between the same calls, and many at once are never stopped or told of."""
    rounds = 2 if len(calls(1)) > 2 else 40
    async with open_runtime(
        Caller(lambda n: calls(n) if n <= rounds else ()), tools=[look, wait], config=BOUNDS
    ) as service:
        result = await service.create_session("look")
        assert result.text == "done"
        assert not [each for each in await results(service, result.session_id) if "times" in each]


async def test_the_counts_are_those_of_a_turn() -> None:
    """The next turn begins anew."""
    model = Caller(lambda n: [("look", {"where": "here"})] if n % 3 else ())
    async with open_runtime(model, tools=[look], config=BOUNDS) as service:
        session_id = await new_session(service)
        for _ in range(6):
            assert (await service.start_turn(session_id, "look")).text == "done"


async def test_the_default_bound_of_steps_is_told() -> None:
    """The error names the setting and its value."""
    model = Caller(lambda n: [("look", {"where": str(n)})])
    async with open_runtime(model, tools=[look]) as service:
        with pytest.raises(BudgetExhaustedError, match=r"limits\.turn\.max_steps, .* is 100"):
            await service.create_session("look")


async def test_a_turn_that_goes_on_counts_on(tmp_path: Path) -> None:
    """A process that takes the turn up knows the calls of the one before, though the model was told of them."""
    model = Caller(lambda _: [("look", {"where": "here"})], hangs_at=5)
    async with trio.open_nursery() as nursery:
        async with open_runtime(model, store=tmp_path, tools=[look], config=BOUNDS) as service:
            session_id = await new_session(service)
            turn = ask(nursery, service.start_turn, session_id, "go")
            await trio.testing.wait_all_tasks_blocked()
        await turn.failure(AgentError)
    async with open_runtime(model, store=tmp_path, tools=[look], config=BOUNDS) as service:
        with pytest.raises(BudgetExhaustedError) as caught:
            await service.wait_turn(session_id)
        found = await results(service, session_id)
    assert (caught.value.cause, len(found)) == ("repeated_calls", 6)
    assert ["You have made" in each for each in found] == [False, False, True, False, False, False]
