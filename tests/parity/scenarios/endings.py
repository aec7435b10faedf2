"""Turns that end otherwise: every way, as the contract has it on each surface."""

from functools import partial
from typing import Final

import apsw
import trio

from tests.parity.outcome import Outcome
from tests.parity.stage import Stage, scenario
from tests.parity.surface import OPTIONS, TURN
from tests.parity.world import Setting
from tests.support.asking import ask
from tests.support.crashing import crash
from tests.support.waiting import turn_awaited
from warren.base.errors import AgentError, ErrorCode
from warren.conversation.budget import Budget
from warren.conversation.events import TERMINAL, RunStarted
from warren.storage.operations import Commit

SLOW: Final = {"chunks": ["half ", "an answer"], "chunk_delay": 20}
CUT: Final = ("run_started", "turn_started", "text_delta", "run_failed")
NO_SUCH: Final = {"id": "call-1", "name": "no_such_tool", "args": {}}
EXHAUSTED: Final = (
    "run_started",
    "turn_started",
    "tool_call_requested",
    "tool_result_received",
    "turn_completed",
    "budget_warning",
    "run_failed",
)
HELLO_THEN_SLOW: Final = Setting(({"text": "hello"}, SLOW, {"text": "hello again"}))


async def _go(stage: Stage, session_id: str) -> Outcome:
    return await stage.one.call(TURN, session_id=session_id, prompt="go")


@scenario(TURN, "turn/interrupt", codes=[ErrorCode.AGENT_ERROR], setting=HELLO_THEN_SLOW)
async def interrupted_turn(stage: Stage) -> None:
    """The interrupt is answered once the turn has ended. Its caller is told; what was said is kept."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    async with trio.open_nursery() as nursery:
        slow = ask(nursery, _go, stage, session_id)
        await stage.one.begun()
        stage.well(await stage.one.call("turn/interrupt", session_id=session_id), "turn/interrupt")
        ended = await slow.value()
    stage.refused(ended, ErrorCode.AGENT_ERROR, cause="cancelled", session_id=session_id)
    await stage.heard(ended, CUT, session_id)
    assert ended.data.get("text", "half ") == "half "
    stage.well(await _go(stage, session_id), text="hello again")


@scenario("turn/interrupt", codes=[ErrorCode.SESSION_NOT_RUNNING], where="inside")
async def nothing_to_interrupt(stage: Stage) -> None:
    """Without a turn there is a code for it, and the next turn does not feel it."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    refused = await stage.one.call("turn/interrupt", session_id=session_id)
    stage.refused(refused, ErrorCode.SESSION_NOT_RUNNING, session_id=session_id)
    stage.well(await _go(stage, session_id), text="hello there")


@scenario("turn/wait", codes=[ErrorCode.SESSION_NOT_RUNNING], where="inside")
async def nothing_to_wait_for(stage: Stage) -> None:
    """Without a turn that runs or waits there is a code for it, and the next turn does not feel it."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    with trio.fail_after(5):
        refused = await stage.one.call("turn/wait", session_id=session_id)
    stage.refused(refused, ErrorCode.SESSION_NOT_RUNNING, session_id=session_id)
    stage.well(await _go(stage, session_id), text="hello there")


@scenario(TURN, "turn/wait", codes=[ErrorCode.AGENT_ERROR], clients=2, where="inside", setting=HELLO_THEN_SLOW)
async def waited_for_to_its_error(stage: Stage) -> None:
    """Whoever waits for a turn that fails gets its error."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    async with trio.open_nursery() as nursery:
        slow = ask(nursery, _go, stage, session_id)
        await stage.one.begun()
        waits = ask(nursery, partial(stage.other.call, "turn/wait", session_id=session_id))
        await turn_awaited(stage.world.service, session_id)
        await stage.world.service.interrupt(session_id)
        stage.refused(await waits.value(), ErrorCode.AGENT_ERROR, cause="cancelled", session_id=session_id)
        stage.refused(await slow.value(), ErrorCode.AGENT_ERROR, cause="cancelled", session_id=session_id)


