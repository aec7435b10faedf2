"""Tests of a desk that pays money back: with the fixtures of the plugin, or with a script made step by step."""

from pathlib import Path

import pytest

import warren
from warren import Config, RuntimeService, open_supervisor
from warren.testing import (
    RecordedCall,
    Recorder,
    Script,
    ScriptedCall,
    ScriptedError,
    ScriptedFixture,
    ScriptedModel,
    ScriptedStep,
    call,
    say,
    snapshot,
)


@warren.tool
async def pay(order: str, cents: int) -> str:
    """Pay money back for an order."""
    return f"paid {cents} for {order}"


@pytest.fixture
def warren_options() -> dict[str, object]:
    """Give the service of the tests its tool."""
    return {"tools": [pay]}


async def test_the_desk_pays(warren_service: RuntimeService, scripted: ScriptedFixture, tmp_path: Path) -> None:
    """It calls the tool once, and the conversation is the one that was kept."""
    scripted(call("pay", order="17", cents=5), say("Paid."))
    recorder = Recorder()
    result = await warren_service.create_session("It is broken.", on_event=recorder)
    paid: RecordedCall = recorder.calls[0]
    assert (paid.name, paid.result) == ("pay", "paid 5 for 17")
    (tmp_path / "desk.txt").write_text(await snapshot(warren_service, result.session_id), encoding="utf-8")
    await snapshot(warren_service, result.session_id, tmp_path / "desk.txt")


async def test_a_busy_model(warren_service: RuntimeService) -> None:
    """A model that was busy once is asked again."""
    busy = ScriptedError("please wait", cause="rate_limited", retryable=True, retry_after=0.01, times=1)
    steps = (
        ScriptedStep(tool_calls=(ScriptedCall("pay", {"order": "17", "cents": 5}),), error=busy),
        ScriptedStep(chunks=("Pa", "id.")),
    )
    model = ScriptedModel(Script(steps))
    async with open_supervisor(Config(model="busy"), tools=[pay], providers={"busy": model}) as service:
        assert (await service.create_session("It is broken.")).text == "Paid."
    assert [len(request.messages) for request in model.requests] == [1, 1, 3]
    assert warren_service.health().status == "ok"
