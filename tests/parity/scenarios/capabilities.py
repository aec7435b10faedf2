"""Compaction and memory, in the builds that have them and in those that do not."""

from typing import Final

from tests.parity.outcome import Outcome
from tests.parity.scenarios.turns import PLAIN, REFUSED_TOOL
from tests.parity.stage import Stage, scenario
from tests.parity.surface import COMPACTION_OPTIONS, TURN
from tests.parity.world import Setting
from warren.base.errors import ErrorCode

WORDS: Final = "my boat is called Ottilie " * 60
ANSWER: Final = "a fine name. " * 150
LARGE: Final = {"chunks": [ANSWER], "usage": {"input_tokens": 5_000, "output_tokens": 500}}
SUMMARY: Final = {"chunks": ["SECRET ", "summary"], "usage": {"input_tokens": 100, "output_tokens": 10}}
NO_SUMMARY: Final = {"chunks": ["all ", "right"], "error": {"message": "no summaries today", "times": 1}}
"""As a summary it fails, as an answer it does not."""
COMPACTED: Final = (PLAIN[0], "compaction_started", "compaction_completed", *PLAIN[1:])
NOT_COMPACTED: Final = (PLAIN[0], "compaction_started", "compaction_failed", *PLAIN[1:])
RECALL: Final = {"id": "call-1", "name": "memory_search", "args": {"query": "boat"}}
RECALLED: Final = (
    *REFUSED_TOOL[:3],
    "tool_execution_started",
    "tool_execution_completed",
    *REFUSED_TOOL[3:],
)


def _hides_the_summary(outcome: Outcome) -> None:
    assert "SECRET" not in repr(outcome.events)


@scenario(TURN, needs=["compaction"], setting=Setting((LARGE, SUMMARY), threshold=1_000))
async def compacting_turn(stage: Stage) -> None:
    """The caller is told of the compaction between the turn's beginning and its first step, and never of its words."""
    session_id = stage.well(await stage.one.first_turn(WORDS)).data["session_id"]
    turn = await stage.one.call(TURN, session_id=session_id, prompt="go on")
    stage.well(turn, text=ANSWER, steps=1, input_tokens=5_100, output_tokens=510)
    _hides_the_summary(turn)
    await stage.heard(turn, COMPACTED, session_id)
    if stage.has("session/read"):
        view = await stage.one.call("session/read", session_id=session_id)
        stage.well(view, "session/read", compactions=1, message_count=4, total_tokens=11_110)
    history = await stage.one.call("session/history", session_id=session_id)
    said = [("user", WORDS), ("assistant", ANSWER), ("user", "go on"), ("assistant", ANSWER)]
    stage.well(history, "session/history", said=said)


@scenario(
    TURN,
    needs=["compaction"],
    setting=Setting((LARGE, NO_SUMMARY), threshold=1_000),
)
async def failed_compaction(stage: Stage) -> None:
    """It is told with its reason, and the turn goes on."""
    session_id = stage.well(await stage.one.first_turn(WORDS)).data["session_id"]
    turn = await stage.one.call(TURN, session_id=session_id, prompt="go on")
    stage.well(turn, text="all right", steps=1, stop_reason="end_turn")
    await stage.heard(turn, NOT_COMPACTED, session_id)
    told = [event for event in turn.events if event["type"] == "compaction_failed"]
    for event in told:
        assert (event["error"], event["reason"]) == ("no summaries today", "provider_error")


@scenario("session/compact", TURN, needs=["compaction"], setting=Setting((LARGE, SUMMARY)))
async def compaction_by_hand(stage: Stage) -> None:
    """Whoever asks for it gets what it has done."""
    session_id = stage.well(await stage.one.first_turn(WORDS)).data["session_id"]
    done = await stage.one.call("session/compact", session_id=session_id, instructions="keep the names")
    stage.well(done, "session/compact", messages_before=2, messages_after=1, summary_tokens=10)
    if stage.has("session/read"):
        stage.well(await stage.one.call("session/read", session_id=session_id), "session/read", compactions=1)


