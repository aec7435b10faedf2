"""Inputs to a session while it runs a turn, on every surface that lets a prompt wait."""

from datetime import timedelta
from functools import partial
from typing import Final

import trio

from tests.parity.outcome import Outcome
from tests.parity.scenarios.turns import PLAIN
from tests.parity.stage import Stage, scenario
from tests.parity.surface import CREATE, MODES, TURN
from tests.parity.world import Setting, until_event
from tests.support.asking import ask
from tests.support.runtime import supervisor_of
from tests.support.waiting import inbox_has, turn_awaited
from warren.base.errors import ErrorCode
from warren.conversation.events import InputTaken, ToolExecutionStarted
from warren.conversation.messages import ContextMessage, UserMessage

HOLD: Final = {"tool_calls": [{"id": "call-1", "name": "hold", "args": {}}]}
HELD: Final = Setting((HOLD, {"text": "done"}, {"text": "two"}))
STEERED: Final = ("input_taken", *PLAIN[1:])


async def _say(client_of: Stage, session_id: str, prompt: str, **options: str) -> Outcome:
    return await client_of.other.call(TURN, session_id=session_id, prompt=prompt, **options)


async def _held(stage: Stage) -> str:
    """Return the id of a new session."""
    return str(stage.well(await stage.one.call(CREATE, prompt=None)).data["session_id"])


async def _first(stage: Stage, session_id: str) -> Outcome:
    return await stage.one.call(TURN, session_id=session_id, prompt="first")


async def _said(stage: Stage, session_id: str) -> list[str]:
    history = await stage.world.service.history(session_id)
    told = (entry.message for entry in history.messages)
    return [message.content for message in told if isinstance(message, UserMessage | ContextMessage)]


@scenario(CREATE, TURN, MODES, "session/inputs", clients=2, where="inside", setting=HELD)
async def queued_turn(stage: Stage) -> None:
    """A prompt waits for the running turn and begins one of its own; until then everybody sees it waiting."""
    session_id = await _held(stage)
    async with trio.open_nursery() as nursery:
        first = ask(nursery, _first, stage, session_id)
        await until_event(stage.world, session_id, ToolExecutionStarted)
        second = ask(nursery, _say, stage, session_id, "second", mode="queue")
        await inbox_has(stage.world.service, session_id, 1)
        seen = await stage.one.call("session/inputs", session_id=session_id)
        stage.well(seen, "session/inputs", waiting=[("queue", "second", None)])
        stage.world.go.set()
        stage.well(await first.value(), text="done", steps=2)
        queued = stage.well(await second.value(), text="two", steps=1)
    assert queued.kinds[-len(PLAIN) :] == list(PLAIN)
    assert await _said(stage, session_id) == ["first", "second"]
    stage.well(await stage.one.call("session/inputs", session_id=session_id), "session/inputs", waiting=[])


@scenario(
    CREATE,
    TURN,
    MODES,
    "session/inputs",
    clients=2,
    where="inside",
    setting=Setting(({"text": "one"}, {"text": "two"})),
)
async def turn_that_waits_for_a_time(stage: Stage) -> None:
    """Everybody sees the prompt waiting, another one goes before it, and at its time it begins its turn."""
    session_id = await _held(stage)
    due = supervisor_of(stage.world.service).shared.storage.now() + timedelta(seconds=2)
    async with trio.open_nursery() as nursery:
        second = ask(nursery, _say, stage, session_id, "later", mode="queue", not_before=due.isoformat())
        await inbox_has(stage.world.service, session_id, 1)
        seen = await stage.one.call("session/inputs", session_id=session_id)
        stage.well(seen, "session/inputs", waiting=[("queue", "later", None)])
        (waits,) = await stage.world.service.inputs(session_id)
        assert waits.not_before == due
        stage.well(await _first(stage, session_id), text="one")
        queued = stage.well(await second.value(), text="two", steps=1)
    assert queued.kinds[-len(PLAIN) :] == list(PLAIN)
    assert await _said(stage, session_id) == ["first", "later"]
    assert supervisor_of(stage.world.service).shared.storage.now() >= due


@scenario(CREATE, TURN, "turn/wait", clients=2, where="inside", setting=HELD)
async def awaited_turn(stage: Stage) -> None:
    """A client that did not start a turn waits for its end, and gets the result that its caller gets."""
    session_id = await _held(stage)
    async with trio.open_nursery() as nursery:
        first = ask(nursery, _first, stage, session_id)
        await until_event(stage.world, session_id, ToolExecutionStarted)
        waits = ask(nursery, partial(stage.other.call, "turn/wait", session_id=session_id))
        await turn_awaited(stage.world.service, session_id)
        stage.world.go.set()
        ended = stage.well(await first.value(), text="done", steps=2)
        assert (await waits.value()).data == ended.data