@scenario(TURN, codes=[ErrorCode.SESSION_BUSY], clients=2, where="inside", setting=HELLO_THEN_SLOW)
async def busy(stage: Stage) -> None:
    """A second turn is refused at once, also a compaction where there are some; the first one does not feel it."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    async with trio.open_nursery() as nursery:
        slow = ask(nursery, _go, stage, session_id)
        await stage.one.begun()
        with trio.fail_after(5):
            refused = await stage.other.call(TURN, session_id=session_id, prompt="me too")
            stage.refused(refused, ErrorCode.SESSION_BUSY, retryable=True, session_id=session_id)
            if stage.on("compaction") and stage.has("session/compact"):
                refused = await stage.other.call("session/compact", session_id=session_id)
                stage.refused(refused, ErrorCode.SESSION_BUSY, retryable=True, session_id=session_id)
        await stage.world.service.interrupt(session_id)
        stage.refused(await slow.value(), ErrorCode.AGENT_ERROR, cause="cancelled")


@scenario(
    TURN,
    codes=[ErrorCode.CAPACITY_EXCEEDED],
    clients=2,
    where="inside",
    setting=Setting(({"text": "hello"}, SLOW), max_sessions=1),
)
async def no_capacity(stage: Stage) -> None:
    """As many turns run as may: another session's is refused, nothing is queued, and no session is left behind."""
    ids = [stage.well(await stage.one.first_turn("hi")).data["session_id"] for _ in range(2)]
    async with trio.open_nursery() as nursery:
        slow = ask(nursery, _go, stage, ids[0])
        await stage.one.begun()
        refused = await stage.other.call(TURN, session_id=ids[1], prompt="me too")
        stage.refused(refused, ErrorCode.CAPACITY_EXCEEDED, retryable=True)
        if stage.surface.name != "acp":  # it makes sessions without a turn
            refused = await stage.other.first_turn("me too")
            stage.refused(refused, ErrorCode.CAPACITY_EXCEEDED, retryable=True)
        assert len((await stage.world.service.list()).sessions) == 2
        await stage.world.service.interrupt(ids[0])
        await slow.value()


@scenario(
    TURN,
    codes=[ErrorCode.PROVIDER_ERROR],
    setting=Setting(({"text": "hello"}, {"chunks": ["half "], "error": {"message": "no more", "cause": "refused"}})),
)
async def provider_error(stage: Stage) -> None:
    """The provider's own cause, and whether it is worth another try, are the caller's to see."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    failed = await _go(stage, session_id)
    stage.refused(failed, ErrorCode.PROVIDER_ERROR, cause="refused", session_id=session_id)
    assert failed.data["text"] == "half "
    await stage.heard(failed, CUT, session_id)


@scenario(
    TURN,
    codes=[ErrorCode.PROVIDER_ERROR],
    setting=Setting(({"text": "hello"}, {"text": "there"}, {"error": {"message": "no more", "cause": "refused"}})),
)
async def ends_name_their_events(stage: Stage) -> None:
    """A result, and the error of a turn that had begun, have the numbers of the turn's first and last event."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    good = await _go(stage, session_id)
    failed = await _go(stage, session_id)
    stage.refused(failed, ErrorCode.PROVIDER_ERROR, cause="refused", session_id=session_id)
    log = await stage.world.log(session_id)
    firsts = [each.first_seq or each.seq for each in log if isinstance(each.event, RunStarted)]
    lasts = [each.seq for each in log if isinstance(each.event, TERMINAL)]
    assert len(firsts) == len(lasts) == 3
    stage.well(good, first_seq=firsts[1], last_seq=lasts[1])
    if "first_seq" not in stage.surface.unseen.get(TURN, ()):
        assert (failed.data.get("first_seq"), failed.data.get("last_seq")) == (firsts[2], lasts[2])


@scenario(
    codes=[ErrorCode.PROVIDER_ERROR],
    calls=False,
    setting=Setting(({"error": {"message": "overloaded", "retryable": True, "retry_after": 0.01}},)),
)
async def first_turn_fails(stage: Stage) -> None:
    """The error names the new session: it exists, and the error says that another try may help."""
    failed = await stage.one.first_turn("hi")
    stage.refused(failed, ErrorCode.PROVIDER_ERROR, cause="scripted", retryable=True)
    assert failed.session_id is not None
    if stage.on("store"):
        async with stage.world.truth() as service:
            assert (await service.read(failed.session_id)).state.message_count == 1


