"""The life of sessions besides turns: found or not, retired, removed, loaded, after a restart."""

from functools import partial
from typing import Final

import trio

from tests.parity.outcome import Outcome, check_numbers
from tests.parity.stage import Stage, scenario
from tests.parity.surface import REPLAY, TURN
from tests.parity.world import Setting
from tests.support.asking import ask
from warren.base.errors import ErrorCode
from warren.base.principals import Principal
from warren.base.tenant_limits import TenantLimits
from warren.conversation import codec

UNKNOWN: Final = "0198a000-0000-7000-8000-00000000beef"
ABOUT_ONE: Final = (
    "session/read",
    "session/history",
    "session/context",
    "session/archive",
    "session/resume",
    "session/delete",
    "session/compact",
    TURN,
    "turn/interrupt",
    REPLAY,
)
NEEDS_STORE: Final = ("session/resume", "session/delete")
PRICED: Final = {"input_tokens": 9, "output_tokens": 5, "cost": "0.1250000000000000001"}
GONE: Final = ["stream_truncated", "turn_completed", "run_completed"]
THEN_SLOW: Final = Setting(({"text": "one"}, {"chunks": ["half ", "an answer"], "chunk_delay": 20}))
TWO: Final = Setting(({"text": "one"}, {"text": "two"}))


async def _ask(stage: Stage, operation: str, session_id: str) -> Outcome:
    more = {"prompt": "go"} if operation == TURN else {}
    return await stage.one.call(operation, session_id=session_id, **more)


def _expected(stage: Stage, operation: str) -> ErrorCode:
    """Return what is said of a session that nobody knows. ACP shows a conversation by loading it."""
    loads = operation in NEEDS_STORE or (operation == "session/history" and stage.surface.name == "acp")
    if loads and not stage.on("store"):
        return ErrorCode.SESSION_PERSISTENCE_DISABLED
    if operation == "session/compact" and not stage.on("compaction"):
        return ErrorCode.SESSION_COMPACTION_DISABLED
    return ErrorCode.SESSION_NOT_FOUND


@scenario(TURN, codes=[ErrorCode.SESSION_NOT_FOUND])
async def unknown_session(stage: Stage) -> None:
    """Every operation says that there is no such session, unless it could not be done to any."""
    stage.well(await stage.one.first_turn("hi"))
    for operation in ABOUT_ONE:
        deletes_what_is_gone = operation == "session/delete" and stage.on("store")
        swallowed = operation == "turn/interrupt" and (stage.surface.column == "acp" or stage.surface.per_process)
        if not stage.has(operation) or deletes_what_is_gone or swallowed:
            continue
        code = _expected(stage, operation)
        named = UNKNOWN if code is ErrorCode.SESSION_NOT_FOUND else None
        stage.refused(await _ask(stage, operation, UNKNOWN), code, session_id=named)


@scenario("session/archive", TURN, codes=[ErrorCode.SESSION_NOT_FOUND], setting=TWO)
async def archived(stage: Stage) -> None:
    """An archived session is hidden and cannot go on; with a store it stays readable. Archiving again is fine."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    stage.well(await _ask(stage, "session/archive", session_id), "session/archive", archived=True)
    stage.well(await stage.one.call("session/list"), "session/list", ids=[])
    stored = stage.on("store")
    refused = await _ask(stage, TURN, session_id)
    cause = "archived" if stored else None
    stage.refused(refused, ErrorCode.SESSION_NOT_FOUND, cause=cause, session_id=session_id)
    read = await _ask(stage, "session/read", session_id)
    history = await _ask(stage, "session/history", session_id)
    if stored:
        stage.well(read, "session/read", lifecycle="archived", message_count=2, last_assistant_text="one")
        stage.well(history, "session/history", said=[("user", "hi"), ("assistant", "one")])
        if stage.surface.lists_archived:
            everything = await stage.one.call("session/list", include_archived=True)
            stage.well(everything, "session/list", ids=[session_id])
        stage.well(await _ask(stage, "session/archive", session_id), "session/archive", archived=True)
    else:
        stage.refused(read, ErrorCode.SESSION_NOT_FOUND, session_id=session_id)
        stage.refused(history, ErrorCode.SESSION_NOT_FOUND, session_id=session_id)


@scenario(TURN, "session/list", clients=2, where="inside", setting=THEN_SLOW)
async def by_the_states_of_turns(stage: Stage) -> None:
    """A list of the sessions with a running turn has no others; without such a turn it is empty."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    if not stage.surface.lists_by_turn:
        return
    stage.well(await stage.other.call("session/list", turn_state="running"), "session/list", ids=[])
    async with trio.open_nursery() as nursery:
        slow = ask(nursery, partial(_ask, stage, TURN, session_id))
        await stage.one.begun()
        stage.well(await stage.other.call("session/list", turn_state="running"), "session/list", ids=[session_id])
        for state in ("parked", "waiting"):
            stage.well(await stage.other.call("session/list", turn_state=state), "session/list", ids=[])
        await stage.world.service.interrupt(session_id)
        await slow.value()


