"""Which model answers: the session's, or for one turn another one, on every surface that can name it."""

from tests.parity.scenarios.turns import PLAIN
from tests.parity.stage import Stage, scenario
from tests.parity.surface import OPTIONS, SAMPLING, TURN
from tests.parity.world import Setting
from warren.base.errors import ErrorCode
from warren.conversation.options import ModelOptions

STEPS = ({"text": "one"}, {"text": "two"}, {"text": "three"}, {"text": "four"})


@scenario(OPTIONS, TURN, setting=Setting(STEPS))
async def another_model_for_one_turn(stage: Stage) -> None:
    """By its name, or under another provider: it answers that turn, and the session's own model the next one."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    for choice in ({"model": "echo"}, {"model": "any-model", "provider": "echo"}):
        turn = await stage.one.call(TURN, session_id=session_id, prompt="say this", **choice)
        stage.well(turn, text="say this", steps=1, stop_reason="end_turn")
        await stage.heard(turn, PLAIN, session_id)
    stage.well(await stage.one.call(TURN, session_id=session_id, prompt="go on"), text="four")
    if stage.has("session/read"):
        async with stage.world.truth() as service:
            model = (await service.read(session_id)).state.model
        view = await stage.one.call("session/read", session_id=session_id)
        stage.well(view, "session/read", model=model)
        assert model not in ("echo", "any-model")


@scenario(OPTIONS, TURN, setting=Setting(STEPS))
async def a_session_of_another_model(stage: Stage) -> None:
    """The model that a session was made with answers all of its turns; where there is a store, after a restart too."""
    session_id = stage.well(await stage.one.first_turn("hi", model="echo"), text="hi").data["session_id"]
    stage.well(await stage.one.call(TURN, session_id=session_id, prompt="and on"), text="and on")
    if stage.on("store"):
        await stage.restart()
        stage.well(await stage.one.call(TURN, session_id=session_id, prompt="once more"), text="once more")


@scenario(OPTIONS, TURN, codes=[ErrorCode.INVALID_PARAMS], setting=Setting(STEPS))
async def a_model_that_nobody_has(stage: Stage) -> None:
    """A turn that asks for it is refused before it begins, and leaves nothing in the session."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    for path, choice in (("$.model", {"model": "no-such"}), ("$.provider", {"model": "echo", "provider": "no-such"})):
        refused = await stage.one.call(TURN, session_id=session_id, prompt="go on", **choice)
        stage.refused(refused, ErrorCode.INVALID_PARAMS, path=path)
        assert refused.events == []
    stage.well(await stage.one.call(TURN, session_id=session_id, prompt="go on"), text="two")


@scenario(OPTIONS, SAMPLING, TURN, setting=Setting(STEPS))
async def sampling(stage: Stage) -> None:
    """Temperature, top_p and effort of a session go with each call of the model, those of a turn with its own calls."""
    turn = await stage.one.first_turn("hi", temperature=0.5, top_p=0.25, max_tokens=100, effort="low")
    session_id = stage.well(turn, text="one").data["session_id"]
    stage.well(await stage.one.call(TURN, session_id=session_id, prompt="go on", temperature=2), text="two")
    if stage.on("store"):
        await stage.restart()
    stage.well(await stage.one.call(TURN, session_id=session_id, prompt="go on", top_p=1, effort="max"))
    if not stage.world.inside:
        return  # the commands run models of their own
    assert stage.world.model.asked == [
        ModelOptions(temperature=0.5, top_p=0.25, max_tokens=100, effort="low"),
        ModelOptions(temperature=2, top_p=0.25, max_tokens=100, effort="low"),
        ModelOptions(temperature=0.5, top_p=1, max_tokens=100, effort="max"),
    ]
