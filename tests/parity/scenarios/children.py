"""Sessions that work for other sessions, as programs and commands make them."""

from typing import Final

from tests.parity.stage import Stage, scenario
from tests.parity.surface import CREATE
from tests.parity.world import Setting
from warren.base.errors import ErrorCode
from warren.conversation.views import ChildCount

UNKNOWN: Final = "0198a000-0000-7000-8000-00000000beef"
ASKED: Final = {"prompt": "dig", "title": "The west burrow", "budget": {"max_steps": 3}}


@scenario(
    *("session/delegate", "turn/wait", "session/read", "session/list", CREATE),
    codes=[ErrorCode.SESSION_NOT_FOUND],
    setting=Setting(({"text": "dug"},)),
)
async def delegated(stage: Stage) -> None:
    """The child works for its parent, once for each key, and each wait has the answer; the parent stays as it is."""
    session_id = str(stage.well(await stage.one.call(CREATE, prompt="hello")).data["session_id"])
    before = stage.well(await stage.one.call("session/read", session_id=session_id, children=True), "session/read").data
    assert before["children"] is None
    asked = {**ASKED, "session_id": session_id, "idempotency_key": "k"}
    child = stage.well(await stage.one.call("session/delegate", **asked), "session/delegate").data["session_id"]
    assert child != session_id
    for _ in range(2):  # the work has ended before the second wait at the latest
        stage.well(await stage.one.call("turn/wait", session_id=child), "turn/wait", session_id=child, text="dug")
    made = await stage.one.call("session/read", session_id=child)
    stage.well(made, "session/read", title=ASKED["title"], delegated_by=session_id, depth=1, last_assistant_text="dug")
    stage.well(await stage.one.call("session/delegate", **asked), "session/delegate", session_id=child)
    stage.well(await stage.one.call("session/list", delegated_by=session_id), "session/list", ids=[child])
    after = await stage.one.call("session/read", session_id=session_id, children=True)
    assert after.data["children"] == ChildCount(1, 0)
    stage.well(after, "session/read", message_count=before["message_count"], updated_at=before["updated_at"])
    unknown = await stage.one.call("session/delegate", session_id=UNKNOWN, prompt="dig")
    stage.refused(unknown, ErrorCode.SESSION_NOT_FOUND, session_id=UNKNOWN)
