"""Turns that end well: what their callers are told and get."""

from functools import partial
from typing import Final

import trio

from tests.parity.outcome import Outcome
from tests.parity.stage import Stage, scenario
from tests.parity.surface import CREATE, OPTIONS, REPLAY, STREAMS, TURN
from tests.parity.world import Setting
from tests.support.asking import ask
from warren.base.errors import ErrorCode
from warren.conversation.budget import Budget

PLAIN: Final = ("run_started", "turn_started", "text_delta", "text_complete", "turn_completed", "run_completed")
TOOL: Final = (
    "run_started",
    "turn_started",
    "reasoning_delta",
    "text_delta",
    "text_complete",
    "tool_call_requested",
    "tool_execution_started",
    "tool_execution_completed",
    "tool_result_received",
    "turn_completed",
    "turn_started",
    "text_delta",
    "text_complete",
    "turn_completed",
    "run_completed",
)
REFUSED_TOOL: Final = (
    "run_started",
    "turn_started",
    "tool_call_requested",
    "tool_result_received",
    "turn_completed",
    "turn_started",
    "text_delta",
    "text_complete",
    "turn_completed",
    "run_completed",
)
RETRIED: Final = (
    "run_started",
    "turn_started",
    "text_delta",
    "retrying",
    "text_complete",
    "turn_completed",
    "run_completed",
)
"""The second attempt says the same: nothing of it is told twice."""
WARNED: Final = (*REFUSED_TOOL[:5], "budget_warning", *REFUSED_TOOL[5:])
USAGE: Final = {"input_tokens": 30, "output_tokens": 20}
CALL: Final = {"id": "call-1", "name": "look", "args": {"at": "lighthouse"}}
SLOW: Final = {"chunks": ["half ", "an answer"], "chunk_delay": 20}
NO_SUCH: Final = {"id": "call-1", "name": "no_such_tool", "args": {}}


@scenario(calls=False, setting=Setting(({"text": "hello there", "usage": USAGE},)))
async def plain_turn(stage: Stage) -> None:
    """A new session's first turn."""
    turn = await stage.one.first_turn("hi")
    stage.well(turn, text="hello there", steps=1, tool_calls=0, stop_reason="end_turn", **USAGE)
    if stage.on("store") or not stage.surface.per_process:
        await stage.heard(turn, PLAIN, turn.data["session_id"])
    else:
        assert turn.kinds == list(PLAIN)


@scenario(CREATE, TURN, setting=Setting(({"text": "one"}, {"text": "two"})), clients=2, where="inside")
async def deferred_first_turn(stage: Stage) -> None:
    """A session is made without a turn; another client runs the first one, and then the first client the second."""
    made = stage.well(await stage.one.call(CREATE, prompt=None))
    assert made.events == []
    session_id = made.data["session_id"]
    for client, text in ((stage.other, "one"), (stage.one, "two")):
        turn = stage.well(await client.call(TURN, session_id=session_id, prompt="go on"), text=text)
        await stage.heard(turn, PLAIN, session_id)


@scenario(
    where="inside",
    setting=Setting(
        ({"reasoning": "let me see", "text": "I look.", "tool_calls": [CALL]}, {"text": "a lighthouse", "usage": USAGE})
    ),
)
async def tool_turn(stage: Stage) -> None:
    """The model thinks, talks, calls a tool and answers."""
    turn = await stage.one.first_turn("what is there?")
    stage.well(turn, steps=2, tool_calls=1, stop_reason="end_turn")
    assert turn.data["text"].endswith("a lighthouse")
    await stage.heard(turn, TOOL, turn.data["session_id"])


@scenario(TURN, setting=Setting(({"text": "hello"}, {"tool_calls": [NO_SUCH]}, {"text": "there is none"})), clients=2)
async def turn_with_an_unknown_tool(stage: Stage) -> None:
    """A tool that does not exist is an error for the model alone."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    turn = await stage.other.call(TURN, session_id=session_id, prompt="use it")
    stage.well(turn, text="there is none", steps=2, tool_calls=1)
    await stage.heard(turn, REFUSED_TOOL, session_id)


@scenario(
    TURN,
    setting=Setting(
        ({"text": "hello"}, {"text": "at last", "error": {"retryable": True, "retry_after": 0.01, "times": 1}})
    ),
)
async def retried_turn(stage: Stage) -> None:
    """The provider fails once: the caller is told, and hears nothing twice."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    turn = await stage.one.call(TURN, session_id=session_id, prompt="again")
    stage.well(turn, text="at last", steps=1)
    await stage.heard(turn, RETRIED, session_id)


@scenario(
    calls=False,
    setting=Setting(
        ({"tool_calls": [NO_SUCH], "usage": {"input_tokens": 80, "output_tokens": 5}}, {"text": "there is none"}),
        budget=Budget(max_tokens=100),
    ),
)
async def turn_near_its_budget(stage: Stage) -> None:
    """The caller is told that little is left."""
    turn = stage.well(await stage.one.first_turn("use it"), text="there is none", steps=2)
    assert turn.kinds == stage.surface.kinds(WARNED)


