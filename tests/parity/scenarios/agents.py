"""Agents: sessions that are made of one by its name."""

from typing import Final

from tests.parity.stage import Stage, scenario
from tests.parity.surface import CREATE
from tests.parity.world import Setting, look
from warren.agents.agent import Agent
from warren.base.errors import ErrorCode
from warren.conversation.budget import Budget
from warren.conversation.messages import SystemMessage

DESK: Final = Agent("desk", "Settle it.", description="Complaints.", tools=[look, "hold"], budget=Budget(max_steps=5))
CALLS: Final = ("agents/list", "agents/get", CREATE)


@scenario(*CALLS, codes=[ErrorCode.INVALID_PARAMS], setting=Setting(agents=(DESK,)))
async def agent_that_a_session_is_made_of(stage: Stage) -> None:
    """The session has its instructions, its tools and its bounds; the lists have it as the service itself does."""
    service = stage.world.service
    made = stage.well(await stage.one.call(CREATE, prompt="hi", agent="desk", budget={"max_steps": 9}))
    view = (await service.read(str(made.data["session_id"]))).state
    assert view.agent is not None
    assert (view.agent.name, view.agent.version) == ("desk", DESK.version)
    first, *_ = (await service.history(view.session_id)).messages
    assert first.message == SystemMessage("Settle it.", view.agent)
    assert [each.name for each in (await service.context(view.session_id)).tools] == ["look", "hold"]
    found = await stage.one.call("session/list", agent="desk")
    stage.well(found, "session/list", ids=[view.session_id])
    stage.well(await stage.one.call("session/list", agent="clerk"), "session/list", ids=[])
    listed = stage.well(await stage.one.call("agents/list"), "agents/list")
    stage.same(listed, "agents/list", await service.agents())
    shown = stage.well(await stage.one.call("agents/get", name="desk"), "agents/get", here=True)
    stage.same(shown, "agents/get", await service.agent("desk"))
    again = await stage.one.call("agents/get", name="desk", version=DESK.version)
    stage.same(again, "agents/get", await service.agent("desk"))
    unknown = await stage.one.call("agents/get", name="desk", version="0" * 64)
    stage.refused(unknown, ErrorCode.INVALID_PARAMS, path="$.version")
    stage.refused(await stage.one.call(CREATE, prompt="hi", agent="dsek"), ErrorCode.INVALID_PARAMS, path="$.agent")
