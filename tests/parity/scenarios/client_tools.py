"""Tools that the client runs itself: asked for, answered, and what becomes of the turn where nobody answers."""

from typing import Any, Final

import trio

from tests.parity.outcome import Outcome
from tests.parity.scenarios.turns import REFUSED_TOOL
from tests.parity.stage import Stage, scenario
from tests.parity.surface import REGISTER, TURN
from tests.parity.world import Setting
from tests.support.asking import ask
from warren.actors.turn.toolbox import NO_RESULT
from warren.conversation.events import RunCompleted
from warren.conversation.messages import ToolResultsMessage

SCHEMA: Final = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
LOOKUP: Final = {"name": "lookup", "description": "Look it up", "input_schema": SCHEMA}
CALL: Final = {"id": "call-1", "name": "lookup", "args": {"q": "weather"}}
STEPS: Final = ({"text": "hello"}, {"tool_calls": [CALL]}, {"text": "so be it"})
USED: Final = (*REFUSED_TOOL[:3], "tool_execution_started", "tool_execution_completed", *REFUSED_TOOL[3:])
TIMED_OUT: Final = (*USED[:4], "tool_execution_timed_out", *USED[4:])


async def _go(stage: Stage, session_id: str) -> Outcome:
    return await stage.one.call(TURN, session_id=session_id, prompt="look")


async def _begin(stage: Stage) -> str:
    """Offer the tool, and return a session whose next turn uses it."""
    stage.well(await stage.one.call(REGISTER, tools=[LOOKUP]), REGISTER, registered=1)
    session_id = stage.well(await stage.one.first_turn("hi"), text="hello").data["session_id"]
    assert isinstance(session_id, str)
    return session_id


async def _told(stage: Stage, session_id: str) -> list[tuple[str, bool]]:
    """Return what the model was told of its calls."""
    history = await stage.world.service.history(session_id)
    told = (entry.message for entry in history.messages if isinstance(entry.message, ToolResultsMessage))
    return [(result.content, result.is_error) for message in told for result in message.results]


async def _played(stage: Stage, result: dict[str, Any]) -> list[tuple[str, bool]]:
    session_id = await _begin(stage)
    async with trio.open_nursery() as nursery:
        turn = ask(nursery, _go, stage, session_id)
        asked = await stage.one.asked()
        params = asked["params"]
        assert (asked["method"], params["name"], params["arguments"]) == ("tool/execute", "lookup", {"q": "weather"})
        await stage.one.answer(asked, result)
        ended = stage.well(await turn.value(), text="so be it", steps=2, tool_calls=1)
    await stage.heard(ended, USED, session_id)
    return await _told(stage, session_id)


@scenario(REGISTER, TURN, setting=Setting(STEPS), where="inside")
async def clients_tool(stage: Stage) -> None:
    """The client is asked while its turn runs, and what it answers is the model's result."""
    assert await _played(stage, {"content": "sunny", "is_error": False}) == [("sunny", False)]


@scenario(REGISTER, TURN, setting=Setting(STEPS), where="inside")
async def clients_tool_fails(stage: Stage) -> None:
    """An error, and an answer that is none, are errors for the model alone."""
    assert await _played(stage, {"content": "it broke", "is_error": True}) == [("it broke", True)]


@scenario(REGISTER, TURN, setting=Setting(STEPS), where="inside")
async def clients_answer_is_none(stage: Stage) -> None:
    """A failure is an error result too, and says what is wrong with it."""
    ((told, is_error),) = await _played(stage, {"contents": "sunny"})
    assert is_error
    assert "$.result" in told


@scenario(REGISTER, TURN, setting=Setting(STEPS, tool_timeout=0.05), where="inside")
async def silent_client(stage: Stage) -> None:
    """A client that never answers costs the time that tools have; then the turn goes on."""
    session_id = await _begin(stage)
    turn = stage.well(await _go(stage, session_id), text="so be it", steps=2, tool_calls=1)
    await stage.heard(turn, TIMED_OUT, session_id)
    assert [is_error for _, is_error in await _told(stage, session_id)] == [True]


@scenario(REGISTER, TURN, setting=Setting(STEPS, approval_timeout=1.2), where="inside")
async def client_that_leaves(stage: Stage) -> None:
    """A client that is gone is an error result: at once, or with a store once the call has waited for it in vain."""
    session_id = await _begin(stage)
    service = stage.world.service
    async with service.subscribe(session_id) as events, trio.open_nursery() as nursery:
        nursery.start_soon(_go, stage, session_id)
        await stage.one.asked()
        await stage.one.leave()
        async for envelope in events:
            if isinstance(envelope.event, RunCompleted):
                break
        nursery.cancel_scope.cancel()
    ((told, is_error),) = await _told(stage, session_id)
    assert is_error
    assert told in (NO_RESULT, "the client that runs this tool is gone")


@scenario(REGISTER, TURN, setting=Setting(STEPS), clients=2, where="inside")
async def tool_of_another_client(stage: Stage) -> None:
    """A tool is its client's alone: in the turn of another one the model's call of it is refused."""
    session_id = await _begin(stage)
    turn = stage.well(await stage.other.call(TURN, session_id=session_id, prompt="look"), text="so be it")
    await stage.heard(turn, REFUSED_TOOL, session_id)
