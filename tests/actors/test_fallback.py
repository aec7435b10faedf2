"""Models that take over while another one is overloaded or away."""

from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import attrs
import pytest
import trio

from tests.support.models import Emit, reply
from tests.support.runtime import Recorder, new_session, open_runtime, transcript
from warren.base.errors import InvalidParamsError, ProviderError
from warren.compaction import CompactionConfig
from warren.conversation.budget import Budget
from warren.conversation.events import ModelSwitched, Retrying, TextComplete, TextDelta, TurnCompleted
from warren.conversation.messages import AssistantMessage, TextBlock, UserMessage
from warren.conversation.usage import Usage
from warren.models.catalog import ModelEntry
from warren.models.model import ModelReply, ModelRequest, ReasoningPiece, TextPiece
from warren.settings.config import Config, RetryPolicy

pytestmark = pytest.mark.virtual_time
RETRY = RetryPolicy(max_attempts=2, initial_delay=1, jitter=0, max_retry_after=30, cool_down=60)
MANY = 200
PRICES = {
    "a": ModelEntry(input=Decimal(1), output=Decimal(1), window=10_000),
    "b": ModelEntry(input=Decimal(100), output=Decimal(100), window=9_000),
}


@attrs.define
class Model:
    """A model that fails while it has errors left, after some text, and else says its words.

    Attributes:
        words: its answer.
        errors: its failures.
        shown: the text that it shows before it fails.
        times: the times of its calls.
    """

    words: str
    errors: list[ProviderError] = attrs.field(factory=list)
    shown: str = ""
    times: list[float] = attrs.field(factory=list)
    seconds: float = 0.0

    async def complete(self, _request: ModelRequest, emit: Emit) -> ModelReply:
        self.times.append(trio.current_time())
        await trio.sleep(self.seconds)
        if self.errors:
            if self.shown:
                emit(ReasoningPiece("hm"))
                emit(TextPiece(self.shown))
            raise self.errors.pop(0)
        emit(TextPiece(self.words))
        return reply(self.words, usage=Usage(10, 2))


def busy(retry_after: float | None = None, **more: Any) -> ProviderError:
    """Return the error of an overloaded server."""
    return ProviderError("busy", cause="overloaded", **{"retryable": True, "retry_after": retry_after, **more})


def config(**options: Any) -> Config:
    """Return the settings of a runtime whose sessions go from a to b."""
    return Config(**{"model": "a", "fallback": ("b",), "retry": RETRY, "models": PRICES, **options})


async def test_another_model_takes_over_in_the_midst_of_an_answer() -> None:
    """The event comes before the new text and says that the old does not count; each model's tokens have its price."""
    a, b, seen = Model("from a", [busy(), busy()], shown="I am"), Model("from b"), Recorder()
    async with open_runtime(config=config(), models={"a": a, "b": b}) as service:
        session = await new_session(service)
        result = await service.start_turn(session, "hi", on_event=seen)
        assert result.text == "from b"
        said = [
            event for event in seen.events if isinstance(event, TextDelta | Retrying | ModelSwitched | TextComplete)
        ]
        switched = ModelSwitched("a", "b", "busy", discarded=True)
        assert said == [
            TextDelta("I am"),
            Retrying(2, 2, "busy", 1000),
            switched,
            TextDelta("from b"),
            TextComplete("from b"),
        ]
        (step,) = seen.only(TurnCompleted)
        assert (step.model, step.usage) == ("b", Usage(10, 2, cost=Decimal("0.0012")))
        assert result.usage.cost is not None
        assert Decimal("0.0012") < result.usage.cost < Decimal("0.0013")
        assert await transcript(service, session) == [UserMessage("hi"), AssistantMessage((TextBlock("from b"),))]


@pytest.mark.parametrize(
    ("error", "switches", "calls"),
    [
        (busy, True, 2),
        (lambda: busy(31), True, 1),
        (lambda: busy(retryable=False), False, 1),
        (lambda: ProviderError("no key", cause="unauthorized", retryable=False), False, 1),
    ],
)
async def test_which_errors_lead_to_another_model(
    error: Callable[[], ProviderError], *, switches: bool, calls: int
) -> None:
    """Overload and outages, after the retries or a wait that is too long; not a request that is refused."""
    a, b, seen = Model("from a", [error() for _ in range(9)]), Model("from b"), Recorder()
    async with open_runtime(config=config(), models={"a": a, "b": b}) as service:
        session = await new_session(service)
        if switches:
            assert (await service.start_turn(session, "hi", on_event=seen)).text == "from b"
            assert seen.only(ModelSwitched) == [ModelSwitched("a", "b", error().message)]
        else:
            with pytest.raises(ProviderError):
                await service.start_turn(session, "hi", on_event=seen)
        assert len(a.times) == calls