@scenario(
    "session/read",
    "session/list",
    "session/history",
    OPTIONS,
    clients=2,
    setting=Setting(({"text": "one"}, {"text": "two"})),
)
async def views(stage: Stage) -> None:
    """Reading, listing and paging show what the service itself says."""
    session_id = stage.well(await stage.one.first_turn("hi", labels={"team": "red"})).data["session_id"]
    stage.well(await stage.one.call(TURN, session_id=session_id, prompt="and now?"))
    another = stage.well(await stage.other.first_turn("hi")).data["session_id"]
    async with stage.world.truth() as service:
        page = await service.list(labels={"team": "red"})
        view, history = await service.read(session_id), await service.history(session_id)
    stage.same(await stage.other.call("session/read", session_id=session_id), "session/read", view)
    stage.same(await stage.other.call("session/list", labels={"team": "red"}), "session/list", page)
    stage.same(await stage.other.call("session/history", session_id=session_id), "session/history", history)
    stage.well(await stage.other.call("session/list"), "session/list", ids=[another, session_id])
    stage.well(await stage.other.call("session/list", offset=1, limit=1), "session/list", ids=[session_id])
    assert (view.state.message_count, view.state.labels) == (4, {"team": "red"})


@scenario("session/list", "session/history", TURN, setting=Setting(({"text": "one"}, {"text": "two"})))
async def conversation(stage: Stage) -> None:
    """Two turns are one session, with everything that was said in it."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    stage.well(await stage.one.call(TURN, session_id=session_id, prompt="and now?"), text="two")
    stage.well(await stage.one.call("session/list"), "session/list", ids=[session_id])
    said = [("user", "hi"), ("assistant", "one"), ("user", "and now?"), ("assistant", "two")]
    stage.well(await stage.one.call("session/history", session_id=session_id), "session/history", said=said)


@scenario("session/subscribe", TURN, clients=2, setting=Setting(({"text": "one two three"},)))
async def replay(stage: Stage) -> None:
    """A client that comes later gets the whole log, or what follows an event, in order and nothing twice."""
    first = stage.well(await stage.one.first_turn("hi"))
    session_id = first.data["session_id"]
    second = stage.well(await stage.one.call(TURN, session_id=session_id, prompt="and now?"))
    last = second.seqs[-1][1]
    everything = await stage.other.replay(session_id, 0, last)
    assert list(everything.events) == [*first.events, *second.events]
    rest = await stage.other.replay(session_id, first.seqs[-1][1], last)
    assert (list(rest.events), rest.seqs[-1]) == (list(second.events), second.seqs[-1])


@scenario("session/subscribe", TURN, setting=Setting(({"text": "one"}, {"text": "two three four"})))
async def turn_of_a_follower(stage: Stage) -> None:
    """A client that follows a session and runs a turn of it gets each event once, the last one before the reply."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    assert (await stage.one.call(REPLAY, session_id=session_id)).code is None
    turn = stage.well(await stage.one.call(TURN, session_id=session_id, prompt="go on"), text="two three four")
    await stage.heard(turn, PLAIN, session_id)


async def _turn(stage: Stage, session_id: str) -> Outcome:
    return await stage.one.call(TURN, session_id=session_id, prompt="go")


@scenario(CREATE, TURN, where="inside", clients=2, setting=Setting(({"text": "one two three four"},)))
async def two_sessions_at_once(stage: Stage) -> None:
    """The events of two turns of one client do not mix."""
    ids = [stage.well(await stage.one.call(CREATE, prompt=None)).data["session_id"] for _ in range(2)]
    async with trio.open_nursery() as nursery:
        turns = [ask(nursery, _turn, stage, session_id) for session_id in ids]
    for session_id, turn in zip(ids, turns, strict=True):
        await stage.heard(await turn.value(), PLAIN, session_id)


@scenario(
    STREAMS,
    codes=[ErrorCode.SESSION_BUSY, ErrorCode.AGENT_ERROR],
    clients=2,
    where="inside",
    setting=Setting(({"text": "one"}, {"tool_calls": [NO_SUCH]}, {"text": "there is none"}, SLOW)),
)
async def streamed_turns(stage: Stage) -> None:
    """A stream has what a call is told, of a new session and of a turn that uses a tool, is refused or interrupted."""
    first = stage.well(await stage.one.streamed(CREATE, prompt="hi"), text="one")
    session_id = first.data["session_id"]
    await stage.heard(first, PLAIN, session_id)
    second = stage.well(await stage.other.streamed(TURN, session_id=session_id, prompt="use it"), text="there is none")
    await stage.heard(second, REFUSED_TOOL, session_id)
    async with trio.open_nursery() as nursery:
        slow = ask(nursery, partial(stage.one.streamed, TURN, session_id=session_id, prompt="and now?"))
        await stage.one.begun()
        refused = await stage.other.streamed(TURN, session_id=session_id, prompt="me too")
        stage.refused(refused, ErrorCode.SESSION_BUSY, retryable=True, session_id=session_id)
        assert not refused.events
        await stage.world.service.interrupt(session_id)
        ended = await slow.value()
        stage.refused(ended, ErrorCode.AGENT_ERROR, cause="cancelled", session_id=session_id)
        assert ended.kinds[-1] == "run_failed"
