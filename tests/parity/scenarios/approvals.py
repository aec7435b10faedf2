"""Kinds of tools that are switched on and off, and calls that wait for somebody's word."""

from typing import Final

import trio

from tests.parity.outcome import Outcome
from tests.parity.scenarios.turns import REFUSED_TOOL
from tests.parity.stage import Stage, scenario
from tests.parity.surface import CREATE, SWITCHES, TURN
from tests.parity.world import Setting, until_event
from tests.support.asking import ask
from warren.base.errors import ErrorCode
from warren.conversation.categories import Gates, Switches
from warren.conversation.events import ToolApprovalRequested
from warren.conversation.messages import ToolResultsMessage
from warren.conversation.views import SessionView

LAUNCH: Final = {"tool_calls": [{"id": "call-1", "name": "launch", "args": {"what": "it"}}]}
STEPS: Final = (LAUNCH, {"text": "so be it"})
ASKS: Final = {"overrides": {"shell": "enable"}, "approvals": {"shell": "ask"}}
ASKED: Final = (*REFUSED_TOOL[:3], "tool_approval_requested", "tool_approval_resolved")
RUN: Final = (*ASKED, "tool_execution_started", "tool_execution_completed", *REFUSED_TOOL[3:])
NOT_RUN: Final = (*ASKED, *REFUSED_TOOL[3:])


async def _go(stage: Stage, session_id: str, **options: object) -> Outcome:
    return await stage.one.call(TURN, session_id=session_id, prompt="go", **options)


async def _told(stage: Stage, session_id: str) -> list[tuple[str, bool]]:
    """Return what the model was told of its calls."""
    history = await stage.world.service.history(session_id)
    told = (entry.message for entry in history.messages if isinstance(entry.message, ToolResultsMessage))
    return [(result.content, result.is_error) for message in told for result in message.results]


async def _waiting(stage: Stage, session_id: str) -> SessionView:
    """Return the session once its turn waits; with a store it needs no process then."""
    while True:
        found = await stage.world.service.read(session_id)
        turn = found.state.turn
        if turn is not None and turn.state == "waiting" and found.state.is_active != stage.on("store"):
            return found
        await trio.sleep(0.01)


async def _decided(stage: Stage, decision: str, **more: str) -> tuple[Outcome, str]:
    """Have somebody else decide on a call; return the turn and its session."""
    session_id = str(stage.well(await stage.one.call(CREATE, prompt=None, **ASKS)).data["session_id"])
    said = {"session_id": session_id, "call_id": "call-1", "decision": decision, **more}
    async with trio.open_nursery() as nursery:
        turn = ask(nursery, _go, stage, session_id)
        await until_event(stage.world, session_id, ToolApprovalRequested)
        if stage.has("session/read"):
            truth = await _waiting(stage, session_id)
            assert [each.call_id for each in truth.state.pending_approvals] == ["call-1"]
            stage.same(await stage.other.call("session/read", session_id=session_id), "session/read", truth)
        if stage.has("approvals/list"):
            page = await stage.world.service.approvals()
            assert [(each.session_id, each.call_id) for each in page.approvals] == [(session_id, "call-1")]
            stage.same(await stage.other.call("approvals/list"), "approvals/list", page)
        unknown = await stage.other.call("tool/approve", **{**said, "call_id": "call-2"})
        stage.refused(unknown, ErrorCode.INVALID_PARAMS, path="$.call_id")
        stage.well(await stage.other.call("tool/approve", **said), "tool/approve", decided=True)
        ended = stage.well(await turn.value(), text="so be it", steps=2)
    late = await stage.other.call("tool/approve", **said)
    if stage.on("store"):
        stage.well(late, "tool/approve", decided=True)
        other = {"allow": "deny", "deny": "allow"}[decision]
        contrary = await stage.other.call("tool/approve", session_id=session_id, call_id="call-1", decision=other)
        stage.refused(contrary, ErrorCode.INVALID_PARAMS, path="$.call_id", cause="settled")
    else:
        stage.refused(late, ErrorCode.SESSION_NOT_RUNNING, session_id=session_id)
    return ended, session_id


DECIDES: Final = (CREATE, TURN, SWITCHES, "tool/approve")
CODES: Final = (ErrorCode.INVALID_PARAMS,)


@scenario(*DECIDES, codes=CODES, clients=2, where="inside", setting=Setting(STEPS))
async def approved_call(stage: Stage) -> None:
    """A call waits, another client lets it run, and the turn goes on with its result."""
    turn, session_id = await _decided(stage, "allow")
    await stage.heard(turn, RUN, session_id)
    assert await _told(stage, session_id) == [("it is gone", False)]


@scenario(*DECIDES, codes=CODES, clients=2, where="inside", setting=Setting(STEPS))
async def refused_call(stage: Stage) -> None:
    """A call that somebody refuses is not run, and the model is told why."""
    turn, session_id = await _decided(stage, "deny", reason="too bold")
    await stage.heard(turn, NOT_RUN, session_id)
    assert await _told(stage, session_id) == [("not run: it was refused: too bold", True)]


@scenario(TURN, SWITCHES, where="inside", setting=Setting(STEPS, approval_timeout=0.05))
async def call_that_nobody_approves(stage: Stage) -> None:
    """It waits for its time, and then the turn goes on without it."""
    turn = stage.well(await stage.one.first_turn("go", **ASKS), text="so be it", steps=2)
    await stage.heard(turn, NOT_RUN, turn.data["session_id"])
    assert await _told(stage, turn.data["session_id"]) == [("not run: it was not approved in time", True)]


@scenario(CREATE, TURN, SWITCHES, "session/read", where="inside", setting=Setting(STEPS))
async def switched_tools(stage: Stage) -> None:
    """A tool that is off is not there for the model; a turn's switch counts before the session's, which is shown."""
    made = {"overrides": {"shell": "enable"}, "approvals": {"mcp": "deny"}}
    session_id = str(stage.well(await stage.one.call(CREATE, prompt=None, **made)).data["session_id"])
    seen = await stage.one.call("session/read", session_id=session_id)
    stage.well(seen, "session/read", overrides=Switches(shell="enable"), approvals=Gates(mcp="deny"))
    off = stage.well(await _go(stage, session_id, overrides={"shell": "disable"}), text="so be it")
    await stage.heard(off, REFUSED_TOOL, session_id)
    stage.well(await _go(stage, session_id), text="so be it")
    denied = stage.well(await _go(stage, session_id, approvals={"shell": "deny"}), text="so be it")
    await stage.heard(denied, REFUSED_TOOL, session_id)
    told = await _told(stage, session_id)
    assert [is_error for _, is_error in told] == [True, False, True]
    assert (told[1][0], told[2][0]) == ("it is gone", "not run: shell tools are denied here; go on without them")


@scenario("capabilities/get", SWITCHES, where="inside")
async def kinds_of_tools(stage: Stage) -> None:
    """The capabilities tell which kinds there are, and which are on."""
    found = stage.well(await stage.one.call("capabilities/get"), "capabilities/get", session_store=stage.on("store"))
    tools = {"shell": "off", "callback": "on", "builtins": "unavailable"}
    assert found.data["tools"].items() >= tools.items()