@scenario(
    codes=[ErrorCode.BUDGET_EXHAUSTED],
    calls=False,
    setting=Setting(({"tool_calls": [NO_SUCH]},), budget=Budget(max_steps=1)),
)
async def no_more_steps(stage: Stage) -> None:
    """The limit of steps ends the turn; the events say so too."""
    failed = await stage.one.first_turn("use it")
    stage.refused(failed, ErrorCode.BUDGET_EXHAUSTED, cause="steps")
    known = [kind for kind in EXHAUSTED if kind != "budget_warning" or stage.surface.name != "meerkat"]  # of steps
    assert failed.kinds == stage.surface.kinds(known)


@scenario(
    OPTIONS,
    TURN,
    codes=[ErrorCode.BUDGET_EXHAUSTED],
    setting=Setting(({"text": "hello", "usage": {"input_tokens": 9}},)),
)
async def no_more_tokens(stage: Stage) -> None:
    """A session's own budget is over all its turns: the second one finds it used up."""
    made = stage.well(await stage.one.first_turn("hi", budget={"max_tokens": 5}))
    refused = await stage.one.call(TURN, session_id=made.data["session_id"], prompt="and now?")
    stage.refused(refused, ErrorCode.BUDGET_EXHAUSTED, cause="tokens")


@scenario(TURN, codes=[ErrorCode.SESSION_STORE_ERROR], needs=["store"], where="inside")
async def store_refuses(stage: Stage) -> None:
    """A turn that cannot be stored is an error which has the answer; the session stands where it stood, and goes on."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    stage.world.faults.refuse_kinds, stage.world.faults.refuse = (Commit,), apsw.FullError("no room")
    failed = await _go(stage, session_id)
    stage.refused(failed, ErrorCode.SESSION_STORE_ERROR, cause=failed.cause, retryable=True, session_id=session_id)
    assert failed.data["text"] == "hello there"
    assert failed.kinds[-1:] == stage.surface.kinds(["run_failed"]) or stage.surface.name == "acp"
    stage.world.faults.refuse = None
    stage.well(await _go(stage, session_id), text="hello there")
    assert (await stage.world.service.read(session_id)).state.message_count == 4


@scenario(TURN, codes=[ErrorCode.SESSION_STORE_ERROR], needs=["store"], setting=HELLO_THEN_SLOW)
async def held_by_another_process(stage: Stage) -> None:
    """A session that runs a turn in another process is refused with the name of who has it."""
    async with stage.world.open() as elsewhere, trio.open_nursery() as nursery:
        session_id = (await elsewhere.create_session("hi")).session_id
        begun = trio.Event()
        slow = ask(nursery, partial(elsewhere.start_turn, session_id, "go", on_event=lambda _: begun.set()))
        await begun.wait()
        refused = await _go(stage, session_id)
        stage.refused(refused, ErrorCode.SESSION_STORE_ERROR, cause="leased", retryable=True, session_id=session_id)
        assert refused.data["holder"]
        assert refused.events == []
        await elsewhere.interrupt(session_id)
        await slow.failure(AgentError)


@scenario(TURN, codes=[ErrorCode.AGENT_ERROR], where="inside", setting=HELLO_THEN_SLOW)
async def crash_in_the_session(stage: Stage) -> None:
    """The caller that waits is told of the crash; the session stays as it was after its last turn."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    async with trio.open_nursery() as nursery:
        slow = ask(nursery, _go, stage, session_id)
        await stage.one.begun()
        crash(stage.world.service, session_id)
        crashed = await slow.value()
    stage.refused(crashed, ErrorCode.AGENT_ERROR, cause="crash", session_id=session_id)
    assert (await stage.world.service.read(session_id)).state.message_count == 2


@scenario(TURN, codes=[ErrorCode.AGENT_ERROR], clients=2, where="inside", setting=HELLO_THEN_SLOW)
async def shutting_down(stage: Stage) -> None:
    """Once the runtime is about to end new turns are refused, and what runs goes on."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    another = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    async with trio.open_nursery() as nursery:
        slow = ask(nursery, _go, stage, session_id)
        await stage.one.begun()
        nursery.start_soon(stage.world.service.drain)
        await trio.testing.wait_all_tasks_blocked(0.01)
        refused = await stage.other.call(TURN, session_id=another, prompt="me too")
        stage.refused(refused, ErrorCode.AGENT_ERROR, cause="shutting_down", retryable=True)
        await stage.world.service.interrupt(session_id)
        stage.refused(await slow.value(), ErrorCode.AGENT_ERROR, cause="cancelled", session_id=session_id)