@scenario(
    "session/compact", TURN, needs=["compaction"], codes=[ErrorCode.AGENT_ERROR], setting=Setting(({"text": "hi"},))
)
async def nothing_to_compact(stage: Stage) -> None:
    """A compaction by hand that fails is an error with its reason."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    failed = await stage.one.call("session/compact", session_id=session_id)
    stage.refused(failed, ErrorCode.AGENT_ERROR, cause="compaction_failed", session_id=session_id)
    assert failed.data["reason"]


@scenario("session/compact", TURN, lacks=["compaction"], codes=[ErrorCode.SESSION_COMPACTION_DISABLED])
async def compaction_is_off(stage: Stage) -> None:
    """Asked for by hand it is refused by its capability."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    refused = await stage.one.call("session/compact", session_id=session_id)
    stage.refused(refused, ErrorCode.SESSION_COMPACTION_DISABLED)


@scenario(COMPACTION_OPTIONS, lacks=["compaction"], codes=[ErrorCode.SESSION_COMPACTION_DISABLED], calls=False)
async def compaction_asked_for_and_off(stage: Stage) -> None:
    """Its settings in a request are refused by the capability, and nothing is made."""
    refused = await stage.one.first_turn("hi", compaction={"auto_compact_threshold": 500})
    stage.refused(refused, ErrorCode.SESSION_COMPACTION_DISABLED)
    if not stage.surface.per_process or stage.on("store"):
        stage.well(await stage.one.call("session/list"), "session/list", ids=[])


@scenario("memory/search", TURN, needs=["memory", "compaction"], setting=Setting((LARGE, SUMMARY), threshold=1_000))
async def search_of_what_was_compacted(stage: Stage) -> None:
    """A message that no model sees any more is found by its words, and by nothing else."""
    session_id = stage.well(await stage.one.first_turn(WORDS)).data["session_id"]
    stage.well(await stage.one.call(TURN, session_id=session_id, prompt="go on"))
    for query, expected in (("Ottilie", [(WORDS, session_id, 1)]), ("xylophone", [])):
        found = await stage.one.call("memory/search", query=query, session_id=session_id)
        stage.well(found, "memory/search", found=expected)
        if stage.surface.name == "acp":
            assert ("Ottilie" in found.data["words"]) == bool(expected)


@scenario(
    "memory/search",
    "memory/forget",
    TURN,
    needs=["memory", "compaction"],
    setting=Setting((LARGE, SUMMARY), threshold=1_000),
    codes=[ErrorCode.SESSION_NOT_FOUND],
)
async def what_is_forgotten_is_found_no_more(stage: Stage) -> None:
    """A turn is forgotten once, and then all of the session; an unknown session is not found."""
    session_id = stage.well(await stage.one.first_turn(WORDS)).data["session_id"]
    stage.well(await stage.one.call(TURN, session_id=session_id, prompt="go on"))
    for which, count in (({"turn": 9}, 0), ({"turn": 1, "text_id": "0"}, 1), ({}, 1), ({}, 0)):
        found = await stage.one.call("memory/forget", session_id=session_id, **which)
        stage.well(found, "memory/forget", forgotten=count)
        if count:
            found = await stage.one.call("memory/search", query="Ottilie", session_id=session_id)
            stage.well(found, "memory/search", found=[])
    refused = await stage.one.call("memory/forget", session_id="nobody")
    stage.refused(refused, ErrorCode.SESSION_NOT_FOUND)


@scenario(TURN, needs=["memory"], setting=Setting(({"text": "hello"}, {"tool_calls": [RECALL]}, {"text": "nothing"})))
async def model_searches_the_memory(stage: Stage) -> None:
    """The memory's tool is offered where there is one, and its call is told as any other."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    turn = await stage.one.call(TURN, session_id=session_id, prompt="what is my boat called?")
    stage.well(turn, text="nothing", steps=2, tool_calls=1)
    await stage.heard(turn, RECALLED, session_id)


@scenario("memory/search", lacks=["memory"], codes=[ErrorCode.SESSION_MEMORY_DISABLED], where="inside")
async def memory_is_off(stage: Stage) -> None:
    """A search is refused by its capability, of a session and of the project."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    refused = await stage.one.call("memory/search", query="boat", session_id=session_id)
    stage.refused(refused, ErrorCode.SESSION_MEMORY_DISABLED)
    if "memory/forget" in stage.surface.can:
        refused = await stage.one.call("memory/forget", session_id=session_id)
        stage.refused(refused, ErrorCode.SESSION_MEMORY_DISABLED)
