"""Sessions that begin with the conversation of another one, and labels that change."""

from typing import Final

from tests.parity.stage import Stage, scenario
from tests.parity.surface import TURN
from tests.parity.world import Setting
from warren.base.errors import ErrorCode
from warren.conversation.records import Parent

UNKNOWN: Final = "0198a000-0000-7000-8000-00000000beef"
TWO: Final = Setting(({"text": "one"}, {"text": "two"}))


@scenario("session/fork", TURN, codes=[ErrorCode.SESSION_NOT_FOUND], setting=TWO)
async def forked(stage: Stage) -> None:
    """A fork has the conversation so far and goes on by itself; of an unknown session there is none."""
    session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
    made = await stage.one.call("session/fork", session_id=session_id)
    parent = Parent(session_id, 2)
    stage.well(made, "session/fork", message_count=2, last_assistant_text="one", parent=parent, total_tokens=0)
    fork_id = made.data["session_id"]
    assert fork_id != session_id
    said = [("user", "hi"), ("assistant", "one"), ("user", "go"), ("assistant", "two")]
    for each in (session_id, fork_id):
        stage.well(await stage.one.call(TURN, session_id=each, prompt="go"), text="two")
        if stage.has("session/history") and (stage.on("store") or stage.surface.column != "acp"):
            stage.well(await stage.one.call("session/history", session_id=each), "session/history", said=said)
    refused = await stage.one.call("session/fork", session_id=UNKNOWN)
    stage.refused(refused, ErrorCode.SESSION_NOT_FOUND, session_id=UNKNOWN)


@scenario("session/fork", "session/label", TURN, setting=TWO)
async def forked_early_and_labelled(stage: Stage) -> None:
    """A fork ends where it is told to; its labels are added to those of the other, and can be changed as its title."""
    session_id = stage.well(await stage.one.first_turn("hi", labels={"team": "red", "a": "b"})).data["session_id"]
    made = await stage.one.call("session/fork", session_id=session_id, at=1, labels={"team": "blue"})
    stage.well(made, "session/fork", message_count=1, labels={"team": "blue", "a": "b"}, parent=Parent(session_id, 1))
    fork_id = made.data["session_id"]
    changed = await stage.one.call("session/label", session_id=fork_id, labels={"a": None, "c": "d"}, title="Blue")
    stage.well(changed, "session/label", labels={"team": "blue", "c": "d"}, title="Blue", session_id=fork_id)
    stage.well(await stage.one.call("session/list", labels={"c": "d"}), "session/list", ids=[fork_id])
    stage.well(await stage.one.call("session/read", session_id=session_id), labels={"team": "red", "a": "b"})
