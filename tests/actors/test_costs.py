"""The cost of turns and sessions, and budgets in money."""

from decimal import Decimal
from pathlib import Path

import pytest
import trio

from tests.support.models import Emit, FunctionModel, reply
from tests.support.runtime import Recorder, new_session, open_runtime
from warren.base.errors import BudgetExhaustedError, InvalidParamsError
from warren.compaction import CompactionConfig
from warren.conversation import codec
from warren.conversation.budget import Budget
from warren.conversation.events import BudgetWarning, RunCompleted, TurnCompleted
from warren.conversation.messages import ToolUseBlock
from warren.conversation.usage import Usage
from warren.models.catalog import ModelEntry
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import tool
from warren.settings.config import Config

pytestmark = pytest.mark.virtual_time
PRICES = ModelEntry(
    input=Decimal(2),
    output=Decimal(10),
    cache_read=Decimal("0.2"),
    cache_write_5m=Decimal("2.5"),
    cache_write_1h=Decimal(4),
)
USAGE = Usage(1_000, 100, cache_creation_tokens=200, cache_read_tokens=700)
COST = Decimal("0.00184")
"""The cost of a call: 100 tokens at 2 dollars a million, 200 at 2.5, 700 at 0.2, and 100 of the answer at 10."""


@tool(name="again")
async def again() -> str:
    """Do nothing."""
    return "once more"


def model(calls: int = 0) -> FunctionModel:
    """Return a model that calls a tool some times in each turn, and then answers."""
    asked = 0

    async def answer(_request: ModelRequest, _emit: Emit) -> ModelReply:
        nonlocal asked
        await trio.lowlevel.checkpoint()
        asked += 1
        wants = asked % (calls + 1) != 0
        return reply("done", *([ToolUseBlock(f"c{asked}", "again")] if wants else []), usage=USAGE)

    return FunctionModel(answer)


async def test_the_cost_of_turns_and_of_the_session(tmp_path: Path) -> None:
    """A turn costs what its calls cost, a session what its turns do, also after a restart; a fork begins at nothing."""
    config, seen = Config(models={"test": PRICES}), Recorder()
    async with open_runtime(model(2), store=tmp_path, config=config, tools=[again]) as service:
        session = await new_session(service)
        result = await service.start_turn(session, "go", on_event=seen)
        assert result.usage.cost == 3 * COST
        assert [event.usage.cost for event in seen.only(TurnCompleted)] == [COST] * 3
        assert seen.only(RunCompleted)[0].usage.cost == 3 * COST
        hour = await service.start_turn(session, "go", prompt_cache="1h")
        assert hour.usage.cost == 3 * (COST + 200 * Decimal("1.5") / 1_000_000)
    async with open_runtime(model(2), store=tmp_path, config=config, tools=[again]) as service:
        assert (await service.read(session)).billing.usage.cost == result.usage.cost + hour.usage.cost
        await service.start_turn(session, "go")
        usage = (await service.read(session)).billing.usage
        assert usage.cost == 2 * result.usage.cost + hour.usage.cost
        assert codec.parse(codec.encode(usage))["cost"] == "0.01746"
        forked = (await service.fork(session)).state.session_id
        assert (await service.read(forked)).billing.usage.cost is None


async def test_an_unknown_price_is_an_unknown_cost(tmp_path: Path) -> None:
    """A call of a model without a price leaves the turn and the session without a cost; JSON has none then."""
    async with open_runtime(model(), store=tmp_path, config=Config(models={"priced": PRICES})) as service:
        session = await new_session(service)
        assert (await service.start_turn(session, "go", model="priced", provider="test")).usage.cost == COST
        unknown = await service.start_turn(session, "go")
        assert unknown.usage.cost is None
        assert "cost" not in codec.parse(codec.encode(unknown))["usage"]
        assert (await service.start_turn(session, "go", model="priced", provider="test")).usage.cost == COST
        assert (await service.read(session)).billing.usage.cost is None


@pytest.mark.parametrize("scope", ["turn", "session"])
async def test_a_budget_in_money(scope: str) -> None:
    """A turn ends before the call that comes after its budget is used up, with a warning before that."""
    budget, seen = Budget(max_cost=float(4 * COST)), Recorder()
    async with open_runtime(model(9), config=Config(models={"test": PRICES}), tools=[again]) as service:
        session = await new_session(service, budget=budget if scope == "session" else None)
        with pytest.raises(BudgetExhaustedError, match="the cost budget is used up") as caught:
            await service.start_turn(session, "go", budget=budget if scope == "turn" else None, on_event=seen)
        assert caught.value.cause == "cost"
        assert caught.value.details["used"] == float(4 * COST)
        assert [(event.budget_type, event.limit) for event in seen.only(BudgetWarning)] == [("cost", budget.max_cost)]
        assert (await service.read(session)).billing.usage.cost == 4 * COST
        if scope == "session":
            with pytest.raises(BudgetExhaustedError):
                await service.start_turn(session, "go")


async def test_a_budget_in_money_needs_a_price() -> None:
    """A budget in money is refused with the name of a model whose price is unknown, before the turn."""
    seen = Recorder()
    async with open_runtime(model(), config=Config(models={"half": ModelEntry(input=Decimal(1))})) as service:
        session = await new_session(service)
        for name in ("test", "half"):
            with pytest.raises(InvalidParamsError, match=f"the prices of the model '{name}' are unknown") as caught:
                await service.start_turn(
                    session, "go", model=name, provider="test", budget=Budget(max_cost=1.0), on_event=seen
                )
            assert caught.value.path == "$.budget.max_cost"
        assert seen.events == []
        assert (await service.start_turn(session, "go")).text == "done"


async def test_no_session_is_left_of_a_budget_without_a_price() -> None:
    """A session is not created if none of its turns could begin."""
    async with open_runtime(model()) as service:
        for prompt in ("go", None):
            with pytest.raises(InvalidParamsError, match="the prices of the model 'test' are unknown"):
                await service.create_session(prompt, model="test", budget=Budget(max_cost=1.0))
        assert (await service.list()).sessions == ()


async def test_a_summary_costs(tmp_path: Path) -> None:
    """The call for a summary is part of the session's cost."""
    config = Config(models={"test": PRICES}, compaction=CompactionConfig(recent_turn_budget=0))
    async with open_runtime(model(), store=tmp_path, config=config) as service:
        session = await new_session(service)
        for _turn in range(2):
            await service.start_turn(session, "go on, and on " * 100)
        await service.compact(session)
        assert (await service.read(session)).billing.usage.cost == 3 * COST


async def test_a_providers_own_cost_comes_first() -> None:
    """A provider that tells the cost of a call knows better than a list of prices."""

    async def answer(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        return reply("done", usage=Usage(1, 1, cost=Decimal(7)))

    async with open_runtime(FunctionModel(answer), config=Config(models={"test": PRICES})) as service:
        assert (await service.create_session("go")).usage.cost == 7
