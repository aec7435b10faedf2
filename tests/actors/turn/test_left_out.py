"""Tools that a provider leaves out of its requests, as the runtime tells of them."""

import pytest
import trio

from tests.support.models import Emit, FunctionModel, reply
from tests.support.runtime import new_session, open_runtime, replay
from warren.actors.observe.counters import LEFT_OUT_SECONDS, MOST_LEFT_OUT, LeftOut
from warren.conversation.events import RequestRepaired
from warren.models.model import ModelReply, ModelRequest, Repaired
from warren.reports.health import ToolsHealth

pytestmark = pytest.mark.virtual_time


async def leaves_out(_request: ModelRequest, emit: Emit) -> ModelReply:
    """Answer, and say that a tool was left out."""
    await trio.lowlevel.checkpoint()
    emit(Repaired("left_out", "the tool `odd`", "its schema is no JSON object"))
    emit(Repaired("dropped", "an image", "too large"))
    return reply("done")


async def test_the_health_tells_of_tools_that_are_left_out() -> None:
    """An event says so in the session, and the health for an hour; what else is repaired is no matter of health."""
    async with open_runtime(FunctionModel(leaves_out)) as service:
        session_id = await new_session(service)
        assert service.health().tools is None
        await service.start_turn(session_id, "hello")
        said = [each.event for each in await replay(service, session_id)]
        assert RequestRepaired("left_out", "the tool `odd`", "its schema is no JSON object") in said
        health = service.health()
        assert health.tools == (ToolsHealth("the tool `odd`", "its schema is no JSON object"),)
        assert health.status == "degraded"
        await trio.sleep(LEFT_OUT_SECONDS + 1)
        assert (service.health().tools, service.health().status) == (None, "ok")


async def test_not_all_tools_of_a_day_are_kept() -> None:
    """The newest stay, and each is there once."""
    left = LeftOut()
    for number in range(2 * MOST_LEFT_OUT):
        left.note(f"the tool `t{number % (MOST_LEFT_OUT + 1)}`", "no room")
    assert len(left.health()) == MOST_LEFT_OUT
