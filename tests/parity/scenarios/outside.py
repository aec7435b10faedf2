"""Results of tool calls that come from outside, under completion tokens."""

from typing import Final

import trio

from tests.parity.outcome import Outcome
from tests.parity.stage import Stage, scenario
from tests.parity.surface import CREATE, TURN
from tests.parity.world import Setting
from tests.support.asking import ask
from tests.support.completions import token_for
from tests.support.waiting import until
from warren.base.errors import ErrorCode
from warren.conversation.messages import ToolResultsMessage

BUILD: Final = {"tool_calls": [{"id": "call-1", "name": "build_outside", "args": {}}]}
STEPS: Final = (BUILD, {"text": "it builds"})
COMPLETES: Final = (CREATE, TURN, "tool/complete")


@scenario(*COMPLETES, codes=(ErrorCode.INVALID_PARAMS,), clients=2, where="inside", setting=Setting(STEPS))
async def result_from_outside(stage: Stage) -> None:
    """A call waits, another client gives its result, and the turn goes on with that; a forged token gives none."""
    session_id = str(stage.well(await stage.one.call(CREATE, prompt=None)).data["session_id"])
    tokens = stage.world.tokens
    async with trio.open_nursery() as nursery:
        turn = ask(nursery, _go, stage, session_id)
        await until(lambda: tokens)
        forged = await stage.other.call("tool/complete", token=token_for(session_id, "call-1"), result="x")
        stage.refused(forged, ErrorCode.INVALID_PARAMS, path="$.token")
        given = await stage.other.call("tool/complete", token=tokens[0], result={"state": "passed"})
        stage.well(given, "tool/complete", completed=True)
        again = await stage.other.call("tool/complete", token=tokens[0], result={"state": "passed"})
        assert again.code in (None, ErrorCode.SESSION_NOT_RUNNING)  # without a store, the end of the turn forgets it
        stage.well(await turn.value(), text="it builds", steps=2)
    history = await stage.world.service.history(session_id)
    told = (entry.message for entry in history.messages if isinstance(entry.message, ToolResultsMessage))
    assert [each.content for message in told for each in message.results] == ['{"state":"passed"}']


async def _go(stage: Stage, session_id: str) -> Outcome:
    return await stage.one.call(TURN, session_id=session_id, prompt="go")
