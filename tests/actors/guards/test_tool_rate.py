"""`ToolRate`: calls of a session in 60 seconds."""

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.models import reply, says
from tests.support.runtime import open_runtime, transcript
from warren.base.fields import FieldValueError
from warren.calls.facade import SessionService
from warren.conversation.categories import Gates
from warren.conversation.messages import ToolResultsMessage, ToolUseBlock
from warren.guards import ToolRate
from warren.models.tools import tool
from warren.settings.config import Config

pytestmark = pytest.mark.virtual_time


@tool
async def look(what: str) -> str:
    """Look something up."""
    await trio.lowlevel.checkpoint()
    return f"found {what}"


@tool
async def other(what: str) -> str:
    """Do something else."""
    await trio.lowlevel.checkpoint()
    return f"did {what}"


def looks(*names: str) -> Any:
    """Return an answer with calls."""
    return reply("", *(ToolUseBlock(f"{name}-{at}", name, {"what": str(at)}) for at, name in enumerate(names)))


async def told(service: SessionService, session_id: str) -> list[str]:
    """Return how the results of the newest calls begin, sorted: they run at once."""
    found = [each for each in await transcript(service, session_id) if isinstance(each, ToolResultsMessage)]
    return sorted(each.content.split(" ")[0] for each in found[-1].results)


async def refusals(service: SessionService, session_id: str) -> set[str]:
    """Return the refusals among the results of a session."""
    found = [each for each in await transcript(service, session_id) if isinstance(each, ToolResultsMessage)]
    return {each.content for results in found for each in results.results if each.is_error}


async def test_calls_of_a_session_in_a_minute() -> None:
    """The third one is refused, with the time to wait; calls of other tools and of other sessions do not count."""
    first = looks("look", "other", "look", "look")
    model = says(first, reply("done"), looks("look"), reply("done"), looks("look", "look", "look"), reply("done"))
    async with open_runtime(model, tools=[look, other], hooks=[ToolRate(2, tools=["look"])]) as service:
        session_id = (await service.create_session("Look.")).session_id
        assert await told(service, session_id) == ["did", "found", "found", "not"]
        another = (await service.create_session("Look.")).session_id
        assert await told(service, another) == ["found"]
        await trio.sleep(60)
        await service.start_turn(session_id, "Look.")
        assert await told(service, session_id) == ["found", "found", "not"]
        reason = "too many tool calls: at most 2 a minute; the next may run in 60 s"
        assert await refusals(service, session_id) == {f"not run: {reason}"}


async def test_a_call_that_waits_counts_once() -> None:
    """The hooks are called again after the decision, and a call that a person has let pass is not refused."""
    config = Config(gates=Gates(callback="ask"))
    model = says(looks("look"), reply("done"), looks("look"), reply("done"))
    async with (
        open_runtime(model, tools=[look], hooks=[ToolRate(1)], config=config) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = (await service.create_session(None)).session_id
        nursery.start_soon(service.start_turn, session_id, "Look.")
        await wait_all_tasks_blocked()
        await service.approve_tool(session_id, "look-0", "allow")
        await wait_all_tasks_blocked()
        assert await told(service, session_id) == ["found"]


@pytest.mark.parametrize("bad", [0, True, 1.5, "3"])
def test_bad_arguments(bad: Any) -> None:
    """They are named."""
    with pytest.raises(FieldValueError, match=r"^per_minute must be a whole number from 1 on$"):
        ToolRate(bad)
    with pytest.raises(FieldValueError, match=r"^tools must be a list of names, not one text$"):
        ToolRate(1, tools="look")