async def test_the_last_model_fails_too() -> None:
    """Its error is that of the turn, and what it has shown is kept; the next turn tries again."""
    a, b, seen = Model("from a", [busy(), busy()]), Model("from b", [busy(), busy()], shown="well"), Recorder()
    async with open_runtime(config=config(), models={"a": a, "b": b}) as service:
        session = await new_session(service)
        with pytest.raises(ProviderError, match="busy"):
            await service.start_turn(session, "hi", on_event=seen)
        assert (await transcript(service, session))[1] == AssistantMessage((TextBlock("well"),), "cancelled")
        assert (await service.start_turn(session, "again")).text == "from a"


async def test_many_sessions_and_a_model_that_is_out() -> None:
    """All of them leave it alone for its cool-down; then one call tries it while the others go elsewhere."""
    a, b = Model("from a", [busy() for _ in range(4)], seconds=1.0), Model("from b", seconds=1.0)
    async with open_runtime(config=config(), models={"a": a, "b": b}) as service:
        first = await new_session(service)
        sessions = [await new_session(service) for _ in range(MANY)]

        async def all_at_once() -> Recorder:
            seen = Recorder()
            async with trio.open_nursery() as nursery:
                for session in sessions:
                    nursery.start_soon(partial(service.start_turn, session, "hi", on_event=seen))
            return seen

        began = trio.current_time()
        assert (await service.start_turn(first, "hi")).text == "from b"
        assert len(a.times) == 2
        told = (await all_at_once()).only(ModelSwitched)
        assert (len(a.times), len(b.times)) == (2, MANY + 1)
        assert told == [ModelSwitched("a", "b", "it has failed a moment ago")] * MANY
        await trio.sleep(began + 64 - trio.current_time())
        await all_at_once()  # one of them tries it, and fails
        assert (len(a.times), len(b.times)) == (4, 2 * MANY + 1)
        await trio.sleep(100)
        await all_at_once()
        assert len(a.times) == 4
        await trio.sleep(30)
        await all_at_once()  # one of them tries it, and it answers
        assert len(a.times) == 5
        await all_at_once()
        assert len(a.times) == MANY + 5


async def test_an_interrupted_try_is_no_verdict() -> None:
    """The next call tries the model again."""
    a, b = Model("from a", [busy(), busy()]), Model("from b")
    async with open_runtime(config=config(), models={"a": a, "b": b}) as service, trio.open_nursery() as nursery:
        session, other = await new_session(service), await new_session(service)
        await service.start_turn(session, "hi")
        await trio.sleep(61)
        a.seconds = 1_000.0

        async def cut_short() -> None:
            with pytest.raises(Exception, match="interrupted"):
                await service.start_turn(session, "hi")

        nursery.start_soon(cut_short)
        await trio.sleep(1)
        assert (await service.start_turn(other, "hi")).text == "from b"
        await service.interrupt(session)
        a.seconds = 0.0
        assert (await service.start_turn(other, "hi")).text == "from a"


async def test_sessions_and_turns_choose() -> None:
    """A turn's list wins over the session's, an empty one turns it off, and a model that does not exist is named."""
    a, b = Model("from a", [busy(31) for _ in range(9)]), Model("from b")
    models = {"a": a, "b": b, "c": Model("from c")}
    async with open_runtime(config=config(retry=attrs.evolve(RETRY, cool_down=0)), models=models) as service:
        session = await new_session(service, fallback=["c"])
        assert (await service.start_turn(session, "hi")).text == "from c"
        assert (await service.start_turn(session, "hi", fallback=["b", "c"])).text == "from b"
        with pytest.raises(ProviderError):
            await service.start_turn(session, "hi", fallback=[])
        with pytest.raises(InvalidParamsError) as caught:
            await service.start_turn(session, "hi", fallback=["c", "nobody"])
        assert caught.value.path == "$.fallback[1]"
        with pytest.raises(InvalidParamsError, match="prices"):
            await service.start_turn(session, "hi", budget=Budget(max_cost=1))


async def test_the_smallest_window_counts() -> None:
    """A request has to fit into each of the models, and a summary is written by one that answers."""
    a, b, seen = Model("word " * 1_000), Model("from b"), Recorder()
    own = config(compaction=CompactionConfig(auto_compact_threshold=1_000, recent_turn_budget=0), retry=RETRY)
    async with open_runtime(config=own, models={"a": a, "b": b}) as service:
        session = await new_session(service)
        await service.start_turn(session, "hi " * 500)
        a.errors += [busy(), busy()]
        assert (await service.start_turn(session, "go on", on_event=seen)).text == "from b"
        assert seen.only(ModelSwitched) == [ModelSwitched("a", "b", "busy")]
        assert (await service.read(session)).state.compactions == 1
