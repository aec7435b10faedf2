"""Sessions that work for other sessions, as programs make them."""

from typing import Final

import trio

from tests.parity.stage import Stage, scenario
from tests.parity.surface import CREATE
from tests.parity.world import Setting
from warren.base.errors import ErrorCode

UNKNOWN: Final = "0198a000-0000-7000-8000-00000000beef"
ASKED: Final = {"prompt": "dig", "title": "The west burrow", "tools": [], "budget": {"max_steps": 3}}


@scenario(
    "session/delegate", "session/list", CREATE, codes=[ErrorCode.SESSION_NOT_FOUND], setting=Setting(({"text": "dug"},))
)
async def delegated(stage: Stage) -> None:
    """The child works for its parent, once for each key; the parent stays as it is."""
    service = stage.world.service
    session_id = str(stage.well(await stage.one.call(CREATE, prompt=None)).data["session_id"])
    asked = {**ASKED, "session_id": session_id, "idempotency_key": "k"}
    child = stage.well(await stage.one.call("session/delegate", **asked), "session/delegate").data["session_id"]
    assert child != session_id
    while (made := (await service.read(child)).state).last_assistant_text is None:  # noqa: ASYNC110 - no event is sure
        await trio.sleep(0.05)
    assert (made.last_assistant_text, made.title, made.delegated_by, made.depth) == (
        "dug",
        ASKED["title"],
        session_id,
        1,
    )
    stage.well(await stage.one.call("session/delegate", **asked), "session/delegate", session_id=child)
    stage.well(await stage.one.call("session/list", delegated_by=session_id), "session/list", ids=[child])
    assert (await service.read(session_id)).state.message_count == 0
    unknown = await stage.one.call("session/delegate", session_id=UNKNOWN, prompt="dig")
    stage.refused(unknown, ErrorCode.SESSION_NOT_FOUND, session_id=UNKNOWN)