@scenario(CREATE, TURN, MODES, clients=2, where="inside", setting=HELD)
async def steered_turn(stage: Stage) -> None:
    """A prompt enters the running turn at its next step; both callers get that turn's result."""
    session_id = await _held(stage)
    async with trio.open_nursery() as nursery:
        first = ask(nursery, _first, stage, session_id)
        await until_event(stage.world, session_id, ToolExecutionStarted)
        second = ask(nursery, _say, stage, session_id, "faster", mode="steer")
        await inbox_has(stage.world.service, session_id, 1)
        stage.world.go.set()
        results = [stage.well(await turn.value(), text="done", steps=2) for turn in (first, second)]
    assert results[0].data == results[1].data
    assert results[1].kinds[-len(STEERED) :] == list(STEERED)
    assert await _said(stage, session_id) == ["first", "faster"]


@scenario(CREATE, TURN, MODES, where="inside", setting=Setting(({"text": "one"}, {"text": "two"})))
async def idempotency_key(stage: Stage) -> None:
    """A request that is sent again under its key has the first result; another key, or none, is another turn."""
    session_id = await _held(stage)
    said = {"session_id": session_id, "prompt": "hi", "mode": "queue", "idempotency_key": "k/1 ?"}
    first = stage.well(await stage.one.call(TURN, **said), text="one")
    again = stage.well(await stage.one.call(TURN, **said), text="one")
    assert (again.data, again.kinds) == (first.data, [])
    stage.well(await stage.one.call(TURN, **{**said, "idempotency_key": "k2"}), text="two")
    assert await _said(stage, session_id) == ["hi", "hi"]


@scenario(
    CREATE,
    MODES,
    codes=[ErrorCode.INVALID_PARAMS],
    where="inside",
    setting=Setting(({"text": "one"},)),
)
async def created_once(stage: Stage) -> None:
    """A request that creates a session is not taken twice under its key, and not with another prompt."""
    said = {"prompt": "hi", "title": "Mine", "idempotency_key": "k/1 ?"}
    first = stage.well(await stage.one.call(CREATE, **said), text="one")
    assert first.kinds[-len(PLAIN) :] == list(PLAIN)
    again = stage.well(await stage.one.call(CREATE, **said), text="one")
    assert again.data == first.data
    refused = await stage.one.call(CREATE, **{**said, "prompt": "bye"})
    stage.refused(refused, ErrorCode.INVALID_PARAMS, path="$.idempotency_key")
    other = stage.well(await stage.one.call(CREATE, **{**said, "idempotency_key": "k2"}), text="one")
    session_id = str(first.data["session_id"])
    assert other.data["session_id"] != session_id
    assert await _said(stage, session_id) == ["hi"]
    assert (await stage.world.service.read(session_id)).state.title == "Mine"


@scenario(
    CREATE,
    TURN,
    MODES,
    "session/inputs",
    "session/withdraw",
    codes=[ErrorCode.AGENT_ERROR, ErrorCode.INVALID_PARAMS],
    clients=2,
    where="inside",
    setting=HELD,
)
async def withdrawn(stage: Stage) -> None:
    """A caller that waits for its turn is told, the running turn is not touched, and what is gone stays."""
    session_id = await _held(stage)
    async with trio.open_nursery() as nursery:
        first = ask(nursery, _first, stage, session_id)
        await until_event(stage.world, session_id, ToolExecutionStarted)
        second = ask(nursery, _say, stage, session_id, "second", mode="queue")
        await inbox_has(stage.world.service, session_id, 1)
        (waiting,) = (await stage.one.call("session/inputs", session_id=session_id)).data["inputs"]
        named = {"session_id": session_id, "input_id": waiting.input_id}
        stage.well(await stage.one.call("session/withdraw", **named), "session/withdraw", withdrawn=True)
        stage.refused(await second.value(), ErrorCode.AGENT_ERROR, cause="cancelled", session_id=session_id)
        gone = await stage.one.call("session/withdraw", **named)
        stage.refused(gone, ErrorCode.INVALID_PARAMS, path="$.input_id", session_id=session_id)
        stage.world.go.set()
        stage.well(await first.value(), text="done")
    assert await _said(stage, session_id) == ["first"]


@scenario(
    TURN, "session/inject_context", clients=2, where="inside", setting=Setting(({"text": "one"}, {"text": "two"}))
)
async def injected_context(stage: Stage) -> None:
    """It begins no turn and is read with the next prompt, once, however often it is sent under its key."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    told = {"session_id": session_id, "text": "it rains", "source": "sensor", "idempotency_key": "k"}
    for client in (stage.one, stage.other):
        stage.well(await client.call("session/inject_context", **told), "session/inject_context", injected=True)
    assert [each.text for each in await stage.world.service.inputs(session_id)] == ["it rains"]
    turn = stage.well(await stage.one.call(TURN, session_id=session_id, prompt="and?"), text="two", steps=1)
    assert turn.kinds == stage.surface.kinds([PLAIN[0], *STEERED])
    assert sorted(await _said(stage, session_id)) == ["and?", "hi", "it rains"]
    (taken,) = [each.event for each in await stage.world.log(session_id) if isinstance(each.event, InputTaken)]
    assert (taken.kind, taken.content, taken.source) == ("context", "it rains", "sensor")