@scenario("session/context", TURN, setting=TWO)
async def the_context(stage: Stage) -> None:
    """It has the prompts and the answers of the turns so far, each with its tokens."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    seen = await _ask(stage, "session/context", session_id)
    stage.well(seen, "session/context", said=[("user", "hi"), ("assistant", "one")], summary=None)
    assert {each.name: each.count for each in seen.data["parts"]}.items() >= {"prompts": 1, "answers": 1}.items()
    assert seen.data["tokens"] == sum(each.tokens for each in seen.data["parts"]) > 0


@scenario("usage/get", TURN, setting=TWO)
async def the_usage(stage: Stage) -> None:
    """Both turns are in the report, by model and in its total, and what their price is nobody knows."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    stage.well(await stage.one.call(TURN, session_id=session_id, prompt="and again"))
    report = stage.well(await stage.one.call("usage/get", by="model"), "usage/get", count=1).data
    total, rows = (codec.to_data(report[part]) for part in ("total", "rows"))
    assert (total["turns"], total.get("cost")) == (2, None)
    assert total["unpriced_tokens"] == total["input_tokens"] + total["output_tokens"] > 0
    assert [{**row, "key": ""} for row in rows] == [{**total, "key": ""}]


@scenario("usage/get", TURN, setting=Setting(({"text": "one", "usage": PRICED},)))
async def the_cost(stage: Stage) -> None:
    """The report has the cost of both turns, to the digit."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    stage.well(await stage.one.call(TURN, session_id=session_id, prompt="and again"))
    report = stage.well(await stage.one.call("usage/get", by="model"), "usage/get", count=1).data
    total = codec.to_data(report["total"])
    assert (total["turns"], total["cost"], total["unpriced_tokens"]) == (2, "0.2500000000000000002", 0)


@scenario("tenants/list")
async def the_figures(stage: Stage) -> None:
    """They are those of the own tenant; all tenants are for those who have the scope."""
    stage.well(await stage.one.first_turn("hi"))
    (mine,) = stage.well(await stage.one.call("tenants/list"), "tenants/list", count=1).data["tenants"]
    assert (mine.tenant, mine.sessions, mine.running_turns, mine.limits) == ("default", 1, 0, TenantLimits())
    assert min(mine.tokens_per_day, mine.stored_bytes) > 0
    refused = await stage.one.call("tenants/list", all_tenants=True)
    stage.refused(refused, ErrorCode.PERMISSION_DENIED)


@scenario("audit/list", "session/archive")
async def the_audit(stage: Stage) -> None:
    """It says who has made and archived the session; all tenants are for those who have the scope."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    stage.well(await _ask(stage, "session/archive", session_id))
    page = stage.well(await stage.one.call("audit/list", session_id=session_id), "audit/list", damaged=()).data
    found = [(each.action, each.outcome, each.who, each.tenant, each.session_id) for each in page["entries"]]
    assert found == [(each, "done", "local", "default", session_id) for each in ("create", "archive")]
    rest = await stage.one.call("audit/list", session_id=session_id, cursor=page["cursor"])
    stage.well(rest, "audit/list", entries=(), cursor=page["cursor"])
    stage.refused(await stage.one.call("audit/list", all_tenants=True), ErrorCode.PERMISSION_DENIED)


@scenario(
    "session/list",
    codes=[ErrorCode.PERMISSION_DENIED],
    where="inside",
    setting=Setting(principal=Principal("acme", "ann", frozenset({"session:read"}))),
)
async def a_right_that_is_missing(stage: Stage) -> None:
    """A caller that may only read lists the sessions, and is refused what changes anything."""
    stage.refused(await stage.one.first_turn("hi"), ErrorCode.PERMISSION_DENIED)
    stage.well(await stage.one.call("session/list"), "session/list", ids=[])


