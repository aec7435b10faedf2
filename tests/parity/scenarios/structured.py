"""Answers as data, on every surface that can ask for them."""

from typing import Final

from tests.parity.scenarios.turns import PLAIN
from tests.parity.stage import Stage, scenario
from tests.parity.surface import OPTIONS, TURN
from tests.parity.world import Setting
from warren.base.errors import ErrorCode
from warren.conversation.events import RunCompleted

SCHEMA: Final = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
FORMED: Final = (*PLAIN[:-1], "extraction_completed", "run_completed")
UNFORMED: Final = (*PLAIN[:-1], "extraction_failed", "run_failed")
STEPS: Final = (
    {"text": "It is Ann.", "structured": ["Ann", '{"name": "Ann"}']},
    {"text": "Nobody.", "structured": ["no"]},
)


@scenario(TURN, OPTIONS, "session/read", setting=Setting(STEPS))
async def structured_output(stage: Stage) -> None:
    """An answer comes as text and as data, after a second try, and both are kept; the next one's fits nothing."""
    turn = await stage.one.first_turn("who?", output_schema=SCHEMA)
    stage.well(turn, text="It is Ann.", steps=3, structured_output={"name": "Ann"})
    assert turn.kinds == stage.surface.kinds(FORMED)
    session_id = turn.data["session_id"]
    read = await stage.one.call("session/read", session_id=session_id)
    stage.well(read, "session/read", last_structured_output={"name": "Ann"})
    ended = (await stage.world.log(session_id))[-1].event
    assert isinstance(ended, RunCompleted)
    assert ended.structured_output == {"name": "Ann"}
    turn = await stage.one.call(TURN, session_id=session_id, prompt="and now?", output_schema=SCHEMA)
    stage.refused(turn, ErrorCode.AGENT_ERROR, cause="structured_output", session_id=session_id)
    assert turn.kinds == stage.surface.kinds(UNFORMED)


@scenario(OPTIONS, setting=Setting(STEPS))
async def bad_output_schema(stage: Stage) -> None:
    """A value that is no schema is bad input, by its place, before anything runs."""
    turn = await stage.one.first_turn("who?", output_schema={"type": "nothing"})
    stage.refused(turn, ErrorCode.INVALID_PARAMS, path="$.output_schema.type")