@scenario("session/delete", TURN, needs=["store"], codes=[ErrorCode.SESSION_NOT_FOUND])
async def deleted(stage: Stage) -> None:
    """A deleted session is as one that never was."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    stage.well(await _ask(stage, "session/delete", session_id), "session/delete")
    for operation in ("session/read", "session/history", TURN, "session/archive"):
        if stage.has(operation):
            stage.refused(await _ask(stage, operation, session_id), ErrorCode.SESSION_NOT_FOUND, session_id=session_id)
    stage.well(await stage.one.call("session/list"), "session/list", ids=[])


async def _retire(stage: Stage, operation: str, session_id: str, following: trio.Event) -> None:
    await following.wait()
    stage.well(await _ask(stage, operation, session_id), operation)


@scenario(REPLAY, "session/archive", "session/delete", clients=2, where="inside")
async def the_end_of_a_session_that_is_followed(stage: Stage) -> None:
    """Whoever follows a session that another client retires gets all of it, and is told that there is no more."""
    for operation in ("session/archive", "session/delete")[: 1 + stage.on("store")]:
        first = stage.well(await stage.one.first_turn("hi"))
        session_id, following = first.data["session_id"], trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_retire, stage, operation, session_id, following)
            with trio.fail_after(10):
                followed = await stage.other.to_the_end(session_id, 0, following)
        assert list(followed.events) == list(first.events)
        check_numbers(followed.seqs)


@scenario("session/delete", lacks=["store"], codes=[ErrorCode.SESSION_PERSISTENCE_DISABLED], where="inside")
async def nothing_stored_to_delete(stage: Stage) -> None:
    """Without a store the operation is refused by its capability, and the session goes on."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    stage.refused(await _ask(stage, "session/delete", session_id), ErrorCode.SESSION_PERSISTENCE_DISABLED)
    stage.well(await _ask(stage, TURN, session_id), text="hello there")


@scenario("session/resume", setting=TWO, where="inside")
async def resumed(stage: Stage) -> None:
    """Loading runs no turn and shows what reading shows."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    resumed = stage.well(await _ask(stage, "session/resume", session_id))
    if stage.has("session/read"):
        view = await stage.world.service.read(session_id)
        stage.same(resumed, "session/resume", view)
        assert (await _ask(stage, "session/read", session_id)).data == resumed.data
    stage.well(await _ask(stage, TURN, session_id), text="two")


@scenario("session/history", TURN, needs=["store"], setting=TWO)
async def restart(stage: Stage) -> None:
    """After a restart the session goes on under its id, with all that was said."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    await stage.restart()
    if stage.has("session/list"):
        stage.well(await stage.one.call("session/list"), "session/list", ids=[session_id])
    history = await _ask(stage, "session/history", session_id)
    stage.well(history, "session/history", said=[("user", "hi"), ("assistant", "one")])
    stage.well(await _ask(stage, TURN, session_id), text="two")
    if stage.has(REPLAY):
        log = await stage.world.log(session_id)
        assert len((await stage.one.replay(session_id, 0, log[-1].seq)).events) == 12


@scenario(TURN, lacks=["store"], codes=[ErrorCode.SESSION_NOT_FOUND], where="inside")
async def restart_without_a_store(stage: Stage) -> None:
    """After it nothing is known; what would need a store says so."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    await stage.restart()
    for operation in (
        "session/read",
        "session/history",
        "session/context",
        TURN,
        "session/resume",
        "session/delete",
        REPLAY,
    ):
        if stage.has(operation):
            stage.refused(await _ask(stage, operation, session_id), _expected(stage, operation))
    if stage.has(REPLAY):
        replayed = await stage.one.call(REPLAY, session_id=session_id, after_seq=0)
        stage.refused(replayed, ErrorCode.SESSION_PERSISTENCE_DISABLED)


@scenario(REPLAY, TURN, lacks=["store"], where="inside", setting=Setting(({"text": "one"},), event_log=2))
async def events_that_memory_no_longer_keeps(stage: Stage) -> None:
    """A reader that comes too late for the oldest events gets one marker in their place, then those that are kept."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    for after_seq in (0, 2):
        late = await stage.one.replay(session_id, after_seq, 6)
        marker = {"type": "stream_truncated", "dropped": 4 - after_seq, "resume_after": after_seq}
        kept = [(after_seq, after_seq), (5, 5), (6, 6)]
        assert (late.code, [event["type"] for event in late.events], list(late.seqs)) == (None, GONE, kept)
        assert late.events[0] == marker
    assert [seq for seq, _ in (await stage.one.replay(session_id, 4, 6)).seqs] == [5, 6]


@scenario(calls=False, lacks=["store"], codes=[ErrorCode.SESSION_PERSISTENCE_DISABLED], where="processes")
async def processes_without_a_store(stage: Stage) -> None:
    """If each call is a process, all but a first turn needs a store and says so."""
    stage.well(await stage.one.first_turn("hi"))
    for operation in (TURN, "session/read", "session/history", "session/archive", "session/delete", "session/list"):
        more = {} if operation == "session/list" else {"session_id": UNKNOWN}
        more |= {"prompt": "go"} if operation == TURN else {}
        refused = await stage.one.call(operation, **more)
        stage.refused(refused, ErrorCode.SESSION_PERSISTENCE_DISABLED)
